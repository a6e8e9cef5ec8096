"""The record of one request, a line of the truth file."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True, eq=False)
class Record:
    """Timestamps of one request, in ns of the monotonic clock, taken immediately before each write.

    received_ns: the handler was entered, before the body was read
    started_ns: its service began; None while it waits
    first_write_ns: first bytes of the body
    writes, tokens: time and number of tokens of each chunk with content
    end_ns: end of the answer
    late_ns: largest delay of a write after its due time
    ended: `complete`, `cut` (by a fault) or `client_left`
    adapter: name of the adapter; "" without one
    load_ns: time to load it, if the request caused that
    """

    id: str
    received_ns: int
    started_ns: int | None = None
    first_write_ns: int | None = None
    writes: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    end_ns: int | None = None
    late_ns: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    fault: str | None = None
    ended: str = "client_left"
    received_bytes: int = 0
    adapter: str = ""
    load_ns: int = 0

    def as_json(self) -> dict[str, Any]:
        """All fields by name."""
        return {name: getattr(self, name) for name in self.__slots__}
