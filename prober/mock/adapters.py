"""Slots for LoRA adapters: an adapter without a slot is loaded into that of the least recently used adapter.

As in vLLM, an adapter with running requests keeps its slot, and requests wait if no slot is free for their adapter. Adapters are
loaded one after the other. Unlike in a real engine, a load does not delay other requests.
"""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from prober.mock.delays import Constant, Delay


@dataclass(frozen=True, slots=True)
class AdapterSettings:
    """LoRA adapters of a mock.

    names: served names of the adapters
    slots: number of adapters that can be loaded at the same time
    load: time to load one adapter
    """

    names: tuple[str, ...] = ()
    slots: int = 1
    load: Delay = Constant(0.5)


@dataclass(slots=True, eq=False)
class Lease:
    """One request's use of an adapter. load_ns: duration of the load that it caused; is_held: it has a slot"""

    name: str
    ready: Callable[[int], None]
    load_ns: int = 0
    is_held: bool = False


@dataclass(slots=True)
class _Loaded:
    ready_ns: int
    uses: int = 0


class AdapterPool:
    """Slots for adapters, and the queue of requests that wait for a slot. Times are in nanoseconds."""

    def __init__(self, settings: AdapterSettings, rng: Random) -> None:
        self._settings, self._rng = settings, rng
        self._loaded: dict[str, _Loaded] = {}  # most recently used last
        self._waiting: list[Lease] = []
        self._load_end_ns = 0

    def acquire(self, name: str, at_ns: int, ready: Callable[[int], None]) -> Lease:
        """Begin to use an adapter. Calls `ready` with the time at which it is loaded, once that is known, perhaps immediately."""
        lease = Lease(name, ready)
        if not self._hold(lease, at_ns):
            self._waiting.append(lease)
        return lease

    def release(self, lease: Lease, at_ns: int) -> None:
        """End a use, or the wait for it. Waiting requests then get the free slots in order."""
        if not lease.is_held:
            self._waiting.remove(lease)
            return
        self._loaded[lease.name].uses -= 1
        self._waiting = [waiting for waiting in self._waiting if not self._hold(waiting, at_ns)]

    def _hold(self, lease: Lease, at_ns: int) -> bool:
        """Give a request its adapter, if it is loaded or can be loaded now. Returns True if it did."""
        adapter = self._loaded.pop(lease.name, None)
        if adapter is None:
            if len(self._loaded) >= self._settings.slots:
                idle = next((name for name, other in self._loaded.items() if not other.uses), None)
                if idle is None:
                    return False
                del self._loaded[idle]
            lease.load_ns = self._settings.load.draw_ns(self._rng)
            self._load_end_ns = max(at_ns, self._load_end_ns) + lease.load_ns
            adapter = _Loaded(self._load_end_ns)
        self._loaded[lease.name] = adapter
        adapter.uses += 1
        lease.is_held = True
        lease.ready(max(at_ns, adapter.ready_ns))
        return True
