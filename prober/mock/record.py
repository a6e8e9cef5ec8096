"""What truly happened to one request: the line of the truth file."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True, eq=False)
class Record:
    """Stamps of one request, ns of the monotonic clock, each taken immediately before the write it stands for.

    received_ns: the handler was entered, before the body was read; started_ns: its service began (None: it still waits)
    first_write_ns: first bytes of the answer's body of any kind; writes, tokens: each chunk with content, and its tokens
    end_ns: the end of the answer; late_ns: how far the latest write was behind its due time
    ended: `complete` (all was sent that was meant to be), `cut` (by a fault) or `client_left`
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

    def as_json(self) -> dict[str, Any]:
        """Every field by its name."""
        return {name: getattr(self, name) for name in self.__slots__}
