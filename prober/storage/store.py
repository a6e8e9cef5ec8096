"""What must survive a restart, in one SQLite file: texts and bytes by kind and key, each the latest.

All methods block on the disk: call them in threads, away from the measuring path; they take turns. What was saved outlives the
process, however it ends; a power cut may cost what was saved last, and never the file.
"""

import logging
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

FILE = "prober.db"
VERSION = 1
_SCHEMA = f"""
CREATE TABLE state (kind TEXT NOT NULL, key TEXT NOT NULL, saved_unix_s REAL NOT NULL, data BLOB NOT NULL, PRIMARY KEY (kind, key));
PRAGMA user_version = {VERSION};
"""
MAX_CHECKED_BYTES = 256 << 20  # a larger file takes too long to read before the start: see `Store.check`
WAL_BYTES = 4 << 20
MIN_FREE_BYTES = 4 << 20  # below that a file is not compacted
MAX_COMPACTED_BYTES = 256 << 20  # of what is in use: compacting copies it through memory
UNREADABLE = ".unreadable"  # at the end of the kind of rows that were set aside
log = logging.getLogger(__name__)


class Unusable(OSError):
    """The folder cannot be used; the message names it and says what to do."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A row without its data. size_bytes: of the data."""

    key: str
    saved_unix_s: float
    size_bytes: int


