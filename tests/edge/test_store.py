"""What survives a restart, and what does not stop one."""

import logging
import os
import sqlite3
from pathlib import Path

import pytest

from prober.edge.store import FILE, Store, Unusable


def test_the_latest_of_each_key_is_there_after_a_restart(tmp_path: Path) -> None:
    """By kind; another kind's key of the same name is another thing."""
    store = Store(str(tmp_path / "new" / "folder"))
    store.save("drift", [("a", b"1"), ("b", b"\0\xff")], 1.0)
    store.save("drift", [("a", b"2")], 2.0)
    store.save("other", [("a", b"3")], 2.0)
    store.close()
    again = Store(str(tmp_path / "new" / "folder"))
    assert again.load("drift") == {"a": b"2", "b": b"\0\xff"}
    assert again.load("drift", since_unix_s=1.5) == {"a": b"2"}
    assert again.load("drift") == {"a": b"2"}
    assert again.load("other") == {"a": b"3"}
    again.close()


def test_what_was_saved_is_there_though_the_process_was_killed(tmp_path: Path) -> None:
    """Nothing is lost that was committed: the log is read at the next start."""
    pid = os.fork()
    if pid == 0:
        Store(str(tmp_path)).save("drift", [("a", b"1")], 1.0)
        os._exit(9)
    os.waitpid(pid, 0)
    store = Store(str(tmp_path))
    assert store.load("drift") == {"a": b"1"}
    store.close()


@pytest.mark.parametrize(
    "content", [b"not a database at all, but long enough to have a header" * 10, b"SQLite format 3\0" + b"x" * 5000]
)
def test_a_damaged_file_is_set_aside_and_told(tmp_path: Path, caplog: pytest.LogCaptureFixture, content: bytes) -> None:
    """It is kept under another name, the log says so, and the prober starts."""
    (tmp_path / FILE).write_bytes(content)
    with caplog.at_level(logging.ERROR):
        store = Store(str(tmp_path))
    assert store.load("drift") == {}
    store.save("drift", [("a", b"1")], 1.0)
    store.close()
    (aside,) = (path for path in tmp_path.iterdir() if "damaged" in path.name)
    assert aside.read_bytes() == content
    assert "set aside as" in caplog.text


def test_a_damaged_page_in_the_middle_is_found(tmp_path: Path) -> None:
    """Before anything is read from it."""
    store = Store(str(tmp_path))
    store.save("drift", [(str(n), os.urandom(3000)) for n in range(50)], 1.0)
    store.close()
    path = tmp_path / FILE
    data = bytearray(path.read_bytes())
    data[4096:40960] = os.urandom(36864)
    path.write_bytes(data)
    again = Store(str(tmp_path))
    assert again.load("drift") == {}
    again.close()


def test_a_newer_version_is_set_aside_and_not_spoilt(tmp_path: Path) -> None:
    """After a rollback the newer prober's state is still there for it."""
    connection = sqlite3.connect(tmp_path / FILE)
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    Store(str(tmp_path)).close()
    assert any("damaged" in path.name for path in tmp_path.iterdir())


def test_a_place_that_cannot_be_used_is_told(tmp_path: Path) -> None:
    """With the path and what to do: a file where a folder should be, a read-only disk, another prober's."""
    (tmp_path / "file").write_text("")
    with pytest.raises(Unusable, match=r"--storage.path .*/file: cannot be used: .*; mount a writable volume"):
        Store(str(tmp_path / "file"))
    with pytest.raises(Unusable, match="mount a writable volume"):
        Store("/proc/self/none")
    first = Store(str(tmp_path / "held"))
    with pytest.raises(
        Unusable, match=r"held: held by another prober, .* \(database is locked\); give each prober a folder"
    ):
        Store(str(tmp_path / "held"))
    first.close()
