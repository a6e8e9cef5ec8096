"""A service under observation: simulated replicas, their users, the path to them, their GPUs and the prober, before and after a change.

record = observe(before, after, HEALTHY_S, TROUBLE_S, rng)
"""

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from bench.independent.causes_prober import (
    INTERVAL_S,
    PRODUCT_NAMES,
    START_NS,
    WARM_UP_S,
    Spans,
    probe_result,
    scheduled_probes,
    submit,
    unique_ids,
)
from bench.independent.causes_situation import Machine, Situation, Users, Window
from bench.independent.engine import PAGES, Engine
from bench.independent.structure import Structure
from prober.measure.engine_signals import (
    COUNTER_SIGNALS,
    HISTOGRAM_SIGNALS,
    EngineHistogram,
    EngineInfo,
    EngineSignals,
)
from prober.measure.gpu_reading import GpuReading, ThrottleReason
from prober.measure.result import ProbeResult

Floats = NDArray[np.float64]

AFTER_CHANGE_S = 60.0  # from the change to the window of trouble
DRAIN_S = 60.0  # after the last window, for its probes


class UserRequest(NamedTuple):
    """Arguments of `Engine.submit`."""

    at_s: float
    prompt_tokens: int
    output_tokens: int
    prefix_ids: Sequence[int]


class Record(NamedTuple):
    """Windows before and after the change, with a page that shows everything."""

    healthy: Window
    trouble: Window


def capacity_per_s(situation: Situation, rng: Generator) -> float:
    """Requests per second that the replicas complete under a backlog."""
    total = 0.0
    for structure in situation.structures:
        engine = Engine(structure, int(rng.integers(1 << 30)))
        number = 4 * structure.max_batch * structure.workers + 200
        for request in _requests(situation, structure, np.zeros(number), rng):
            engine.submit(*request)
        engine.drain()
        ends = np.sort(engine.results().end_s)
        ends = ends[~np.isnan(ends)]
        first, last = int(0.2 * len(ends)), int(0.7 * len(ends))
        total += (last - first) / (ends[last] - ends[first])
    return total


def mean_kv_tokens(situation: Situation, rng: Generator, duration_s: float = 200.0) -> float:
    """Tokens in the KV caches of all replicas under the load of the situation, without its first minute."""
    tokens, times_s = 0.0, np.arange(60.0, duration_s, 2.0)
    for replica in _replicas(situation, ((0.0, duration_s, situation),), rng):
        for at_s in times_s:
            replica.advance(float(at_s))
            page = replica.engine.page()
            usage_ratio, capacity_tokens = page.kv_cache_usage_ratio_mean or 0.0, page.kv_cache_capacity_tokens or 0.0
            tokens += usage_ratio * capacity_tokens / len(times_s)
    return tokens


def observe(
    before: Situation,
    after: Situation,
    healthy_s: float,
    trouble_s: float,
    rng: Generator,
    interval_s: float = INTERVAL_S,
) -> Record:
    """Run the service through the change, with a prober that looks at it all the time."""
    change_s = WARM_UP_S + healthy_s
    trouble_at_s = change_s + AFTER_CHANGE_S
    end_s = trouble_at_s + trouble_s
    spans = ((0.0, change_s, before), (change_s, end_s + DRAIN_S, after))
    return Record(*watch(spans, ((WARM_UP_S, change_s), (trouble_at_s, end_s)), rng, interval_s))


