"""The truth file: one JSON line per request, written by a thread, so that no stream waits for the disk."""

import queue
import threading
from pathlib import Path

import orjson

from prober.mock.record import Record


class TruthFile:
    """Appends records to a file, which is complete after `close`. Raises OSError."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab")
        self._records: queue.SimpleQueue[Record | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._write, name="truth", daemon=True)
        self._thread.start()

    def add(self, record: Record) -> None:
        """Write a final record."""
        self._records.put(record)

    def close(self) -> None:
        """Write the remaining records and close the file; blocks meanwhile."""
        self._records.put(None)
        self._thread.join()
        self._file.close()

    def _write(self) -> None:
        while (record := self._records.get()) is not None:
            self._file.write(orjson.dumps(record.as_json(), option=orjson.OPT_APPEND_NEWLINE))
            if self._records.empty():
                self._file.flush()
