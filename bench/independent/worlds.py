"""Worlds: an engine, the workload of a sweep, a background, a threshold, and the true knee of that.

    python -m bench.independent.worlds [--second] [--traces FOLDER] [--seeds N] [--only KIND] [--minutes M]

computes the worlds that `worlds.json` lacks, with --second those of `worlds_second.json`. The knee is the total rate at which 1% of the
requests of the sweep's shape miss the threshold in the long run while the background stays as it is, found by simulations with common
random numbers. The second kinds also have worlds whose threshold is missed by more than 1% at every rate: there no rate is right.
"""

import argparse
import json
import math
import os
import time
from collections.abc import Iterable
from dataclasses import asdict, astuple, dataclass, replace
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from bench.independent import kinds as first_kinds
from bench.independent import second_kinds
from bench.independent.engine import Engine
from bench.independent.kinds import KINDS, log_uniform
from bench.independent.structure import Structure
from bench.independent.workloads import TRACES, Mode, Workload, generator

RECORD = Path(__file__).with_name("worlds.json")
SECOND_RECORD = Path(__file__).with_name("worlds_second.json")
PAGE_OF_KIND = first_kinds.PAGE_OF_KIND | second_kinds.PAGE_OF_KIND
ALLOWED = 0.01  # share of requests that may miss the threshold
SPREAD = 0.03  # distance of the rates beside the knee
REPLICATE, REPLICATES, MAX_ERROR = 50_000, (3, 20), 0.007
CURVE = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0, 1.05, 1.1, 1.2, 1.3, 1.5, 2.0)
CURVE_REQUESTS, CURVE_REQUESTS_ABOVE = 40_000, 10_000  # up to 1.1 × the knee, and above
WARM_UP = 0.02  # share of a simulation's first requests that are not counted
VOID = "autoscaled"
FLAT = 1.25
# Thresholds are raised until the knee has such a slope: a sharp one, or with this probability a flat one.
SHARP_SLOPE, FLAT_SLOPE, FLAT_PROBABILITY = 6.3, 2.0, 0.3
# A scene with another knee, or one that so many replicates do not determine (a cache or queue that tips over), is replaced by
# that of the seed + 100.
KNEES_PER_S, MAX_RECORDED_ERROR = (1.0, 40.0), 0.011
# Worlds that miss at every rate have seeds from here on: their background, the share that misses beside it, and where that is checked.
MISSING_SEED, MISSING_WORLDS = 1_000, 3
MISSING_BACKGROUND, MISSING_SHARES, MISSING_RATES_PER_S = 0.6, (0.016, 0.3), (0.5, 1.0, 2.0, 4.0)
MIN_MISSING_SHARE, MISSING_REQUESTS = 0.014, 20_000


@dataclass(frozen=True, slots=True)
class Scene:
    """A world before anything is known of it. background_share: of the total rate at the knee, about."""

    kind: str
    seed: int
    source: str
    structure: Structure
    own: Workload
    background: Workload
    background_share: float
    threshold_factor: float

    def fingerprint(self) -> str:
        """Changes with everything that the knee depends on but the code of the engine."""
        parts = (astuple(self.structure), asdict(self.own), asdict(self.background), self.background_share)
        return sha256(repr((parts, self.threshold_factor)).encode()).hexdigest()[:10]


