"""The socket between the prober and a worker. It carries pickled messages, each preceded by its length; both ends are trusted.

A worker on another machine has another monotonic clock. `ClockOffset` bounds its offset by exchanging times.
"""

import asyncio
import pickle
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from prober.config.target import TargetSpec
from prober.measure.request import AssistantMessage, Request
from prober.measure.result import ProbeResult
from prober.probing.target import Identity

LENGTH_BYTES = 4


@dataclass(frozen=True, slots=True)
class NewTarget:
    """Message to a worker: a target, named by its number in later messages."""

    number: int
    spec: TargetSpec
    identity: Identity | None


@dataclass(frozen=True, slots=True)
class Send:
    """Message to a worker: send a request to a target.

    All times in messages are on the prober's clock; processes of one host share CLOCK_MONOTONIC.
    target: number of the target
    clock_ns: the worker's clock minus the prober's
    """

    target: int
    request: Request
    clock_ns: int = 0


@dataclass(frozen=True, slots=True)
class Cut:
    """Message to a worker: cancel a request."""

    request_id: str


@dataclass(frozen=True, slots=True)
class Ended:
    """Message from a worker: the result of a request. answer: see `ProbeRun.answer`"""

    result: ProbeResult
    answer: AssistantMessage | None


@dataclass(frozen=True, slots=True)
class Beat:
    """Sign of life, in both directions.

    progress: from a worker: requests in flight as (request id, `late_ns`, time of first content or None)
    """

    progress: tuple[tuple[str, int, int | None], ...] = ()


def packed(message: object) -> bytes:
    """Encode a message, preceded by its length."""
    data = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    return len(data).to_bytes(LENGTH_BYTES, "big") + data


class Channel(asyncio.Protocol):
    """One end of a channel. write: sends bytes; None before the connection and after its end

    received: called with each message; lost: called once, when the other end has gone
    """

    def __init__(self, received: Callable[[Any], None], lost: Callable[[], None]) -> None:
        self._received, self._lost = received, lost
        self._buffer = bytearray()
        self._transport: asyncio.Transport | None = None
        self.write: Callable[[bytes], None] | None = None

    def send(self, message: object) -> None:
        """Send a message, unless the other end has gone."""
        if self.write is not None:
            self.write(packed(message))

    def close(self) -> None:
        """Close this end. The other end notices it."""
        self.write = None
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.write = self._transport.write

    def data_received(self, data: bytes) -> None:
        buffer, at = self._buffer, 0
        buffer += data
        while len(buffer) - at >= LENGTH_BYTES:
            end = at + LENGTH_BYTES + int.from_bytes(buffer[at : at + LENGTH_BYTES], "big")
            if end > len(buffer):
                break
            message = pickle.loads(buffer[at + LENGTH_BYTES : end])
            at = end
            self._received(message)
        del buffer[:at]

    def connection_lost(self, exc: Exception | None) -> None:
        self.write = None
        self._lost()


MAX_DRIFT_RATIO = 1e-3  # between two clocks: the kernel slews each by at most 500 ppm
EXCHANGES = 64


@dataclass(frozen=True, slots=True)
class Offset:
    """Offset of another clock. offset_ns: other clock minus this one; error_ns: largest possible error, in either direction"""

    offset_ns: int
    error_ns: int


class ClockOffset:
    """Estimates the offset of another clock from the latest exchanges of times.

    The other clock is read between sending a question and receiving the answer, so the middle of these two times is wrong by at most
    half of the time between them, whatever the delay in each direction. The error of an exchange grows with its age, because the clocks
    drift apart.
    """

    def __init__(self) -> None:
        self._exchanges: deque[tuple[int, Offset]] = deque(maxlen=EXCHANGES)

    def exchanged(self, asked_ns: int, other_ns: int, answered_ns: int) -> None:
        """Add an exchange. asked_ns, answered_ns: times on this clock; other_ns: time between them on the other clock"""
        middle_ns = (asked_ns + answered_ns) // 2
        self._exchanges.append((middle_ns, Offset(other_ns - middle_ns, (answered_ns - asked_ns + 1) // 2)))

    def at(self, now_ns: int) -> Offset:
        """The offset with the smallest error at `now_ns`. Call after at least one exchange."""
        aged = (
            Offset(offset.offset_ns, offset.error_ns + round(max(0, now_ns - at_ns) * MAX_DRIFT_RATIO))
            for at_ns, offset in self._exchanges
        )
        return min(aged, key=lambda offset: offset.error_ns)
