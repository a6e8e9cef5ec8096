"""Replicas that want one lease, in virtual time: messages that are late, lost or answered in vain, partitions, a server that is away,
clocks of different rates and processes that stand still. Drives `prober.features.replicas.lease_machine` as the daemon does."""

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from math import inf
from random import Random

from prober.features.replicas.lease_machine import Candidate, Read, Record, Timing, Wait, Write

DUE_EVERY_S = 40.0  # work that all know is due then, by what their wall clocks show


@dataclass(frozen=True, slots=True)
class Trouble:
    """What may happen. drift: clocks run at 1 ± this; the rest: chances and seconds."""

    drift: float = 0.15
    skew_s: float = 60.0  # of wall clocks
    dropped: float = 0.05
    slow: float = 0.05  # of messages that take up to slow_s
    slow_s: float = 25.0
    episodes: int = 6  # of partitions and pauses, in `span_s`
    episode_s: float = 45.0
    span_s: float = 300.0
    calm_s: float = 100.0  # afterwards only messages are lost: somebody must hold it


@dataclass(slots=True)
class Server:
    """Keeps the record, and replaces it only for whoever knows its version."""

    record: Record | None = None
    version: int = 0

    def answer(self, action: Read | Write) -> "Record | bool | str | None":
        """The record of a Read, the new version of a Write, or False."""
        if isinstance(action, Read):
            return self.record
        wanted = action.record
        if wanted.version != (self.record.version if self.record is not None else ""):
            return False
        self.version += 1
        self.record = Record(wanted.holder, wanted.lease_s, wanted.transitions, str(self.version), wanted.claims)
        return str(self.version)


@dataclass(slots=True)
class Replica:
    """One process. rate, offset_s: of its own clock; wall_s: what its wall clock is wrong by."""

    candidate: Candidate
    rate: float
    offset_s: float
    wall_s: float
    paused_until_s: float = -inf
    cut: list[tuple[float, float]] = field(default_factory=list)  # spans in which nothing comes through
    tries: int = 0
    busy: bool = False  # an answer is waited for
    gone: bool = False
    standing: float | None = None  # due work that waits for the lease
    claiming: float | None = None

    def now(self, at_s: float) -> float:
        """What its own clock shows."""
        return self.offset_s + self.rate * at_s

    def holds(self, at_s: float) -> int | None:
        """As it would find if it asked now; who stands still asks nothing."""
        return None if self.gone or at_s < self.paused_until_s else self.candidate.held(self.now(at_s))


@dataclass(slots=True)
class History:
    """What came of it. taken: (when, fencing number, replica)."""

    two_holders: int = 0
    taken: list[tuple[float, int, int]] = field(default_factory=list)
    ran: list[tuple[float, int]] = field(default_factory=list)  # (due, replica)
    held_s: float = 0.0
    last_held_s: float = 0.0


