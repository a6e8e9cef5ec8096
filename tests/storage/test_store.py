"""State that survives a restart, and damage that does not prevent one."""

import logging
import os
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from prober.storage.store import FILE_NAME, UNREADABLE_SUFFIX, Store, UnusableStore, network_file_system


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
    code = f"import os; from prober.storage.store import Store; Store({str(tmp_path)!r}).save('drift', [('a', b'1')], 1.0); os._exit(9)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 9
    store = Store(str(tmp_path))
    assert store.load("drift") == {"a": b"1"}
    store.close()


@pytest.mark.parametrize(
    "content", [b"not a database at all, but long enough to have a header" * 10, b"SQLite format 3\0" + b"x" * 5000]
)
def test_a_damaged_file_is_set_aside_and_told(tmp_path: Path, caplog: pytest.LogCaptureFixture, content: bytes) -> None:
    """It is kept under another name, the log says so, and the prober starts."""
    (tmp_path / FILE_NAME).write_bytes(content)
    with caplog.at_level(logging.ERROR):
        store = Store(str(tmp_path))
    assert store.load("drift") == {}
    store.save("drift", [("a", b"1")], 1.0)
    store.close()
    (aside,) = (path for path in tmp_path.iterdir() if "damaged" in path.name)
    assert aside.read_bytes() == content
    assert "renamed to" in caplog.text


def test_a_damaged_page_in_the_middle_is_found(tmp_path: Path) -> None:
    """Before anything is read from it."""
    store = Store(str(tmp_path))
    store.save("drift", [(str(n), os.urandom(3000)) for n in range(50)], 1.0)
    store.close()
    path = tmp_path / FILE_NAME
    data = bytearray(path.read_bytes())
    data[4096:40960] = os.urandom(36864)
    path.write_bytes(data)
    again = Store(str(tmp_path))
    assert again.load("drift") == {}
    again.close()


def sql(path: Path, *statements: str) -> None:
    connection = sqlite3.connect(path, isolation_level=None)
    for statement in statements:
        connection.execute(statement)
    connection.close()


TABLE = "CREATE TABLE state (kind TEXT NOT NULL, key TEXT NOT NULL, saved_unix_s REAL NOT NULL, data BLOB NOT NULL"


@pytest.mark.parametrize(
    ("statements", "why"),
    [
        (["PRAGMA user_version = 99"], "its version is 99, this prober reads 1"),
        (["PRAGMA user_version = 0"], "its version is 0, this prober reads 1"),
        (["DROP TABLE state"], "it has no table `state` as a prober writes it"),
        (["ALTER TABLE state DROP COLUMN data"], "no table `state`"),
        (["ALTER TABLE state ADD COLUMN more TEXT"], "no table `state`"),
        (["DROP TABLE state", f"{TABLE})"], "no table `state`"),
        (["DROP TABLE state", f"{TABLE.replace('REAL', 'TEXT')}, PRIMARY KEY (kind, key))"], "no table `state`"),
        (["ALTER TABLE state RENAME TO rows", "CREATE VIEW state AS SELECT * FROM rows"], "no table `state`"),
        (["DROP TABLE state", "CREATE TABLE bookmarks (url TEXT)", "PRAGMA user_version = 0"], "its version is 0"),
    ],
)
def test_a_database_that_is_no_store_is_set_aside_and_not_spoilt(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, statements: list[str], why: str
) -> None:
    """Of a newer prober, of another application, or edited: it keeps its content, and the log says why and where it is."""
    store = Store(str(tmp_path))
    store.save("drift", [("a", b"1")], 1.0)
    store.close()
    sql(tmp_path / FILE_NAME, *statements)
    before = (tmp_path / FILE_NAME).read_bytes()
    store = Store(str(tmp_path))
    store.save("drift", [("b", b"2")], 1.0)
    assert store.load("drift") == {"b": b"2"}
    store.close()
    (aside,) = (path for path in tmp_path.iterdir() if path.name != FILE_NAME)
    assert aside.read_bytes() == before
    (line,) = caplog.messages
    assert why in line
    assert f"renamed to {aside.name}, starting with an empty store" in line


def test_rows_are_old_by_the_last_save_and_not_by_a_clock_that_was_set_meanwhile(tmp_path: Path) -> None:
    """A month without the prober, a clock 40 days ahead or 40 days behind: what was saved last is not old."""
    day_s, last_s = 86_400.0, 1_700_000_000.0
    store = Store(str(tmp_path))
    assert store.since(day_s, last_s) < 0, "of an empty store nothing is old"
    store.save("drift", [("old", b"0")], last_s - 2 * day_s)
    store.save("other", [("a", b"1")], last_s)
    store.close()
    again = Store(str(tmp_path))
    for step_s in (0.0, 3_600.0, 40 * day_s):
        assert again.since(day_s, last_s + step_s) == last_s - day_s
    for step_s in (-3_600.0, -40 * day_s):
        assert again.since(day_s, last_s + step_s) == last_s + step_s - day_s
    again.close()


