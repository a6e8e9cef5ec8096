"""Durations as text, and one timeline as a picture for a terminal."""

from prober.measure.timeline import Timeline


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
