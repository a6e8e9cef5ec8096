"""Filters of the templates: values as text, signs and words of states, parts of addresses. None of them returns HTML."""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from hashlib import sha1
from typing import Any
from urllib.parse import quote

from prober.config.units import duration_text
from prober.exposition.dashboards.board import UIDS
from prober.features.slo.compliance import Compliance, SloStatus
from prober.measure.objective import format_percent
from prober.measure.result import ProbeResult
from prober.measure.timeline import Timeline
from prober.measure.timeline_text import format_duration
from prober.results.capacity import binding, undecided, words
from prober.results.stop_reason import ending
from prober.statistics.quantiles import Quantile
from prober.web.page import drawings
from prober.web.page.view import SIGNALS, Capacities, Kind, PageView, Room, Spending, concern
from prober.web.recent_probes import FAILED

MAX_TEXT_CHARS = 300  # of a text from elsewhere, where it is one of many
DAY_S = 86_400
LOW_RATIO = 0.2  # of a budget or a capacity: a smaller rest is shown as a warning
SIGNS: dict[Kind, str] = {"good": "✓", "bad": "✗", "few": "▲", "unknown": "?"}
SLO_STATES: dict[Compliance, tuple[Kind, str]] = {
    "met": ("good", "met"),
    "missed": ("bad", "missed"),
    "no_data": ("unknown", "no data"),
}


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
    """(value, words) of the filters by outcome: all, those that failed, and the one that is chosen."""
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


def clock_time(unix_s: float, now_unix_s: float) -> str:
    """Time of day within twelve hours of now, else date and time; UTC."""
    near = abs(now_unix_s - unix_s) < DAY_S / 2
    return datetime.fromtimestamp(unix_s, UTC).strftime("%H:%M:%S" if near else "%Y-%m-%d %H:%M")


def bound(seconds: float | None) -> str:
    """A bound of an interval: a duration that is not broken before its unit, `?` if the samples give none."""
    return "?" if seconds is None else format_duration(seconds).replace(" ", "\N{NO-BREAK SPACE}")


def amount(value: float) -> str:
    """A large number with three significant digits."""
    for size, unit in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"


def share(ratio: float) -> str:
    """A ratio in percent; it reads 0% or 100% only if it is exactly that."""
    if 0 < ratio < 0.01:
        return "under 1%"
    return "over 99%" if 0.99 < ratio < 1 else f"{ratio:.0%}"


def percentage(ratio: float, digits: int) -> str:
    """A ratio in percent with `digits` digits behind the point."""
    return f"{ratio:.{digits}%}"


def bar_length(ratio: float) -> int:
    """Length of a bar for a ratio: 0 to 100."""
    return min(100, max(0, round(ratio * 100)))


def busiest_workload(quantiles: Mapping[tuple[str, str], Sequence[Quantile]]) -> str | None:
    """The workload with the most samples."""
    counts = {workload: rows[0].count for (workload, _), rows in quantiles.items() if rows}
    return max(counts, key=lambda workload: counts[workload]) if counts else None


def workload_count(quantiles: Mapping[tuple[str, str], Sequence[Quantile]]) -> int:
    """Number of workloads with latencies."""
    return len({workload for workload, _ in quantiles})


def in_reading_order(
    quantiles: Mapping[tuple[str, str], Sequence[Quantile]],
) -> list[tuple[tuple[str, str], Sequence[Quantile]]]:
    """Quantiles sorted by workload, then TTFT before TPOT before ITL before E2E."""
    order = {signal: place for place, signal in enumerate(SIGNALS)}
    return sorted(quantiles.items(), key=lambda item: (item[0][0], order.get(item[0][1], len(order))))


def by_q(quantiles: Sequence[Quantile]) -> dict[float, Quantile]:
    """Quantiles by their level."""
    return {quantile.q: quantile for quantile in quantiles}


def several_workloads(standings: Sequence[SloStatus]) -> bool:
    """Whether the SLOs belong to more than one workload, so that each must say to which."""
    return len({standing.workload for standing in standings}) > 1


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


def sweep_request_tokens(capacity: Capacities) -> float | None:
    """Tokens of one request of the sweep; None if they are not known."""
    least = binding(tuple(capacity.capacities))
    return least.own.prompt_tokens + least.own.output_tokens if least and least.own else None


def room_kind(room: Room) -> Kind:
    """Good if the lower bound leaves room, a warning while the estimate does."""
    estimate = room.estimate or 0.0
    lower = room.lower if room.lower is not None else estimate
    return "good" if lower > LOW_RATIO else "few" if estimate > 0 else "bad"


def budget_words(budget: Spending) -> str:
    """The used amount and the limit."""
    spent, limit = (f"${v:.2f}" if budget.kind == "cost" else amount(v) for v in (budget.spent, budget.limit))
    return f"{spent} of {limit}{'' if budget.kind == 'cost' else f' {budget.kind}'} in the last 24 hours"


def budget_kind(budget: Spending) -> Kind:
    """Good, a warning if little is left, bad if nothing is."""
    return "good" if budget.left_ratio > LOW_RATIO else "few" if budget.left_ratio > 0 else "bad"


FILTERS: dict[str, Callable[..., Any]] = {
    "amount": amount,
    "anchor": anchor,
    "bar_length": bar_length,
    "bound": bound,
    "budget_kind": budget_kind,
    "budget_words": budget_words,
    "busiest_workload": busiest_workload,
    "by_q": by_q,
    "capacity_words": words,
    "clock_time": clock_time,
    "concern": concern,
    "connection_phases": connection_phases,
    "count": "{:,}".format,
    "cut": cut,
    "dollars": "${:.2f}".format,
    "configured_duration": duration_text,
    "duration": format_duration,
    "grafana_link": grafana_link,
    "in_reading_order": in_reading_order,
    "iso_time": iso_time,
    "itl_summary": itl_summary,
    "objective": format_percent,
    "outcome_choices": outcome_choices,
    "overrun_s": drawings.overrun_s,
    "page_link": page_link,
    "percentage": percentage,
    "percentile_name": lambda q: f"p{q * 100:g}",
    "probe_anchor": probe_anchor,
    "probe_kind": drawings.probe_kind,
    "probe_notes": probe_notes,
    "query_value": query_value,
    "room_kind": room_kind,
    "several_workloads": several_workloads,
    "share": share,
    "sign": lambda kind: SIGNS[kind],
    "signal_name": lambda signal: SIGNALS.get(signal, signal),
    "significant": "{:.3g}".format,
    "slo_kind": lambda state: SLO_STATES[state][0],
    "slo_word": lambda state: SLO_STATES[state][1],
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
    "workload_count": workload_count,
}