def test_an_unusable_folder_is_an_error_with_its_remedy(tmp_path: Path) -> None:
    """With the path and what to do: a file where a folder should be, a read-only disk, another prober's."""
    (tmp_path / "file").write_text("")
    with pytest.raises(UnusableStore, match=r"--storage.path .*/file: cannot be used: .*; mount a writable volume"):
        Store(str(tmp_path / "file"))
    with pytest.raises(UnusableStore, match="mount a writable volume"):
        Store("/proc/self/none")
    first = Store(str(tmp_path / "held"))
    with pytest.raises(
        UnusableStore, match=r"held: held by another prober, .* \(database is locked\); give each prober its own folder"
    ):
        Store(str(tmp_path / "held"))
    first.close()


def test_what_is_too_much_goes_with_what_is_saved_or_neither(tmp_path: Path) -> None:
    """In one transaction, which is given all entries in the order in which they came, whatever the clock said."""
    store = Store(str(tmp_path))
    store.save("sweep", [("a", b"1")], 9.0)
    store.save("sweep", [("b", b"22")], 1.0)
    store.save("other", [("a", b"1")], 1.0)
    store.save("sweep", [("c", b"333")], 5.0, lambda entries: [entries[0].key])
    assert [(entry.key, entry.size_bytes) for entry in store.entries("sweep")] == [("b", 2), ("c", 3)]
    assert store.load("other") == {"a": b"1"}
    with pytest.raises(ZeroDivisionError):
        store.save("sweep", [("d", b"4")], 6.0, lambda _: [str(1 // 0)])
    assert [entry.key for entry in store.entries("sweep")] == ["b", "c"]
    store.set_aside("sweep", "c")
    assert store.get("sweep", "c") is None
    assert store.load("sweep" + UNREADABLE_SUFFIX) == {"c": b"333"}
    store.close()


def test_a_store_stays_below_its_limit(tmp_path: Path) -> None:
    """With its log, however much is saved and however often it was damaged; what was saved before it was full is there."""
    limit, unix_s = 20 << 20, 1_700_000_000.0
    for number in range(4):
        (tmp_path / f"prober.db.damaged-2026010{number}T000000Z").write_bytes(b"x" * (4 << 20))
    store = Store(str(tmp_path), limit)
    assert len(list(tmp_path.glob("*damaged*"))) == 2
    saved, refusal = 0, ""
    while not refusal and saved < 1_000:
        try:
            store.save("drift", [(str(saved), b"y" * 100_000)], unix_s)
            saved += 1
        except sqlite3.OperationalError as problem:
            refusal = str(problem)
        assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= limit
    assert "full" in refusal
    assert saved >= 30
    assert len(store.load("drift")) == saved
    store.close()
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= limit


def test_a_file_that_is_gone_takes_no_writes(tmp_path: Path) -> None:
    """Nobody could read them again. It takes them once it is back, and a store beside it always does."""
    folder, away = tmp_path / "folder", tmp_path / "away"
    beside, store = Store(str(tmp_path / "beside")), Store(str(folder))
    store.save("drift", [("a", b"1")], 1.0)
    folder.rename(away)
    for _ in range(2):
        with pytest.raises(sqlite3.OperationalError, match=r"was removed or replaced: .* restart the prober"):
            store.save("drift", [("b", b"2")], 2.0)
        folder.mkdir(exist_ok=True)
        (folder / FILE_NAME).write_text("another")
    beside.save("drift", [("b", b"2")], 2.0)
    beside.close()
    shutil.rmtree(folder)
    away.rename(folder)
    store.save("drift", [("c", b"3")], 3.0)
    store.close()
    again = Store(str(folder))
    assert again.load("drift") == {"a": b"1", "c": b"3"}
    again.close()


def test_a_network_file_system_is_recognised(tmp_path: Path) -> None:
    """By the mount that the folder is on, the last one of a place."""
    mounts = tmp_path / "mounts"
    share = tmp_path / "my share"
    share.mkdir()
    place = str(share).replace(" ", "\\040")
    mounts.write_text(f"/dev/sda1 / ext4 rw 0 0\nserver:/x {place} nfs4 rw 0 0\n/dev/sdb1 {place}/local xfs rw 0 0\n")
    assert network_file_system(share, str(mounts)) == "nfs4"
    assert network_file_system(share / "local" / "deep", str(mounts)) is None
    assert network_file_system(tmp_path, str(mounts)) is None
    mounts.write_text(f"server:/x {place} nfs4 rw 0 0\n/dev/sda1 {place} ext4 rw 0 0\n")
    assert network_file_system(share, str(mounts)) is None
    assert network_file_system(share, str(tmp_path / "none")) is None
