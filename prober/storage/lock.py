"""Lock between processes of one machine; the kernel releases it when the process ends."""

import fcntl
import hashlib
import os
import tempfile
from pathlib import Path
from typing import Self

MAX_OWNER_BYTES = 200


class LockHeld(Exception):
    """Another process holds the lock; the message names it: `prober matrix, process 123`."""


class Lock:
    """Held within `with Lock(name, owner):`; `name` is any text, such as an address. Raises LockHeld."""

    def __init__(self, name: str, owner: str = "another prober") -> None:
        digest = hashlib.sha256(name.encode()).hexdigest()[:24]
        self._path = Path(tempfile.gettempdir()) / f"llm-slo-prober-{os.getuid()}-{digest}.lock"
        self._owner = owner
        self._file = -1

    def __enter__(self) -> Self:
        self._file = os.open(self._path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(self._file, MAX_OWNER_BYTES, 0).decode(errors="replace")
            os.close(self._file)
            raise LockHeld(holder or "another prober") from None  # the holder may not have written its name yet
        os.truncate(self._file, 0)
        os.pwrite(self._file, f"{self._owner}, process {os.getpid()}".encode()[:MAX_OWNER_BYTES], 0)
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._file)  # the file stays: removing it would allow two holders