class World:
    """A history: make it, `run` it, look at it."""

    def __init__(
        self, rng: Random, replicas: int, trouble: Trouble, timing: Callable[[int], Timing] | None = None
    ) -> None:
        self._rng, self._trouble, self.server = rng, trouble, Server()
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._order = count()
        self.history = History()
        self.replicas = [self._replica(number, timing(number) if timing else Timing()) for number in range(replicas)]
        self._holding: list[int | None] = [None] * replicas
        self._now_s = 0.0
        self._away = [self._episode() for _ in range(rng.randrange(3))] if trouble.episodes else []
        for _ in range(trouble.episodes):
            self._befall()

    def run(self) -> History:
        """To the end."""
        end_s = self._trouble.span_s + self._trouble.calm_s
        for number in range(len(self.replicas)):
            self._at(self._rng.uniform(0, 5), lambda at_s, number=number: self._step(number, at_s))  # type: ignore[misc]
            self._ring_next(number, DUE_EVERY_S)
        at_s = 0.0
        while self._events and self._events[0][0] < end_s:
            before_s, (at_s, _, event) = at_s, heapq.heappop(self._events)
            if any(each is not None for each in self._holding):
                self.history.held_s += at_s - before_s
                self.history.last_held_s = at_s
            self._now_s = at_s
            event(at_s)
            self._look(at_s)
        return self.history

    def stop(self, number: int, at_s: float) -> None:
        """SIGTERM to a replica then: it lets go and is gone."""

        def leave(now_s: float) -> None:
            replica = self.replicas[number]
            if replica.busy:
                replica.candidate.failed(replica.now(now_s))
            replica.candidate.leave()
            self._step(number, now_s)

        self._at(at_s, leave)

    def kill(self, number: int, at_s: float) -> None:
        """SIGKILL."""

        def die(_: float) -> None:
            self.replicas[number].gone = True

        self._at(at_s, die)

    # --- what befalls them

    def _replica(self, number: int, timing: Timing) -> Replica:
        rng, trouble = self._rng, self._trouble
        candidate = Candidate(f"replica-{number}", timing, Random(rng.random()))
        rate = 1 + rng.choice((-1, 1)) * rng.uniform(0.5, 1) * trouble.drift
        return Replica(candidate, rate, rng.uniform(0, 1e6), rng.uniform(-1, 1) * trouble.skew_s)

    def _episode(self) -> tuple[float, float]:
        begin_s = self._rng.uniform(0, self._trouble.span_s)
        return begin_s, min(self._trouble.span_s, begin_s + self._rng.uniform(0, self._trouble.episode_s))

    def _befall(self) -> None:
        begin_s, end_s = self._episode()
        replica = self._rng.choice(self.replicas)
        if self._rng.random() < 0.5:
            replica.cut.append((begin_s, end_s))
            return

        def pause(_: float) -> None:
            replica.paused_until_s = max(replica.paused_until_s, end_s)

        self._at(begin_s, pause)
        self._at(end_s, lambda _: None)  # it goes on: what it believes counts again

    # --- time

    def _at(self, at_s: float, event: Callable[[float], None]) -> None:
        heapq.heappush(self._events, (at_s, next(self._order), event))

    def _in(self, replica: Replica, at_s: float, event: Callable[[float], None]) -> None:
        """At a time in a process: later, if it stands still then."""

        def reach(now_s: float) -> None:
            if now_s < replica.paused_until_s:
                self._at(replica.paused_until_s, reach)
            elif not replica.gone:
                event(now_s)

        self._at(at_s, reach)

    def _look(self, at_s: float) -> None:
        holding = [each.holds(at_s) for each in self.replicas]
        self.history.two_holders += sum(each is not None for each in holding) > 1
        for number, (before, now) in enumerate(zip(self._holding, holding, strict=True)):
            if now is not None and now != before:
                self.history.taken.append((at_s, now, number))
        self._holding = holding

    # --- one replica, as the daemon does it

    def _step(self, number: int, at_s: float) -> None:
        replica = self.replicas[number]
        replica.tries += 1
        this = replica.tries
        action = replica.candidate.next(replica.now(at_s))
        replica.busy = not isinstance(action, Wait)
        if isinstance(action, Wait):
            if action.until_s < inf:
                self._wake(number, this, at_s, max(0.001, (action.until_s - replica.now(at_s)) / replica.rate))
            else:
                replica.gone = True
            return

        def over(event: Callable[[], None]) -> Callable[[float], None]:
            def happen(now_s: float) -> None:
                if replica.tries == this:
                    event()
                    self._work(number)
                    self._step(number, now_s)

            return happen

        def timed_out(now_s: float) -> None:
            over(lambda: replica.candidate.failed(replica.now(now_s)))(now_s)

        self._in(replica, at_s + replica.candidate.timing.request_timeout_s / replica.rate, timed_out)
        if self._lost(replica, at_s):
            return

        def come(then_s: float) -> None:
            if any(begin_s <= then_s < end_s for begin_s, end_s in self._away):
                return
            said = self.server.answer(action)
            if not self._lost(replica, then_s):
                self._in(
                    replica, then_s + self._delay(), lambda now_s: over(lambda: self._said(replica, said, now_s))(now_s)
                )

        self._at(at_s + self._delay(), come)

    def _wake(self, number: int, this: int, at_s: float, wait_s: float) -> None:
        def wake(now_s: float) -> None:
            if self.replicas[number].tries == this:
                self._step(number, now_s)

        self._in(self.replicas[number], at_s + wait_s, wake)

    def _said(self, replica: Replica, said: "Record | bool | str | None", now_s: float) -> None:
        if said is False:
            replica.candidate.conflicted(replica.now(now_s))
        elif isinstance(said, str):
            replica.candidate.record_written(said, replica.now(now_s))
        else:
            assert not isinstance(said, bool)
            replica.candidate.record_read(said, replica.now(now_s))

    def _delay(self) -> float:
        trouble = self._trouble
        return self._rng.uniform(0, trouble.slow_s) if self._rng.random() < trouble.slow else self._rng.expovariate(100)

    def _lost(self, replica: Replica, at_s: float) -> bool:
        return self._rng.random() < self._trouble.dropped or any(begin <= at_s < end for begin, end in replica.cut)

    # --- work that is due, and may be done once

    def _ring_next(self, number: int, due_s: float) -> None:
        replica = self.replicas[number]

        def ring(now_s: float) -> None:
            replica.standing = due_s
            self._work(number)
            if replica.claiming is not None and not replica.busy:
                self._step(number, now_s)
            self._ring_next(number, due_s + DUE_EVERY_S)

        self._in(replica, max(0.0, due_s - replica.wall_s), ring)

    def _work(self, number: int) -> None:
        """Before it is done it is written down; what is written down is done already."""
        replica, at_s = self.replicas[number], self._now_s
        candidate, record = replica.candidate, replica.candidate.record
        if candidate.held(replica.now(at_s)) is None or record is None:
            replica.claiming = None
            return
        if replica.claiming is not None and record.claims.get("work", -inf) >= replica.claiming:
            self.history.ran.append((replica.claiming, number))
            replica.claiming = None
        if replica.standing is not None and replica.claiming is None:
            if record.claims.get("work", -inf) < replica.standing:
                candidate.claim("work", replica.standing)
                replica.claiming = replica.standing
            replica.standing = None
