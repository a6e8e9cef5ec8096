"""How often does `prober compare` err where requests depend on the ones before them, and does it find less where they do not?

    python -m bench.dependence [--runs N] [--held-out]

Two sides of one distribution, and a B that is 30% slower, in virtual time, compared by the code of the command: as stored results
of 120 to 2,000 requests, and as live rounds of 20 requests, in which both sides share a target or each has its own. Logs of TTFT
and TPOT are autoregressive with a correlation of 0, 0.5 or 0.95 from request to request. An equal pair errs if any axis claims a
difference; an interval errs if it does not hold the truth; one that is not given holds nothing.

The method was chosen on the tuning half. The other half, `--held-out`, has other noise: autoregression half hidden under
independent noise, service that is slow for a while (a Markov chain), tails of a Student's t with 3 degrees of freedom, and
failures that come in bursts.
"""

import argparse
import math
import time
from collections.abc import Callable, Sequence
from multiprocessing import Pool
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bench.report import goal, part, show
from prober.features.experiments.compare import Round, compare, stored_rounds
from prober.results.comparison import Compared
from prober.results.result import Load, MeasuredTarget, RequestRow, Result
from prober.results.stage import stage_of_requests

Floats = NDArray[np.float64]
ROUNDS, TURN_REQUESTS, GAP_REQUESTS = 12, 20, 6  # of the command's defaults: 3 s at 2/s between turns
SIGMA, FAILED, SLOWER = 0.3, 0.02, 1.3
LATENCIES = ("ttft_p50", "ttft_p99", "tpot_p50", "itl_p99", "e2e_p50")
STORED = (120, 300, 1_000, 2_000)
LIVE = ("live, one target", "live, two targets")


def correlated(phi: float, count: int, rng: np.random.Generator) -> Floats:
    """Autoregressive values of unit variance."""
    values = rng.standard_normal(count)
    values[1:] *= math.sqrt(1 - phi * phi)
    for place in range(1, count):
        values[place] += phi * values[place - 1]
    return values


def hidden(phi: float, count: int, rng: np.random.Generator) -> Floats:
    """Half of the variance is autoregressive, half is of each request alone."""
    return math.sqrt(0.5) * (correlated(phi, count, rng) + rng.standard_normal(count))


def switching(phi: float, count: int, rng: np.random.Generator) -> Floats:
    """Service that is slow in a quarter of the time, with a correlation of `phi` of this state."""
    is_slow, states = rng.random() < 0.25, np.empty(count)
    for place in range(count):
        if rng.random() > phi:
            is_slow = rng.random() < 0.25
        states[place] = is_slow
    return 1.5 * (states - 0.25) / math.sqrt(0.1875) / 1.8 + 0.55 * rng.standard_normal(count)


def heavy(phi: float, count: int, rng: np.random.Generator) -> Floats:
    """Autoregressive values whose shocks have heavy tails."""
    shocks = rng.standard_t(3, count) / math.sqrt(3)
    values = math.sqrt(1 - phi * phi) * shocks
    values[0] = shocks[0]
    for place in range(1, count):
        values[place] += phi * values[place - 1]
    return values


NOISES: dict[str, Callable[[float, int, np.random.Generator], Floats]] = {
    "autoregressive": correlated,
    "half hidden": hidden,
    "switching": switching,
    "heavy tails": heavy,
}
HELD_OUT = ("half hidden", "switching", "heavy tails")


class Case(NamedTuple):
    """A pair to compare. form: number of stored requests of either side, or one of LIVE"""

    noise: str
    phi: float
    form: int | str
    factor: float
    seed: int


class Finding(NamedTuple):
    """has_claim: of any axis; is_slower: TTFT p50 of B is claimed to be slower; holds: truth inside the interval, by axis"""

    has_claim: bool
    is_slower: bool
    holds: dict[str, bool]
    batches: int


def requests_of(logs: Floats, factor: float, rng: np.random.Generator, bursts: Floats | None) -> list[RequestRow]:
    """Requests with these standardised logs of TTFT and TPOT, shape (2, requests). bursts: failures come where they are high"""
    rows: list[RequestRow] = []
    limit = None if bursts is None else float(np.quantile(bursts, 1 - FAILED))
    for place, (first, rest) in enumerate(logs.T):
        if rng.random() < FAILED if bursts is None or limit is None else bursts[place] > limit:
            rows.append(RequestRow(0.5 * place, outcome="http_5xx"))
            continue
        tokens = int(rng.integers(16, 48))
        ttft_s, tpot_s = 0.1 * factor * math.exp(SIGMA * first), 0.01 * factor * math.exp(SIGMA * rest)
        gaps = tuple((tpot_s * rng.lognormal(0, 0.2, 4)).tolist())
        e2e_s = ttft_s + tpot_s * (tokens - 1)
        rows.append(
            RequestRow(0.5 * place, "ok", "", ttft_s, gaps, tpot_s, e2e_s, prompt_tokens=64, output_tokens=tokens)
        )
    return rows