class Store:
    """One open store. Only one process at a time may hold it."""

    def __init__(self, folder: str) -> None:
        """Open or make the store in `folder`. A file that is damaged, or of a newer version, is set aside, never lost.

        Raises Unusable: not writable, not a folder, held by another prober.
        """
        path = Path(folder) / FILE
        self._path = path
        self._turn = threading.Lock()  # else one's failure would undo what another one has not committed yet
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if not os.access(path.parent, os.W_OK):
                raise PermissionError(13, "the folder is not writable")
            self._is_checked = _is_small(path)
            self._connection = self._open(path)
        except (OSError, sqlite3.OperationalError) as problem:
            busy = getattr(problem, "sqlite_errorcode", None) == sqlite3.SQLITE_BUSY
            said = f"held by another prober, or another program has {FILE} open ({problem}); give each prober a folder of its own"
            raise Unusable(
                f"--storage.path {folder}: "
                + (said if busy else f"cannot be used: {problem}; mount a writable volume that no other prober uses")
                + ", or leave it out to keep state in memory only"
            ) from None

    def _open(self, path: Path) -> sqlite3.Connection:
        try:
            return _checked(path)
        except sqlite3.OperationalError:
            raise
        except sqlite3.DatabaseError as problem:
            aside = path.with_name(f"{FILE}.damaged-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}")
            for suffix in ("", "-wal", "-shm"):
                part = Path(f"{path}{suffix}")
                if part.exists():
                    part.rename(f"{aside}{suffix}")
            log.error("%s cannot be read (%s): set aside as %s, beginning anew", path, problem, aside.name)
            return _checked(path)

    def load(self, kind: str, since_unix_s: float = 0.0) -> dict[str, bytes]:
        """All of a kind by key; what was saved before `since_unix_s` belongs to nothing any more and is removed."""
        try:
            with self._turn, self._connection:
                self._connection.execute("DELETE FROM state WHERE kind = ? AND saved_unix_s < ?", (kind, since_unix_s))
                rows = self._connection.execute("SELECT key, data FROM state WHERE kind = ?", (kind,))
                return {str(key): bytes(data) for key, data in rows}
        except sqlite3.OperationalError:
            raise
        except sqlite3.DatabaseError as problem:  # a damaged page of a file that was too large to be checked
            log.error("%s: %s states cannot be read and begin anew: %s", self._path, kind, problem)
            return {}

    def entries(self, kind: str) -> list[Entry]:
        """The rows of a kind without their data, in the order in which they were first saved, whatever the clock said then."""
        with self._turn:
            return self._entries(kind)

    def get(self, kind: str, key: str) -> bytes | None:
        """One row's data; None if there is no such row. Raises sqlite3.DatabaseError if its page is damaged."""
        with self._turn:
            row = self._connection.execute(
                "SELECT CAST(data AS BLOB) FROM state WHERE kind = ? AND key = ?", (kind, key)
            ).fetchone()
        return bytes(row[0]) if row is not None else None

    def remove(self, kind: str, keys: Iterable[str]) -> None:
        """Remove these rows, in one transaction. Raises sqlite3.Error."""
        with self._turn, self._connection:
            self._remove(kind, keys)

    def set_aside(self, kind: str, key: str) -> None:
        """Keep an unreadable row under another kind, where nothing reads it. Raises sqlite3.Error."""
        with self._turn, self._connection:
            self._connection.execute(
                "UPDATE OR REPLACE state SET kind = ? WHERE kind = ? AND key = ?", (kind + UNREADABLE, kind, key)
            )

    def empty_lists(self, kind: str, key: str, paths: Sequence[str]) -> None:
        """Empty the lists at these JSON paths of a row, in SQLite's own code, so that no other thread waits for the parsing.

        A row whose first list is empty already, or that is no JSON, stays as it is. Raises sqlite3.Error.
        """
        marker = f'"{paths[0].rpartition(".")[2]}":[]'.encode()
        edits = ", ".join("?, json('[]')" for _ in paths)
        with self._turn, self._connection:
            self._connection.execute(
                f"UPDATE state SET data = CAST(json_replace(CAST(data AS TEXT), {edits}) AS BLOB) "
                "WHERE kind = ? AND key = ? AND instr(data, ?) = 0 AND json_valid(CAST(data AS TEXT))",
                (*paths, kind, key, marker),
            )

    def compact(self) -> None:
        """Make the file smaller where over half of it is free, which SQLite does not do by itself. Raises sqlite3.Error."""
        with self._turn:
            pages, free, size = (
                self._connection.execute(f"PRAGMA {name}").fetchone()[0]
                for name in ("page_count", "freelist_count", "page_size")
            )
            used = (pages - free) * size
            if free * size < max(MIN_FREE_BYTES, used) or used > MAX_COMPACTED_BYTES:
                return
            self._connection.execute("PRAGMA temp_store = MEMORY")  # nowhere else may be writable
            self._connection.execute("VACUUM")
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        log.info("%s: compacted from %.1f to %.1f MiB", self._path, pages * size / 2**20, used / 2**20)

    def check(self) -> None:
        """What the start left out of a large file: is any page damaged? Logged; a damaged small file is set aside at the start."""
        if self._is_checked:
            return
        try:
            with self._turn:
                (verdict,) = self._connection.execute("PRAGMA quick_check").fetchone()
        except sqlite3.DatabaseError as problem:
            verdict = str(problem)
        if verdict != "ok":
            log.error(
                "%s is damaged (%s): stop the prober, move the file away, and start it again", self._path, verdict
            )

    def save(self, kind: str, items: Iterable[tuple[str, bytes]], now_unix_s: float) -> None:
        """Put these in place of what was there, in one transaction. Raises sqlite3.Error (disk full)."""
        with self._turn, self._connection:
            self._save(kind, items, now_unix_s)

    def save_and_prune(
        self,
        kind: str,
        items: Iterable[tuple[str, bytes]],
        now_unix_s: float,
        surplus: Callable[[Sequence[Entry]], Iterable[str]],
    ) -> None:
        """The same, and remove the keys that `surplus` names of all the entries then, in the same transaction."""
        with self._turn, self._connection:
            self._save(kind, items, now_unix_s)
            self._remove(kind, surplus(self._entries(kind)))

    def _save(self, kind: str, items: Iterable[tuple[str, bytes]], now_unix_s: float) -> None:
        self._connection.executemany(
            "INSERT INTO state VALUES (?, ?, ?, ?) "
            "ON CONFLICT DO UPDATE SET saved_unix_s = excluded.saved_unix_s, data = excluded.data",
            [(kind, key, now_unix_s, data) for key, data in items],
        )

    def _entries(self, kind: str) -> list[Entry]:
        rows = self._connection.execute(
            "SELECT key, saved_unix_s, length(data) FROM state WHERE kind = ? ORDER BY rowid", (kind,)
        )
        return [Entry(str(key), float(saved), int(size)) for key, saved, size in rows]

    def _remove(self, kind: str, keys: Iterable[str]) -> None:
        self._connection.executemany("DELETE FROM state WHERE kind = ? AND key = ?", [(kind, key) for key in keys])

    def close(self) -> None:
        """Write what is in the log back into the file."""
        with self._turn:
            self._connection.close()


def _is_small(path: Path) -> bool:
    """Whether the whole file can be checked before the start."""
    return not path.exists() or path.stat().st_size <= MAX_CHECKED_BYTES


def _checked(path: Path) -> sqlite3.Connection:
    """Raises sqlite3.DatabaseError if the file is damaged or newer than this program."""
    connection = sqlite3.connect(path, timeout=2.0, check_same_thread=False)
    try:
        connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")  # a power cut may cost the last minute, never the file
        connection.execute(f"PRAGMA journal_size_limit = {WAL_BYTES}")
        verdict = connection.execute("PRAGMA quick_check").fetchone()[0] if _is_small(path) else "ok"
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if verdict != "ok":
            raise sqlite3.DatabaseError(verdict)
        if version > VERSION:
            raise sqlite3.DatabaseError(f"version {version} of a newer prober, this one knows {VERSION}")
        if version == 0:
            connection.executescript(_SCHEMA)
        connection.execute("BEGIN IMMEDIATE").close()  # held, and really writable
        connection.commit()
    except BaseException:
        connection.close()
        raise
    return connection
