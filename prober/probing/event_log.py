"""The events of all targets: changes of state and engine, drift, diagnoses, sweeps."""

from collections import deque

from prober.measure.event import Event

MAX_EVENTS = 500  # of all targets together


class EventLog:
    """The latest events."""

    def __init__(self) -> None:
        self._events: deque[Event] = deque(maxlen=MAX_EVENTS)

    def append(self, event: Event) -> None:
        """Remember an event."""
        self._events.append(event)

    def latest(self, target: str | None = None) -> list[Event]:
        """The events of one target, or of all, latest first. Those of a removed target stay."""
        return [event for event in reversed(self._events) if target in (None, event.target)]