def rounds_of(case: Case) -> list[Round]:
    """The rounds of a case, as the command makes them of two files, or measures them."""
    rng = np.random.default_rng([case.seed, *case.noise.encode(), round(100 * case.phi), *str(case.form).encode()])
    noise = NOISES[case.noise]

    def series(count: int) -> tuple[Floats, Floats | None]:
        bursts = noise(case.phi, count, rng) if case.noise in HELD_OUT else None
        return np.array([noise(case.phi, count, rng) for _ in range(2)]), bursts

    if isinstance(case.form, int):
        a, b = (
            requests_of(logs, factor, rng, bursts)
            for factor, (logs, bursts) in ((1.0, series(case.form)), (case.factor, series(case.form)))
        )
        return stored_rounds(stored(a), stored(b), ROUNDS)
    turn = TURN_REQUESTS + GAP_REQUESTS
    of_a = series(2 * ROUNDS * turn)
    of_b = of_a if case.form == LIVE[0] else series(2 * ROUNDS * turn)
    rounds = []
    for number in range(ROUNDS):
        sides: list[list[RequestRow]] = []
        for place, (factor, (logs, bursts)) in enumerate(((1.0, of_a), (case.factor, of_b))):
            begin = turn * (2 * number + (place if number % 2 == 0 else 1 - place))
            part = slice(begin, begin + TURN_REQUESTS)
            sides.append(requests_of(logs[:, part], factor, rng, None if bursts is None else bursts[part]))
        rounds.append(Round(2.0, sides[0], sides[1]))
    return rounds


def stored(rows: Sequence[RequestRow]) -> Result:
    """A stored result of these requests."""
    stage = stage_of_requests("2/s", 2.0, rows, begin_s=0.0, sending_s=60.0)
    return Result("r", "gate", 0.0, 60.0, "t", MeasuredTarget(), Load(), (stage,))


def compared(case: Case) -> Finding:
    """The claims of a comparison."""
    results = compare(rounds_of(case))
    ttft = next(result for result in results if result.axis == "ttft_p50")
    holds = {result.axis: _holds(result, case.factor - 1) for result in results if result.axis in LATENCIES}
    return Finding(any(result.better for result in results), ttft.better == "a", holds, ttft.rounds)


def _holds(result: Compared, truth: float) -> bool:
    return result.lower is not None and result.upper is not None and result.lower <= truth <= result.upper


def cell(pool: Any, noise: str, phi: float, form: int | str, runs: int) -> dict[str, Any]:
    """Shares of one noise in one form."""
    equal, slower = (
        pool.map(compared, [Case(noise, phi, form, factor, seed) for seed in range(runs)], chunksize=10)
        for factor in (1.0, SLOWER)
    )
    return {
        "noise": noise,
        "correlation": phi,
        "form": form,
        "runs": runs,
        "claims": sum(finding.has_claim for finding in equal),
        "not_held": {axis: sum(not finding.holds.get(axis) for finding in equal) for axis in LATENCIES},
        "slower_found": sum(finding.is_slower for finding in slower),
        "slower_not_held": sum(not finding.holds["ttft_p50"] for finding in slower),
        "batches_p50": float(np.median([finding.batches for finding in equal])),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=200, help="pairs of each noise, correlation and form")
    parser.add_argument("--held-out", action="store_true", help="the half that the method was not chosen on")
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    runs, began = options.runs, time.monotonic()
    noises = HELD_OUT if options.held_out else ("autoregressive",)
    correlations = (0.5, 0.95) if options.held_out else (0.0, 0.5, 0.95)
    with Pool(options.processes) as pool:
        cells = [
            part("cell", cell(pool, noise, phi, form, runs))
            for noise in noises
            for phi in correlations
            for form in (*STORED, *LIVE)
        ]
    goals = []
    for noise in noises:
        for phi in correlations:
            for name, forms in (("stored", STORED), ("live", LIVE)):
                of_name = [
                    row for row in cells if (row["noise"], row["correlation"]) == (noise, phi) and row["form"] in forms
                ]
                pairs = runs * len(of_name)
                claims = sum(row["claims"] for row in of_name) / pairs
                not_held = sum(sum(row["not_held"].values()) for row in of_name) / pairs / len(LATENCIES)
                place = f"{name}, {noise}, {phi:g}"
                goals += [
                    goal(f"{place}: equal pairs with a claim", claims, 0.05, "ratio"),
                    goal(f"{place}: intervals of latencies without the truth", not_held, 0.07, "ratio"),
                ]
    independent = [row for row in cells if row["correlation"] == 0]
    if independent:
        found = min(row["slower_found"] for row in independent if row["form"] != STORED[0]) / runs
        goals.append(goal("+30% not found, independent, 240 requests or more", 1 - found, 0.01, "ratio"))
    show("dependence", goals, cells=cells, seconds=round(time.monotonic() - began, 1))


if __name__ == "__main__":
    main()
