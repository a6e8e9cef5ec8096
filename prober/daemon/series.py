"""Series and alerts about the prober itself."""

from prober.exposition.alerting import Alert, Link
from prober.exposition.families import counter, gauge, histogram

BUILD_INFO = gauge("llmslo_build_info", "1; the version is a label.", "version")
RELOAD_OK = gauge("llmslo_config_last_reload_successful", "1 if the latest reload was applied.")
RELOAD_TIME = gauge("llmslo_config_last_reload_success_timestamp_seconds", "Time of the latest applied reload.")
LOOP_LAG = histogram(
    "llmslo_event_loop_lag_seconds",
    "Lateness of the prober's event loop, once a second. In no latency.",
)
RECEIVE_DELAY = histogram(
    "llmslo_receive_delay_seconds",
    "How much later than the kernel's stamp the prober read received bytes: in no latency, as the stamp counts.",
)
STAMPS = counter(
    "llmslo_stamps_total",
    "Requests sent and reads of received bytes by the source of their timestamp: the kernel, or the process.",
    "source",
)
STORAGE_FAILURES = counter("llmslo_storage_write_failures_total", "Writes to --storage.path that failed.")

# Within a week, whatever its scrape job is called; the steps of the long look-back may all miss a short life.
A_PROBER = "(last_over_time(llmslo_build_info[1h]) or max_over_time(llmslo_build_info[7d:5m]))"
LOST = f"(up == 0 and on (job, instance) {A_PROBER})"


def alerts(*, has_several: bool) -> tuple[Alert, ...]:
    """Alerts on missing and unreliable probers, and on invalid configurations. has_several: several probers, such as shards"""
    # Probers of the last week that cannot be scraped are named; an unnamed one is missing only if there were none.
    # If a prober is deleted with its ServiceMonitor, its last failed scrape stays visible for five minutes.
    down = f"({LOST} and count_over_time(up[3m]))\nor\n(absent(llmslo_build_info) unless on () {LOST})\n"
    if has_several:  # a deleted pod has no `up` series; other shards still export the number of shards
        by = "job, namespace"
        shards = f"max by ({by}) (llmslo_shards) > count by ({by}) (group by ({by}, shard) (llmslo_shard_info))"
        down += f"or\n({shards} unless on (job) up == 0)\n"
    return (
        Alert(
            "LLMProberDown",
            "critical",
            down,
            "5m",
            "{{ with $labels.instance }}The prober {{ . }} is down{{ else }}A prober is missing{{ end }}",
            "For 5 minutes Prometheus has scraped {{ if $labels.instance }}it in vain{{ else if $labels.job }}fewer probers of job "
            "{{ $labels.job }} than it has shards{{ else }}no prober{{ end }}. Targets that no other prober probes are not measured.",
        ),
        Alert(
            "LLMProberRestarting",
            "warning",
            f"(changes(process_start_time_seconds[30m]) >= 3\nor\nchanges(up[30m]) >= 6)\nand on (job, instance)\n{A_PROBER}\n",
            "",
            "The prober {{ $labels.instance }} comes and goes",
            "Three starts, or three failed and successful scrapes, in 30 minutes. Between its lives nothing is measured. The log of "
            "its last life has the reason (kubectl logs --previous).",
        ),
        Alert(
            "LLMProberUntrusted",
            "warning",
            "llmslo_trusted == 0\n",
            "5m",
            "The latencies of {{ $labels.target }} are not judged: the prober {{ $labels.instance }} lacks CPU time",
            "Of its probes of the last 10 minutes fewer than half were sent and timed. Its latency SLOs are not shown as met; failures "
            "count.",
            link=Link("drift", ("target", "instance")),
        ),
        Alert(
            "LLMProberTaskFailed",
            "warning",
            "increase(llmslo_task_failures_total[1h]) > 0\n",
            "0m",
            "A task of the prober {{ $labels.instance }} failed: {{ $labels.task }}",
            "It was started again. This is a fault of the prober: its log has the trace, please report it.",
        ),
        Alert(
            "LLMProberConfigReloadFailed",
            "warning",
            "llmslo_config_last_reload_successful == 0\n",
            "5m",
            "The prober {{ $labels.instance }} could not load its configuration",
            "It keeps its last good configuration; without one since its start it probes nothing. Its log and page list every error.",
        ),
    )
