"""The daemon's log: one line per event on standard error, as logfmt or JSON."""

import json
import logging
import os
import sys
import time
from enum import StrEnum
from stat import S_ISFIFO
from typing import TextIO

from prober.measure.printable import printable


class Level(StrEnum):
    """The lowest level that is logged."""

    DEBUG = "debug"
    INFO = "info"
    WARN = "warn"
    ERROR = "error"


class Format(StrEnum):
    """Format of log lines."""

    LOGFMT = "logfmt"
    JSON = "json"


class LogLine(logging.Formatter):
    """Formats a record as one line, without characters that control a terminal."""

    def __init__(self, kind: Format) -> None:
        super().__init__()
        self._kind = kind

    def format(self, record: logging.LogRecord) -> str:
        at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03}Z"
        message = record.getMessage()
        if record.exc_info:
            message += "\n" + self.formatException(record.exc_info)
        message = printable(message)
        if self._kind is Format.JSON:
            return json.dumps({"time": at, "level": record.levelname.lower(), "logger": record.name, "msg": message})
        return f"time={at} level={record.levelname.lower()} msg={json.dumps(message, ensure_ascii=False)}"


class _Lines(logging.StreamHandler[TextIO]):
    """Writes lines to a pipe, such as a container's log. While the pipe is full, lines are dropped: waiting would stop all probes."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        if S_ISFIFO(os.fstat(stream.fileno()).st_mode):
            never_wait(stream.fileno())

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 -- of logging
        """Report a record that cannot be formatted or written, unless the pipe is full."""
        if not isinstance(sys.exception(), BlockingIOError):
            super().handleError(record)


def never_wait(pipe: int) -> None:
    """Make writes of this process to a full pipe fail instead of waiting. Other processes' writes to the pipe still wait."""
    try:
        own = os.open(f"/proc/self/fd/{pipe}", os.O_WRONLY | os.O_NONBLOCK)  # the same pipe, opened separately
    except OSError:  # another system, or a pipe of another user
        os.set_blocking(pipe, False)
        return
    os.dup2(own, pipe)
    os.close(own)


def log_to_stderr(level: Level, kind: Format) -> None:
    """Log events of this level and above to standard error."""
    handler = _Lines(sys.stderr)
    handler.setFormatter(LogLine(kind))
    logging.basicConfig(level=level.upper().replace("WARN", "WARNING"), handlers=[handler], force=True)
    logging.getLogger("asyncio").setLevel(logging.WARNING)
