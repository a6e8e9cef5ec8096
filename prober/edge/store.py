"""What must survive a restart, in one SQLite file: texts and bytes by kind and key, each the latest.

All methods block on the disk: call them in threads, away from the measuring path; they take turns. What was saved outlives the
process, however it ends; a power cut may cost what was saved last, and never the file.
"""

import logging
import os
import sqlite3
import threading
import time
from collections.abc import Iterable
from pathlib import Path

FILE = "prober.db"
VERSION = 1
_SCHEMA = f"""
CREATE TABLE state (kind TEXT NOT NULL, key TEXT NOT NULL, saved_unix_s REAL NOT NULL, data BLOB NOT NULL, PRIMARY KEY (kind, key));
PRAGMA user_version = {VERSION};
"""
log = logging.getLogger(__name__)


class Unusable(OSError):
    """The folder cannot be used; the message names it and says what to do."""


class Store:
    """One open store. Only one process at a time may hold it."""

    def __init__(self, folder: str) -> None:
        """Open or make the store in `folder`. A file that is damaged, or of a newer version, is set aside, never lost.

        Raises Unusable: not writable, not a folder, held by another prober.
        """
        path = Path(folder) / FILE
        self._turn = threading.Lock()  # else one's failure would undo what another one has not committed yet
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if not os.access(path.parent, os.W_OK):
                raise PermissionError(13, "the folder is not writable")
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
        with self._turn, self._connection:
            self._connection.execute("DELETE FROM state WHERE kind = ? AND saved_unix_s < ?", (kind, since_unix_s))
        rows = self._connection.execute("SELECT key, data FROM state WHERE kind = ?", (kind,))
        return {str(key): bytes(data) for key, data in rows}

    def save(self, kind: str, items: Iterable[tuple[str, bytes]], now_unix_s: float) -> None:
        """Put these in place of what was there, in one transaction. Raises sqlite3.Error (disk full)."""
        with self._turn, self._connection:
            self._connection.executemany(
                "INSERT INTO state VALUES (?, ?, ?, ?) "
                "ON CONFLICT DO UPDATE SET saved_unix_s = excluded.saved_unix_s, data = excluded.data",
                [(kind, key, now_unix_s, data) for key, data in items],
            )

    def close(self) -> None:
        """Write what is in the log back into the file."""
        with self._turn:
            self._connection.close()


def _checked(path: Path) -> sqlite3.Connection:
    """Raises sqlite3.DatabaseError if the file is damaged or newer than this program."""
    connection = sqlite3.connect(path, timeout=2.0, check_same_thread=False)
    try:
        connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")  # a power cut may cost the last minute, never the file
        (verdict,) = connection.execute("PRAGMA quick_check").fetchone()
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
