"""One at a time on a machine: a lock that ends with its process, however that ends."""

import fcntl
import hashlib
import os
import tempfile
from pathlib import Path
from typing import Self


class Held(Exception):
    """Somebody else has it."""


class Lock:
    """Held from `with Lock(name):` to its end; `name` may be any text, such as an address. Raises Held."""

    def __init__(self, name: str) -> None:
        digest = hashlib.sha256(name.encode()).hexdigest()[:24]
        self._path = Path(tempfile.gettempdir()) / f"llm-slo-prober-{os.getuid()}-{digest}.lock"
        self._file = -1

    def __enter__(self) -> Self:
        self._file = os.open(self._path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._file)
            raise Held(str(self._path)) from None
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._file)  # the file stays: to remove it would let two have it
