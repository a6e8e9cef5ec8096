"""Scenes of slowness for the diagnosis, each with a verdict that was written before any diagnosis saw it.

    for scene in scenes("tuning"):
        verdict = scene.truth.verdict(diagnose(scene.evidence).regimes)

A scene has half an hour of a healthy service and a quarter of an hour of trouble: one cause or two change the service in between.
The simulated service knows nothing of the diagnosis; only the names that it can give are used here, in the sense of their texts.
Severity rises until the SLO's quantile is clearly worse than before, so some scenes barely breach and others strongly.
"""

import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.random import Generator

from bench.independent.causes_catalogue import CAUSES, PAIRS, UNANSWERED, Case, Cause, Truth, joint_truth, signal_values
from bench.independent.causes_engines import KINDS, Half, Wishes, healthy_service
from bench.independent.causes_prober import INTERVAL_S, PRODUCT_NAMES
from bench.independent.causes_service import Record, as_seen, capacity_per_s, mean_kv_tokens, observe
from bench.independent.causes_situation import Situation, Window
from prober.features.diagnosis.clues import Symptoms
from prober.features.diagnosis.window import Hardware, window_features

HEALTHY_S, TROUBLE_S = 1800.0, 900.0
TRIAL_S = 400.0  # of the windows with which severity is chosen
SINGLES_PER_CAUSE = 3
SCENES_PER_PAIR = 3
MIN_RISE = 1.15  # of the SLO's quantile, else the scene is no breach
MAX_UNANSWERED_SHARE = 0.25
# Of probes without an answer in time; from there on it is true, and no answer, that the service fails.
FAILING_SHARE = 0.02
DRAWS = 20  # of engine and users, until one is slow enough to breach


@dataclass(frozen=True, slots=True)
class Scene:
    """Two windows of observations and the truth.

    breached: {signal: threshold in s} of the breached SLOs
    hardware: of the engine, if the prober was told
    page: name of the engine's page, None if the prober reads none
    """

    name: str
    truth: Truth
    healthy: Window
    trouble: Window
    breached: Mapping[str, float]
    hardware: Hardware | None
    page: str | None

    @property
    def evidence(self) -> Symptoms:
        """The windows as input of a diagnosis."""
        before, now = (
            window_features(window.probes, window.readings, window.devices, hardware=self.hardware)
            for window in (self.healthy, self.trouble)
        )
        return Symptoms(now=now, before=before, breached=self.breached, engine=self.page)


def scenes(half: Half) -> Iterator[Scene]:
    """All scenes of a half: those of one cause, then those of two."""
    for name in CAUSES:
        for index in range(SINGLES_PER_CAUSE):
            yield scene(half, (name,), index)
    for pair in PAIRS[half]:
        for index in range(SCENES_PER_PAIR):
            yield scene(half, pair, index)


def scene(half: Half, names: tuple[str, ...], index: int) -> Scene:
    """A scene of some causes of `CAUSES`.

    Raises:
        LookupError: no draw of engine and users breaches
    """
    name = f"{half}/{'+'.join(names)}/{index}"
    causes = tuple(CAUSES[cause] for cause in names)
    kinds = KINDS[half]
    for draw in range(DRAWS):
        rng = np.random.default_rng([zlib.crc32(name.encode()), draw])
        kind = kinds[(index + zlib.crc32("+".join(names).encode()) + draw) % len(kinds)]
        before, hardware = healthy_service(kind, joint_wishes([cause.wishes for cause in causes]), rng)
        case = Case(rng, mean_kv_tokens(before, rng), capacity_per_s(before, rng))
        severities = [severity_of(before, cause, case, partial(_rises, cause)) for cause in causes]
        after = before
        for cause, severity in zip(causes, severities, strict=True):
            if severity is not None:
                after = cause.apply(after, severity, case)
        if None in severities:
            continue
        record = observe(before, after, HEALTHY_S, TROUBLE_S, rng)
        is_true = len(causes) > 1 or causes[0].acts(record, after)
        if not is_true or unanswered_share(record.trouble) > MAX_UNANSWERED_SHARE:
            continue
        breached = {
            signal: threshold
            for cause in causes
            for signal in cause.signals
            if (threshold := _threshold(record, signal, cause.quantile, rng)) is not None
        }
        if breached:
            machine, truth = before.machine, joint_truth(causes, before.machine, record.healthy)
            if unanswered_share(record.trouble) > FAILING_SHARE:
                truth = replace(truth, true=truth.true | {"failing"})
            return Scene(
                name=name,
                truth=truth,
                healthy=as_seen(record.healthy, machine),
                trouble=as_seen(record.trouble, machine),
                breached=breached,
                hardware=hardware if rng.random() < 0.65 else None,
                page=PRODUCT_NAMES.get(machine.page, machine.page) if machine.page else None,
            )
    raise LookupError(f"{name}: no breach in {DRAWS} draws")


