"""The socket between the prober and a worker: pickled messages, each after its length. Both ends are the prober's own processes."""

import asyncio
import copyreg
import io
import pickle
from collections.abc import Callable
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any, cast

from prober.config.target import TargetSpec
from prober.measure.request import Request
from prober.measure.result import ProbeResult
from prober.measure.timeline import Connection, Timeline
from prober.probing.target import Identity

LENGTH_BYTES = 4


@dataclass(frozen=True, slots=True)
class NewTarget:
    """To a worker: the target that later requests name by its number."""

    number: int
    spec: TargetSpec
    identity: Identity | None


@dataclass(frozen=True, slots=True)
class Send:
    """To a worker: a request for a target, which the prober launched at `launched_ns`.

    All times in messages are of the prober's clock. All processes of a host share CLOCK_MONOTONIC.
    clock_ns: the worker's clock minus the prober's
    """

    target: int
    request: Request
    launched_ns: int
    clock_ns: int = 0


@dataclass(frozen=True, slots=True)
class Cut:
    """To a worker: cancel a request."""

    request_id: str


@dataclass(frozen=True, slots=True)
class Ended:
    """From a worker: the result of a request. answer: see `ProbeRun.answer`."""

    result: ProbeResult
    answer: str | None


@dataclass(frozen=True, slots=True)
class Beat:
    """Sign of life, to and from a worker. first_ns: from a worker, first content of requests in flight, by request id."""

    first_ns: tuple[tuple[str, int], ...] = ()


def _reducer(kind: type) -> Callable[[Any], tuple[type, tuple[Any, ...]]]:
    """Function that pickles a dataclass as the arguments of its constructor, in a third of the default's time."""
    values = attrgetter(*(field.name for field in fields(kind) if field.init))
    return lambda value: (kind, values(value))


# The types of every request; others are pickled as they are.
REDUCERS = copyreg.dispatch_table | {
    kind: _reducer(kind) for kind in (Send, Ended, Request, ProbeResult, Timeline, Connection)
}


def packed(message: object) -> bytes:
    """The message as it is sent."""
    file = io.BytesIO()
    file.write(bytes(LENGTH_BYTES))
    pickler = pickle.Pickler(file, pickle.HIGHEST_PROTOCOL)
    pickler.dispatch_table = REDUCERS
    pickler.dump(message)
    file.seek(0)
    file.write((len(file.getbuffer()) - LENGTH_BYTES).to_bytes(LENGTH_BYTES, "big"))
    return file.getvalue()


class Channel(asyncio.Protocol):
    """An end of a channel. write: sends bytes; None before the begin and after the end

    received: called with each message; lost: called once, when the other end is gone
    """

    def __init__(self, received: Callable[[Any], None], lost: Callable[[], None]) -> None:
        self._received, self._lost = received, lost
        self._buffer = bytearray()
        self._transport: asyncio.Transport | None = None
        self.write: Callable[[bytes], None] | None = None

    def send(self, message: object) -> None:
        """Send a message, unless the other end is gone."""
        if self.write is not None:
            self.write(packed(message))

    def close(self) -> None:
        """Close this end, which the other one sees."""
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
