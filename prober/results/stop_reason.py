"""Why a sweep ended, as text."""

BEFORE = "; before it, "  # separates the detail from the reason of an earlier end
_TEXTS = {  # with the place of the detail
    "knee_passed": "more breaches than the objective allows: {}",
    "breaching": "{} breach an SLO",
    "near_threshold": "{}, the limit of a gentle sweep",
    "highest_rate": "the highest rate of the plan was reached: {}",
    "smoke_failed": "the first requests failed: {}",
    "failed": "too many requests failed: {}",
    "refused": "too many requests were refused: {}",
    "rate_limited": "a request was refused, and nothing shows a full engine: {}",
    "slow": "far too slow: {}",
    "saturated": "saturated: {}",
    "not_sent": "the prober did not send {}",
    "page_lost": "the engine's page was lost: {}",
    "retry_after": "the target requested a pause of {}",
    "time_budget": "its time budget is spent: {}",
    "request_budget": "its request budget is spent: {}",
    "token_budget": "its token budget is spent: {}",
    "cost_budget": "its cost budget is spent: {}",
    "session_count": "its workload has too few sessions for a higher rate: {}",
    "guard": "stopped by an external condition: {}",
    "lease_lost": "it lost its lease: {}",
    "no_estimate": "no estimate could be made: {}",
    "waiting": "requests wait in the engine: {}",
    "kv_usage": "the KV cache is nearly full: {}",
    "preemptions": "requests are preempted: {}",
    "production_ttft": "production requests are slow: {}",
    "restarted": "voided, the engine restarted: {}",
    "replicas_changed": "voided, the target changed its size: {}",
    "engine_changed": "voided, the engine changed: {}",
}


def ending(reason: str | None, detail: str) -> str:
    """Reason and detail as text, such as `saturated: 2000 requests in flight`; "" for None.

    An unknown reason, or one without detail, is returned unchanged.
    """
    if reason is None or not detail:
        return (reason or detail).replace("_", " ")
    detail, comma, before = detail.partition(BEFORE)
    text = _TEXTS.get(reason)
    return f"{text.format(detail) if text is not None else f'{reason}: {detail}'}{comma}{before}"
