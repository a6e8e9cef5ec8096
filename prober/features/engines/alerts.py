"""Alert on the engine's own metrics."""

from prober.exposition.alerting import Alert, Link, firing, of_present


def alerts(selector: str) -> tuple[Alert, ...]:
    """Alert on a full KV cache, unless an SLO's budget burns, whose alert names the cause."""
    usage, preempted = (f"llmslo_engine_{name}{{{selector}}}" for name in ("kv_cache_usage_ratio", "preemptions_total"))
    full = (
        f"max by (target) (quantile_over_time(0.9, {usage}[10m])) > 0.9\nand\n"
        f"max by (target) (increase({preempted}[10m])) > 0\nunless on (target)\n{firing('LLMErrorBudgetBurn')}"
    )
    return (
        Alert(
            "LLMKVCachePressure",
            "warning",
            of_present(full, usage),
            "5m",
            "The KV cache of {{ $labels.target }} is nearly full and requests are preempted",
            "For a minute of the last 10 at least {{ $value | humanizePercentage }} of the KV cache was in use, and requests were "
            "preempted. A preempted request stalls and repeats its prefill.",
            link=Link("engine", ("target",)),
        ),
    )
