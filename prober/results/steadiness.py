"""Tests whether the latencies of a warm-up are steady: a sequential test with a stated error.

At each of LOOKS answers, the last third of the answers is compared with the middle third; the first third, with the slow answers of a
cold engine, is left out. A latency is steady if the confidence interval of its change is within MAX_CHANGE, and shows no
change above MINOR_CHANGE. So noise alone never passes as steadiness, unlike in tests that look for a trend and find none. The
looks share ERROR evenly. Because every latency must pass, ERROR bounds the chance of `is_steady` if one of them changes by more than
MAX_CHANGE at each look (Berger, Technometrics 24, 1982). Later changes, such as a compilation for a longer prompt, cannot be
foreseen.

The change is the Hodges–Lehmann estimate of the paired differences of logarithms, which a few extreme answers do not move. Where
successive answers are alike, pairs are means of batches of twice the autocorrelation time (Law and Carson, Operations Research 27,
1979). Letting the test decide how much of the start to drop, at most half, follows Heidelberger and Welch (Operations
Research 31, 1983).
"""

import math
from collections.abc import Sequence
from operator import sub

from prober.measure.outcome import ANSWERED
from prober.measure.result import ProbeResult
from prober.results.result import WarmUp
from prober.statistics.paired_test import Effect, hodges_lehmann, independent_means

LOOKS = (24, 36, 54, 81, 122, 183, 275, 413, 620)  # answers; each look has half as many again as the last
MAX_CHANGE = 0.2
MINOR_CHANGE = 0.02
ERROR = 0.05
MIN_LATENCY_S = 1e-6  # a shorter one, from a virtual clock or one flush, has no meaningful logarithm


class SteadinessTest:
    """The test. Feed it with the results of a warm-up in the order in which they end.

    is_steady: the last look proved that the latencies are steady; None before the first look
    changes: bounds of the relative change by latency, at the last look
    """

    def __init__(self) -> None:
        self.is_steady: bool | None = None
        self.changes: dict[str, tuple[float, float]] = {}
        self._logs: dict[str, list[float]] = {"TTFT": [], "TPOT": [], "E2E": []}

    def add(self, result: ProbeResult | None) -> None:
        """Add a result. Only answers with latencies count; a TTFT between two bounds counts as their middle."""
        if result is None or result.outcome not in ANSWERED:
            return
        timeline = result.timeline
        bounds, is_streamed = timeline.bounds_s("ttft"), timeline.first_ns is not None
        values = {
            "TTFT": None if bounds is None else sum(bounds) / 2,
            "TPOT": timeline.tpot_s,
            "E2E": None if is_streamed else timeline.e2e_s,
        }
        for name, value_s in values.items():
            if value_s is not None:
                self._logs[name].append(math.log(max(value_s, MIN_LATENCY_S)))
        if len(self._logs["TTFT" if is_streamed else "E2E"]) in LOOKS:
            self._look()

    def warm_up(self, requests: int, seconds: float) -> WarmUp:
        """The warm-up for a result, which ended after `requests` and `seconds`."""
        return WarmUp(requests, seconds, self.is_steady, self.changes)

    def _look(self) -> None:
        effects = {name: _change(logs) for name, logs in self._logs.items() if logs}
        bounds = {
            name: (math.expm1(effect.lower), math.expm1(effect.upper))
            for name, effect in effects.items()
            if effect is not None and effect.lower is not None and effect.upper is not None
        }
        self.changes = bounds
        self.is_steady = len(bounds) == len(effects) and all(
            -MAX_CHANGE < lower <= MINOR_CHANGE and -MINOR_CHANGE <= upper < MAX_CHANGE
            for lower, upper in bounds.values()
        )


def _change(logs: Sequence[float]) -> Effect | None:
    """Change from the middle to the last third, with the confidence of one look; None without pairs."""
    third = len(logs) // 3
    if not third:
        return None
    differences = list(map(sub, logs[-third:], logs[-2 * third : -third]))
    return hodges_lehmann(independent_means(differences), 1 - 2 * ERROR / len(LOOKS))
