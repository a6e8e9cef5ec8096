"""Engines in production: by which factor can the traffic that is there grow before an SLO fails?

    python -m bench.independent.production [--cases N] [--processes N]

computes the cases that `production.json` lacks. A production has lengths and a burstiness of its own. Its limit is its rate at which so
many requests are bad in the long run as the objective allows, found by simulations with common random numbers from rate to rate.
Counted are requests with the lengths of production that come at random moments, as a sweep sends them; and, for a second limit,
production's own, which come in bursts. Production at a share u of its limit leaves 1 − u free: it can grow by the factor 1 / u.
"""

import argparse
import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass, replace
from functools import partial
from hashlib import sha256
from itertools import pairwise
from multiprocessing import Pool
from pathlib import Path
from random import Random
from typing import Any, Literal

import numpy as np

from bench.independent.engine import COMPLETE, Engine, Results, Times
from bench.independent.kinds import draw_structure, log_uniform
from bench.independent.structure import Structure
from bench.independent.workloads import Mode, Requests, Workload, generator

RECORD = Path(__file__).with_name("production.json")
# Few slots; prompts in pieces, whole, or in turns with decodes; little KV space; replicas.
KINDS = ("chunked", "separate", "slots", "round_robin", "alternating", "preempting", "least_busy")
SIZES = ("quarter", "same", "fourfold", "mixture")
FACTORS = {"quarter": 0.25, "same": 1.0, "fourfold": 4.0}
Signal = Literal["ttft", "tpot", "e2e"]
Strain = Callable[[float, int, int], float]
COUNTED_SHARE = 0.1  # of bursty traffic: those at random moments, which are counted
WARM_UP_S, WARM_UP_REQUESTS = 120.0, 100  # of a simulation, not counted: the longer of the two
ROUGH, FINE, SEEDS = 6_000, 40_000, (3, 16)  # requests of a simulation; fewest and most runs of the last step
S_PER_REQUEST = 0.03  # a simulation lasts so long at least: bursts are many there too
SPREAD = 0.06  # distance of the rates beside the limit
MOST_REQUESTS = 250_000  # of a simulation
LIMITS_PER_S = (0.5, 100.0)  # of production
LEAST_SLOPE = 2.0  # dlog share / dlog rate at the limit
MOST_ERROR = 0.015  # relative standard error of a limit
LEAST_USE, MOST_USE = 0.2, 1.1
CASES = 56  # all kinds with all sizes, for development and held out
STREAM_S = 7_200.0


@dataclass(frozen=True, slots=True)
class Objective:
    """An SLO. allowed: share of bad events"""

    signal: Signal
    threshold_s: float
    allowed: float


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Arrivals whose rate is multiplied by a random factor, drawn anew every `burst_s` with this variation (Gamma); 0: Poisson."""

    variation: float = 0.0
    burst_s: float = 1.0

    def times_s(self, rng: np.random.Generator, rate_per_s: float, until_s: float) -> Times:
        """Ascending times. The same generator gives the same chance at every rate: more arrivals are the same, nearer together."""
        of_gaps, of_factors = rng.spawn(2)
        intervals = math.ceil(until_s / self.burst_s)
        expected = rate_per_s * until_s
        if self.variation:
            factors = of_factors.gamma(1 / self.variation**2, self.variation**2, intervals)
            passed = np.concatenate(([0.0], np.cumsum(factors * self.burst_s)))
            knots_s = self.burst_s * np.arange(intervals + 1)
            expected = rate_per_s * passed[-1]
        units = np.cumsum(of_gaps.standard_exponential(math.ceil(expected + 6 * math.sqrt(expected) + 20)))
        times_s = units / rate_per_s
        if self.variation:
            times_s = np.interp(times_s, passed, knots_s, right=math.inf)
        return times_s[times_s < until_s]


@dataclass(frozen=True, slots=True)
class Case:
    """An engine with the workload of the probes, production's, and SLOs.

    size: of production's requests beside the probes', a member of SIZES
    use: production's rate ÷ its limit
    objectives: () before thresholds are known
    """

    number: int
    attempt: int
    kind: str
    size: str
    structure: Structure
    probe: Workload
    production: Workload
    arrivals: Arrivals
    signals: tuple[Signal, ...]
    allowed: float
    use: float
    threshold_factor: float
    objectives: tuple[Objective, ...] = ()

    @property
    def name(self) -> str:
        """Number, kind and size."""
        return f"{self.number} {self.kind} {self.size}"

    def fingerprint(self) -> str:
        """Changes with all that is drawn."""
        return sha256(repr(astuple(replace(self, objectives=()))).encode()).hexdigest()[:10]

    def engine(self, seed: int) -> Engine:
        """A new engine of this case, with the page of vLLM."""
        return Engine(self.structure, seed)


@dataclass(frozen=True, slots=True)
class Truth:
    """The answers of a case: the most of production's mix.

    limit_per_s: by requests at random moments; error: its relative standard error
    users_limit_per_s: by production's own requests; 0: they are bad at every rate
    """

    limit_per_s: float
    error: float
    users_limit_per_s: float


@dataclass(frozen=True, slots=True)
class Phase:
    """A time of a service in production.

    after: readings of the gauge that come before it
    case: its engine and production; the probes and objectives are those of all phases
    change: how its engine follows that of the phase before: it stays, restarts, or loses its last worker
    rate_limit_per_s: of requests over HTTP, at a front
    """

    after: int
    case: Case
    per_s: float
    truth: Truth
    change: Literal["", "restart", "worker lost"] = ""
    rate_limit_per_s: float = math.inf

    @property
    def free(self) -> float:
        """Free share of the limit, at least -9."""
        return 1 - min(10.0, self.per_s / max(1e-9, self.truth.limit_per_s))

    @property
    def free_of_users(self) -> float:
        """The same by production's own requests."""
        return 1 - min(10.0, self.per_s / max(1e-9, self.truth.users_limit_per_s))


