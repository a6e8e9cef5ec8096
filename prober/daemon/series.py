"""Series and alerts of the prober itself."""

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


def alerts(selector: str) -> tuple[Alert, ...]:
    """Alerts on missing and unreliable probers, and on configurations that cannot be loaded."""
    of_prober = Link("drift", ("instance",))
    return (
        Alert(
            "LLMProberDown",
            "critical",
            # A prober that cannot be scraped is named in the alert; only without any of those, a prober is missing.
            # A last failed scrape of one that was deleted together with its ServiceMonitor stays visible for five minutes.
            f"(up{{{selector}}} == 0 and count_over_time(up{{{selector}}}[3m]))\nor\n"
            f"absent(llmslo_build_info{{{selector}}} or up{{{selector}}} == 0)\nor\n"
            # A deleted pod has no `up` series; the other shards still export how many shards there should be.
            f"max(llmslo_shards{{{selector}}}) > count(count by (shard) (llmslo_shard_info{{{selector}}})) unless on () "
            f"(up{{{selector}}} == 0)\n",
            "5m",
            "{{ with $labels.instance }}The prober {{ . }} is down{{ else }}A prober is missing{{ end }}",
            "For 5 minutes Prometheus could not scrape this prober, or found no prober, or found fewer probers than shards. Targets "
            "that no other prober probes are not measured: their SLOs have no data.",
        ),
        Alert(
            "LLMProberRestarting",
            "warning",
            f"changes(process_start_time_seconds{{{selector}}}[30m]) >= 3\nor\nchanges(up{{{selector}}}[30m]) >= 6\n",
            "",
            "The prober {{ $labels.instance }} comes and goes",
            "In 30 minutes it was started at least three times, or its scrapes failed and succeeded again at least three times. If it "
            "was restarted, nothing was measured between its lives, and what it learns begins again unless it has --storage.path; the "
            "log of its last life has the reason (on Kubernetes: kubectl logs --previous). Else look at the way from Prometheus to it.",
            link=of_prober,
        ),
        Alert(
            "LLMProberUntrusted",
            "warning",
            f"llmslo_trusted{{{selector}}} == 0\n",
            "5m",
            "The latencies of {{ $labels.target }} are not judged: the prober {{ $labels.instance }} lacks CPU time",
            "Of its probes of the last 10 minutes fewer than half were sent and timed: the prober woke too late to send them, or read "
            "their first content together with later chunks. Latency SLOs that only it measures are not shown as met; failures count.",
            link=Link("drift", ("target", "instance")),
        ),
        Alert(
            "LLMProberTaskFailed",
            "warning",
            f"increase(llmslo_task_failures_total{{{selector}}}[1h]) > 0\n",
            "0m",
            "A task of the prober {{ $labels.instance }} failed: {{ $labels.task }}",
            "It was started again, and nothing else of the prober is affected; until then what it does was missing. This is a fault of "
            "the prober: its log has the trace, please report it.",
            link=of_prober,
        ),
        Alert(
            "LLMProberConfigReloadFailed",
            "warning",
            f"llmslo_config_last_reload_successful{{{selector}}} == 0\n",
            "5m",
            "The prober {{ $labels.instance }} could not load its configuration",
            "It keeps its last good configuration; with --keep-running and no good configuration since its start it probes nothing. "
            "Its log and status page list every error with its place: of the configuration, and with --keep-running also of "
            "storage and web configuration.",
            link=of_prober,
        ),
    )
