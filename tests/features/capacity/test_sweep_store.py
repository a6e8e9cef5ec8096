"""What is kept of sweeps: few, small, and read when somebody asks."""

import json
import logging
import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from prober.features.capacity.sweep_store import MAX_RESULTS, SWEEP, SweepArchive, surplus
from prober.results.result import Result
from prober.results.result_file import to_json
from prober.storage.store import UNREADABLE_SUFFIX, Entry, Store
from tests.results.samples import sweep

NOW = 1_790_000_000.0


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store(str(tmp_path))
    yield opened
    opened.close()


def result(identity: str, started_unix_s: float = NOW) -> Result:
    return replace(sweep(), id=identity, started_unix_s=started_unix_s, ended_unix_s=started_unix_s + 60)


def write(store: Store, key: str, identity: str, ago_s: float = 0.0) -> None:
    """As an earlier process saved it."""
    found = result(identity, NOW - ago_s).without_requests()
    store.save(SWEEP, [(json.dumps([key, identity]), to_json(found).encode())], NOW - ago_s)


async def opened(store: Store) -> SweepArchive:
    archive = SweepArchive(store, lambda: NOW)
    await archive.index()
    return archive


def keys(store: Store) -> list[list[str]]:
    return [json.loads(each.key) for each in store.entries(SWEEP)]


async def test_what_is_kept_has_no_requests_and_all_else(store: Store) -> None:
    """In memory, in the file, and after a restart."""
    whole = result("one")
    first = await opened(store)
    await first.of("t").keep(whole)
    again = await opened(store)
    assert again.of("t").latest() == [], "nothing is read before somebody asks"
    await again.of("t").read()
    for found in (*first.of("t").latest(), *again.of("t").latest()):
        assert found == whole.without_requests()
    (entry,) = store.entries(SWEEP)
    assert entry.size_bytes < len(to_json(whole)) / 2


async def test_the_latest_of_each_target_are_kept_in_the_file_too(store: Store) -> None:
    """Twenty; a neighbour with fewer loses none, whatever the clock says of when each was made."""
    archive = await opened(store)
    await archive.of("few").keep(result("first"))
    for number in range(MAX_RESULTS + 5):
        await archive.of("many").keep(result(f"{number}", NOW - 86_400 * number))  # a clock that goes back
    expected = [f"{number}" for number in reversed(range(5, MAX_RESULTS + 5))]
    assert [each.id for each in archive.of("many").latest()] == expected
    assert keys(store) == [["few", "first"], *(["many", identity] for identity in reversed(expected))]
    again = await opened(store)
    await again.of("many").read()
    assert [each.id for each in again.of("many").latest()] == expected


async def test_no_clock_makes_a_result_too_old(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wall clock that is set a year forward and saves a sweep then removes none; nor does a start with it."""
    write(store, "t", "one")
    archive = await opened(store)
    monkeypatch.setattr(archive, "_unix_s", lambda: NOW + 365 * 86_400)
    await archive.of("u").keep(result("two"))
    archive.clean_up()
    assert keys(store) == [["t", "one"], ["u", "two"]]


def test_all_together_have_a_limit_and_each_targets_latest_goes_last() -> None:
    """The file has to fit on a volume of 64 MiB, however many targets come and go."""
    size = 1_000
    entries = [Entry(json.dumps([f"t{n % 6}", f"{n}"]), size) for n in range(24)]
    left = {json.loads(each.key)[1] for each in entries} - {
        json.loads(key)[1] for key in surplus(entries, "", 10 * size)
    }
    assert left == {"18", "19", "20", "21", "22", "23", "14", "15", "16", "17"}
    full = [Entry(json.dumps([f"t{n}", f"{n}"]), size) for n in range(40)]
    assert json.dumps(["t0", "0"]) not in set(surplus(full, json.dumps(["t0", "0"]), 10 * size))


@pytest.mark.parametrize(
    "data", [b"", b"{}", b"no JSON \xff", b'{"llm_slo_prober": {"format": 7}}', b"[" * 100_000, b"\0" * 10]
)
async def test_a_row_that_cannot_be_read_is_set_aside(
    store: Store, data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """With a line in the log, once; the rows beside it, before and after, are read."""
    write(store, "t", "before", 300)
    store.save(SWEEP, [(json.dumps(["t", "bad"]), data), ("no key", b"x"), ("[1, 2]", b"x")], NOW)
    write(store, "t", "after", 100)
    with caplog.at_level(logging.ERROR):
        archive = await opened(store)
        await archive.of("t").read()
        archive.clean_up()
    assert [each.id for each in archive.of("t").latest()] == ["after", "before"]
    assert caplog.text.count("set aside") == 3
    assert '["t", "bad"]' in caplog.text
    assert len(store.load(SWEEP + UNREADABLE_SUFFIX)) == 3
    caplog.clear()
    again = await opened(store)
    await again.of("t").read()
    assert caplog.text == ""


async def test_a_damaged_disk_stops_nothing(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One row whose page is damaged is left out; a disk that takes nothing costs what is saved, not what is known."""
    write(store, "t", "good", 300)
    write(store, "t", "bad", 200)
    get = store.get

    def damaged(kind: str, key: str) -> bytes | None:
        if "bad" in key:
            raise sqlite3.DatabaseError("database disk image is malformed")
        return get(kind, key)

    def full(*_: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(store, "get", damaged)
    monkeypatch.setattr(store, "save", full)
    archive = await opened(store)
    await archive.of("t").read()
    await archive.of("t").keep(result("new"))
    archive.clean_up()
    assert [each.id for each in archive.of("t").latest()] == ["new", "good"]
    assert "target=t stored sweep bad cannot be read" in caplog.text
    assert "could not be saved" in caplog.text


async def test_only_as_much_is_read_as_is_enough(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The latest first; who comes later reads the rest, and nothing twice."""
    for number in range(6):
        write(store, "t", f"{number}", 600.0 - 100 * number)
    archive, read = await opened(store), list[str]()
    real = archive.result

    def counted(key: str, identity: str) -> Result | None:
        read.append(identity)
        return real(key, identity)

    monkeypatch.setattr(archive, "result", counted)
    await archive.of("t").read(lambda each: each.id == "4")
    assert read == ["5", "4"]
    await archive.of("t").read(lambda each: each.id == "4")
    assert read == ["5", "4"]
    await archive.of("t").read()
    assert read == ["5", "4", "3", "2", "1", "0"]
    assert archive.of("t").has("0")
    assert not archive.of("t").has("7")
    archive.of("t").forget()
    assert archive.of("t").latest() == []
    await archive.of("t").read()
    assert [each.id for each in archive.of("t").latest()] == ["5", "4", "3", "2", "1", "0"]
