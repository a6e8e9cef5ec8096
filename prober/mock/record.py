"""The record of one request, and the truth file, which contains all records."""

import queue
import threading
from dataclasses import dataclass, field
from pathlib import Path

import orjson


@dataclass(slots=True, eq=False)
class Record:
    """Timestamps of one request in ns of the monotonic clock, taken immediately before each write.

    received_ns: when the handler was entered, before the body was read
    started_ns: begin of its service; None while it waits
    first_write_ns: write of the first bytes of the body
    writes, tokens: time of the write in ns, and tokens, of each content chunk
    end_ns: end of the answer
    late_ns: largest delay of a write after its due time
    ended: `complete`, `cut` (by a fault) or `client_left`
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


class TruthFile:
    """Appends records to a file as lines of JSON, in a thread, so that no stream waits for the disk. Raises OSError.

    The file is complete after `close`.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab")
        self._records: queue.SimpleQueue[Record | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._write, name="truth", daemon=True)
        self._thread.start()

    def add(self, record: Record) -> None:
        """Write the record of an ended request."""
        self._records.put(record)

    def close(self) -> None:
        """Write the remaining records and close the file. Blocks until it is closed."""
        self._records.put(None)
        self._thread.join()
        self._file.close()

    def _write(self) -> None:
        while (record := self._records.get()) is not None:
            self._file.write(orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE))
            if self._records.empty():
                self._file.flush()
