"""The last probes, each drawn over time: connecting, waiting, first token, tokens, and how it ended."""

from collections import Counter
from collections.abc import Iterator, Sequence
from html import escape

from prober.measure.outcome import ANSWERED, NEUTRAL, Outcome
from prober.measure.result import ProbeResult
from prober.measure.timeline import Timeline
from prober.measure.timeline_text import ms
from prober.web.page.marks import SIGNS, anchor, clock, link, mark, told
from prober.web.page.view import Kind

WIDTH, LEFT, HEIGHT = 360, 40, 16  # the first LEFT units are for connecting before the due time
BAR, TALL = 4, 24
FIRST = 12  # rows that are not folded away
WHOLE = 2_000  # characters of a detail or an answer


def kind_of(probe: ProbeResult) -> Kind:
    """Good, bad, or nobody's."""
    if probe.outcome is Outcome.OK:
        return "good"
    return "unknown" if probe.outcome in NEUTRAL else "bad"


def legend(span_ns: int) -> str:
    """What the drawings mean; span_ns: see `drawn`."""
    return (
        '<p class="note legend"><span class="key connect"></span>connecting '
        '<span class="key unsent"></span>not sent yet, by the prober\'s own lateness <span class="key waiting"></span>waiting '
        '<span class="key first"></span>first token <span class="key token"></span>tokens '
        f'<b class="bad" aria-hidden="true">{SIGNS["bad"]}</b> failed. The thin line is the due time. All are to one scale, '
        f"from there to the edge {ms(span_ns / 1e9)}; what lasts longer is cut (//), and its end "
        "stands below it.</p>"
    )


def rows(probes: Sequence[ProbeResult], now_unix_s: float, *, named: bool) -> Iterator[str]:
    """A list of probes that open; named: each says of which target it is."""
    if not probes:
        yield '<p class="none">No probe yet.</p>'
        return
    span = scale_ns(probes)
    yield legend(span)
    yield (
        '<div class="probe-head" aria-hidden="true"><span>time, UTC</span><span>outcome</span><span class="n">TTFT</span>'
        '<span class="n">TPOT</span><span class="n">E2E</span><span>timeline</span></div><ul class="probes">'
    )
    for probe in probes[:FIRST]:
        yield _row(probe, span, now_unix_s, named=named)
    yield "</ul>"
    if len(probes) > FIRST:
        yield f'<details id="older"><summary>{len(probes) - FIRST} older ones</summary><ul class="probes">'
        for probe in probes[FIRST:]:
            yield _row(probe, span, now_unix_s, named=named)
        yield "</ul></details>"


def scale_ns(probes: Sequence[ProbeResult]) -> int:
    """The time that the drawings are wide: nine of ten of them fit."""
    ends = sorted(p.timeline.end_ns - p.timeline.intended_ns for p in probes if p.timeline.end_ns)
    return max(ends[int(0.9 * (len(ends) - 1))], 1) if ends else 10**9


def _row(probe: ProbeResult, span: int, now_unix_s: float, *, named: bool) -> str:
    t = probe.timeline
    said = " · ".join(told(text, 120) for text in (probe.target if named else "", probe.detail) if text)
    whose = f'<span class="who">{said}</span>' if said else ""
    summary = (
        f'<span class="when">{clock(probe.unix_s, now_unix_s)}</span>'
        f'<span class="how">{mark(kind_of(probe), probe.outcome.value)}{whose}</span>'
        f'<span class="n"><small>TTFT </small>{ms(t.ttft_s)}</span><span class="n"><small>TPOT </small>{ms(t.tpot_s)}</span>'
        f'<span class="n"><small>E2E </small>{ms(t.e2e_s)}</span>'
        f'<span class="line">{drawn(probe, span)}{_beyond(t, span)}</span>'
    )
    key = anchor(f"{probe.target} {probe.request_id} {t.intended_ns}")
    return f'<li><details id="p-{key}"><summary>{summary}</summary>{_details(probe, named=named)}</details></li>'


def _details(probe: ProbeResult, *, named: bool) -> str:
    t = probe.timeline
    connection = t.connection
    phases = ", ".join(
        f"{phase} {ms(value)}"
        for phase in ("dns", "tcp", "proxy", "tls")
        if connection is not None and (value := getattr(connection, f"{phase}_s")) is not None
    )
    gaps = sorted(t.itls_s)
    usage = t.usage
    notes = ", ".join(
        word
        for word, on in (
            ("warm-up, counts in no latency", probe.warm_up),
            ("cached by the engine, counts in no latency", probe.cached),
            ("asked for by a person, counts in no SLI", probe.on_request),
        )
        if on
    )
    tokens = f"{usage.prompt_tokens} prompt, {usage.completion_tokens} completion" if usage else "not told"
    target = f'<a href="{link(probe.target)}">{told(probe.target, 200)}</a>' if named and probe.target else ""
    facts = (
        ("target", target),
        ("detail", told(probe.detail, WHOLE) if probe.detail else ""),
        ("note", notes),
        ("workload", told(probe.workload)),
        ("model", told(probe.model)),
        ("engine", told(probe.engine)),
        ("request id", f"<code>{told(probe.request_id)}</code>" if probe.request_id else ""),
        ("connecting", phases),
        ("TTFT", ms(t.ttft_s)),
        ("TTFT of the answer", ms(t.ttft_answer_s) if t.ttft_answer_s != t.ttft_s else ""),
        ("TPOT", ms(t.tpot_s)),
        ("ITL", f"median {ms(gaps[len(gaps) // 2])}, longest {ms(gaps[-1])}, of {len(gaps):,}" if gaps else ""),
        ("E2E", ms(t.e2e_s)),
        ("tokens asked", f"{probe.asked_prompt_tokens} prompt, {probe.asked_output_tokens} output"),
        ("tokens counted", tokens),
        ("content chunks", str(len(t.content_ns))),
        ("finish reason", told(t.finish_reason) if t.finish_reason else ""),
        ("prober's own lateness", ms(t.send_lag_s)),
        ("answer begins", told(probe.text) if probe.text else ""),
    )
    return f'<dl class="facts">{"".join(f"<dt>{name}</dt><dd>{value}</dd>" for name, value in facts if value)}</dl>'


