"""Series of the prober itself."""

from prober.exposition.families import AnySeries, Series, counter, gauge, histogram

BUILD_INFO = gauge("llmslo_build_info", "1; the version is a label.", "version")
RELOAD_OK = gauge("llmslo_config_last_reload_successful", "1 if the latest reload was applied.")
RELOAD_TIME = gauge("llmslo_config_last_reload_success_timestamp_seconds", "Time of the latest applied reload.")
LOOP_LAG = histogram(
    "llmslo_event_loop_lag_seconds",
    "Lateness of the prober's event loop, fifty times a second during a probe, else once.",
)
RECEIVE_ERROR = histogram(
    "llmslo_receive_error_seconds",
    "How late the prober stamps received bytes, measured twice a second with bytes that it writes to itself.",
)
STORAGE_FAILURES = counter("llmslo_storage_write_failures_total", "Writes to --storage.path that failed.")
TRUSTED = gauge(
    "llmslo_trusted",
    "0 if the event loop stood still for more than 1% of the last 10 s; a standstill is longer than max_send_lag.",
)

ALL: tuple[AnySeries, ...] = tuple(value for value in globals().copy().values() if isinstance(value, Series))
