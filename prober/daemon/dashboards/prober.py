"""Panels about the prober itself."""

from prober.daemon import series as own_series
from prober.exposition.dashboards.board import GOOD_AT_ONE, YES_NO
from prober.exposition.dashboards.panels import Panel, Query, now, series, stat
from prober.exposition.dashboards.queries import INSTANCE, STEP, TARGET, gauge, increase, quantile
from prober.exposition.dashboards.style import NEUTRAL
from prober.exposition.families import AnySeries
from prober.probing import series as probe_series
from prober.statistics.quantiles import percentile_name


def health() -> list[Panel]:
    """Panels of each prober's trust, configuration, version and lags."""
    reload_time = gauge(own_series.RELOAD_TIME, "instance", select=INSTANCE)
    return [
        _yes_no(
            "Trusted",
            "Whether each prober sent and timed at least half of the probes of the last 10 minutes, of every target. Bad: no; it lacks "
            "CPU time, and latencies are not judged.",
            probe_series.TRUSTED,
            f'{INSTANCE},target!=""',
        ),
        _yes_no(
            "Configuration loaded",
            "Whether the last reload of the configuration succeeded. Bad: no; the previous configuration stays in use.",
            own_series.RELOAD_OK,
        ),
        stat(
            "Latest configuration",
            "Time of the last successful reload. Bad: before your last change of the file.",
            "dateTimeFromNow",
            now(f"1000 * {reload_time}", "{{instance}}"),
            steps=NEUTRAL,
            width=6,
        ),
        stat(
            "Version",
            "Version of each prober. Bad: several versions for longer than a rollout.",
            "none",
            now(gauge(own_series.BUILD_INFO, "instance, version", select=INSTANCE), "{{version}} at {{instance}}"),
            steps=NEUTRAL,
            width=6,
            text_mode="name",
        ),
        _lag(
            "Send lag, p99",
            "Delay of the prober in sending. In no latency. Bad: seconds; the prober lacks CPU time.",
            quantile(0.99, probe_series.SEND_LAG, "instance, target", f"{TARGET},{INSTANCE}", STEP),
            "{{target}} at {{instance}}",
        ),
        _lag(
            "Loop lag, p99",
            "Delay of the prober's event loop. Bad: some milliseconds and rising; the prober lacks CPU time.",
            quantile(0.99, own_series.LOOP_LAG, "instance", INSTANCE, STEP),
            "{{instance}}",
        ),
    ]


def timestamps() -> list[Panel]:
    """Panels of the source of arrival times, and of the delay from a packet's arrival until it is read."""
    by_quantile = [
        Query(
            quantile(q, own_series.RECEIVE_DELAY, "instance", 'instance!=""', STEP),
            f"{percentile_name(q)} at {{{{instance}}}}",
        )
        for q in (0.5, 0.99)
    ]
    by_process = increase(own_series.STAMPS, "instance", select='source="process",instance!=""')
    every = increase(own_series.STAMPS, "instance", select='instance!=""')
    return [
        series(
            "Read later than stamped",
            "Timestamps by the kernel: how much later the prober read the bytes. It is in no latency. "
            "Bad: longer than the time between two tokens; they are then read together, and only the last has its own time.",
            "s",
            *by_quantile,
            width=12,
        ),
        series(
            "Timestamps by the prober itself",
            "Share of the reads without a valid stamp of the kernel: their time is that of reading, so a busy prober makes "
            "latencies longer. Bad: above 0 on Linux; 100% where the system has no such stamps.",
            "percentunit",
            Query(f"{by_process} / ({every} > 0)", "{{instance}}"),
            width=12,
        ),
        series(
            "Chunks read together",
            "Content chunks without a time of their own, as they were read with a later one: one flush in ITL and TPOT. "
            "Bad: many where the server sends each token by itself; the prober lacks CPU time.",
            "short",
            Query(
                increase(probe_series.MERGED_CHUNKS, "instance, target"),
                "{{target}} at {{instance}}",
            ),
            bars=True,
            width=12,
        ),
    ]


def _yes_no(title: str, text: str, declared: AnySeries, select: str = INSTANCE) -> Panel:
    query = now(f"min by (instance) ({declared}{{{select}}})", "{{instance}}")
    return stat(title, text, "none", query, mappings=YES_NO, steps=GOOD_AT_ONE, fill="background", width=6)


def _lag(title: str, text: str, expr: str, legend: str) -> Panel:
    return series(title, text, "s", Query(expr, legend), width=12)


def storage() -> Panel:
    """Panel of failed writes to --storage.path."""
    return series(
        "Failed writes to storage",
        "Failed writes to --storage.path. Bad: any; what is not written does not survive a restart.",
        "short",
        Query(increase(own_series.STORAGE_FAILURES, "instance", select=INSTANCE), "{{instance}}"),
        bars=True,
        width=12,
    )
