"""Events of one SLO over its window."""

import json
from array import array
from typing import Any

SPANS = 60  # of a window: what is counted is up to a 60th shorter than it


class WindowCount:
    """Events and bad events of the last window, in spans of a 60th of it since the begin. All times are of one monotonic clock.

    begun_ns: when counting began; negative if that was before the machine started
    last_ns: the last event; None if there was none
    """

    def __init__(self, window_s: float, begun_ns: int) -> None:
        self.begun_ns = begun_ns
        self.last_ns: int | None = None
        self._span_ns = round(window_s * 1e9) // SPANS
        self._newest = 0
        self._events, self._bad = array("q", [0]) * SPANS, array("q", [0]) * SPANS

    def add(self, now_ns: int, events: int, bad: int) -> None:
        """Count events."""
        self._move(now_ns)
        place = self._newest % SPANS
        self._events[place] += events
        self._bad[place] += bad
        self.last_ns = now_ns

    def total(self, now_ns: int) -> tuple[int, int]:
        """(events, bad events) of the window that ends now."""
        self._move(now_ns)
        return sum(self._events), sum(self._bad)

    def since_ns(self, now_ns: int) -> int:
        """Start of the span that `total` counts."""
        self._move(now_ns)
        return self.begun_ns + max(0, self._newest - SPANS + 1) * self._span_ns

    def saved(self, now_ns: int) -> dict[str, Any]:
        """Value for JSON, which `restored` reads; times are ages."""
        self._move(now_ns)
        return {
            "age_ns": now_ns - self.begun_ns,
            "quiet_ns": None if self.last_ns is None else now_ns - self.last_ns,
            "events": self._events.tolist(),
            "bad": self._bad.tolist(),
        }

    @classmethod
    def restored(cls, window_s: float, saved_ns: int, saved: Any) -> "WindowCount":
        """The counts of an earlier process, saved at this time of this process's clock. Raises ValueError."""
        try:
            age_ns, quiet_ns = int(saved["age_ns"]), saved["quiet_ns"]
            count = cls(window_s, saved_ns - age_ns)
            count.last_ns = None if quiet_ns is None else saved_ns - int(quiet_ns)
            count._newest = age_ns // count._span_ns
            count._events, count._bad = array("q", saved["events"]), array("q", saved["bad"])
        except (KeyError, TypeError, ValueError, OverflowError) as problem:
            raise ValueError(f"these are no counts of an SLO: {problem!r}") from None
        if (
            not count.begun_ns <= (saved_ns if count.last_ns is None else count.last_ns) <= saved_ns
            or not len(count._events) == len(count._bad) == SPANS
            or not all(0 <= bad <= events for events, bad in zip(count._events, count._bad, strict=True))
        ):
            raise ValueError(f"these are no counts of an SLO over {window_s:g} s: {json.dumps(saved)[:100]}")
        return count

    def _move(self, now_ns: int) -> None:
        """Empty the spans that have passed."""
        now = (now_ns - self.begun_ns) // self._span_ns
        for span in range(self._newest + 1, min(now, self._newest + SPANS) + 1):
            self._events[span % SPANS] = self._bad[span % SPANS] = 0
        self._newest = max(self._newest, now)
