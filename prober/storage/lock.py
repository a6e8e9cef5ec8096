"""One at a time on a machine: a lock that ends with its process, however that ends."""

import fcntl
import hashlib
import os
import tempfile
from pathlib import Path
from typing import Self

MOST_BYTES = 200


class Held(Exception):
    """Somebody else has it; the message says who: `prober matrix, process 123`."""


class Lock:
    """Held from `with Lock(name, who):` to its end; `name` may be any text, such as an address. Raises Held."""

    def __init__(self, name: str, who: str = "another prober") -> None:
        digest = hashlib.sha256(name.encode()).hexdigest()[:24]
        self._path = Path(tempfile.gettempdir()) / f"llm-slo-prober-{os.getuid()}-{digest}.lock"
        self._who = who
        self._file = -1

    def __enter__(self) -> Self:
        self._file = os.open(self._path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            said = os.pread(self._file, MOST_BYTES, 0).decode(errors="replace")
            os.close(self._file)
            raise Held(said or "another prober") from None  # it may have the lock, and not have written yet
        os.truncate(self._file, 0)
        os.pwrite(self._file, f"{self._who}, process {os.getpid()}".encode()[:MOST_BYTES], 0)
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._file)  # the file stays: to remove it would let two have it
