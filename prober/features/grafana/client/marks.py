"""Events as annotations of the whole organisation, each once."""

import html
from dataclasses import dataclass
from typing import TYPE_CHECKING

from prober.measure.event import TargetEvent

if TYPE_CHECKING:
    from prober.features.grafana.client.server import Server

TAG = "llm-slo-prober"
_LONGEST_TAG = 100  # characters that Grafana's table of tags holds


@dataclass(frozen=True, slots=True)
class Mark:
    """A moment or a span. times: milliseconds since 1970; end_ms: None for a moment."""

    time_ms: int
    end_ms: int | None
    tags: tuple[str, ...]
    text: str


def mark(event: TargetEvent, began_unix_s: float | None = None) -> Mark:
    """An event as Grafana shows it; began_unix_s makes it a span that ends with the event. The text is HTML there."""
    end_ms = round(event.unix_s * 1e3)
    time_ms = end_ms if began_unix_s is None else round(began_unix_s * 1e3)
    text = html.escape(f"{event.target}: {event.text}", quote=False)
    return Mark(time_ms, None if began_unix_s is None else end_ms, (TAG, event.target[:_LONGEST_TAG], event.kind), text)


def annotate(server: "Server", marks: list[Mark]) -> int:
    """Make those that are not there yet, oldest first, and say how many; what is there is known by its time and text.

    Raises GrafanaError: those before are made, and are found again by the next try.
    """
    if not marks:
        return 0
    begin = min(each.time_ms for each in marks)
    end = max(each.end_ms or each.time_ms for each in marks)
    there = {(each.get("time"), each.get("text")) for each in server.annotations(begin - 1, end + 1, TAG)}
    wanted = {(each.time_ms, each.text): each for each in sorted(marks, key=lambda each: each.time_ms)}
    new = [each for key, each in wanted.items() if key not in there]
    for each in new:
        server.annotate(each.time_ms, each.end_ms, list(each.tags), each.text)
    return len(new)
