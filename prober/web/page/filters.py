"""Filters of the templates: values as text, parts of addresses, and SVG path data of timelines and sparklines. Only the templates write
elements; no filter returns HTML.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha1
from typing import Any
from urllib.parse import quote

from prober.config.units import duration_text
from prober.exposition.dashboards.board import UIDS
from prober.measure.outcome import ANSWERED, NEUTRAL, Outcome
from prober.measure.result import ProbeResult
from prober.measure.timeline import Timeline, format_duration
from prober.results.capacity import binding, undecided, words
from prober.results.stop_reason import ending
from prober.statistics.quantiles import percentile_name
from prober.web.page.view import RECENT, PageView
from prober.web.targets import SIGNS, Kind, amount, clock_time, share, signal_name

WIDTH, HEIGHT = 360, 16  # of a timeline
LEFT = 40  # units of a timeline before the due time, for connecting
BAR_WIDTH, BAR_HEIGHT = 4, 24  # of a sparkline


@dataclass(frozen=True, slots=True)
class Drawing:
    """A picture as SVG path data. label: description for screen readers; paths: (CSS class, path data)"""

    width: int
    height: int
    label: str
    paths: Sequence[tuple[str, str]]


def probe_kind(probe: ProbeResult) -> Kind:
    """Good, bad, or unknown if the outcome does not depend on the target."""
    if probe.outcome is Outcome.OK:
        return "good"
    return "unknown" if probe.outcome in NEUTRAL else "bad"


def span_ns(probes: Sequence[ProbeResult]) -> int:
    """Width of the timelines in ns after the due time, chosen so that nine of ten probes fit."""
    durations = sorted(p.timeline.end_ns - p.timeline.intended_ns for p in probes if p.timeline.end_ns)
    return max(durations[int(0.9 * (len(durations) - 1))], 1) if durations else 10**9


def overrun_s(t: Timeline, span_ns: int) -> float | None:
    """Duration of a probe that ends beyond the right edge of the timelines; None if it fits."""
    duration_ns = _end_ns(t) - t.intended_ns
    return duration_ns / 1e9 if duration_ns > span_ns else None


def timeline_drawing(probe: ProbeResult, span_ns: int) -> Drawing:
    """Timeline of a probe: connecting, waiting, first token, tokens; a cross marks a failure.

    The part right of the due time covers `span_ns`. A later event is drawn at the right edge, after a break.
    """
    t = probe.timeline
    end = _end_ns(t)

    def x(stamp_ns: int) -> int:
        return LEFT + min(WIDTH - LEFT - 2, max(0, round((stamp_ns - t.intended_ns) / span_ns * (WIDTH - LEFT))))

    paths = [("due", f"M{LEFT} 1v14")]
    ready = t.intended_ns
    if t.connection is not None:  # ends at the due time, or earlier if the connection was ready before
        connected = t.connection.ready_ns or t.end_ns or t.connection.start_ns
        ready = t.connection.ready_ns or ready
        length, right = x(t.intended_ns + connected - t.connection.start_ns) - LEFT, max(LEFT, x(connected))
        paths.append(("connect", f"M{max(0, right - max(2, length))} 8H{right}"))
    if t.sent_ns is not None and x(t.sent_ns) > (sendable := x(max(t.intended_ns, ready))):
        paths.append(("unsent", f"M{sendable} 8H{x(t.sent_ns)}"))
    start, waited = max(t.sent_ns or t.intended_ns, t.intended_ns), t.first_ns or end
    paths.append(("waiting", f"M{x(start)} 8H{max(x(waited), x(start))}"))
    if t.content_ns:
        paths.append(("token", _ticks(sorted({x(stamp) for stamp in t.content_ns}))))
    if t.first_ns is not None:
        paths.append(("first", f"M{x(t.first_ns)} 1v14"))
    if probe_kind(probe) != "good":
        paths.append((f"end {probe_kind(probe)}", f"M{min(x(end) + 2, WIDTH - 9)} 4l8 8m0-8l-8 8"))
    if overrun_s(t, span_ns) is not None:
        paths += [("gap", f"M{WIDTH - 19} 15l4-14"), ("break", f"M{WIDTH - 21} 15l4-14m4 0l-4 14")]
    label = f"{probe.outcome.value}: TTFT {format_duration(t.ttft_s)}, TPOT {format_duration(t.tpot_s)}, E2E {format_duration(t.e2e_s)}"
    return Drawing(WIDTH, HEIGHT, label, paths)


def sparkline(probes: Sequence[ProbeResult], slots: int = RECENT) -> Drawing:
    """The last probes, oldest first: the height of a bar is the TTFT (or E2E); a failed probe has full height."""
    oldest_first = list(reversed(probes))
    values = [p.timeline.ttft_s or p.timeline.e2e_s or 0.0 if p.outcome in ANSWERED else None for p in oldest_first]
    top = max((value for value in values if value is not None), default=1.0) or 1.0
    bars: dict[Kind, list[str]] = {"good": [], "bad": [], "unknown": []}
    for slot, (probe, value) in enumerate(zip(oldest_first, values, strict=True), slots - len(oldest_first)):
        kind = probe_kind(probe)
        height = BAR_HEIGHT if value is None or kind == "bad" else max(2, round(value / top * BAR_HEIGHT))
        bars[kind].append(f"M{slot * BAR_WIDTH + 1} {BAR_HEIGHT}v-{height}")
    counts = Counter(probe.outcome.value for probe in oldest_first)
    label = f"last {len(oldest_first)} probes: {', '.join(f'{count} {name}' for name, count in counts.most_common())}"
    return Drawing(slots * BAR_WIDTH, BAR_HEIGHT, label, [(kind, "".join(path)) for kind, path in bars.items() if path])


def trend(name: str, values: Sequence[float | None]) -> Drawing:
    """Bars of an engine signal, one per reading, oldest first. An unknown value has no bar."""
    top = max((value for value in values if value is not None), default=0.0) or 1.0
    bars = [
        f"M{slot * BAR_WIDTH + 1} {BAR_HEIGHT}v-{round(value / top * BAR_HEIGHT)}"
        for slot, value in enumerate(values)
        if value is not None
    ]
    return Drawing(
        len(values) * BAR_WIDTH, BAR_HEIGHT, f"{name}: the last {len(values)} readings", [("good", "".join(bars))]
    )


def _end_ns(t: Timeline) -> int:
    """The last known timestamp of a probe."""
    return t.end_ns or (t.content_ns[-1] if t.content_ns else t.sent_ns or t.intended_ns)


def _ticks(places: Sequence[int]) -> str:
    """SVG path data with one stroke per place."""
    path, last = f"M{places[0]} 4v8", places[0]
    for place in places[1:]:
        path += f"m{place - last}-8v8"
        last = place
    return path


MAX_TEXT_CHARS = 300  # for a text of another program in a list


def cut(text: str, limit: int = MAX_TEXT_CHARS) -> str:
    """The text, cut to `limit` characters and an ellipsis."""
    return text[:limit] + "…" if len(text) > limit else text


def query_value(text: str) -> str:
    """The text escaped as the value of a query parameter, or as one segment of a path."""
    return quote(text, safe="", errors="replace")


def target_link(key: str) -> str:
    """Relative address of a target's page: relative addresses are valid under any prefix and behind any proxy."""
    return f"?target={query_value(key)}"


