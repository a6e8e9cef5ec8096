"""Files that change while the prober runs (tokens, certificates, the configuration), and locks between processes."""

import errno
import fcntl
import hashlib
import os
import stat
import tempfile
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Self

from prober.measure.printable import shown_path

Stamp = tuple[int, int, int, int]
MAX_SECRET_BYTES = 64 << 10
MAX_BESIDE_CHARS = 200  # of a name; a file name has at most 255 bytes, with dot and process id
MAX_TEXT_BYTES = 64 << 20  # of a configuration, a file of rows, or a file they name: prompts, traces


def stamp(path: str) -> Stamp | None:
    """A value that changes whenever the file or its content changes, also when a symlink is replaced; None without a file."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return (status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size)


def read_regular(path: str | Path, max_bytes: int) -> bytes:
    """Content of a regular file. Raises OSError for more than `max_bytes`, and for a pipe or device, which could block for ever."""
    with open(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "is not a regular file")
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise OSError(errno.EFBIG, f"is longer than {max_bytes:,} bytes")
    return content


def read_text(path: str | Path) -> str:
    """Text of a file or a pipe, without its byte-order mark. Raises OSError, also beyond MAX_TEXT_BYTES, and UnicodeDecodeError."""
    with open(path, encoding="utf-8-sig") as file:
        text = file.read(MAX_TEXT_BYTES + 1)
    if len(text) > MAX_TEXT_BYTES:
        raise OSError(errno.EFBIG, f"is longer than {MAX_TEXT_BYTES:,} characters")
    return text


def write_text(path: Path, text: str) -> None:
    """Write a new file next to `path` and rename it, so that a failure leaves the old file unchanged. Raises OSError.

    Devices, pipes, and files that cannot be replaced in their folder, such as mounted ones, are written in place.
    """
    path = path.resolve()
    if not path.exists() or path.is_file():
        beside = path.with_name(f".{path.name[:MAX_BESIDE_CHARS]}.{os.getpid()}")
        try:
            beside.write_text(text, encoding="utf-8")
            if path.exists():
                beside.chmod(stat.S_IMODE(path.stat().st_mode))
            beside.replace(path)
            return
        except OSError as problem:
            with suppress(OSError):
                beside.unlink(missing_ok=True)
            if problem.errno not in (errno.EACCES, errno.EPERM, errno.EBUSY) or not path.exists():
                raise
    path.write_text(text, encoding="utf-8")


@dataclass(slots=True)
class WatchedFile:
    """A file that is polled for changes. patience: polls without the file before it counts as gone, as an editor may be replacing it"""

    path: str
    patience: int = 3
    _stamp: Stamp | None = None
    _misses: int = 0

    def mark_read(self) -> None:
        """Call before reading the file: only later changes are reported."""
        self._stamp = stamp(self.path)

    def poll(self) -> Literal["changed", "gone", ""]:
        """The change since the last poll. "gone" is returned once; a file that appears after that is "changed"."""
        now = stamp(self.path)
        if now is not None:
            self._misses = 0
            return "changed" if now != self._stamp else ""
        self._misses += 1
        if self._misses != self.patience:
            return ""
        self._stamp = None
        return "gone"


def runbooks() -> dict[str, Path]:
    """Path of each alert's runbook in Markdown, by alert, from the installed package or a checkout; of their list by ""."""
    here = Path(__file__).parents[1]
    folders = (here / "runbooks", here.parent / "deploy" / "runbooks")
    return {path.stem.replace("README", ""): path for folder in folders for path in sorted(folder.glob("*.md"))}


def asset(name: str) -> bytes:
    """Content of a file of the package's `static/` folder. Raises OSError."""
    return (Path(__file__).parents[1] / "static" / name).read_bytes()


@dataclass(slots=True)
class Secret:
    """A token in a file, read again when the file changes. While the file is missing, the last token stays in use."""

    path: str
    problem: str = ""
    key: str = "auth.bearer_token_file"  # name in the configuration, for `problem`
    _stamp: Stamp | None = None
    _value: str | None = field(default=None, repr=False)

    def read(self) -> str | None:
        """The current token; None if none was ever read, and then `problem` has the reason."""
        now = stamp(self.path)
        if now is None or now != self._stamp or self.problem:
            try:
                value = read_regular(self.path, MAX_SECRET_BYTES).decode("ascii").strip()
                if not value or " " in value or not value.isprintable():
                    raise ValueError("is empty, or contains blanks or control characters; write one token on one line")
                self._value, self._stamp, self.problem = value, now, ""
            except OSError as problem:
                consequence = "the last token stays in use" if self._value else "requests cannot be sent without it"
                why = problem.strerror or problem
                self.problem = (
                    f"{self.key} {shown_path(self.path)}: {why}; write the token there or fix the path: {consequence}"
                )
            except ValueError as problem:
                self.problem = f"{self.key} {shown_path(self.path)}: {problem}"
        return self._value


MAX_OWNER_BYTES = 200


class LockHeld(Exception):
    """Another process holds the lock; the message names it, such as `prober matrix, process 123`."""


class Lock:
    """A lock between processes of one machine, held within `with Lock(name, owner):`. Raises LockHeld.

    name: any text, such as an address. The kernel releases the lock when the process ends.
    """

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
