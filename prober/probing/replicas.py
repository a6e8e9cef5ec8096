"""Several probers that share targets. A target's key decides its shard; one replica of each shard leads, and sweeps."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from typing import Self

MOST = 10_000
_TEXT = re.compile(r"(\d{1,5}|ordinal)/(\d{1,5})")
_ORDINAL = re.compile(r".*-(\d{1,5})")


@dataclass(frozen=True, slots=True)
class Shard:
    """Shard number `index` (from 0) of `count` shards."""

    index: int = 0
    count: int = 1

    @classmethod
    def parse(cls, text: str, pod: str | None) -> Self:
        """Parse `I/N`, or `ordinal/N` with I from the end of the pod's name, as in a StatefulSet. Raises ValueError."""
        match = _TEXT.fullmatch(text.strip())
        if match is None:
            raise ValueError(f"{text!r} is not a shard; write it as 0/3 (the first of three) or ordinal/3")
        count = int(match[2])
        if match[1] == "ordinal":
            numbered = _ORDINAL.fullmatch(pod or "")
            if numbered is None:
                pod_text = f"POD_NAME is {pod!r}" if pod else "POD_NAME is not set"
                raise ValueError(f"{text!r} needs a pod's name that ends in -NUMBER, as in a StatefulSet; {pod_text}")
            index = int(numbered[1])
        else:
            index = int(match[1])
        if not 1 <= count <= MOST or index >= count:
            raise ValueError(f"{text!r}: shard {index} of {count} does not exist; they are 0 to {count - 1}")
        return cls(index, count)

    def has(self, key: str) -> bool:
        """True if the target with this key belongs to this shard."""
        return shard_of(key, self.count) == self.index

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"


def shard_of(key: str, count: int) -> int:
    """Index of the shard, of `count`, that has `key`: the same in every process, machine and version.

    Jump consistent hash (Lamping and Veach 2014, arXiv:1406.2294) of the key's BLAKE2b: shards differ in size only by chance. One more
    shard takes 1/(count + 1) of the keys, equally from all others; no key moves between two old shards.
    """
    state = int.from_bytes(blake2b(key.encode(), digest_size=8).digest(), "big")
    shard, following = 0, 0
    while following < count:
        shard = following
        state = (state * 2862933555777941757 + 1) % 2**64
        following = int((shard + 1) * (2**31 / ((state >> 33) + 1)))
    return shard


Listener = Callable[[], None]


def claimed_as(key: str) -> str:
    """Short form of a target's key for claims, because all targets of a shard share one annotation."""
    return blake2b(key.encode(), digest_size=8).hexdigest()


class Leadership:
    """Leadership of a shard. This class has no lease: it always holds the leadership.

    where: name of the lease; "" without one
    """

    where = ""

    @property
    def holder(self) -> str:
        """The last known holder of the lease; "" if unknown."""
        return ""

    def held(self) -> int | None:
        """Fencing token while the lease is held, else None. Check it before each action."""
        return 0

    def claimed(self, key: str) -> float:
        """Highest number claimed for `key` by any holder; 0 for none."""
        return 0.0

    async def claim(self, key: str, number: float) -> int | None:
        """Claim a number for `key` before acting on it. Returns the fencing token; None if the lease is lost."""
        return 0

    def listen(self, lost: Listener, won: Listener) -> None:
        """Register callbacks for the loss and the acquisition of the lease."""

    async def run(self) -> None:
        """Acquire and renew the lease forever."""

    async def close(self) -> None:
        """Release the lease."""
