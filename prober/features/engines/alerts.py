"""Alerts on the engine's own metrics."""

from prober.exposition.alerting import Alert


def alerts(selector: str) -> tuple[Alert, ...]:
    """Alerts on the KV cache, the queue, and changes of the engine."""
    usage, waiting, preempted = (
        f"llmslo_engine_{name}{{{selector}}}"
        for name in ("kv_cache_usage_ratio", "requests_waiting", "preemptions_total")
    )
    return (
        Alert(
            "LLMKVCachePressure",
            "warning",
            f"max by (target) (avg_over_time({usage}[10m])) > 0.9\nand\nmax by (target) (increase({preempted}[10m])) > 0\n",
            "5m",
            "The KV cache of {{ $labels.target }} is nearly full and requests are preempted",
            "{{ $value | humanizePercentage }} of the KV cache was in use over 10 minutes, and requests were preempted. A "
            "preempted request stalls and repeats its prefill.",
        ),
        Alert(
            "LLMRequestsQueueing",
            "warning",
            f"max by (target) (min_over_time({waiting}[10m])) > 0\n",
            "5m",
            "Requests of {{ $labels.target }} are queueing",
            "At least {{ $value | humanize }} requests were waiting in every sample of the last 10 minutes. Time in the queue adds to "
            "TTFT.",
        ),
        Alert(
            "LLMEngineChanged",
            "info",
            f'max by (target, what) (increase(llmslo_engine_changes_total{{{selector},what!="restart"}}[15m])) > 0\n',
            "",
            "The engine of {{ $labels.target }} has changed ({{ $labels.what }})",
            "Its {{ $labels.what }} changed in the last 15 minutes; llmslo_engine_info describes the engine now. This may explain a "
            "drift that starts at the same time.",
        ),
    )
