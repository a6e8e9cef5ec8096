"""Filters of the templates: values as text, parts of addresses. None of them returns HTML."""

from collections.abc import Callable
from datetime import UTC, datetime
from hashlib import sha1
from typing import Any
from urllib.parse import quote

from prober.config.units import duration_text
from prober.exposition.dashboards.board import UIDS
from prober.measure.result import ProbeResult
from prober.measure.timeline import Timeline, format_duration
from prober.results.capacity import binding, undecided, words
from prober.results.stop_reason import ending
from prober.web.page import drawings
from prober.web.page.view import FAILED, PageView
from prober.web.targets import SIGNS, SweptCapacity, amount, clock_time, share, signal_name

MAX_TEXT_CHARS = 300  # of a text from elsewhere, where it is one of many


def cut(text: str, limit: int = MAX_TEXT_CHARS) -> str:
    """At most `limit` characters, then an ellipsis."""
    return text[:limit] + "…" if len(text) > limit else text


def spaced(name: str) -> str:
    """`http_5xx` as `http 5xx`."""
    return name.replace("_", " ")


def query_value(text: str) -> str:
    """Any text as the value of a query parameter, or as one segment of a path."""
    return quote(text, safe="", errors="replace")


def target_link(key: str) -> str:
    """The address of a target's own page; all addresses are relative, to hold under any prefix and behind any proxy."""
    return f"?target={query_value(key)}"


def page_link(page: PageView, /, **changed: str) -> str:
    """The address of this page with other values of its query: `target`, `q`, `page`, `outcome` or `workload`; empty ones leave."""
    number = str(page.page) if page.page > 1 else ""
    by_probe = {"outcome": page.probe_filter.outcome, "workload": page.probe_filter.workload}
    query = {"target": page.chosen, "q": page.filter_text, "page": number, **by_probe, **changed}
    return "?" + "&".join(f"{name}={query_value(value)}" for name, value in query.items() if value)


def outcome_choices(page: PageView) -> list[tuple[str, str]]:
    """(value, words) of the filters by outcome: all probes, failed ones, and the chosen outcome."""
    chosen = page.probe_filter.outcome
    named = [("", "all"), (FAILED, "failed")]
    return named if chosen in dict(named) else [*named, (chosen, chosen)]


def workload_choices(page: PageView) -> list[str]:
    """The workloads by which probes can be filtered, empty for all of them; none of a target with one workload."""
    known = page.targets[0].workloads if page.is_target_page and page.targets else ()
    names = list(dict.fromkeys((*known, *filter(None, (page.probe_filter.workload,)))))
    return ["", *names] if len(names) > 1 or page.probe_filter.workload else []


def grafana_link(page: PageView, target: str = "") -> str:
    """The address of the target's dashboard, or of the overview's; empty without a Grafana."""
    path = f"{UIDS['target']}?var-target={query_value(target)}" if target else UIDS["overview"]
    return page.grafana_url and f"{page.grafana_url}/d/{path}"


def anchor(key: str) -> str:
    """An id for a key that may hold any characters."""
    return sha1(key.encode("utf-8", "replace"), usedforsecurity=False).hexdigest()[:10]


def probe_anchor(probe: ProbeResult) -> str:
    """An id that a probe keeps from one page to the next."""
    return anchor(f"{probe.target} {probe.request_id} {probe.timeline.intended_ns}")


def iso_time(unix_s: float) -> str:
    """Date and time, UTC."""
    return f"{datetime.fromtimestamp(unix_s, UTC):%Y-%m-%dT%H:%M:%SZ}"


def bound(seconds: float | None) -> str:
    """A bound of an interval: a duration that is not broken before its unit, `?` if the samples give none."""
    return "?" if seconds is None else format_duration(seconds).replace(" ", "\N{NO-BREAK SPACE}")


def percentage(ratio: float, digits: int) -> str:
    """A ratio in percent with `digits` digits behind the point."""
    return f"{ratio:.{digits}%}"


def bar_length(ratio: float) -> int:
    """Length of a bar for a ratio: 0 to 100."""
    return min(100, max(0, round(ratio * 100)))


def connection_phases(t: Timeline) -> str:
    """Durations of DNS, TCP, proxy and TLS, as far as they are known."""
    if t.connection is None:
        return ""
    phases = [(name, getattr(t.connection, f"{name}_s")) for name in ("dns", "tcp", "proxy", "tls")]
    return ", ".join(f"{name} {format_duration(seconds)}" for name, seconds in phases if seconds is not None)


def itl_summary(t: Timeline) -> str:
    """Median and maximum of a probe's ITLs, and how many there are."""
    gaps = sorted(t.itls_s)
    return (
        f"median {format_duration(gaps[len(gaps) // 2])}, maximum {format_duration(gaps[-1])}, {len(gaps):,} values"
        if gaps
        else ""
    )


def probe_notes(probe: ProbeResult) -> str:
    """Reasons why a probe counts in no latency or no SLI."""
    notes = (
        ("warm-up: not in any latency metric", probe.warm_up),
        ("cached by the engine: not in any latency metric", probe.cached),
        ("on request: not in any SLI or latency metric", probe.on_request),
    )
    return "; ".join(text for text, applies in notes if applies)


def sweep_request_tokens(capacity: SweptCapacity) -> float | None:
    """Tokens of one request of the sweep; None if they are not known."""
    least = binding(tuple(capacity.capacities))
    return least.own.prompt_tokens + least.own.output_tokens if least and least.own else None


FILTERS: dict[str, Callable[..., Any]] = {
    "amount": amount,
    "anchor": anchor,
    "bar_length": bar_length,
    "bound": bound,
    "capacity_words": words,
    "clock_time": clock_time,
    "connection_phases": connection_phases,
    "count": "{:,}".format,
    "cut": cut,
    "dollars": "${:.2f}".format,
    "configured_duration": duration_text,
    "duration": format_duration,
    "grafana_link": grafana_link,
    "iso_time": iso_time,
    "itl_summary": itl_summary,
    "outcome_choices": outcome_choices,
    "overrun_s": drawings.overrun_s,
    "page_link": page_link,
    "percentage": percentage,
    "percentile_name": lambda q: f"p{q * 100:g}",
    "probe_anchor": probe_anchor,
    "probe_kind": drawings.probe_kind,
    "probe_notes": probe_notes,
    "query_value": query_value,
    "share": share,
    "sign": lambda kind: SIGNS[kind],
    "signal_name": signal_name,
    "significant": "{:.3g}".format,
    "spaced": spaced,
    "sparkline": drawings.sparkline,
    "undecided_slos": undecided,
    "sweep_ending": lambda result: ending(result.stop, result.stop_detail),
    "sweep_request_tokens": sweep_request_tokens,
    "target_link": target_link,
    "trend": drawings.trend,
    "timeline_drawing": drawings.timeline,
    "timeline_span_ns": drawings.span_ns,
    "workload_choices": workload_choices,
}
