"""Whether this prober may do what only one of several may: sweep a target, and write to Grafana."""

from collections.abc import Callable
from hashlib import blake2b
from typing import Protocol

Listener = Callable[[], None]


def claimed_as(key: str) -> str:
    """The name of a target among the claims: short, as all of a shard's targets share one annotation."""
    return blake2b(key.encode(), digest_size=8).hexdigest()


class Leadership(Protocol):
    """What the daemon asks. where: which lease, "" if there is none to be had by others; holder: who has it, as far as is known."""

    where: str

    @property
    def holder(self) -> str: ...

    def held(self) -> int | None:
        """The fencing number while it is held, to be asked before each thing done; None: it is not."""
        ...

    def claimed(self, key: str) -> float:
        """The number last claimed for `key` by any holder; 0: none."""
        ...

    async def claim(self, key: str, number: float) -> int | None:
        """Write it down for those that follow, before anything is done; the fencing number, None if it is not held any more."""
        ...

    def listen(self, lost: Listener, won: Listener) -> None:
        """Call these when it is lost, at once, and when it is won."""
        ...

    async def run(self) -> None:
        """Try to hold it, for ever."""
        ...

    async def close(self) -> None:
        """Let others have it."""
        ...


class Alone:
    """The only prober there is: it holds what nobody else wants."""

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
