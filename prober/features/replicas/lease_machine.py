"""A lease that one of several processes holds at a time, as a machine without a clock and without a socket.

The lease is a record on a server that replaces it only for whoever knows its present version (Kubernetes: a Lease and its
resourceVersion). Driven by

    match candidate.next(now_s):
        case Read():  candidate.found(record or None, now_s), or .failed(now_s) if nobody answered
        case Write(): candidate.wrote(version, now_s), .beaten(now_s) if the version is an old one, or .failed(now_s)
        case Wait():  nothing until then, or until `claim` or `leave` is called

`now_s` is a clock of this process alone that never goes back and also counts while the machine sleeps. No time of another process
is ever read: as in client-go, a record that has not changed for its duration *since it was first seen here* may be taken.

Why two never hold it at one moment. The holder holds it until `renew_s` after it *sent* the last renewal that was answered. Nobody
else saw that renewal before it was sent, and all wait at least `lease_s` after they saw it, then replace that very version. So
it takes clocks of which one runs faster than the other by more than lease_s ÷ renew_s = 1.5 to break it; what they show, how long
messages take, and whether they come, is all one. A process that was stopped finds out by its clock: `held` is to be asked before
each thing done. What is between that question and the deed (or already sent) is covered by the fencing number alone.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import inf
from random import Random

MOST_CLAIMS = 2_000  # about 60 kB of an annotation; Kubernetes allows 256
SHORTEST_S = 1.0  # whole seconds above 0 is what a Lease can say
JITTER = 0.5


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds, by their names in client-go: LeaseDuration, RenewDeadline, RetryPeriod; ask_s: for one answer of the server."""

    lease_s: float = 15.0

    @property
    def renew_s(self) -> float:
        """The holder lets go so long after it sent the last renewal that was answered: before anybody else may take it."""
        return self.lease_s * 2 / 3

    @property
    def retry_s(self) -> float:
        """Between two tries, and up to half as much more."""
        return self.lease_s * 2 / 15

    @property
    def ask_s(self) -> float:
        """Two unanswered tries fit into `renew_s`."""
        return self.lease_s / 5


@dataclass(frozen=True, slots=True)
class Record:
    """What the server keeps. holder: "" for nobody; transitions: how often it was taken; version: of the record, as it says.

    claims: what holders wrote down for those that follow them, key → number
    """

    holder: str
    lease_s: float
    transitions: int
    version: str = ""
    claims: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Read:
    """Ask for the record."""


@dataclass(frozen=True, slots=True)
class Write:
    """Put `record` in place of the one with its version; without a version make it. begins: it is taken, not renewed."""

    record: Record
    begins: bool


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing to be done before then."""

    until_s: float


class Candidate:
    """See the module. identity: no other process ever has the same, nor this one when it is started again."""

    def __init__(self, identity: str, timing: Timing, rng: Random) -> None:
        self.identity, self.timing, self._rng = identity, timing, rng
        self.record: Record | None = None  # as last seen
        self._seen_s = -inf  # when its version was first seen
        self._current = False  # it was seen, and nothing was tried since
        self._due_s = -inf
        self._asked: Write | None = None
        self._sent_s = -inf
        self._until_s = -inf
        self._wanted: dict[str, float] = {}
        self._leaving = False

    def held(self, now_s: float) -> int | None:
        """The fencing number while this process holds the lease: higher than any holder's before it; None: it does not."""
        return self.record.transitions if self.record is not None and now_s < self._until_s else None

    @property
    def until_s(self) -> float:
        """When it stops holding the lease if nothing more is answered."""
        return self._until_s

    # --- what is to be done

    def next(self, now_s: float) -> Read | Write | Wait:
        """What to do now. A Write counts as sent at this moment."""
        if self._leaving:
            return self._leave()
        if self.held(now_s) is None:
            self._wanted.clear()
        if now_s < self._due_s:
            return Wait(self._due_s)
        if not self._current:
            return Read()
        record = self.record
        if record is None or self.held(now_s) is not None or self._is_free(record, now_s):
            self._current, self._sent_s = False, now_s
            self._asked = self._take(record, now_s)
            return self._asked
        self._current = False
        self._again(now_s)
        return Wait(self._due_s)

    def claim(self, key: str, number: float) -> None:
        """Write it down at once, for those that follow; forgotten if this process does not hold the lease."""
        self._wanted[key] = number
        self._due_s = -inf

    def leave(self) -> None:
        """Hold nothing from now on, and say so to the server, so that others need not wait."""
        self._leaving, self._until_s = True, -inf

    # --- what happened

    def found(self, record: Record | None, now_s: float) -> None:
        """The server's answer to a Read; None: there is no record."""
        if record is None or record.holder != self.identity:
            self._until_s = -inf  # somebody took it away by force
        if record is None or self.record is None or record.version != self.record.version:
            self._seen_s = now_s
        if record is not None or self.record is None:
            self.record = record
        else:  # it was deleted: what is made in its place must not begin to count anew
            self.record = replace(self.record, holder="", version="")
        self._current = True

    def wrote(self, version: str, now_s: float) -> None:
        """The server did what the last Write said, and calls the record so now."""
        if self._asked is None:
            return
        if version == self._asked.record.version:  # nothing changed, so nobody else can see it
            self.failed(now_s)
            return
        self.record, self._asked = replace(self._asked.record, version=version), None
        self._seen_s, self._current = now_s, True
        for key, number in self.record.claims.items():
            if self._wanted.get(key) == number:
                del self._wanted[key]
        self._until_s = -inf if self._leaving else max(self._until_s, self._sent_s + self.timing.renew_s)
        self._again(-inf if self._wanted else now_s)

    def beaten(self, now_s: float) -> None:
        """The record is another one than the last Write's: see which, soon, and not at the same moment as everybody else."""
        self._asked, self._current = None, False
        self._due_s = now_s + self._rng.random() * self.timing.retry_s / 4

    def failed(self, now_s: float, wait_s: float = 0.0) -> None:
        """No answer, so nobody knows whether it was done; wait_s: the server asks to be left alone for so long."""
        self._asked, self._current = None, False
        self._again(now_s + wait_s)
        if self.held(now_s) is not None and not wait_s:
            self._due_s = now_s + (self._due_s - now_s) / 4  # it has not long

    # ---

    def _again(self, now_s: float) -> None:
        self._due_s = now_s + self.timing.retry_s * (1 + JITTER * self._rng.random())

    def _is_free(self, record: Record, now_s: float) -> bool:
        """Nobody's, or our own from a write whose answer did not come, or unchanged for its whole duration."""
        if record.holder in ("", self.identity):
            return True
        return now_s >= self._seen_s + max(record.lease_s, self.timing.lease_s)

    def _take(self, record: Record | None, now_s: float) -> Write:
        begins = self.held(now_s) is None
        transitions = 0 if record is None else record.transitions + begins
        claims = {**(record.claims if record is not None else {}), **self._wanted}
        latest = sorted(claims.items(), key=lambda each: each[1])[-MOST_CLAIMS:]
        version = record.version if record is not None else ""
        return Write(Record(self.identity, self.timing.lease_s, transitions, version, dict(latest)), begins)

    def _leave(self) -> Read | Write | Wait:
        if not self._current:
            return Read()
        record = self.record
        if record is None or record.holder != self.identity:
            return Wait(inf)
        self._current = False
        self._asked = Write(replace(record, holder="", lease_s=SHORTEST_S), begins=False)
        return self._asked