def drawn(probe: ProbeResult, span_ns: int) -> str:
    """A probe as SVG; the width right of the due time stands for `span_ns`, what is later stands on the edge, behind a break."""
    t = probe.timeline
    end = _end_ns(t)
    x = _Place(t.intended_ns, span_ns)
    parts = [f'<path class="due" d="M{LEFT} 1v14"/>', _connecting(t, x), _unsent(t, x)]
    begin, waited = max(t.sent_ns or t.intended_ns, t.intended_ns), t.first_ns or end
    parts.append(f'<path class="waiting" d="M{x(begin)} 8H{max(x(waited), x(begin))}"/>')
    if t.content_ns:
        parts.append(f'<path class="token" d="{_ticks(sorted({x(stamp) for stamp in t.content_ns}))}"/>')
    if t.first_ns is not None:
        parts.append(f'<path class="first" d="M{x(t.first_ns)} 1v14"/>')
    if kind_of(probe) != "good":
        parts.append(f'<path class="end {kind_of(probe)}" d="M{min(x(end) + 2, WIDTH - 9)} 4l8 8m0-8l-8 8"/>')
    if end - t.intended_ns > span_ns:
        parts.append(
            f'<path class="gap" d="M{WIDTH - 19} 15l4-14"/><path class="break" d="M{WIDTH - 21} 15l4-14m4 0l-4 14"/>'
        )
    label = f"{probe.outcome.value}: TTFT {ms(t.ttft_s)}, TPOT {ms(t.tpot_s)}, E2E {ms(t.e2e_s)}"
    return (
        f'<svg class="timeline" viewBox="0 0 {WIDTH} {HEIGHT}" preserveAspectRatio="none" role="img" '
        f'aria-label="{escape(label)}">{"".join(parts)}</svg>'
    )


def _end_ns(t: Timeline) -> int:
    """The last that is known of it."""
    return t.end_ns or (t.content_ns[-1] if t.content_ns else t.sent_ns or t.intended_ns)


def _beyond(t: Timeline, span_ns: int) -> str:
    """Where one that is cut ends."""
    lasted_ns = _end_ns(t) - t.intended_ns
    return f"<small>→ {ms(lasted_ns / 1e9)}</small>" if lasted_ns > span_ns else ""


def _unsent(t: Timeline, x: "_Place") -> str:
    """From when it was due, and could be sent, to when it was."""
    if t.sent_ns is None:
        return ""
    ready = t.connection.ready_ns if t.connection and t.connection.ready_ns else t.intended_ns
    begin, sent = x(max(t.intended_ns, ready)), x(t.sent_ns)
    return f'<path class="unsent" d="M{begin} 8H{sent}"/>' if sent > begin else ""


class _Place:
    def __init__(self, origin_ns: int, span_ns: int) -> None:
        self._origin_ns, self._span_ns = origin_ns, span_ns

    def __call__(self, stamp: int) -> int:
        return LEFT + min(WIDTH - LEFT - 2, max(0, round((stamp - self._origin_ns) / self._span_ns * (WIDTH - LEFT))))


def _connecting(t: Timeline, x: _Place) -> str:
    """As long as it took: before the due time if it was ready by then, else over it."""
    if t.connection is None:
        return ""
    ready = t.connection.ready_ns or t.end_ns or t.connection.start_ns
    length = x(t.intended_ns + ready - t.connection.start_ns) - LEFT
    right = max(LEFT, x(ready))
    return f'<path class="connect" d="M{max(0, right - max(2, length))} 8H{right}"/>'


def _ticks(places: Sequence[int]) -> str:
    """A stroke a place, drawn from one to the next."""
    path, last = f"M{places[0]} 4v8", places[0]
    for place in places[1:]:
        path += f"m{place - last}-8v8"
        last = place
    return path


def spark(probes: Sequence[ProbeResult], most: int) -> str:
    """The last probes in little, oldest first: a bar's height is its TTFT (or E2E), a full red one failed."""
    shown = list(reversed(probes))
    if not shown:
        return ""
    values = [p.timeline.ttft_s or p.timeline.e2e_s or 0.0 if p.outcome in ANSWERED else None for p in shown]
    top = max((value for value in values if value is not None), default=1.0) or 1.0
    bars: dict[Kind, list[str]] = {"good": [], "bad": [], "unknown": []}
    for place, (probe, value) in enumerate(zip(shown, values, strict=True), most - len(shown)):
        height = TALL if value is None or kind_of(probe) == "bad" else max(2, round(value / top * TALL))
        bars[kind_of(probe)].append(f"M{place * BAR + 1} {TALL}v-{height}")
    counts = Counter(probe.outcome.value for probe in shown)
    label = f"last {len(shown)} probes: {', '.join(f'{count} {name}' for name, count in counts.most_common())}"
    paths = "".join(f'<path class="{kind}" d="{"".join(d)}"/>' for kind, d in bars.items() if d)
    return (
        f'<svg class="spark" viewBox="0 0 {most * BAR} {TALL}" preserveAspectRatio="none" role="img" '
        f'aria-label="{escape(label)}">{paths}</svg>'
    )