def watch(
    spans: Spans, windows: Sequence[tuple[float, float]], rng: Generator, interval_s: float = INTERVAL_S
) -> list[Window]:
    """Observations of the service in windows, each within one span. The last span goes on for DRAIN_S after the last window.

    interval_s: between probes. Page and GPUs are read every INTERVAL_S
    """
    ends_s = [end_s for _, end_s, _ in spans]

    def situation_at(at_s: float) -> Situation:
        return spans[bisect_right(ends_s, at_s)][2]

    replicas = _replicas(spans[0][2], spans, rng)
    probes = sorted(scheduled_probes(windows, spans, rng, interval_s), key=lambda probe: probe.arrived_s)
    looks_s = [(at_s, window) for window, (begin_s, last_s) in enumerate(windows) for at_s in _grid(begin_s, last_s)]
    gpu_rng = np.random.default_rng(rng.integers(1 << 30))
    pages: list[list[tuple[float, EngineSignals]]] = [[] for _ in windows]
    devices: list[list[tuple[GpuReading, ...]]] = [[] for _ in windows]
    submitted: dict[int, tuple[Engine, int]] = {}
    events = sorted(
        [(probe.arrived_s, 0, index) for index, probe in enumerate(probes)]
        + [(at_s, 1, window) for at_s, window in looks_s]
        + [(begin_s, 2, index) for index, (begin_s, _, _) in enumerate(spans) if index]
    )
    for at_s, kind, index in events:
        for replica in replicas:
            replica.advance(at_s)
        if kind == 0:
            probe = probes[index]
            replica = replicas[int(rng.integers(len(replicas)))]
            situation = situation_at(probe.arrived_s)
            submitted[probe.number] = (replica.engine, submit(replica.engine, probe, situation, rng))
        elif kind == 1:
            situation = situation_at(windows[index][0])
            page = _merged([replica.page(situation.machine.hides_front) for replica in replicas])
            pages[index].append((START_NS / 1e9 + at_s, page))
            devices[index].append(tuple(_gpu_readings(situation, replicas, at_s, gpu_rng)))
        else:
            for replica, structure in zip(replicas, spans[index][2].structures, strict=True):
                replica.change(structure)
    for replica in replicas:
        replica.advance(windows[-1][1] + DRAIN_S)
    results: list[list[ProbeResult]] = [[] for _ in windows]
    for probe in sorted((probe for probe in probes if probe.number >= 0), key=lambda probe: probe.number):
        window = next(place for place, (begin_s, end_s) in enumerate(windows) if begin_s <= probe.intended_s < end_s)
        engine, number = submitted[probe.number]
        situation = situation_at(probe.intended_s)
        results[window].append(probe_result(probe, engine, number, situation, rng))
    return [
        Window(tuple(probes), tuple(readings), tuple(gpus))
        for probes, readings, gpus in zip(results, pages, devices, strict=True)
    ]


def as_seen(window: Window, machine: Machine) -> Window:
    """The window without what this prober, this page and this driver do not show."""
    readings: tuple[tuple[float, EngineSignals], ...] = ()
    if machine.page:
        absent: dict[str, Any] = dict.fromkeys(PAGES[machine.page])
        info = EngineInfo(PRODUCT_NAMES.get(machine.page, machine.page), "0.1")
        readings = tuple((at_s, replace(signals, info=info, **absent)) for at_s, signals in window.readings)
    return Window(window.probes, readings, window.devices if machine.has_gpu_readings else ())


def _grid(begin_s: float, end_s: float) -> Floats:
    return np.arange(begin_s + 0.5 * INTERVAL_S, end_s, INTERVAL_S)


# Users


class _Replica:
    """An engine and the requests of its users, which it takes as time passes."""

    def __init__(self, engine: Engine, requests: list[UserRequest]) -> None:
        self.engine, self.structure = engine, engine.structure
        self.busy_s, self.looked_s = 0.0, 0.0
        self._requests = iter((*requests, UserRequest(math.inf, 0, 0, ())))
        self._next = next(self._requests)

    def advance(self, to_s: float) -> None:
        """Submit the requests that arrive until `to_s`, and run until then."""
        while self._next.at_s <= to_s:
            self.engine.submit(*self._next)
            self._next = next(self._requests)
        self.engine.advance(to_s)

    def change(self, structure: Structure) -> None:
        """Change the parameters of the engine from now on."""
        self.engine.change(structure)
        self.structure = structure

    def page(self, hides_front: bool) -> EngineSignals:
        """The full page. `hides_front`: requests at the front do not count as waiting."""
        if not (hides_front and self.structure.page_front):
            return self.engine.page()
        self.engine.change(replace(self.structure, page_front=0))
        page = self.engine.page()
        self.engine.change(self.structure)
        return page

    def utilization_ratio(self, at_s: float) -> float:
        """Share of time with work since the last look."""
        busy_s, since_s = self.engine.usage().busy_s - self.busy_s, at_s - self.looked_s
        self.busy_s, self.looked_s = self.busy_s + busy_s, at_s
        groups = 1 if self.structure.lockstep else self.structure.workers
        return min(1.0, busy_s / max(since_s, 1e-9) / groups)


def _replicas(situation: Situation, spans: Spans, rng: Generator) -> list[_Replica]:
    """Engines with the arrivals of all spans."""
    replicas = []
    for index, structure in enumerate(situation.structures):
        requests: list[UserRequest] = []
        for begin_s, end_s, span in spans:
            times_s = begin_s + _arrivals(span.users, len(span.structures), end_s - begin_s, rng)
            requests += _requests(span, span.structures[index], times_s, rng)
        replicas.append(_Replica(Engine(structure, int(rng.integers(1 << 30))), requests))
    return replicas


