"""Series of the prober itself."""

from prober.exposition.families import counter, gauge, histogram

BUILD_INFO = gauge("llmslo_build_info", "1; the version is a label.", "version")
RELOAD_OK = gauge("llmslo_config_last_reload_successful", "1 if the latest reload was applied.")
RELOAD_TIME = gauge("llmslo_config_last_reload_success_timestamp_seconds", "Time of the latest applied reload.")
LOOP_LAG = histogram(
    "llmslo_event_loop_lag_seconds",
    "Lateness of the prober's event loop, fifty times a second during a probe, else once.",
)
RECEIVE_DELAY = histogram(
    "llmslo_receive_delay_seconds",
    "How much later than the kernel's stamp the prober read received bytes: in no latency, as the stamp counts.",
)
STAMPS = counter(
    "llmslo_stamps_total",
    "Reads of received bytes by the source of their timestamp: the kernel at arrival, or the process when it read.",
    "source",
)
STORAGE_FAILURES = counter("llmslo_storage_write_failures_total", "Writes to --storage.path that failed.")
TRUSTED = gauge(
    "llmslo_trusted",
    "0 if the event loop stood still for more than 1% of the last 10 s; a standstill is longer than max_send_lag.",
)
