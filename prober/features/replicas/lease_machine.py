"""A lease that at most one of several processes holds, as a state machine without clock and sockets.

The lease is a record on a server. The server replaces it only if the writer knows its current version (Kubernetes: a Lease
and its resourceVersion). Drive it by

    match candidate.next(now_s):
        case Read():  candidate.record_read(record or None, now_s), or .failed(now_s) without an answer
        case Write(): candidate.record_written(version, now_s), .conflicted(now_s) if the version is outdated, or .failed(now_s)
        case Wait():  do nothing until then, or until `claim` or `leave` is called

`now_s` is a clock of this process that never goes back and runs while the machine sleeps. Times of other processes are never
used: as in client-go, a record may be taken if it has not changed for its duration *since this process first read it*.

Two processes never hold the lease at the same time. The holder keeps it until `renew_s` after it *sent* the last answered renewal.
Other processes read that renewal only after it was sent, wait at least `lease_s` after reading it, and replace exactly that version.
This fails only if one clock runs faster than another by more than lease_s ÷ renew_s = 1.5. Wrong clocks and delayed or
lost messages do no harm. A process that was stopped learns of the loss from its clock, so call `held` before each action. An action
that has already begun is protected only by the fencing number.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import inf
from random import Random

MAX_CLAIMS = 2_000  # about 60 kB in an annotation; Kubernetes allows 256 kB
MIN_LEASE_S = 1.0  # a Lease has whole seconds above 0
JITTER_RATIO = 0.5


@dataclass(frozen=True, slots=True)
class Timing:
    """Durations of a lease; the first three are LeaseDuration, RenewDeadline and RetryPeriod of client-go."""

    lease_s: float = 15.0

    @property
    def renew_s(self) -> float:
        """Seconds from sending the last answered renewal until the holder stops; others can take the lease only later."""
        return self.lease_s * 2 / 3

    @property
    def retry_s(self) -> float:
        """Seconds between two attempts, without jitter."""
        return self.lease_s * 2 / 15

    @property
    def request_timeout_s(self) -> float:
        """Timeout of one request in seconds; two attempts without answer fit into `renew_s`."""
        return self.lease_s / 5


@dataclass(frozen=True, slots=True)
class Record:
    """The lease as stored on the server.

    holder: identity of the holder, "" without one
    lease_s: seconds without renewal after which others may take the lease
    transitions: number of times the lease was taken
    version: set by the server
    claims: {key: number} that a holder leaves for later holders
    """

    holder: str
    lease_s: float
    transitions: int
    version: str = ""
    claims: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Read:
    """Read the record."""


@dataclass(frozen=True, slots=True)
class Write:
    """Replace the record with the same version; without a version, create it. begins: the lease is taken, not renewed"""

    record: Record
    begins: bool


@dataclass(frozen=True, slots=True)
class Wait:
    """Do nothing before `until_s`."""

    until_s: float


class Candidate:
    """A process that wants the lease. identity: unique per process, also across restarts."""

    def __init__(self, identity: str, timing: Timing, rng: Random) -> None:
        self.identity, self.timing, self._rng = identity, timing, rng
        self.record: Record | None = None  # as last read
        self._first_read_s = -inf  # first read of its version
        self._current = False  # it was read, and nothing has been written since
        self._due_s = -inf
        self._pending: Write | None = None
        self._sent_s = -inf
        self.until_s = -inf  # then this process loses the lease, unless a further renewal is answered
        self._claims: dict[str, float] = {}
        self._leaving = False

    def held(self, now_s: float) -> int | None:
        """The fencing number, higher than that of any earlier holder; None while this process does not hold the lease."""
        return self.record.transitions if self.record is not None and now_s < self.until_s else None

    # --- actions

    def next(self, now_s: float) -> Read | Write | Wait:
        """Return the next action. A Write counts as sent now."""
        if self._leaving:
            return self._leave()
        if self.held(now_s) is None:
            self._claims.clear()
        if now_s < self._due_s:
            return Wait(self._due_s)
        if not self._current:
            return Read()
        record = self.record
        if record is None or self.held(now_s) is not None or self._is_free(record, now_s):
            self._current, self._sent_s = False, now_s
            self._pending = self._acquire(record, now_s)
            return self._pending
        self._current = False
        self._retry(now_s)
        return Wait(self._due_s)

    def claim(self, key: str, number: float) -> None:
        """Write the claim at once if this process holds the lease; otherwise drop it."""
        self._claims[key] = number
        self._due_s = -inf

    def leave(self) -> None:
        """Give up the lease and release it on the server, so that others need not wait."""
        self._leaving, self.until_s = True, -inf

    # --- events

    def record_read(self, record: Record | None, now_s: float) -> None:
        """Process the answer to a Read; None if the server has no record."""
        if record is None or record.holder != self.identity:
            self.until_s = -inf  # another writer took it by force
        if record is None or self.record is None or record.version != self.record.version:
            self._first_read_s = now_s
        if record is not None or self.record is None:
            self.record = record
        else:  # the record was deleted; its successor's transitions must not start at 0
            self.record = replace(self.record, holder="", version="")
        self._current = True

    def record_written(self, version: str, now_s: float) -> None:
        """Process the success of the last Write. version: new version of the record"""
        if self._pending is None:
            return
        if version == self._pending.record.version:  # nothing changed, so others cannot see the renewal
            self.failed(now_s)
            return
        self.record, self._pending = replace(self._pending.record, version=version), None
        self._first_read_s, self._current = now_s, True
        for key, number in self.record.claims.items():
            if self._claims.get(key) == number:
                del self._claims[key]
        self.until_s = -inf if self._leaving else max(self.until_s, self._sent_s + self.timing.renew_s)
        self._retry(-inf if self._claims else now_s)

    def conflicted(self, now_s: float) -> None:
        """Process the refusal of the last Write, because the record has another version.

        Reading it again is delayed at random, so that replicas do not all read at once.
        """
        self._pending, self._current = None, False
        self._due_s = now_s + self._rng.random() * self.timing.retry_s / 4

    def failed(self, now_s: float, wait_s: float = 0.0) -> None:
        """Process a missing answer: the action may have succeeded. wait_s: pause that the server asks for."""
        self._pending, self._current = None, False
        self._retry(now_s + wait_s)
        if self.held(now_s) is not None and not wait_s:
            self._due_s = now_s + (self._due_s - now_s) / 4  # in time before the lease is lost

    # ---

    def _retry(self, now_s: float) -> None:
        self._due_s = now_s + self.timing.retry_s * (1 + JITTER_RATIO * self._rng.random())

    def _is_free(self, record: Record, now_s: float) -> bool:
        """True if the lease has no holder, was taken by an unanswered write of this process, or is unchanged for its duration."""
        if record.holder in ("", self.identity):
            return True
        return now_s >= self._first_read_s + max(record.lease_s, self.timing.lease_s)

    def _acquire(self, record: Record | None, now_s: float) -> Write:
        begins = self.held(now_s) is None
        transitions = 0 if record is None else record.transitions + begins
        claims = {**(record.claims if record is not None else {}), **self._claims}
        latest = sorted(claims.items(), key=lambda claim: claim[1])[-MAX_CLAIMS:]
        version = record.version if record is not None else ""
        return Write(Record(self.identity, self.timing.lease_s, transitions, version, dict(latest)), begins)

    def _leave(self) -> Read | Write | Wait:
        if not self._current:
            return Read()
        record = self.record
        if record is None or record.holder != self.identity:
            return Wait(inf)
        self._current = False
        self._pending = Write(replace(record, holder="", lease_s=MIN_LEASE_S), begins=False)
        return self._pending
