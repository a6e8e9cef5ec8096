"""Alerts on the engine's own metrics."""

from prober.exposition.alerting import Alert, Link, of_present

OF_ENGINE = Link("engine", ("target",))


def alerts(selector: str) -> tuple[Alert, ...]:
    """Alerts on the KV cache, the queue, and changes of the engine."""
    usage, waiting, preempted = (
        f"llmslo_engine_{name}{{{selector}}}"
        for name in ("kv_cache_usage_ratio", "requests_waiting", "preemptions_total")
    )
    changes = "llmslo_engine_changes_total"
    return (
        Alert(
            "LLMKVCachePressure",
            "warning",
            of_present(
                f"max by (target) (quantile_over_time(0.9, {usage}[10m])) > 0.9\nand\nmax by (target) (increase({preempted}[10m])) > 0",
                usage,
            ),
            "5m",
            "The KV cache of {{ $labels.target }} is nearly full and requests are preempted",
            "For a minute of the last 10 at least {{ $value | humanizePercentage }} of the KV cache was in use, and requests were "
            "preempted. A preempted request stalls and repeats its prefill.",
            link=OF_ENGINE,
        ),
        Alert(
            "LLMRequestsQueueing",
            "warning",
            of_present(f"max by (target) (min_over_time({waiting}[10m])) > 0", waiting),
            "5m",
            "Requests of {{ $labels.target }} are queueing",
            "At least {{ $value | humanize }} requests were waiting in every sample of the last 10 minutes. Time in the queue adds to "
            "TTFT.",
            link=OF_ENGINE,
        ),
        Alert(
            "LLMEngineChanged",
            "info",
            of_present(
                f'max by (target, what) (increase({changes}{{{selector},what!="restart"}}[15m])) > 0',
                f"{changes}{{{selector}}}",
            ),
            "",
            "The engine of {{ $labels.target }} has changed ({{ $labels.what }})",
            "Its {{ $labels.what }} changed in the last 15 minutes; llmslo_engine_info describes the engine now. This may explain a "
            "drift that starts at the same time.",
            link=OF_ENGINE,
        ),
    )
