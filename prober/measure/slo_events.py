"""SLO events: how many events, and how many bad ones, a probe contributes to an objective.

`success`, `ttft`, `e2e`: one event per probe; a bad outcome is a bad event.
`tpot`: one event if it was measured, see `Timeline.tpot_s`.
`itl`: one event per ITL, of the first tokens up to the number requested, plus one bad event if the stream died after its first token.
`quality`: one event per answer that is checked.

Neutral outcomes contribute nothing. A success during warm-up, whose cold prompt was in the prefix cache, or for which the prober
itself was late, contributes to `success` and `quality` only: its latency is not what a user would see.
"""

from prober.measure.objective import SIGNALS_WITHOUT_THRESHOLD, Slo
from prober.measure.outcome import BAD, NEUTRAL, Outcome
from prober.measure.result import ProbeResult

NO_EVENT = (0, 0)
GOOD_EVENT = (1, 0)
BAD_EVENT = (1, 1)


def count_events(slo: Slo, result: ProbeResult) -> tuple[int, int]:
    """Returns (events, bad events) that `result` contributes to `slo`."""
    if result.outcome in NEUTRAL:
        return NO_EVENT
    failed = result.outcome in BAD
    if slo.signal == "success":
        return BAD_EVENT if failed else GOOD_EVENT
    if slo.signal == "quality":
        if result.check is None:
            return NO_EVENT
        return BAD_EVENT if failed or result.outcome is Outcome.WRONG_ANSWER else GOOD_EVENT
    if not failed and (result.warm_up or result.cached):
        return NO_EVENT
    if slo.signal == "itl":
        return _itl_events(slo, result, failed=failed)
    if slo.signal == "tpot":
        return _single_event(slo, result.timeline.tpot_s)
    if failed:
        return BAD_EVENT
    timeline = result.timeline
    value = {"ttft": timeline.ttft_s, "ttft_answer": timeline.ttft_answer_s, "e2e": timeline.e2e_s}[slo.signal]
    return _single_event(slo, value)


def max_events_per_probe(slo: Slo, output_tokens: int) -> int:
    """Upper bound of the events, and of the bad events, of one probe that requests `output_tokens`, however long its answer is."""
    return max(1, output_tokens) if slo.signal == "itl" else 1


def mean_events_per_probe(slo: Slo, output_tokens: float) -> float:
    """Mean number of events of a probe that requests `output_tokens` on average."""
    return max(1.0, output_tokens - 1) if slo.signal == "itl" else 1.0


def _itl_events(slo: Slo, result: ProbeResult, *, failed: bool) -> tuple[int, int]:
    gaps = result.timeline.itls_s[: max_events_per_probe(slo, result.requested_output_tokens) - 1]
    died = failed and result.timeline.first_ns is not None
    assert slo.threshold_s is not None
    return len(gaps) + died, sum(gap > slo.threshold_s for gap in gaps) + died


def _single_event(slo: Slo, value: float | None) -> tuple[int, int]:
    if value is None:
        return NO_EVENT
    assert slo.threshold_s is not None, f"{slo.signal} needs a threshold: it is not in {SIGNALS_WITHOUT_THRESHOLD}"
    return BAD_EVENT if value > slo.threshold_s else GOOD_EVENT
