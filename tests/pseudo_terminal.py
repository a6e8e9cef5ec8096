"""A command in a pseudo-terminal, as a person would start it: its size, its keys, and what it draws."""

import contextlib
import fcntl
import os
import re
import struct
import subprocess
import termios
import threading
from typing import Self

from tests.processes import HANG_S

CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
HOME, NORMAL_SCREEN = "\x1b[H", "\x1b[?1049l"


class Terminal:
    """A command in a terminal of its own, and all that it has written there."""

    def __init__(self, width: int, height: int, *words: str, **environment: str) -> None:
        self._master, slave = os.openpty()
        self.resize(width, height)
        self.written = b""
        self.process = subprocess.Popen(
            words,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
            env={**os.environ, "TERM": "xterm", "LC_ALL": "C.UTF-8", **environment},
        )
        os.close(slave)
        self._reading = threading.Thread(target=self._read)
        self._reading.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(HANG_S)
        self._reading.join()
        os.close(self._master)

    def resize(self, width: int, height: int) -> None:
        """As a window that is dragged: the kernel signals it."""
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))

    def type(self, keys: bytes) -> None:
        """Keys of the keyboard."""
        os.write(self._master, keys)

    def frame(self) -> list[str]:
        """The lines of the last frame that is whole: what was drawn between two times from the first line on."""
        frames = self.written.decode(errors="replace").split(HOME)
        return [CONTROL.sub("", line).rstrip("\r") for line in frames[-2].split("\n")] if len(frames) > 2 else []

    def _read(self) -> None:
        with contextlib.suppress(OSError):  # of the end
            while data := os.read(self._master, 65_536):
                self.written += data