def page_link(page: PageView, /, **changed: str) -> str:
    """Address of this page with other query values: `target`, `q`, `page`, `outcome` or `workload`; an empty value is removed."""
    number = str(page.page) if page.page > 1 else ""
    by_probe = {"outcome": page.probe_filter.outcome, "workload": page.probe_filter.workload}
    query = {"target": page.chosen, "q": page.filter_text, "page": number, **by_probe, **changed}
    return "?" + "&".join(f"{name}={query_value(value)}" for name, value in query.items() if value)


def grafana_link(page: PageView, target: str = "") -> str:
    """Address in Grafana of the target's dashboard, or without a target of the overview; "" without a Grafana."""
    path = f"{UIDS['target']}?var-target={query_value(target)}" if target else UIDS["overview"]
    return page.grafana_url and f"{page.grafana_url}/d/{path}"


def trace_link(page: PageView, probe: ProbeResult) -> str:
    """Address of a probe's trace, where the configuration of its target says it; else ""."""
    url = next((target.trace_url for target in page.targets if target.name == probe.target), None)
    return (url or "").replace("{trace_id}", probe.trace_id)


def anchor(key: str) -> str:
    """An HTML id for a key, which may have any characters."""
    return sha1(key.encode("utf-8", "replace"), usedforsecurity=False).hexdigest()[:10]


def probe_anchor(probe: ProbeResult) -> str:
    """The HTML id of a probe, equal in all versions of the page."""
    return anchor(f"{probe.target} {probe.request_id} {probe.timeline.intended_ns}")


def iso_time(unix_s: float) -> str:
    """Date and time, UTC."""
    return f"{datetime.fromtimestamp(unix_s, UTC):%Y-%m-%dT%H:%M:%SZ}"


def bound(seconds: float | None) -> str:
    """A bound of a confidence interval as a duration without a line break; `?` if the samples are too few for a bound."""
    return "?" if seconds is None else format_duration(seconds).replace(" ", "\N{NO-BREAK SPACE}")


def percentage(ratio: float, digits: int) -> str:
    """A ratio as a percentage with `digits` decimals."""
    return f"{ratio:.{digits}%}"


_BY_THEIR_NAMES: tuple[Callable[..., Any], ...] = (
    *(amount, anchor, binding, bound, clock_time, cut, grafana_link, iso_time, overrun_s, page_link, trace_link),
    *(percentage, percentile_name, probe_anchor, probe_kind, query_value, share, signal_name, sparkline),
    *(target_link, timeline_drawing, trend),
)
FILTERS: dict[str, Callable[..., Any]] = {function.__name__: function for function in _BY_THEIR_NAMES} | {
    "capacity_words": words,
    "configured_duration": duration_text,
    "count": "{:,}".format,
    "dollars": "${:.2f}".format,
    "duration": format_duration,
    "sign": SIGNS.__getitem__,
    "significant": "{:.3g}".format,
    "sweep_ending": lambda result: ending(result.stop, result.stop_detail),
    "timeline_span_ns": span_ns,
    "undecided_slos": undecided,
}
