"""Which events a probe is for an objective: how many, and how many of them bad.

`success`, `ttft` and `e2e`: one a probe, a bad outcome is a bad event. `tpot`: one if the answer had two tokens. `itl`: the gaps
seen, and one bad if the stream died after its first token. `quality`: one a golden prompt. Neutral outcomes are none. Successes
that warmed an engine up, or whose cold prompt was cached, are events of `success` and `quality` only: their latencies are
nobody's.
"""

from prober.measure.objective import WITHOUT_THRESHOLD, Slo
from prober.measure.outcome import BAD, NEUTRAL, Outcome
from prober.measure.result import ProbeResult

NONE = (0, 0)
GOOD = (1, 0)
MISSED = (1, 1)


def events(slo: Slo, result: ProbeResult) -> tuple[int, int]:
    """(events, bad events) that `result` is for `slo`."""
    if result.outcome in NEUTRAL:
        return NONE
    failed = result.outcome in BAD
    if slo.signal == "success":
        return MISSED if failed else GOOD
    if slo.signal == "quality":
        if result.golden is None:
            return NONE
        return MISSED if failed or result.outcome is Outcome.WRONG_ANSWER else GOOD
    if not failed and (result.warm_up or result.cached):
        return NONE
    if slo.signal == "itl":
        return _gaps(slo, result, failed=failed)
    if slo.signal == "tpot":
        return _single(slo, result.timeline.tpot_s)
    if failed:
        return MISSED
    timeline = result.timeline
    value = {"ttft": timeline.ttft_s, "ttft_answer": timeline.ttft_answer_s, "e2e": timeline.e2e_s}[slo.signal]
    return _single(slo, value)


def most_a_probe(slo: Slo, output_tokens: int) -> int:
    """The most events that one probe asking for `output_tokens` can be, all of them bad."""
    return max(1, output_tokens) if slo.signal == "itl" else 1


def mean_a_probe(slo: Slo, output_tokens: float) -> float:
    """The mean number of events that a probe asking for `output_tokens` on average is."""
    return max(1.0, output_tokens - 1) if slo.signal == "itl" else 1.0


def _gaps(slo: Slo, result: ProbeResult, *, failed: bool) -> tuple[int, int]:
    gaps = result.timeline.itls_s
    died = failed and result.timeline.first_ns is not None
    assert slo.threshold_s is not None
    return len(gaps) + died, sum(gap > slo.threshold_s for gap in gaps) + died


def _single(slo: Slo, value: float | None) -> tuple[int, int]:
    if value is None:
        return NONE
    assert slo.threshold_s is not None, f"{slo.signal} without threshold, not one of {WITHOUT_THRESHOLD}"
    return MISSED if value > slo.threshold_s else GOOD
