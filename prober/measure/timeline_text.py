"""Plain-text rendering of durations and timelines for a terminal."""

from prober.measure.timeline import Timeline


def format_duration(seconds: float | None) -> str:
    """Formats a duration as ms or s with three significant digits, None as a dash."""
    if seconds is None:
        return "–"
    value = seconds * 1e3
    return f"{value:.3g} ms" if value < 1000 else f"{value / 1e3:.3g} s"


def render_timeline(timeline: Timeline, width: int = 72) -> list[str]:
    """Renders a bar from the intended time to the end ('─' waiting, '█' first content, '│' content), and its scale line."""
    end = timeline.end_ns or (timeline.content_ns[-1] if timeline.content_ns else timeline.sent_ns)
    if end is None or end <= timeline.intended_ns:
        return []
    span = end - timeline.intended_ns
    bar = ["─"] * width
    for stamp in timeline.content_ns:
        bar[min(width - 1, (stamp - timeline.intended_ns) * width // span)] = "│"
    if timeline.first_ns is not None:
        bar[min(width - 1, (timeline.first_ns - timeline.intended_ns) * width // span)] = "█"
    right = format_duration(span / 1e9)
    return ["".join(bar), "0" + right.rjust(width - 1)]
