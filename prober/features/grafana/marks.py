"""Events as annotations of the organisation; each event once."""

import html
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from prober.measure.event import TargetEvent
from prober.measure.printable import one_line

if TYPE_CHECKING:
    from prober.features.grafana.server import Server

TAG = "llm-slo-prober"
_MAX_TAG_CHARS = 100  # size of the column in Grafana's table of tags


@dataclass(frozen=True, slots=True)
class Mark:
    """An annotation. Times are Unix milliseconds; end_ms: None for a point in time."""

    time_ms: int
    end_ms: int | None
    tags: tuple[str, ...]
    text: str


def mark_of(event: TargetEvent, began_unix_s: float | None = None) -> Mark:
    """Annotation of an event. began_unix_s: start of a span that ends with the event. The text is HTML."""
    end_ms = round(event.unix_s * 1e3)
    time_ms = end_ms if began_unix_s is None else round(began_unix_s * 1e3)
    text = html.escape(one_line(f"{event.target}: {event.text}"), quote=False)
    return Mark(
        time_ms,
        None if began_unix_s is None else end_ms,
        (TAG, one_line(event.target)[:_MAX_TAG_CHARS], event.kind),
        text,
    )


def annotate(server: "Server", marks: Sequence[Mark]) -> int:
    """Create the annotations that do not exist yet, oldest first; return their number. Existing ones are recognised by time and text.

    Raises GrafanaError. Annotations that were created before the error are recognised by the next call.
    """
    if not marks:
        return 0
    begin = min(mark.time_ms for mark in marks)
    end = max(mark.end_ms or mark.time_ms for mark in marks)
    existing = server.annotations(begin - 1, end + 1, TAG)
    by_key = {(mark.time_ms, mark.text): mark for mark in sorted(marks, key=lambda mark: mark.time_ms)}
    new = [mark for key, mark in by_key.items() if key not in existing]
    for mark in new:
        server.annotate(mark.time_ms, mark.end_ms, list(mark.tags), mark.text)
    return len(new)
