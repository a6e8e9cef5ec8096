"""One timeline as a picture: in a terminal, and as SVG."""

from html import escape

from prober.measure.timeline import Timeline

WIDTH = 320
HEIGHT = 14


def ms(seconds: float | None) -> str:
    """Milliseconds with three significant digits, or a dash."""
    if seconds is None:
        return "–"
    value = seconds * 1e3
    return f"{value:.3g} ms" if value < 1000 else f"{value / 1e3:.3g} s"


def in_text(timeline: Timeline, width: int = 72) -> list[str]:
    """Lines: a bar from intended time to the end ('─' waiting, '█' first content, '│' content), and its scale."""
    end = timeline.end_ns or (timeline.content_ns[-1] if timeline.content_ns else timeline.sent_ns)
    if end is None or end <= timeline.intended_ns:
        return []
    span = end - timeline.intended_ns
    bar = ["─"] * width
    for stamp in timeline.content_ns:
        bar[min(width - 1, (stamp - timeline.intended_ns) * width // span)] = "│"
    if timeline.first_ns is not None:
        bar[min(width - 1, (timeline.first_ns - timeline.intended_ns) * width // span)] = "█"
    right = ms(span / 1e9)
    return ["".join(bar), "0" + right.rjust(width - 1)]


def in_svg(timeline: Timeline, scale_ns: int) -> str:
    """The same as SVG; `scale_ns` is the time that the whole width stands for."""
    start = timeline.intended_ns

    def x(stamp: int) -> str:
        return f"{min(WIDTH, max(0.0, (stamp - start) / scale_ns * WIDTH)):.1f}"

    end = timeline.end_ns or (timeline.content_ns[-1] if timeline.content_ns else timeline.sent_ns or start)
    parts = [f'<svg width="{WIDTH}" height="{HEIGHT}" role="img" aria-label="timeline">']
    parts.append(f'<rect class="wait" x="0" y="6" height="2" width="{x(end)}"/>')
    ticks = "".join(f"M{x(stamp)} 3v8" for stamp in timeline.content_ns[:500])
    parts.append(f'<path class="content" d="{ticks}"/>')
    if timeline.first_ns is not None:
        parts.append(f'<rect class="first" x="{x(timeline.first_ns)}" y="1" width="3" height="12"/>')
    title = f"TTFT {ms(timeline.ttft_s)}, TPOT {ms(timeline.tpot_s)}, E2E {ms(timeline.e2e_s)}"
    return "".join(parts) + f"<title>{escape(title)}</title></svg>"