def _arrivals(users: Users, replicas: int, duration_s: float, rng: Generator) -> Floats:
    """Times from 0 to `duration_s` at one of several replicas, with gamma-distributed gaps."""
    rate_per_s = users.rate_per_s / replicas
    number = int(rate_per_s * duration_s * 1.2 + 20 * users.burstiness + 20)
    times_s = np.cumsum(rng.gamma(1 / users.burstiness, users.burstiness / rate_per_s, number))
    return times_s[times_s < duration_s]


def _requests(situation: Situation, structure: Structure, times_s: Floats, rng: Generator) -> list[UserRequest]:
    """Requests that users send at some times."""
    users, number = situation.users, len(times_s)
    longest = structure.kv_tokens // 4
    prompts = np.exp(rng.normal(np.log(users.prompt_tokens), 0.7, number))
    prompts = np.where(
        rng.random(number) < users.long_share, users.long_tokens * rng.uniform(0.7, 1.3, number), prompts
    )
    outputs = np.exp(rng.normal(np.log(users.output_tokens), 0.6, number))
    prompts = np.clip(users.document_tokens * bool(users.documents) + prompts, 8, longest).astype(np.int64)
    outputs = np.clip(outputs, 2, longest).astype(np.int64)
    blocks = users.document_tokens // structure.prefix_block if structure.prefix_block and users.documents else 0
    prefixes: list[Sequence[int]] = [()] * number
    if blocks:
        # Popularity of the documents by Zipf's law.
        popularity = 1 / np.arange(1, users.documents + 1)
        chosen = rng.choice(users.documents, number, p=popularity / popularity.sum())
        is_cached = rng.random(number) >= users.uncached_share
        prefixes = [
            range(document * blocks, (document + 1) * blocks) if cached else unique_ids(rng, blocks)
            for document, cached in zip(chosen.tolist(), is_cached.tolist(), strict=True)
        ]
    return list(map(UserRequest, times_s.tolist(), prompts.tolist(), outputs.tolist(), prefixes))


# Page and GPUs


def _merged(pages: Sequence[EngineSignals]) -> EngineSignals:
    """The page of several replicas as one reading."""
    if len(pages) == 1:
        return pages[0]
    changes: dict[str, Any] = {}
    for name in (part.name for part in fields(EngineSignals)):
        values = [getattr(page, name) for page in pages]
        if values[0] is None or name in ("info", "start_time_seconds", "context_tokens"):
            continue
        if name in HISTOGRAM_SIGNALS:
            counts = tuple(float(sum(column)) for column in zip(*(value.counts for value in values), strict=True))
            changes[name] = EngineHistogram(values[0].bounds, counts, sum(value.sum for value in values))
        elif name == "kv_cache_usage_ratio_max":
            changes[name] = max(values)
        elif name == "kv_cache_usage_ratio_mean":
            changes[name] = sum(values) / len(values)
        else:
            assert name in COUNTER_SIGNALS or name.startswith(("requests", "ranks", "kv_cache_capacity"))
            changes[name] = sum(values)
    return replace(pages[0], **changes)


def _gpu_readings(
    situation: Situation, replicas: Sequence[_Replica], at_s: float, rng: Generator
) -> Iterator[GpuReading]:
    """All GPUs of all replicas."""
    machine = situation.machine
    for number, (replica, gpu) in enumerate(zip(replicas, situation.gpus, strict=True)):
        utilization = replica.utilization_ratio(at_s)
        if gpu.foreign_bytes:
            utilization = 1 - (1 - utilization) * 0.1
        own_bytes = int(0.9 * machine.gpu_bytes)
        count = machine.gpus * replica.structure.workers
        for rank in range(count):
            shows_reason = rng.random() < gpu.reason_share
            reasons = gpu.reasons if shows_reason else frozenset[ThrottleReason]()
            clock_ratio = min(1.0, gpu.clock_ratio + 0.01 * rng.standard_normal())
            yield GpuReading(
                index=number * count + rank,
                uuid=f"GPU-{number}-{rank}",
                name=machine.gpu_name,
                utilization_ratio=round(utilization, 2),
                memory_used_bytes=min(machine.gpu_bytes, own_bytes + gpu.foreign_bytes),
                memory_total_bytes=machine.gpu_bytes,
                power_watts=100 + 500 * utilization * clock_ratio,
                temperature_celsius=45 + 30 * utilization + 3 * rng.standard_normal(),
                sm_clock_hertz=machine.clock_hertz * clock_ratio,
                throttled=reasons if machine.has_throttle_reasons else None,
            )
