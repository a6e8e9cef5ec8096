"""How often does a warm-up end as steady too early, and how many requests does it take? Seeded simulation, no sockets.

    python -m bench.steadiness [--quick]

A latency is level × curve × noise, for TTFT, and for TPOT with a quarter of the noise. Curves by request: constant; exponential decay;
steps, as a compilation or a graph capture leaves them; drifts that never end, one of them the worst case of the test. Noises:
independent with three spreads, autocorrelated with two strengths, and one request in ten slower by a factor of Pareto's distribution
without a mean. `false` is the share of warm-ups that ended as steady although the curve itself changed by more than 20% between the
compared thirds, which the test bounds by 5%. `early` is the share that ended while the curve was still more than 20% above its end,
which no test can exclude: a plateau looks like the end. `never` is the share that was not shown to be steady within the last look.
"""

import argparse
from functools import partial
from multiprocessing import Pool
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.deciding import interval
from bench.report import goal, part, show
from prober.measure.chunk import Usage
from prober.measure.outcome import Outcome
from prober.measure.result import ProbeResult
from prober.measure.timeline import Timeline
from prober.results.steadiness import LOOKS, SteadinessTest

RUNS = 50
REQUESTS = LOOKS[-1]
MATERIAL = 1.2
TTFT_S, TPOT_S, TOKENS = 0.1, 0.01, 21
Array = NDArray[np.float64]
AT: Array = np.arange(REQUESTS, dtype=float)
CURVES: dict[str, Array] = {
    "constant": np.ones(REQUESTS),
    "4x, decays in 5 requests": 1 + 3 * np.exp(-AT / 5),
    "4x, decays in 20 requests": 1 + 3 * np.exp(-AT / 20),
    "2x, decays in 60 requests": 1 + np.exp(-AT / 60),
    "5x for 8 requests": np.where(AT < 8, 5.0, 1.0),
    "5x for 20 requests": np.where(AT < 20, 5.0, 1.0),
    "2x for 60 requests": np.where(AT < 60, 2.0, 1.0),
    "3x from request 10 to 14": np.where((AT >= 10) & (AT < 14), 3.0, 1.0),
    "falls 0.3% a request": np.exp(-0.003 * AT),
    "falls 1% a request": np.exp(-0.01 * AT),
    "falls 21% a look, TTFT only": (AT + 1) ** -0.45,
}
NOISES = ("spread 5%", "spread 20%", "spread 40%", "AR 0.6", "AR 0.9", "heavy tail")


def noise(name: str, rng: np.random.Generator) -> Array:
    """Logarithms."""
    kind, _, size = name.partition(" ")
    if kind == "heavy":
        slow = rng.random(REQUESTS) < 0.1
        return rng.normal(0, 0.1, REQUESTS) + slow * np.log1p(2 * rng.pareto(1.0, REQUESTS))
    if kind == "spread":
        return rng.normal(0, float(size.rstrip("%")) / 100, REQUESTS)
    correlation, steps = float(size), rng.normal(0, 0.2, REQUESTS)
    steps[1:] *= np.sqrt(1 - correlation**2)
    for at in range(1, REQUESTS):
        steps[at] += correlation * steps[at - 1]
    return steps


def answer(ttft_s: float, tpot_s: float) -> ProbeResult:
    """An answer with these latencies."""
    first_ns = round(ttft_s * 1e9)
    stamps = tuple(first_ns + round(token * tpot_s * 1e9) for token in range(TOKENS))
    usage = Usage(10, TOKENS, None)
    timeline = Timeline(0, sent_ns=0, first_ns=first_ns, content_ns=stamps, end_ns=stamps[-1], usage=usage)
    return ProbeResult("", "", "", 0.0, Outcome.OK, "", timeline)


def warmed(curve: str, kind: str, seed: int) -> int | None:
    """Requests until steady; None: never."""
    rng = np.random.default_rng([seed, list(CURVES).index(curve), NOISES.index(kind)])
    ttfts_s = TTFT_S * CURVES[curve] * np.exp(noise(kind, rng))
    tpots_s = TPOT_S * np.exp(noise(kind, rng) / 4) * (1.0 if curve.endswith("only") else CURVES[curve])
    test = SteadinessTest()
    for sent, (ttft_s, tpot_s) in enumerate(zip(ttfts_s, tpots_s, strict=True), 1):
        test.add(answer(float(ttft_s), float(tpot_s)))
        if test.is_steady:
            return sent
    return None


def measured(curve: str, kind: str, runs: int, pool: Any) -> dict[str, Any]:
    """The figures of one cell."""
    shape = CURVES[curve]
    ends = pool.map(partial(warmed, curve, kind), range(runs))
    ended = [sent for sent in ends if sent is not None]
    false = sum(_change(shape, sent) > MATERIAL for sent in ended)
    early = sum(shape[sent - 1] > MATERIAL * shape[-1] for sent in ended) if not curve.startswith("falls") else 0
    lasts = int(np.max(np.nonzero(shape > MATERIAL)[0], initial=-1)) + 1 if not curve.startswith("falls") else None
    return {
        "curve": curve,
        "noise": kind,
        "cold_requests": lasts,
        "requests": {name: int(np.quantile(ended, q)) if ended else None for name, q in (("p50", 0.5), ("p90", 0.9))},
        "false": false / runs,
        "false_interval": interval(false, runs),
        "early": early / runs,
        "never": 1 - len(ended) / runs,
    }


def _change(shape: Array, sent: int) -> float:
    """Factor between the mean logarithms of the last two thirds."""
    third = sent // 3
    logs = np.log(shape[sent - 2 * third : sent])
    return float(np.exp(abs(logs[third:].mean() - logs[:third].mean())))


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    runs = 20 if parser.parse_args().quick else RUNS
    with Pool(2) as pool:
        cells = [part("cell", measured(curve, kind, runs, pool)) for curve in CURVES for kind in NOISES]
    false = max(cell["false"] for cell in cells)
    goals = [goal("largest share of warm-ups that ended as steady while the latency changed", false, 0.05, "ratio")]
    show("steadiness", goals, runs=runs, cells=cells)


if __name__ == "__main__":
    main()
