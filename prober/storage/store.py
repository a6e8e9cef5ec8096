"""State that survives a restart: the latest bytes by kind and key, in one SQLite file.

All methods block on the disk: call them in threads, not on the event loop. They are serialised by a lock. Saved data survive a
crash of the process; a power cut may lose the last writes but does not damage the file.
"""

import logging
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

FILE_NAME = "prober.db"
VERSION = 1
_TABLE = (
    "CREATE TABLE state (kind TEXT NOT NULL, key TEXT NOT NULL, saved_unix_s REAL NOT NULL, data BLOB NOT NULL, "
    "PRIMARY KEY (kind, key))"
)
UNREADABLE_SUFFIX = ".unreadable"  # suffix of the kind of rows that were set aside
MAX_WAL_BYTES = 4 << 20
NETWORK_FILE_SYSTEMS = frozenset(
    {
        *("nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "lustre", "gpfs", "beegfs"),
        *("glusterfs", "sshfs", "s3fs"),
    }
)
log = logging.getLogger(__name__)


class UnusableStore(OSError):
    """The store's folder cannot be used; the message has its path and the remedy."""


@dataclass(frozen=True, slots=True)
class Entry:
    """Metadata of a row. size_bytes: size of its data."""

    key: str
    size_bytes: int


class Store:
    """An open store. Only one process can hold it at a time.

    last_unix_s: wall time of the last save before it was opened; 0 if there was none
    """

    def __init__(self, folder: str, max_bytes: int | None = None) -> None:
        """Open or create the store in `folder`. A file that is damaged or of another format is renamed and kept.

        max_bytes: limit of the folder; writes beyond it fail as on a full disk, and renamed files are deleted first

        Raises UnusableStore if the folder is not writable, not a folder, or held by another prober.
        """
        path = Path(folder) / FILE_NAME
        self._path = path
        self._lock = threading.Lock()  # without it, a rollback in one thread would undo writes of another
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if not os.access(path.parent, os.W_OK):
                raise PermissionError(13, "the folder is not writable")
            self._connection = self._open(path)
            self._file = _identity(path)
            (last,) = self._connection.execute("SELECT max(saved_unix_s) FROM state").fetchone()
            self.last_unix_s = last or 0.0
            if max_bytes is not None:
                self._limit(path, max_bytes)
        except (OSError, sqlite3.OperationalError) as problem:
            busy = getattr(problem, "sqlite_errorcode", None) == sqlite3.SQLITE_BUSY
            held = f"held by another prober, or another program has {FILE_NAME} open ({problem}); give each prober its own folder"
            raise UnusableStore(
                f"--storage.path {folder}: "
                + (held if busy else f"cannot be used: {problem}; mount a writable volume that no other prober uses")
                + ", or leave it out to keep state in memory only"
            ) from None

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """Context of a transaction. Raises if the open file was removed or replaced, because writes would be lost."""
        with self._lock:
            if _identity(self._path) != self._file:
                text = f"{self._path} was removed or replaced: put it back, or restart the prober, which makes it anew"
                raise sqlite3.OperationalError(text)
            with self._connection:
                yield

    def _open(self, path: Path) -> sqlite3.Connection:
        try:
            return _checked(path)
        except sqlite3.DatabaseError as problem:
            # Other operational errors come from the disk or a lock.
            if isinstance(problem, sqlite3.OperationalError) and problem.sqlite_errorcode != sqlite3.SQLITE_ERROR:
                raise
            renamed = path.with_name(f"{FILE_NAME}.damaged-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}")
            for suffix in ("", "-wal", "-shm"):
                part = Path(f"{path}{suffix}")
                if part.exists():
                    part.rename(f"{renamed}{suffix}")
            log.error(
                "%s cannot be read (%s): renamed to %s, starting with an empty store", path, problem, renamed.name
            )
            return _checked(path)

    def _limit(self, path: Path, max_bytes: int) -> None:
        """Limit the size of the file and its log. If renamed files take over half of `max_bytes`, the oldest of them are deleted."""
        renamed = sorted(path.parent.glob(f"{FILE_NAME}.damaged-*"))
        while (taken := sum(part.stat().st_size for part in renamed)) > max_bytes / 2:
            oldest = renamed.pop(0)
            log.warning("%s: deleted, the folder may have %d bytes", oldest, max_bytes)
            oldest.unlink()
        (page_bytes,) = self._connection.execute("PRAGMA page_size").fetchone()
        pages = max(1, (max_bytes - taken - 2 * MAX_WAL_BYTES) // page_bytes)
        self._connection.execute(f"PRAGMA max_page_count = {pages}").fetchone()

    def since(self, max_age_s: float, now_unix_s: float) -> float:
        """Wall time before which rows are too old: `max_age_s` before the last save of the previous process.

        So no row expires because the prober was stopped or a clock was set forward meanwhile. A last save in the future counts as now.
        """
        return min(self.last_unix_s, now_unix_s) - max_age_s

    def load(self, kind: str, since_unix_s: float = 0.0) -> dict[str, bytes]:
        """Data of a kind by key. Rows saved before `since_unix_s` are left out, and deleted if the disk can be written."""
        try:
            with self._transaction():
                self._connection.execute("DELETE FROM state WHERE kind = ? AND saved_unix_s < ?", (kind, since_unix_s))
        except sqlite3.OperationalError as problem:
            log.error("%s: old %s states are not removed, but left out: %s", self._path, kind, problem)
        with self._lock:
            rows = self._connection.execute(
                "SELECT key, data FROM state WHERE kind = ? AND saved_unix_s >= ?", (kind, since_unix_s)
            )
            return dict(rows)

    def entries(self, kind: str) -> list[Entry]:
        """Metadata of the rows of a kind, in the order in which they were first saved."""
        with self._transaction():
            return self._entries(kind)

    def get(self, kind: str, key: str) -> bytes | None:
        """Data of one row; None if there is no such row. Raises sqlite3.DatabaseError if it is damaged."""
        with self._lock:
            row = self._connection.execute("SELECT data FROM state WHERE kind = ? AND key = ?", (kind, key)).fetchone()
        return bytes(row[0]) if row is not None else None

    def set_aside(self, kind: str, key: str) -> None:
        """Move an unreadable row to a kind that is never read. Raises sqlite3.Error."""
        with self._transaction():
            self._connection.execute(
                "UPDATE OR REPLACE state SET kind = ? WHERE kind = ? AND key = ?", (kind + UNREADABLE_SUFFIX, kind, key)
            )

    def save(
        self,
        kind: str,
        items: Iterable[tuple[str, bytes]],
        now_unix_s: float,
        surplus: Callable[[Sequence[Entry]], Iterable[str]] | None = None,
    ) -> None:
        """Insert or replace rows, in one transaction. Raises sqlite3.Error, such as for a full disk.

        surplus: returns, of all entries, the keys to delete in the same transaction
        """
        with self._transaction():
            self._connection.executemany(
                "INSERT INTO state VALUES (?, ?, ?, ?) "
                "ON CONFLICT DO UPDATE SET saved_unix_s = excluded.saved_unix_s, data = excluded.data",
                [(kind, key, now_unix_s, data) for key, data in items],
            )
            if surplus is not None:
                removed = [(kind, key) for key in surplus(self._entries(kind))]
                self._connection.executemany("DELETE FROM state WHERE kind = ? AND key = ?", removed)

    def _entries(self, kind: str) -> list[Entry]:
        rows = self._connection.execute("SELECT key, length(data) FROM state WHERE kind = ? ORDER BY rowid", (kind,))
        return [Entry(str(key), int(size)) for key, size in rows]

    def close(self) -> None:
        """Close the store; SQLite writes its log back into the file."""
        with self._lock:
            self._connection.close()


def _identity(path: Path) -> tuple[int, int] | None:
    """(device, inode) of the file; None if it does not exist."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _checked(path: Path) -> sqlite3.Connection:
    """Open the file and, if it is empty, create its table. Raises sqlite3.DatabaseError if it is damaged or not a prober's."""
    connection = sqlite3.connect(path, timeout=2.0, check_same_thread=False)
    connection.text_factory = partial(str, encoding="utf-8", errors="replace")
    try:
        connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        connection.execute("PRAGMA journal_mode = WAL")
        # A power cut may lose the last writes, but does not damage the file.
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute(f"PRAGMA journal_size_limit = {MAX_WAL_BYTES}")
        verdict = connection.execute("PRAGMA quick_check").fetchone()[0]
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if verdict != "ok":
            raise sqlite3.DatabaseError(verdict)
        schema = connection.execute("SELECT name, sql FROM sqlite_master").fetchall()
        if not schema and not version:
            connection.executescript(f"BEGIN; {_TABLE}; PRAGMA user_version = {VERSION}; COMMIT")
        elif version != VERSION:
            raise sqlite3.DatabaseError(f"its version is {version}, this prober reads {VERSION}")
        elif ("state", _TABLE) not in schema:
            raise sqlite3.DatabaseError("it has no table `state` as a prober writes it")
        connection.execute("BEGIN IMMEDIATE").close()  # takes the lock, and proves that the file is writable
        connection.commit()
    except BaseException:
        connection.close()
        raise
    return connection


def network_file_system(path: Path, mounts: str = "/proc/self/mounts") -> str | None:
    """Type of the network file system that holds `path`; None if it is local or unknown."""
    try:
        rows = [line.split() for line in Path(mounts).read_text(encoding="utf-8", errors="replace").splitlines()]
        place = path.resolve()
    except OSError:
        return None
    parents = [row for row in rows if len(row) > 2 and place.is_relative_to(row[1].replace("\\040", " "))]
    parents.sort(key=lambda row: len(row[1]))  # the last mount of one place hides the earlier ones
    kind = parents[-1][2] if parents else ""
    return kind if kind.removeprefix("fuse.") in NETWORK_FILE_SYSTEMS else None