@dataclass(frozen=True, slots=True)
class World:
    """A scene with its truth.

    threshold_s: of TTFT
    knee_per_s: total rate at the knee; None: a knee has no meaning (`void`)
    knee_error: relative standard error of it
    slope: dlog share / dlog total rate at the knee, with the same background
    background_per_s: stays the same at all rates of the sweep
    curve: total rates ÷ knee, and the shares that miss the threshold there
    missing: shares that miss the threshold at `MISSING_RATES_PER_S` of the sweep, each far more than allowed; empty: it has a knee
    """

    scene: Scene
    threshold_s: float
    background_per_s: float
    knee_per_s: float | None
    knee_error: float
    slope: float
    curve: tuple[tuple[float, float], ...]
    missing: tuple[float, ...] = ()

    @property
    def name(self) -> str:
        """Kind, source of the lengths and seed."""
        return f"{self.scene.kind} {self.scene.source} {self.scene.seed}"

    @property
    def page(self) -> str:
        """Name of the engine whose page it shows."""
        return PAGE_OF_KIND[self.scene.kind]

    @property
    def is_void(self) -> bool:
        """A sweep must not state a knee."""
        return self.knee_per_s is None

    def engine(self, seed: int) -> Engine:
        """A new engine of this world."""
        return Engine(self.scene.structure, seed, self.page)

    def share_at(self, total_per_s: float) -> float:
        """Share that misses the threshold in the long run at this total rate: log-linear between the points of the curve."""
        ratios, shares = self._log_curve()
        return float(np.exp(np.interp(math.log(total_per_s / self._knee()), ratios, shares)))

    def rate_at(self, share: float) -> float:
        """Total rate at which this share misses the threshold, within the curve."""
        ratios, shares = self._log_curve()
        return self._knee() * float(np.exp(np.interp(math.log(share), shares, ratios)))

    @property
    def is_flat(self) -> bool:
        """Half and double the allowed share are more than 25% apart."""
        return self.rate_at(2 * ALLOWED) > FLAT * self.rate_at(ALLOWED / 2)

    def _knee(self) -> float:
        if self.knee_per_s is None:
            raise ValueError(f"{self.name} is void: it has no knee")
        return self.knee_per_s

    def _log_curve(self) -> tuple[list[float], list[float]]:
        """Logs of ratios and shares, made strictly rising and through the allowed share at the knee."""
        sides = [min(share, ALLOWED) if ratio <= 1 else max(share, ALLOWED) for ratio, share in self.curve]
        shares = np.maximum.accumulate([max(share, 1e-6) * (1 + 1e-7 * i) for i, share in enumerate(sides)])
        return [math.log(ratio) for ratio, _ in self.curve], list(np.log(shares))


def machine_for(source: str, structure: Structure) -> Structure:
    """The structure, on a machine for long contexts where the median prompt has 7,000 tokens."""
    if source != "mooncake":
        return structure
    return replace(
        structure,
        prompt_s=structure.prompt_s / 10,
        attention_s=structure.attention_s / 30,
        context_s=structure.context_s / 5,
        kv_tokens=structure.kv_tokens * 8,
        step_tokens=structure.step_tokens * 4,
        prefix_block=512 if structure.prefix_block else 0,
        front_token_s=structure.front_token_s / 8,
        transfer_token_s=structure.transfer_token_s / 8,
    )


