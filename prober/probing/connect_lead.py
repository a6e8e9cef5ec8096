"""Time before its due time at which a probe connects, where the server closes idle connections."""

from collections import deque

MIN_IDLE_NS = 10_000_000  # a connection that was closed sooner was not idle: it is the same for every client
REMEMBERED_NS = 3600 * 10**9
SET_UPS = 20  # the longest of the last ones counts
SET_UP_MARGIN = 2


class ConnectLead:
    """Lead of the connections of one target, learnt from those that its server closed while they were idle.

    Two such connections within an hour shorten the lead for that hour: half the shortest idle time, and twice the longest set-up. After
    the hour the whole lead is tried again, so that a changed server costs an hour, and another server two connections.
    """

    def __init__(self) -> None:
        self._set_ups_ns: deque[int] = deque(maxlen=SET_UPS)
        # (time, idle time) of the last connections that were closed
        self._closed: deque[tuple[int, int]] = deque(maxlen=2)

    def connected(self, set_up_ns: int) -> None:
        """A connection was set up."""
        self._set_ups_ns.append(set_up_ns)

    def closed(self, idle_ns: int, now_ns: int) -> bool:
        """The server closed a connection after this idle time. Returns True if the lead is shorter from now on."""
        before_ns = self.learnt_ns(now_ns)
        self._closed.append((now_ns, idle_ns))
        return before_ns is None and self.learnt_ns(now_ns) is not None

    def learnt_ns(self, now_ns: int) -> int | None:
        """The shorter lead; None while none is learnt."""
        if len(self._closed) < 2 or now_ns - self._closed[0][0] > REMEMBERED_NS:
            return None
        return min(idle_ns for _, idle_ns in self._closed) // 2 + self.set_up_ns

    @property
    def set_up_ns(self) -> int:
        """Time in which a connection is set up, with a margin; 0 before the first one."""
        return SET_UP_MARGIN * max(self._set_ups_ns, default=0)
