"""The simulation: how fast it is, and where the figures of its load come from.

python -m bench.simulation             one simulated hour at 1 and at 5 requests a second, 30 days as a prober sees them
python -m bench.simulation --fit PATH  the figures of prober/simulation/load.py from the published trace: Azure LLM inference
                                       trace 2023, conversation (https://github.com/Azure/AzurePublicDataset)
"""

import argparse
import json
import math
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from random import Random
from statistics import fmean, pvariance
from typing import Any

from bench import report
from prober.simulation.engine import Engine
from prober.simulation.load import AzureConversation
from prober.simulation.parameters import Parameters
from prober.simulation.probe_samples import simulate_probes
from prober.workload.trace import Trace, parse_trace

PROMPT_CELLS, OUTPUT_CELLS, TENTHS = 40, 10, 10


def cells(values: Sequence[int], count: int) -> list[int]:
    """Quantiles at 0, 1/count, ..., 1 of the order statistics; the last one is such that the last cell keeps its mean."""
    ordered = sorted(values)
    found = [ordered[len(ordered) * at // count] for at in range(count)]
    top = ordered[len(ordered) * (count - 1) // count :]
    return [*found, round(2 * fmean(top) - found[-1])]


def lengths(trace: Trace) -> dict[str, Any]:
    """Quantiles of prompts, and of outputs for each tenth of the prompts by length."""
    pairs = sorted(zip(trace.prompt_tokens, trace.output_tokens, strict=True))
    tenths = [pairs[len(pairs) * at // TENTHS : len(pairs) * (at + 1) // TENTHS] for at in range(TENTHS)]
    return {
        "PROMPT_TOKENS": cells(trace.prompt_tokens, PROMPT_CELLS),
        "OUTPUT_TOKENS": [cells([output for _, output in tenth], OUTPUT_CELLS) for tenth in tenths],
    }


def counts(trace: Trace, width_s: float) -> list[int]:
    """Arrivals in consecutive windows, the last and incomplete one left out."""
    found = [0] * int(trace.offsets_ns[-1] / 1e9 / width_s)
    for offset in trace.offsets_ns:
        if (at := int(offset / 1e9 / width_s)) < len(found):
            found[at] += 1
    return found


def rates(trace: Trace) -> dict[str, float]:
    """Mean, slow variation and burstiness of the arrivals.

    Slow: the variance of minutes' counts less what a Poisson process adds to it, as the variance of a lognormal rate; its
    correlation time by least squares over lags of 1 to 5 minutes on the logarithm of the autocorrelation. Fast: the index of
    dispersion of windows of 1, 3 and 10 s less the slow rate's part and 1, in the mean.
    """
    minutes = counts(trace, 60.0)
    mean = fmean(minutes)
    slow = (pvariance(minutes) - mean) / mean**2
    sigma = math.sqrt(math.log(1 + slow))
    correlations = [
        fmean((a - mean) * (b - mean) for a, b in zip(minutes, minutes[lag:], strict=False)) / (slow * mean**2)
        for lag in range(1, 6)
    ]
    decay = -sum(60.0 * lag * math.log(c) for lag, c in enumerate(correlations, 1)) / sum(
        (60.0 * lag) ** 2 for lag in range(1, 6)
    )
    excess = []
    for width_s in (1.0, 3.0, 10.0):
        found = counts(trace, width_s)
        excess.append(pvariance(found) / fmean(found) - slow * fmean(found) - 1)
    return {
        "TRACE_RATE_PER_S": round(trace.rate_per_s, 3),
        "GAP_EXCESS": round(fmean(excess), 3),
        "RATE_SIGMA": round(sigma, 3),
        "RATE_CORRELATION_S": round(1 / decay),
    }


def fit(path: Path) -> None:
    """Print the figures."""
    trace = parse_trace(path.read_text(), str(path))
    gaps = [after - before for before, after in pairwise(trace.offsets_ns)]
    print(json.dumps(rates(trace) | {"gap_cv2": round(pvariance(gaps) / fmean(gaps) ** 2, 3)} | lengths(trace)))


def hour(rate_per_s: float) -> dict[str, float]:
    """One simulated hour of load alone."""
    started = time.process_time()
    engine = Engine(Parameters(), Random(1))
    for request in AzureConversation(rate_per_s, daily_amplitude=0.0).requests(Random(2), 0.0, 3600.0):
        engine.submit(request)
    ended = engine.advance(3600.0)
    return {"cpu_s": time.process_time() - started, "requests": len(ended), "steps": engine.state.steps}


def days(count: int) -> dict[str, float]:
    """So many days at 1 request a second beside probes at 0.2/s."""
    started = time.process_time()
    samples = [
        (seen.ttft_s, seen.itl_p99_s)
        for seen in simulate_probes(Parameters(), AzureConversation(1.0), Random(1), 0.0, count * 86_400.0)
    ]
    cpu_s = time.process_time() - started
    ttft, itl = ([each[at] for each in samples] for at in (0, 1))
    found = {"days": count, "cpu_s": cpu_s, "probes": len(samples)}
    for name, values in (("ttft_ms", ttft), ("itl_p99_ms", itl)):
        found |= {f"{name}_p{round(q * 100)}": round(report.percentile(values, q) * 1e3, 2) for q in (0.5, 0.9, 0.99)}
    return found


def main() -> None:
    """See above."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--fit", type=Path)
    parser.add_argument("--days", type=int, default=30)
    options = parser.parse_args()
    if options.fit:
        fit(options.fit)
        return
    hours = {rate: report.part(f"{rate:g}/s", hour(rate)) for rate in (1.0, 5.0)}
    goals = [
        report.goal(f"one simulated hour at {rate:g} requests/s", found["cpu_s"], 1.0, "s")
        for rate, found in hours.items()
    ]
    report.show("simulation", goals, hours=hours, probed=days(options.days))


if __name__ == "__main__":
    main()