@dataclass(frozen=True, slots=True)
class Scene:
    """Phases that the gauge is read in. name: begins with the number"""

    name: str
    group: str
    phases: tuple[Phase, ...]
    has_users_slos: bool = False


def doubling(case: Case, truth: Truth) -> Scene:
    """Production at its use, which doubles at the end."""
    per_s = case.use * truth.limit_per_s
    return Scene(case.name, "cases", (Phase(0, case, per_s, truth), Phase(3, case, 2 * per_s, truth)))


def draw_case(number: int, attempt: int = 0) -> Case:
    """The case of a number; a later attempt where an earlier one has no limit that simulations determine."""
    rng = Random(f"production {number} {attempt}")
    kind, size = KINDS[number // 2 % len(KINDS)], SIZES[number // 2 % len(SIZES)]
    structure = draw_structure(kind, 5_000 + 1_000 * attempt + number)
    prompt, output = log_uniform(rng, 120, 1_000), log_uniform(rng, 25, 80)
    sigmas = rng.uniform(0.3, 0.8), rng.uniform(0.3, 0.6)
    own = (Mode(1.0, prompt, sigmas[0], output, sigmas[1]),)
    factors = [FACTORS[size]] if size in FACTORS else [rng.uniform(0.2, 0.5), rng.uniform(2.5, 6.0)]
    modes = []
    for factor in factors:
        tilt = log_uniform(rng, 0.5, 2.0)  # longer prompts and shorter outputs, or the other way
        modes.append(
            Mode(
                *(rng.uniform(0.3, 0.7) if len(factors) > 1 else 1.0, prompt * factor * tilt, rng.uniform(0.3, 0.9)),
                *(max(3.0, output * factor / tilt), rng.uniform(0.3, 0.7)),
            )
        )
    most = min(12_000, structure.kv_tokens // 3), min(800, structure.kv_tokens // 8)
    is_bursty = rng.random() < 0.5
    return Case(
        *(number, attempt, kind, size, structure),
        probe=Workload(own, min(most[0], round(8 * prompt)), min(most[1], round(6 * output))),
        production=Workload(tuple(modes), *most),
        arrivals=Arrivals(rng.uniform(0.4, 0.8), rng.uniform(1.0, 4.0)) if is_bursty else Arrivals(),
        signals=rng.choice((("ttft",), ("ttft",), ("ttft", "tpot"), ("e2e",))),
        allowed=rng.choice((0.01, 0.02, 0.05, 0.05)),
        use=round(rng.uniform(LEAST_USE, MOST_USE), 3),
        threshold_factor=round(rng.uniform(2.5, 6.0), 2),
    )


def values_s(signal: Signal, arrivals_s: Times, results: Results) -> Times:
    """The signal of each request; NaN: it failed, or has no such signal."""
    if signal == "ttft":
        return results.first_token_s - arrivals_s
    failed = np.where(results.status == COMPLETE, 0.0, np.nan)
    if signal == "e2e":
        return results.end_s - arrivals_s + failed
    steps = np.where(results.tokens > 1, results.tokens - 1.0, np.nan)
    return (results.end_s - results.first_token_s) / steps + failed


def requests(
    workload: Workload, arrivals: Arrivals, rate_per_s: float, until_s: float, rng: np.random.Generator
) -> Requests:
    """Requests of a workload until a time."""
    of_times, of_lengths, of_groups = rng.spawn(3)
    times_s = arrivals.times_s(of_times, rate_per_s, until_s)
    prompts, outputs = workload.lengths(of_lengths, len(times_s), None)
    return Requests(times_s, prompts, outputs, workload.prefixes(of_groups, prompts))


class Simulation:
    """Long runs of a case."""

    def __init__(self, case: Case) -> None:
        self.case = case

    def idle(self, workload: Workload) -> tuple[Times, Results]:
        """Arrivals and results of requests that nearly always find an idle engine."""
        made = requests(workload, Arrivals(), 0.01, 300_000.0, generator("idle", self.case.number, self.case.attempt))
        return made.times_s, self.case.engine(1).run(*made)

    def run(self, rate_per_s: float, count: int, seed: int, of_users: bool = False) -> tuple[Times, Results]:
        """Arrivals and results of the counted ones among about `count` requests.

        of_users: count production's own, not those at random moments
        """
        case = self.case
        warm_up_s = max(WARM_UP_S, WARM_UP_REQUESTS / rate_per_s)
        until_s = warm_up_s + min(max(count / rate_per_s, S_PER_REQUEST * count), MOST_REQUESTS / rate_per_s)
        share = COUNTED_SHARE if case.arrivals.variation and not of_users else 0.0
        rng = generator("production", case.number, case.attempt, seed)
        made = requests(case.production, case.arrivals, (1 - share) * rate_per_s, until_s, rng)
        is_counted = made.times_s >= warm_up_s
        if share:
            rng = generator("counted", case.number, case.attempt, seed)
            counted = requests(case.production, Arrivals(), share * rate_per_s, until_s, rng)
            made, is_counted = counted.merged(made)
            is_counted &= made.times_s >= warm_up_s
        results = case.engine(seed).run(*made)
        chosen = Results(
            *(getattr(results, name)[is_counted] for name in ("first_token_s", "end_s", "tokens", "status"))
        )
        return made.times_s[is_counted], chosen

    def strain(self, rate_per_s: float, count: int, seed: int, of_users: bool = False) -> float:
        """Bad share ÷ allowed share of the SLO that is worst off."""
        arrivals_s, results = self.run(rate_per_s, count, seed, of_users)
        shares = []
        for objective in self.case.objectives:
            values = values_s(objective.signal, arrivals_s, results)
            has_event = (results.tokens > 1) | (results.status != COMPLETE) | (objective.signal != "tpot")
            bad = ~(values[has_event] <= objective.threshold_s)
            shares.append((float(bad.mean()) if bad.size else 0.0) / objective.allowed)
        return max(shares)


def root_of(strains: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Rate at which the strain is 1, by a line in logarithms between the rates beside it, and the slope over all of them.

    strains: (rate, strain), the lowest rate below 1 and the highest above
    """
    ordered = sorted(strains)
    x = np.log([rate for rate, _ in ordered])
    y = np.log([max(strain, 0.01) for _, strain in ordered])
    slope = float(np.polyfit(x, y, 1)[0])
    for (left, below), (right, above) in pairwise(zip(x.tolist(), y.tolist(), strict=True)):
        if below <= 0 < above:
            return math.exp(left - below * (right - left) / (above - below)), slope
    middle = len(x) // 2
    return math.exp(x[middle] - y[middle] / max(slope, LEAST_SLOPE)), slope


class NoLimit(Exception):
    """Simulations do not determine a limit, or it is out of range."""


class BadAtEveryRate(NoLimit):
    """The limit is 0."""


def limit(strain: Strain, least: float, most_error: float) -> tuple[float, float, float]:
    """(rate, relative standard error, slope) at which a strain of (rate, count, seed) is 1.

    least: a rate to begin with
    most_error: more runs are made until the error is below it, up to SEEDS

    Raises:
        NoLimit: it is 1 at no rate, or simulations do not determine the rate
    """
    low = least
    while strain(low, ROUGH, 1) > 1:
        low /= 1.6
        if low < least / 1_000:
            raise BadAtEveryRate("bad at every rate")
    high = low * 1.6
    while strain(high, ROUGH, 1) <= 1:
        low, high = high, high * 1.6
        if high > 1e4:
            raise NoLimit("good at every rate")
    for _ in range(3):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if strain(middle, ROUGH, 1) <= 1 else (low, middle)
    rate, moves = math.sqrt(low * high), 0
    runs: list[list[float]] = []
    while True:
        rates = [rate / (1 + SPREAD), rate, rate * (1 + SPREAD)]
        runs.append([strain(at, FINE, 10 + len(runs)) for at in rates])
        if len(runs) < SEEDS[0]:
            continue
        root, slope = root_of(list(zip(rates, np.mean(runs, axis=0), strict=True)))
        if abs(math.log(root / rate)) > 1.2 * SPREAD:
            if moves == 5:
                raise NoLimit("the limit moves with the length of the simulation")
            rate, runs, moves = min(max(root, rate / 1.3), rate * 1.3), [], moves + 1
            continue
        others = [
            math.log(root_of(list(zip(rates, np.mean(runs[:i] + runs[i + 1 :], axis=0), strict=True)))[0])
            for i in range(len(runs))
        ]
        error = math.sqrt((len(runs) - 1) * float(np.var(others)))  # jackknife
        if error < most_error:
            return root, error, slope
        if len(runs) >= SEEDS[1]:
            raise NoLimit(f"error {error:.2g}")


def with_objectives(case: Case) -> Case:
    """The case with thresholds some way above the latencies of an idle engine, for probes and users, rounded."""
    runs = [Simulation(case).idle(workload) for workload in (case.probe, case.production)]
    objectives = []
    for signal in case.signals:
        idle_s = max(float(np.nanquantile(values_s(signal, *run), 1 - case.allowed / 2)) for run in runs)
        factor = 1 + 0.4 * (case.threshold_factor - 1) if signal != "ttft" else case.threshold_factor
        objectives.append(Objective(signal, float(f"{factor * idle_s:.2g}"), case.allowed))
    return replace(case, objectives=tuple(objectives))


def truth_of(case: Case) -> Truth:
    """The truth of a case with objectives. Raises NoLimit."""
    simulation = Simulation(case)
    most_per_s, error, slope = limit(simulation.strain, 1.0, MOST_ERROR)
    if slope < LEAST_SLOPE:
        raise NoLimit(f"slope {slope:.2g}")
    users_per_s = most_per_s
    if case.arrivals.variation:
        try:
            users_per_s, *_ = limit(partial(simulation.strain, of_users=True), most_per_s / 2, 2 * MOST_ERROR)
        except BadAtEveryRate:
            users_per_s = 0.0
    return Truth(*(float(f"{value:.4g}") for value in (most_per_s, error, users_per_s)))


def mean_tokens(workload: Workload) -> float:
    """Prompt and output tokens of a request together."""
    prompts, outputs = workload.lengths(generator("mean"), 20_000, None)
    return float((prompts + outputs).mean())


def stream(
    workload: Workload, arrivals: Arrivals, rate_per_s: float, *seed: object
) -> Iterator[tuple[float, int, int, list[int]]]:
    """Production of some hours: arrival, prompt tokens, output tokens, ids of its prefix blocks; then none."""
    made = requests(workload, arrivals, rate_per_s, STREAM_S, generator("stream", *seed))
    ids = [[]] * len(made.times_s) if made.prefixes is None else made.prefixes.chains()
    yield from zip(made.times_s.tolist(), made.prompts.tolist(), made.outputs.tolist(), ids, strict=True)
    yield math.inf, 1, 1, []


def load(numbers: Iterable[int]) -> list[tuple[Case, Truth]]:
    """The recorded cases of these numbers.

    Raises:
        ValueError: the record was made for other cases
    """
    wanted, cases = frozenset(numbers), []
    for line in json.loads(RECORD.read_text())["cases"]:
        if line["number"] not in wanted:
            continue
        case = draw_case(line["number"], line["attempt"])
        if case.fingerprint() != line["case"]:
            raise ValueError(f"case {case.number} has changed: python -m bench.independent.production")
        objectives = tuple(Objective(*values) for values in line["objectives"])
        cases.append((replace(case, objectives=objectives), Truth(*line["truth"])))
    return cases


def record(number: int) -> dict[str, Any]:
    """The line of the first attempt of a number that simulations determine."""
    attempt = 0
    while True:
        case = with_objectives(draw_case(number, attempt))
        try:
            truth = truth_of(case)
        except NoLimit:
            truth = None
        if (
            truth is None
            or not LIMITS_PER_S[0] <= truth.users_limit_per_s <= truth.limit_per_s * 1.1 <= LIMITS_PER_S[1]
        ):
            attempt += 1
            continue
        return {
            "number": number,
            "attempt": attempt,
            "case": case.fingerprint(),
            "objectives": [astuple(objective) for objective in case.objectives],
            "truth": astuple(truth),
        }


def main() -> None:
    """Compute the cases that are missing or have changed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=CASES)
    parser.add_argument("--processes", type=int, default=1)
    arguments = parser.parse_args()
    lines = {line["number"]: line for line in json.loads(RECORD.read_text())["cases"]} if RECORD.exists() else {}
    lines = {
        number: line
        for number, line in lines.items()
        if line["case"] == draw_case(number, line["attempt"]).fingerprint()
    }
    with Pool(arguments.processes) as pool:
        for line in pool.imap_unordered(record, sorted(set(range(arguments.cases)) - set(lines))):
            lines[line["number"]] = line
            print(json.dumps(line), flush=True)
            body = ",\n".join(json.dumps(lines[number]) for number in sorted(lines))
            RECORD.write_text(f'{{"cases": [\n{body}\n]}}\n')


if __name__ == "__main__":
    main()
