"""Faults of the simulated engine, as data. Times are seconds of virtual time; the end is excluded."""

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class Slow:
    """Every step takes `factor` times as long."""

    factor: float
    start_s: float = 0.0
    end_s: float = inf


@dataclass(frozen=True, slots=True)
class Tail:
    """A random `share` of the decode-only steps takes `factor` times as long: ITL suffers, prefill does not."""

    share: float
    factor: float
    start_s: float = 0.0
    end_s: float = inf


@dataclass(frozen=True, slots=True)
class KvLost:
    """`blocks` of the KV cache are unavailable."""

    blocks: int
    start_s: float = 0.0
    end_s: float = inf


@dataclass(frozen=True, slots=True)
class Flush:
    """At `start_s` the prefix cache drops all blocks that no running request holds."""

    start_s: float


@dataclass(frozen=True, slots=True)
class Crash:
    """Running and waiting requests are lost, with the prefix cache; until `end_s` every arriving request is lost."""

    start_s: float
    end_s: float


Fault = Slow | Tail | KvLost | Flush | Crash


class Effect(NamedTuple):
    """Combined effect of the active faults: factors multiply, lost blocks add up, of several tails the last counts."""

    factor: float = 1.0
    lost_blocks: int = 0
    tail_share: float = 0.0
    tail_factor: float = 1.0
    down_until_s: float = 0.0


class Timetable:
    """The faults in order of time. next_s: next begin or end of a fault. Raises ValueError for an invalid fault."""

    def __init__(self, faults: Iterable[Fault], since_s: float = 0.0) -> None:
        self._faults = tuple(faults)
        times = {since_s}  # faults that began earlier are active from here
        for fault in self._faults:
            _check(fault)
            times |= {at for at in (fault.start_s, getattr(fault, "end_s", inf)) if since_s <= at < inf}
        self._times = sorted(times)
        self.next_s = self._times[0]

    def pass_next(self) -> tuple[Effect, bool, bool]:
        """Advance past `next_s`. Returns (effect from then on, True if the prefix cache is flushed, True if the engine crashes)."""
        at = self._times.pop(0)
        self.next_s = self._times[0] if self._times else inf
        effect, starting = Effect(), {type(fault) for fault in self._faults if fault.start_s == at}
        for fault in self._faults:
            if isinstance(fault, Flush) or not fault.start_s <= at < fault.end_s:
                continue
            match fault:
                case Slow():
                    effect = effect._replace(factor=effect.factor * fault.factor)
                case Tail():
                    effect = effect._replace(tail_share=fault.share, tail_factor=fault.factor)
                case KvLost():
                    effect = effect._replace(lost_blocks=effect.lost_blocks + fault.blocks)
                case Crash():
                    effect = effect._replace(down_until_s=max(effect.down_until_s, fault.end_s))
        return effect, Flush in starting, Crash in starting


def _check(fault: Fault) -> None:
    if not isinstance(fault, Flush) and not fault.start_s < fault.end_s:
        raise ValueError(f"{fault}: end_s must be after start_s")
    if isinstance(fault, Slow | Tail) and not 0 < fault.factor < inf:
        raise ValueError(f"{fault}: factor must be above 0")
    if isinstance(fault, Tail) and not 0 < fault.share <= 1:
        raise ValueError(f"{fault}: share must be above 0 and at most 1")
    if isinstance(fault, KvLost) and fault.blocks < 0:
        raise ValueError(f"{fault}: blocks must be 0 or more")