def joint_wishes(wishes: Sequence[Wishes]) -> Wishes:
    """Wishes of all causes. Of ranges the one with the lowest upper end holds, since it protects a cause from a side effect."""
    batches = {wish.max_batch for wish in wishes} - {Wishes().max_batch} or {Wishes().max_batch}
    return Wishes(
        replicas=max(wish.replicas for wish in wishes),
        has_prefix_cache=any(wish.has_prefix_cache for wish in wishes),
        has_drafts=any(wish.has_drafts for wish in wishes),
        has_front=any(wish.has_front for wish in wishes),
        has_pools=any(wish.has_pools for wish in wishes),
        reads_much_memory=any(wish.reads_much_memory for wish in wishes),
        max_batch=min(batches),
        utilization=min((wish.utilization for wish in wishes), key=lambda ends: ends[1]),
        kv_room=max(wish.kv_room for wish in wishes),
    )


def severity_of(
    before: Situation,
    cause: Cause,
    case: Case,
    is_breach: Callable[[Record], bool],
    interval_s: float = INTERVAL_S,
) -> float | None:
    """A random severity at which the cause alone is a breach in a trial, None if there is none. interval_s: between probes"""
    lowest = float(case.rng.uniform(0, 0.7))
    for severity in (*np.arange(lowest, 1.0, 0.25).tolist(), 1.0):
        after = cause.apply(before, severity, case)
        record = observe(before, after, TRIAL_S, TRIAL_S, case.rng, interval_s)
        is_true = cause.acts(record, after) and unanswered_share(record.trouble) <= MAX_UNANSWERED_SHARE
        if is_true and is_breach(record):
            return float(severity)
    return None


def _rises(cause: Cause, record: Record) -> bool:
    return any(_rise(record, signal, cause.quantile) >= MIN_RISE for signal in cause.signals)


def _quantiles(record: Record, signal: str, quantile: float) -> tuple[float, float] | None:
    """Quantile before and after. None: too few probes were answered."""
    results = []
    for window in (record.healthy, record.trouble):
        values = signal_values(window.probes, signal)
        if len(values) < 20:
            return None
        results.append(float(np.quantile(values, quantile)))
    return results[0], results[1]


def _rise(record: Record, signal: str, quantile: float) -> float:
    ends = _quantiles(record, signal, quantile)
    return ends[1] / ends[0] if ends else 0.0


def _threshold(record: Record, signal: str, quantile: float, rng: Generator) -> float | None:
    """A threshold between the quantiles before and after, None without a clear rise."""
    ends = _quantiles(record, signal, quantile)
    if ends is None or ends[1] < MIN_RISE * ends[0]:
        return None
    return float(ends[0] * (ends[1] / ends[0]) ** rng.uniform(0.2, 0.9))


def unanswered_share(window: Window) -> float:
    """Share of the probes without an answer in time."""
    return sum(probe.outcome in UNANSWERED for probe in window.probes) / len(window.probes)