def draw_scene(kind: str, seed: int, source: str = "generated") -> Scene:
    """The scene of a seed. source: of the lengths, `generated` or a name of `TRACES`."""
    rng = Random(f"scene {kind} {source} {seed}")
    offset = 0 if source == "generated" else 1_000 * (1 + list(TRACES).index(source))
    draw = second_kinds.draw_structure if kind in second_kinds.KINDS else first_kinds.draw_structure
    structure = machine_for(source, draw(kind, seed + offset))
    max_prompt, max_output = min(128_000, structure.kv_tokens // 3), min(2_000, structure.kv_tokens // 8)
    shapes = ("lognormal", "bimodal", "very long prompts")
    own = _workload(rng, rng.choice(shapes[:2]), max_prompt, max_output, source, structure)
    background = _workload(rng, rng.choice(shapes), max_prompt, max_output, source, structure)
    return Scene(
        *(kind, seed, source, structure, replace(own, conversations=0, block=0), background),
        background_share=round(rng.uniform(0.1, 0.4), 3),
        threshold_factor=round(rng.uniform(2.5, 6.0), 2),
    )


def _workload(rng: Random, shape: str, max_prompt: int, max_output: int, source: str, structure: Structure) -> Workload:
    block = structure.prefix_block
    if source != "generated":
        return Workload((), max_prompt, max_output, block=block, trace=source)
    prompt, output = log_uniform(rng, 120, 1_000), log_uniform(rng, 30, 180)
    mode = Mode(1.0, prompt, rng.uniform(0.3, 0.8), output, rng.uniform(0.3, 0.8))
    modes: tuple[Mode, ...] = (mode,)
    if shape == "bimodal":
        modes = (mode, Mode(rng.uniform(0.1, 0.5), prompt * rng.uniform(3, 6), 0.3, output * rng.uniform(0.3, 3), 0.3))
    if shape == "very long prompts":
        modes = (mode, Mode(rng.uniform(0.005, 0.03), rng.uniform(10_000, 24_000), 0.3, output, 0.5))
    return Workload(
        modes,
        min(32_000, max_prompt),
        max_output,
        rng.choice((50, 200, 800)) if block else 0,
        rng.uniform(0.5, 0.9),
        block,
    )


class Simulation:
    """Long runs of a scene."""

    def __init__(self, scene: Scene, traces: Path | None) -> None:
        self.scene, self.traces = scene, traces

    def ttft_s(
        self, own_per_s: float, background_per_s: float, count: int, seed: int
    ) -> "np.ndarray[Any, np.dtype[np.float64]]":
        """TTFTs of `count` requests of the sweep's shape without those of the warm-up; NaN: failed."""
        scene = self.scene
        own = scene.own.requests(generator("own", scene.kind, scene.seed, seed), count, own_per_s, self.traces)
        requests, is_own = own, np.ones(count, dtype=bool)
        others = math.ceil(background_per_s * own.times_s[-1])
        if others:
            draw = scene.background.replayed if scene.background.trace else scene.background.requests
            background = draw(
                generator("background", scene.kind, scene.seed, seed), others, background_per_s, self.traces
            )
            requests, is_own = own.merged(background)
        results = Engine(scene.structure, seed).run(*requests)
        return (results.first_token_s - requests.times_s)[is_own][int(WARM_UP * count) :]

    def share(self, total_per_s: float, background_per_s: float, threshold_s: float, count: int, seed: int) -> float:
        """Share of the requests that miss the threshold."""
        ttft = self.ttft_s(total_per_s - background_per_s, background_per_s, count, seed)
        return float(1 - np.mean(ttft <= threshold_s))

    def share_mixed(self, total_per_s: float, threshold_s: float, count: int, seed: int) -> float:
        """Share of the requests that miss the threshold with the background's share of the total rate."""
        return self.share(total_per_s, self.scene.background_share * total_per_s, threshold_s, count, seed)

    def shares_beside(
        self, knee_per_s: float, distance: float, threshold_s: float, count: int, seed: int
    ) -> list[float]:
        """Shares at (1 − distance, 1, 1 + distance) × knee, with the background that belongs to the knee."""
        background = self.scene.background_share * knee_per_s
        return [
            self.share(knee_per_s * (1 + sign * distance), background, threshold_s, count, seed) for sign in (-1, 0, 1)
        ]


def compute(scene: Scene, traces: Path | None) -> World:
    """The truth of a scene; a knee outside of `KNEES_PER_S` is not refined."""
    simulation = Simulation(scene, traces)
    unloaded = float(np.nanquantile(simulation.ttft_s(0.01, 0.0, 4_000, 1), 0.99))
    threshold = scene.threshold_factor * unloaded
    if scene.kind == VOID:
        return World(
            scene, _rounded(threshold, 2), background_per_s=1.0, knee_per_s=None, knee_error=0.0, slope=0.0, curve=()
        )
    rng = Random(f"slope {scene.fingerprint()}")
    least_slope = FLAT_SLOPE if rng.random() < FLAT_PROBABILITY else SHARP_SLOPE
    while True:
        threshold = _rounded(threshold, 2)
        if simulation.share_mixed(0.05, threshold, 20_000, 2) < 0.3 * ALLOWED:  # else pauses alone break the objective
            knee = _bracketed_knee(simulation, threshold)
            if not KNEES_PER_S[0] <= knee <= KNEES_PER_S[1]:
                return World(scene, threshold, 0.0, knee, 0.0, 0.0, curve=())
            distance = 0.1
            low, _, high = simulation.shares_beside(knee, distance, threshold, 30_000, 20)
            if math.log(max(high, 1e-4) / max(low, 1e-4)) > least_slope * math.log((1 + distance) / (1 - distance)):
                break
        threshold *= 1.4
    knee, background, error, slope = _refined_knee(simulation, threshold, knee)
    curve = _curve(simulation, knee, background, threshold)
    return World(
        scene, threshold, _rounded(background, 5), _rounded(knee, 5), _rounded(error, 2), _rounded(slope, 3), curve
    )


def compute_missing(scene: Scene, traces: Path | None) -> World | None:
    """A world whose threshold is missed at every rate; None: fewer than `MIN_MISSING_SHARE` miss it at one of those checked."""
    rng = Random(f"missing {scene.fingerprint()}")
    background = scene.background_share * MISSING_BACKGROUND * _saturation_per_s(scene, traces)
    simulation = Simulation(scene, traces)
    ttft_s = simulation.ttft_s(MISSING_RATES_PER_S[0], background, MISSING_REQUESTS, 4)
    threshold = _rounded(float(np.nanquantile(ttft_s, 1 - log_uniform(rng, *MISSING_SHARES))), 3)
    background = _rounded(background, 5)
    shares = tuple(
        _rounded(simulation.share(rate + background, background, threshold, MISSING_REQUESTS, 5), 3)
        for rate in MISSING_RATES_PER_S
    )
    if min(shares) < MIN_MISSING_SHARE:
        return None
    return World(scene, threshold, background, None, 0.0, 0.0, curve=(), missing=shares)


def _saturation_per_s(scene: Scene, traces: Path | None) -> float:
    """Requests of the background per second, of an engine that never waits for them."""
    count = 3_000
    sent = scene.background.requests(generator("saturation", scene.kind, scene.seed), count, 1.0, traces)
    engine = Engine(scene.structure, 1)
    engine.run(np.zeros(count), sent.prompts, sent.outputs, sent.prefixes)
    return count / engine.at_s


def _bracketed_knee(simulation: Simulation, threshold_s: float) -> float:
    """The knee within a few percent."""
    low = 0.02
    while low < 2 * KNEES_PER_S[1] and simulation.share_mixed(low * 1.5, threshold_s, 2_000, 10) < ALLOWED:
        low *= 1.5
    high = low * 1.5
    for count in (4_000, 10_000, 20_000, 20_000, 20_000):
        middle = math.sqrt(low * high)
        if simulation.share_mixed(middle, threshold_s, count, 11) < ALLOWED:
            low, high = middle, max(high, middle * 1.02)
        else:
            low, high = min(low, middle / 1.02), middle
    return math.sqrt(low * high)


def _refined_knee(simulation: Simulation, threshold_s: float, knee: float) -> tuple[float, float, float, float]:
    """Knee, background that it was found with, its relative standard error (jackknife over replicates), and the local slope."""
    rows: list[list[float]] = []
    moves = 0
    while True:
        rows.append(simulation.shares_beside(knee, SPREAD, threshold_s, REPLICATE, 100 + len(rows)))
        rates = [knee * (1 - SPREAD), knee, knee * (1 + SPREAD)]
        root, slope = _root(rates, np.mean(rows, axis=0))
        if abs(math.log(root / knee)) > SPREAD and moves < 5:  # outside of the rates: move them, and the background
            knee, rows, moves = min(max(root, knee / 1.2), knee * 1.2), [], moves + 1
            continue
        if len(rows) < REPLICATES[0]:
            continue
        others = [math.log(_root(rates, np.mean(rows[:i] + rows[i + 1 :], axis=0))[0]) for i in range(len(rows))]
        error = math.sqrt((len(rows) - 1) * float(np.var(others)))
        if error < MAX_ERROR or len(rows) >= REPLICATES[1]:
            return root, simulation.scene.background_share * knee, error, slope


def _curve(
    simulation: Simulation, knee: float, background: float, threshold_s: float
) -> tuple[tuple[float, float], ...]:
    """Shares by ratio to the knee: one long run a point, with common random numbers, scaled to the allowed share at the knee."""
    shares = [
        simulation.share(
            ratio * knee, background, threshold_s, CURVE_REQUESTS if ratio <= 1.1 else CURVE_REQUESTS_ABOVE, 3
        )
        for ratio in CURVE
    ]
    scale = math.log1p(-ALLOWED) / math.log1p(-shares[CURVE.index(1.0)])
    return tuple((ratio, _rounded(1 - (1 - share) ** scale, 3)) for ratio, share in zip(CURVE, shares, strict=True))


def _root(rates: list[float], shares: "np.ndarray[Any, np.dtype[np.float64]]") -> tuple[float, float]:
    """Rate at the allowed share, by a log-log line between the rates beside it, and the slope over all of them."""
    x, y = np.log(rates), np.log(np.maximum(shares, 1e-5) / ALLOWED)
    slope = max(1.0, float(np.polyfit(x, y, 1)[0]))
    for (left, below), (right, above) in pairwise(zip(x, y, strict=True)):
        if below <= 0 < above:
            return float(np.exp(left - below * (right - left) / (above - below))), slope
    return float(np.exp(x[1] - y[1] / slope)), slope


def _rounded(value: float, digits: int) -> float:
    return float(f"{value:.{digits}g}")


def load(traces: Path | None = None, kinds: Iterable[str] = KINDS, record: Path = RECORD) -> list[World]:
    """The recorded worlds of `kinds`; those from traces only with the folder of the traces.

    Raises:
        ValueError: the record was made for other scenes
    """
    allowed = frozenset(kinds)
    worlds = []
    for line in json.loads(record.read_text())["worlds"]:
        scene = draw_scene(line["kind"], line["seed"], line["source"])
        if scene.kind not in allowed or (scene.source != "generated" and traces is None):
            continue
        if scene.fingerprint() != line["scene"]:
            raise ValueError(
                f"{scene.kind} {scene.source} {scene.seed} has changed: python -m bench.independent.worlds"
            )
        truth = {name: line[name] for name in ("threshold_s", "background_per_s", "knee_per_s", "knee_error", "slope")}
        curve = tuple(zip(CURVE, line["shares"], strict=False))
        worlds.append(World(scene, **truth, curve=curve, missing=tuple(line.get("missing", ()))))
    return worlds


def _line(world: World) -> dict[str, Any]:
    scene = world.scene
    values = {
        name: getattr(world, name) for name in ("threshold_s", "background_per_s", "knee_per_s", "knee_error", "slope")
    }
    shares = [share for _, share in world.curve]
    return {
        "kind": scene.kind,
        "seed": scene.seed,
        "source": scene.source,
        "scene": scene.fingerprint(),
        **values,
        "shares": shares,
        **({"missing": world.missing} if world.missing else {}),
    }


def _recorded(record: Path) -> list[dict[str, Any]]:
    return json.loads(record.read_text())["worlds"] if record.exists() else []


def write(lines: list[dict[str, Any]], record: Path) -> None:
    """Write the record, a world a line."""
    order = [*PAGE_OF_KIND]
    lines = sorted(lines, key=lambda line: (order.index(line["kind"]), line["source"], line["seed"]))
    head = json.dumps({name: source for name, (_, source) in TRACES.items()})
    body = ",\n".join(json.dumps(line) for line in lines)
    scratch = record.with_suffix(f".{os.getpid()}")
    scratch.write_text(f'{{"traces": {head},\n"worlds": [\n{body}\n]}}\n')
    scratch.replace(record)  # complete at any time for another process


def main() -> None:
    """Compute the worlds that are missing or whose scene has changed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--second", action="store_true", help="of the second kinds")
    parser.add_argument("--traces", type=Path)
    parser.add_argument("--seeds", type=int, default=2, help="worlds with generated lengths per kind")
    parser.add_argument("--only", action="append", choices=[*PAGE_OF_KIND], help="a kind; may be repeated")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin no world after that time")
    arguments = parser.parse_args()
    record = SECOND_RECORD if arguments.second else RECORD
    lines = _recorded(record)
    wanted = [("generated", seed) for seed in range(arguments.seeds)]
    if arguments.second:
        wanted += [("generated", MISSING_SEED + seed) for seed in range(MISSING_WORLDS)]
    wanted += [(source, 0) for source in TRACES if arguments.traces]
    begin = time.monotonic()
    for source, seed in wanted:
        for kind in arguments.only or (second_kinds.KINDS if arguments.second else KINDS):
            known = [line for line in lines if _is_of(line, kind, source, seed)]
            if any(line["scene"] == draw_scene(kind, line["seed"], source).fingerprint() for line in known):
                continue
            if time.monotonic() - begin > 60 * arguments.minutes:
                return
            start = time.monotonic()
            world = _acceptable(kind, seed, source, arguments.traces)
            lines = [
                *(line for line in _recorded(record) if line not in known),
                _line(world),
            ]  # another process may write too
            write(lines, record)
            seconds = time.monotonic() - start
            knee = "void" if world.is_void else f"{world.knee_per_s}/s ± {world.knee_error:.2%}, slope {world.slope}"
            print(f"{world.name}: {knee}, threshold {world.threshold_s} s, {seconds:.0f} s", flush=True)


def _is_of(line: dict[str, Any], kind: str, source: str, seed: int) -> bool:
    """Whether a line of a record is the world of this seed, or one that took its place."""
    is_alike = line["seed"] % 100 == seed % 100 and (line["seed"] >= MISSING_SEED) == (seed >= MISSING_SEED)
    return is_alike and (line["kind"], line["source"]) == (kind, source)


def _acceptable(kind: str, seed: int, source: str, traces: Path | None) -> World:
    """The first world of seed, seed + 100 … that a sweep can be run in.

    Raises:
        LookupError: none below `MISSING_SEED` has a knee that fits
    """
    is_missing = seed >= MISSING_SEED
    while is_missing == (seed >= MISSING_SEED):
        scene = draw_scene(kind, seed, source)
        world = compute_missing(scene, traces) if is_missing else compute(scene, traces)
        seed += 100
        if world is None:
            continue
        if world.knee_per_s is None:
            return world
        if KNEES_PER_S[0] <= world.knee_per_s <= KNEES_PER_S[1] and world.knee_error < MAX_RECORDED_ERROR:
            return world
    raise LookupError(f"{kind} {source}: no knee from {KNEES_PER_S[0]} to {KNEES_PER_S[1]}/s in ten seeds")


if __name__ == "__main__":
    main()
