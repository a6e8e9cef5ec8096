"""Events of one SLO over its window."""

import json
from array import array
from typing import Any

SPANS = 60  # of a window: what is counted is up to a 60th shorter than it


class WindowCount:
    """Events and bad events of the last window, kept in spans of a 60th of it, by the wall clock.

    begun_unix_s: when counting began
    last_unix_s: the last event; None if there was none
    """

    def __init__(self, window_s: float, begun_unix_s: float) -> None:
        self.begun_unix_s = begun_unix_s
        self.last_unix_s: float | None = None
        self._span_s = window_s / SPANS
        self._newest = int(begun_unix_s // self._span_s)
        self._events, self._bad = array("q", [0]) * SPANS, array("q", [0]) * SPANS

    def add(self, unix_s: float, events: int, bad: int) -> None:
        """Count events at a time. A time before the newest span, as after a correction of the clock, counts in the newest."""
        self._move(unix_s)
        place = self._newest % SPANS
        self._events[place] += events
        self._bad[place] += bad
        self.last_unix_s = unix_s

    def total(self, unix_s: float) -> tuple[int, int]:
        """(events, bad events) of the window that ends now."""
        self._move(unix_s)
        return sum(self._events), sum(self._bad)

    def since_unix_s(self, unix_s: float) -> float:
        """From when on `total` counts."""
        self._move(unix_s)
        return max(self.begun_unix_s, (self._newest - SPANS + 1) * self._span_s)

    def saved(self) -> dict[str, Any]:
        """What `restored` reads."""
        return {
            "begun": self.begun_unix_s,
            "last": self.last_unix_s,
            "span": self._span_s,
            "newest": self._newest,
            "events": self._events.tolist(),
            "bad": self._bad.tolist(),
        }

    @classmethod
    def restored(cls, window_s: float, saved: Any, unix_s: float) -> "WindowCount":
        """The counts of an earlier process. Raises ValueError if they are of another window, of a time to come, or none."""
        try:
            count = cls(window_s, float(saved["begun"]))
            count.last_unix_s = None if saved["last"] is None else float(saved["last"])
            count._newest = int(saved["newest"])
            count._events, count._bad = array("q", saved["events"]), array("q", saved["bad"])
        except (KeyError, TypeError, ValueError, OverflowError) as problem:
            raise ValueError(f"these are no counts of an SLO: {problem!r}") from None
        is_past = count._newest * count._span_s <= unix_s + window_s
        is_whole = len(count._events) == len(count._bad) == SPANS and saved["span"] == count._span_s
        if (
            not is_past
            or not is_whole
            or not all(0 <= bad <= events for events, bad in zip(count._events, count._bad, strict=True))
        ):
            raise ValueError(f"these are no counts of an SLO over {window_s:g} s: {json.dumps(saved)[:100]}")
        return count

    def _move(self, unix_s: float) -> None:
        """Empty the spans that have passed."""
        now = int(unix_s // self._span_s)
        for span in range(self._newest + 1, min(now, self._newest + SPANS) + 1):
            self._events[span % SPANS] = self._bad[span % SPANS] = 0
        self._newest = max(self._newest, now)
