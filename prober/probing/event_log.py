"""The events of all targets: changes of state and engine, drift, diagnoses, changed SLOs, sweeps."""

from collections import deque
from collections.abc import Callable, Collection
from dataclasses import replace

from prober.config.units import counted, first_names
from prober.measure.target_state import SILENT_STATES, TargetEvent, TargetState

MAX_EVENTS = 500  # of all targets together
FOLD_S = 600.0
MAX_TOLD_APART = 10  # targets with an event each; the same of more of them is one event
MAX_NAMES = 3  # in an event of many targets


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

    def folded(self, target: str | None = None) -> list[TargetEvent]:
        """`latest`, with equal events at most FOLD_S apart as one: the latest, with the number of times, and since when."""
        folded, places = list[TargetEvent](), dict[tuple[str, str, str], int]()
        for event in self.latest(target):
            same = (event.target, event.kind, event.text)
            later = folded[places[same]] if same in places else None
            if later is not None and (later.since_unix_s or later.unix_s) - event.unix_s <= FOLD_S:
                folded[places[same]] = replace(later, times=later.times + 1, since_unix_s=event.unix_s)
            else:
                places[same] = len(folded)
                folded.append(event)
        return folded


class FirstAnswers:
    """The first answers of targets that begin together, as one event: once each target has answered or failed, or at the end.

    keys: of the targets. tell: called with the text
    """

    def __init__(self, keys: Collection[str], tell: Callable[[str], None]) -> None:
        self._waiting, self._names, self._tell = set(keys), list[str](), tell

    def include(self, key: str, name: str, state: TargetState) -> bool:
        """Follow the state of a target; True if this change is a part of the event."""
        if key not in self._waiting or state is TargetState.PENDING or state in SILENT_STATES:
            return False
        self._waiting.discard(key)
        if state is TargetState.READY:
            self._names.append(name)
        if not self._waiting:
            self.end()
        return state is TargetState.READY

    def end(self) -> None:
        """Stop waiting; a target that answers later has its own event."""
        self._waiting.clear()
        if self._names:
            are = "is" if len(self._names) == 1 else "are"
            self._tell(f"{counted(len(self._names), 'target')} {are} ready: {first_names(self._names, MAX_NAMES)}")
            self._names.clear()
