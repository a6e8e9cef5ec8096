"""Steps of an answer (writes and its end), and faults that change the steps, without clock and socket."""

from collections.abc import Iterable, Iterator
from enum import Enum, auto
from typing import NamedTuple

from prober.mock.faults import Fault
from prober.mock.service import Emission
from prober.mock.wire import Chunks

ROLE_ONLY = frozenset({"no_first_token", "role_then_keepalive"})


class Kind(Enum):
    """Kind of a step: a write (CONTENT, OTHER), or an end: complete, cut, by TCP reset, by exit of the process, or never (SILENCE)."""

    CONTENT = auto()
    OTHER = auto()
    END = auto()
    CUT = auto()
    RESET = auto()
    CRASH = auto()
    SILENCE = auto()


CUTS = {"truncated": Kind.CUT, "reset": Kind.RESET, "crash": Kind.CRASH, "stall": Kind.SILENCE}  # by fault
INTERRUPTIONS = frozenset({*CUTS, "error_in_stream", "malformed", "big_line"})


class Step(NamedTuple):
    """A write or end. due_ns: nanoseconds after the start of the service; tokens: number of tokens of the content"""

    due_ns: int
    kind: Kind
    data: bytes = b""
    tokens: int = 0


def opening(chunks: Chunks, role: str, fault: Fault | None) -> list[Step]:
    """Steps before the service begins. role: when the role chunk is sent, `with-first`, `early` or `none`"""
    if role == "early" or (fault and fault.name in ROLE_ONLY):
        return [Step(0, Kind.OTHER, chunks.role())]
    return []


def answer(
    chunks: Chunks, plan: Iterable[Emission], *, tokens: int | None, role: str, done: bool, fault: Fault | None
) -> Iterator[Step]:
    """Yields the steps after the opening of an answer of `tokens` tokens (None: endless), changed by `fault`.

    They are generated one at a time, so that the usage chunk contains the measurements before it.
    """
    name = fault.name if fault else ""
    due_ns = sent = 0
    if fault and name in ROLE_ONLY:
        while fault.argument:
            due_ns += round(fault.argument * 1e9)
            yield Step(due_ns, Kind.OTHER, chunks.comment)
        yield Step(0, Kind.SILENCE)
        return
    interruption = fault if name in INTERRUPTIONS else None  # at the first content after its number of tokens
    for due_ns, size, reasoning in plan:
        if sent == 0 and role == "with-first":
            yield Step(due_ns, Kind.OTHER, chunks.role())
        if name == "empty":
            yield Step(due_ns, Kind.OTHER, chunks.finish())
            break
        data = chunks.content(sent, size, reasoning=reasoning, last=sent + size == tokens)
        if interruption and sent >= (1 if name == "big_line" else interruption.count):
            for step in _interruption(chunks, interruption, due_ns):
                yield step
                if step.kind is not Kind.OTHER:
                    return
            interruption = None
        yield Step(due_ns, Kind.CONTENT, data, size)
        sent += size
    for data in chunks.ending(done):
        yield Step(due_ns, Kind.OTHER, data)
    yield Step(due_ns, Kind.END)


def whole(body: bytes, tokens: int, fault: str) -> list[Step]:
    """Steps of an answer that is not streamed. A fault that cuts it leaves half of it."""
    if fault in CUTS:
        return [Step(0, Kind.OTHER, body[: len(body) // 2]), Step(0, CUTS[fault])]
    return [Step(0, Kind.CONTENT if tokens else Kind.OTHER, body, tokens), Step(0, Kind.END)]


def _interruption(chunks: Chunks, fault: Fault, due_ns: int) -> Iterator[Step]:
    match fault.name:
        case "error_in_stream":
            yield Step(due_ns, Kind.OTHER, chunks.error())
            yield Step(due_ns, Kind.OTHER, chunks.done)
            yield Step(due_ns, Kind.CUT)
        case "malformed":
            yield Step(due_ns, Kind.OTHER, chunks.broken())
        case "big_line":
            for data in chunks.huge(fault.count):
                yield Step(due_ns, Kind.OTHER, data)
        case name:
            yield Step(due_ns, CUTS[name])
