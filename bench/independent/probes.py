"""Probes of engines under days of realistic load: what a drift detector sees where nothing changes, or one thing does.

    series = probe_series(PROBED[0], days=14, seed=1, traces=Path("traces"))

A probe of fixed lengths is sent every 5 s beside a background whose rate follows the hours of a day; a reading of the page every
5 s gives the load. All in bulk, so that a fortnight takes seconds to a minute.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bench.independent.engine import Engine, Prefixes, Times
from bench.independent.kinds import HELD_OUT, TUNING, draw_structure
from bench.independent.structure import Structure
from bench.independent.workloads import Mode, Requests, Workload, generator
from bench.independent.worlds import machine_for

DAY_S, HOUR_S, WEEK_DAYS = 86_400, 3_600, 7
BEGIN_UNIX_S = 1_767_571_200  # a Monday, 2026-01-05 00:00 UTC
PROBE_EVERY_S, PROBE_JITTER_S = 5.0, 1.0
GRID_S = 60
SATURATION_REQUESTS = 3_000
WARM_IDS = 1 << 60  # of the probe's prompt
BURST_EVERY_S, BURST_S, BURST_FACTOR = 2_400.0, 180.0, 1.5

# Relative rate by hour, linear in between, and the factors of Saturday and Sunday.
PROFILES: dict[str, tuple[tuple[tuple[float, float], ...], tuple[float, float]]] = {
    "flat": (((0, 0.7), (24, 0.7)), (1.0, 1.0)),
    "office": (
        ((0, 0.12), (7, 0.12), (10, 1), (12, 1), (12.5, 0.8), (13.5, 1), (16.5, 1), (20, 0.25), (24, 0.12)),
        (0.35, 0.25),
    ),
    "evening": (((0, 0.6), (4, 0.2), (8, 0.35), (13, 0.6), (17, 0.65), (21, 1), (24, 0.6)), (1.1, 1.15)),
}


@dataclass(frozen=True, slots=True)
class ProbedEngine:
    """An engine, its background and its probe.

    kind, seed: of the structure
    source: of the background's lengths, `generated` or a name of `TRACES`
    profile: of its rate over a day; has_bursts: minutes of half as much again
    peak_share: peak rate ÷ rate at which the engine is saturated
    is_warm: the probe's prompt is always the same text, which a prefix cache holds until load evicts it
    """

    kind: str
    seed: int = 0
    source: str = "generated"
    profile: str = "office"
    peak_share: float = 0.6
    has_bursts: bool = False
    is_warm: bool = False
    prompt_tokens: int = 128
    output_tokens: int = 16

    @property
    def name(self) -> str:
        """Kind, source, profile and options."""
        options = [word for word, is_set in (("bursts", self.has_bursts), ("warm", self.is_warm)) if is_set]
        return " ".join((self.kind, self.source, self.profile, *options))

    @property
    def is_held_out(self) -> bool:
        """Its kind is in the half that nothing is tuned on."""
        return self.kind in HELD_OUT

    def structure(self) -> Structure:
        """The engine's parameters."""
        return machine_for(self.source, draw_structure(self.kind, 5_000 + self.seed))

    def background(self, structure: Structure) -> Workload:
        """Lengths of the background."""
        longest = min(32_000 if self.source == "generated" else 128_000, structure.kv_tokens // 3)
        block = structure.prefix_block
        if self.source != "generated":
            return Workload((), longest, min(2_000, structure.kv_tokens // 8), block=block, trace=self.source)
        rng = Random(f"background {self.kind} {self.seed}")
        mode = Mode(0.8, rng.uniform(400, 1_200), rng.uniform(0.5, 0.9), rng.uniform(100, 250), 0.7)
        long_mode = Mode(0.2, 3 * mode.prompt, 0.4, 0.5 * mode.output, 0.5)
        return Workload(
            (mode, long_mode), longest, min(1_500, structure.kv_tokens // 8), 400 if block else 0, 0.7, block
        )


# At least six driven by traces; all kinds by generated lengths.
TRACE_DRIVEN = (
    ProbedEngine("chunked", source="azure"),
    ProbedEngine("alternating", source="azure", profile="evening"),
    ProbedEngine("speculative", source="mooncake"),
    ProbedEngine("least_busy", source="azure", has_bursts=True),
    ProbedEngine("preempting", source="mooncake", profile="evening"),
    ProbedEngine("separate", source="azure"),
    ProbedEngine("prefix_cache", source="mooncake"),
    ProbedEngine("round_robin", source="mooncake", profile="evening"),
    ProbedEngine("padding", source="azure", profile="evening", has_bursts=True),
    ProbedEngine("serial_front", source="azure"),
)
# Its probe's hit rate falls with load. Held out, like the kind.
CACHED = (ProbedEngine("prefix_cache", profile="office", is_warm=True, prompt_tokens=1_024),)
GENERATED = tuple(
    ProbedEngine(kind, profile=("office", "evening", "flat")[i % 3], has_bursts=i % 4 == 3)
    for half in (TUNING, HELD_OUT)
    for i, kind in enumerate(half)
)
PROBED = (*TRACE_DRIVEN, *CACHED, *GENERATED)


class ProbeSeries(NamedTuple):
    """Probes in order of time, an element each; NaN: failed.

    unix_s: sent
    log_ttft_s, tpot_s: as a client measures them
    load: requests per second that arrived in the minute before the last reading of the page, as the daemon counts them
    """

    unix_s: Times
    log_ttft_s: Times
    tpot_s: Times
    load: Times


def probe_series(
    probed: ProbedEngine,
    days: float,
    seed: int,
    traces: Path | None = None,
    slowdown: tuple[float, float] | None = None,
) -> ProbeSeries:
    """Probes of `days` from a Monday on.

    slowdown: day from which steps take longer, and by which factor
    """
    structure = probed.structure()
    workload = probed.background(structure)
    peak = probed.peak_share * saturation_per_s(structure, workload, traces)
    engine = Engine(structure, seed)
    arrivals, is_probe = [], []
    change_s = np.inf if slowdown is None else slowdown[0] * DAY_S
    for day in range(int(np.ceil(days))):
        requests, of_probes = _day(probed, workload, peak, day, min(1.0, days - day) * DAY_S, seed, traces)
        before = int(np.searchsorted(requests.times_s, change_s))
        for part in (_part(requests, 0, before), _part(requests, before, len(requests.times_s))):
            if slowdown is not None and len(part.times_s) and part.times_s[0] >= change_s > engine.at_s:
                engine.advance(change_s)
                engine.change(replace(structure, speed=structure.speed * slowdown[1]))
            engine.run(*part, drain=False)
        arrivals.append(requests.times_s)
        is_probe.append(of_probes)
    engine.drain()
    results = engine.results()
    times, probes = np.concatenate(arrivals), np.concatenate(is_probe)
    sent, first, end = times[probes], results.first_token_s[probes], results.end_s[probes]
    readings = np.floor(sent / PROBE_EVERY_S) * PROBE_EVERY_S
    load = (np.searchsorted(times, readings, side="right") - np.searchsorted(times, readings - 60.0, side="right")) / 60
    return ProbeSeries(BEGIN_UNIX_S + sent, np.log(first - sent), (end - first) / (probed.output_tokens - 1), load)


def saturation_per_s(structure: Structure, workload: Workload, traces: Path | None = None) -> float:
    """Requests per second of an engine that never waits for requests."""
    prompts, outputs = workload.lengths(generator("saturation"), SATURATION_REQUESTS, traces)
    engine = Engine(structure, 1)
    engine.run(np.zeros(SATURATION_REQUESTS), prompts, outputs)
    return SATURATION_REQUESTS / engine.at_s


def relative_rate(profile: str, unix_s: Times) -> Times:
    """Rate at these times ÷ rate at the peak of a working day."""
    points, weekend = PROFILES[profile]
    hours = (unix_s % DAY_S) / HOUR_S
    weekday = (unix_s // DAY_S + 3) % WEEK_DAYS  # 1970-01-01 was a Thursday; Monday is 0
    factor = np.where(weekday == 5, weekend[0], np.where(weekday == 6, weekend[1], 1.0))
    rates: Times = factor * np.interp(hours, [hour for hour, _ in points], [rate for _, rate in points])
    return rates


def _day(
    probed: ProbedEngine,
    workload: Workload,
    peak_per_s: float,
    day: int,
    duration_s: float,
    seed: int,
    traces: Path | None,
) -> tuple[Requests, NDArray[np.bool_]]:
    """Probes and background of a day, and which requests are probes."""
    rng = generator("day", probed.name, probed.seed, seed, day)
    grid = np.arange(0, duration_s + GRID_S, GRID_S, dtype=float)
    rate = peak_per_s * relative_rate(probed.profile, BEGIN_UNIX_S + day * DAY_S + grid)
    if probed.has_bursts:
        for start in np.cumsum(rng.exponential(BURST_EVERY_S, 100)):
            rate[(grid >= start) & (grid < start + BURST_S)] *= BURST_FACTOR
    expected = np.concatenate(
        ([0.0], np.cumsum((rate[1:] + rate[:-1]) / 2 * GRID_S))
    )  # requests until the times of the grid
    draw = workload.replayed if workload.trace else workload.requests
    background = draw(rng, int(1.5 * expected[-1] + 100), 1.0, traces)
    background = _part(background, 0, int(np.searchsorted(background.times_s, expected[-1])))
    background = background._replace(times_s=day * DAY_S + np.interp(background.times_s, expected, grid))
    sent = np.arange(0, duration_s, PROBE_EVERY_S) + PROBE_EVERY_S / 2
    sent += rng.uniform(-PROBE_JITTER_S, PROBE_JITTER_S, len(sent)) + day * DAY_S
    prefixes = None
    if probed.is_warm and workload.block:
        blocks = probed.prompt_tokens // workload.block
        prefixes = Prefixes(np.arange(len(sent) + 1) * blocks, np.tile(WARM_IDS + np.arange(blocks), len(sent)))
    probes = Requests(
        sent, np.full(len(sent), probed.prompt_tokens), np.full(len(sent), probed.output_tokens), prefixes
    )
    return probes.merged(background)


def _part(requests: Requests, start: int, stop: int) -> Requests:
    prefixes = None if requests.prefixes is None else requests.prefixes.taken(np.arange(start, stop))
    return Requests(requests.times_s[start:stop], requests.prompts[start:stop], requests.outputs[start:stop], prefixes)
