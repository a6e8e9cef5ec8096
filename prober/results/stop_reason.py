"""The reason why a sweep ended, as text."""

_WORDS = {  # with the detail in its place
    "knee_passed": "past the knee: {}",
    "breaching": "{} breach an SLO",
    "near_threshold": "nine of ten latencies reach {}, and gentle goes no further",
    "highest_rate": "the plan goes no further than {}",
    "sustained": "the run at the knee is over, after {}",
    "smoke_failed": "the first requests failed: {}",
    "failed": "too many requests failed: {}",
    "slow": "far too slow: {}",
    "saturated": "saturated: {}",
    "prober_late": "the prober itself was late in {}",
    "page_lost": "the engine's page was lost: {}",
    "retry_after": "the target asks to be left alone for {}",
    "time_budget": "its time is over: {}",
    "request_budget": "its requests are used up: {}",
    "token_budget": "its tokens are used up: {}",
    "cost_budget": "its cost is used up: {}",
    "guard": "stopped from outside: {}",
    "lease_lost": "it lost its lease: {}",
    "waiting": "requests wait in the engine: {}",
    "kv_usage": "the KV cache is nearly full: {}",
    "preemptions": "requests are preempted: {}",
    "production_ttft": "the requests of others are slow: {}",
    "restarted": "the engine restarted: {}",
    "replicas_changed": "replicas came or went: {}",
    "engine_changed": "the engine is another one: {}",
}


def ending(reason: str | None, detail: str) -> str:
    """`past the knee: 3 breaches at 12/s`. A reason that is unknown here or has no detail is returned as it is, None as ""."""
    if reason is None or not detail:
        return (reason or detail).replace("_", " ")
    words = _WORDS.get(reason)
    return words.format(detail) if words is not None else f"{reason}: {detail}"
