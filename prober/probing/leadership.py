"""Leadership: only one replica of a shard may sweep a target and write to Grafana."""

from collections.abc import Callable
from hashlib import blake2b
from typing import Protocol

Listener = Callable[[], None]


def claimed_as(key: str) -> str:
    """Short key of a target's claims: all targets of a shard share one annotation."""
    return blake2b(key.encode(), digest_size=8).hexdigest()


class Leadership(Protocol):
    """Leadership as the daemon sees it. where: name of the lease, "" without one; holder: last known holder."""

    where: str

    @property
    def holder(self) -> str: ...

    def held(self) -> int | None:
        """Fencing token while the lease is held, else None; check it before each action."""

    def claimed(self, key: str) -> float:
        """Last number claimed for `key` by any holder; 0 for none."""

    async def claim(self, key: str, number: float) -> int | None:
        """Record a claim before acting on it; returns the fencing token, None if the lease is lost."""

    def listen(self, lost: Listener, won: Listener) -> None:
        """Register callbacks for loss and acquisition of the lease."""

    async def run(self) -> None:
        """Acquire and renew the lease forever."""

    async def close(self) -> None:
        """Release the lease."""


class Alone:
    """Leadership of a prober without replicas: always held."""

    where, holder = "", ""

    def held(self) -> int | None:
        return 0

    def claimed(self, key: str) -> float:
        return 0.0

    async def claim(self, key: str, number: float) -> int | None:
        return 0

    def listen(self, lost: Listener, won: Listener) -> None:
        pass

    async def run(self) -> None:
        pass

    async def close(self) -> None:
        pass
