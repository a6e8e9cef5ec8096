"""The events of all targets: changes of state and engine, drift, diagnoses, sweeps."""

from collections import deque

from prober.measure.event import TargetEvent

MAX_EVENTS = 500  # of all targets together


class EventLog:
    """The latest events."""

    def __init__(self) -> None:
        self._events: deque[TargetEvent] = deque(maxlen=MAX_EVENTS)

    def append(self, event: TargetEvent) -> None:
        """Remember an event."""
        self._events.append(event)

    def latest(self, target: str | None = None) -> list[TargetEvent]:
        """The events of one target, or of all, latest first. Those of a removed target stay."""
        return [event for event in reversed(self._events) if target in (None, event.target)]
