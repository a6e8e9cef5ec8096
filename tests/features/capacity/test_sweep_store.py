"""What is kept of sweeps: few, small, and read when somebody asks; and what an older version left behind."""

import json
import logging
import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from prober.features.capacity import sweep_store
from prober.features.capacity.sweep_store import MAX_AGE_S, MAX_RESULTS, SWEEP, SweepArchive, surplus
from prober.results.result import Result
from prober.results.result_file import from_json, to_json
from prober.storage.store import FILE_NAME, UNREADABLE_SUFFIX, Entry, Store
from tests.results.samples import sweep

NOW = 1_790_000_000.0


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store(str(tmp_path))
    yield opened
    opened.close()


def result(identity: str, started_unix_s: float = NOW) -> Result:
    return replace(sweep(), id=identity, started_unix_s=started_unix_s, ended_unix_s=started_unix_s + 60)


def write_old(store: Store, key: str, identity: str, ago_s: float = 0.0) -> None:
    """As the version before wrote it: with its requests, and without removing anything."""
    found = result(identity, NOW - ago_s)
    assert found.requests
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
        assert found == replace(whole, requests=())
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


async def test_the_sweeps_of_targets_that_are_gone_age_out(store: Store) -> None:
    """When any other is saved."""
    write_old(store, "gone", "old", MAX_AGE_S + 1)
    write_old(store, "gone", "young", MAX_AGE_S - 60)
    await (await opened(store)).of("t").keep(result("one"))
    assert keys(store) == [["gone", "young"], ["t", "one"]]


def test_all_together_have_a_limit_and_each_targets_latest_goes_last() -> None:
    """The file has to fit on a volume of 64 MiB, however many targets come and go."""
    size = 1_000
    entries = [Entry(json.dumps([f"t{n % 6}", f"{n}"]), NOW, size) for n in range(24)]
    left = {json.loads(each.key)[1] for each in entries} - {
        json.loads(key)[1] for key in surplus(entries, NOW, 10 * size)
    }
    assert left == {"18", "19", "20", "21", "22", "23", "14", "15", "16", "17"}
    full = [Entry(json.dumps([f"t{n}", f"{n}"]), NOW, size) for n in range(40)]
    assert json.dumps(["t0", "0"]) not in set(surplus(full, NOW, 10 * size, keep=json.dumps(["t0", "0"])))


async def test_the_limit_of_bytes_is_for_what_is_kept_without_requests(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Old rows are large for want of a clean-up, which takes none that fits afterwards; nor does a sweep that ends before it."""
    monkeypatch.setattr(sweep_store, "PAUSE_S", 0.0)
    monkeypatch.setattr(sweep_store, "MAX_BYTES", 10.5 * len(to_json(replace(result("x"), requests=()))))
    for number in range(8):
        write_old(store, "t", f"{number}", 3600.0 * (20 - number))
    archive = await opened(store)
    await archive.of("t").keep(result("8"))
    await archive.clean_up()
    assert len(keys(store)) == 9
    for number in range(9, 12):
        await archive.of("t").keep(result(f"{number}"))
    assert [identity for _, identity in keys(store)] == [f"{number}" for number in range(2, 12)]


async def test_what_an_older_version_left_is_cleaned_up(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is too much goes, requests go, the rest reads as before, and the file gets smaller."""
    monkeypatch.setattr(sweep_store, "PAUSE_S", 0.0)
    for number in range(400):
        write_old(store, "t" if number % 2 else "u", f"{number}", 3600.0 * (400 - number))
    store._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    before = (tmp_path / FILE_NAME).stat().st_size
    archive = await opened(store)
    await archive.clean_up()
    assert len(keys(store)) == 2 * MAX_RESULTS
    await archive.of("t").read()
    assert [each.id for each in archive.of("t").latest()] == [f"{n}" for n in range(399, 359, -2)]
    for found in archive.of("t").latest():
        assert found == replace(result(found.id, found.started_unix_s), requests=())
    for each in keys(store):
        data = store.get(SWEEP, json.dumps(each))
        assert data is not None
        assert from_json(data, "x").requests == ()
    assert before > 4 << 20
    assert (tmp_path / FILE_NAME).stat().st_size < before / 4
    assert store.load("state-of-others") == {}


@pytest.mark.parametrize(
    "data", [b"", b"{}", b"no JSON \xff", b'{"llm_slo_prober": {"format": 7}}', b"[" * 100_000, b"\0" * 10]
)
async def test_a_row_that_cannot_be_read_is_set_aside(
    store: Store, data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """With a line in the log, once; the rows beside it, before and after, are read."""
    write_old(store, "t", "before", 300)
    store.save(SWEEP, [(json.dumps(["t", "bad"]), data), ("no key", b"x"), ("[1, 2]", b"x")], NOW)
    write_old(store, "t", "after", 100)
    with caplog.at_level(logging.ERROR):
        archive = await opened(store)
        await archive.of("t").read()
        await archive.clean_up()
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
    write_old(store, "t", "good", 300)
    write_old(store, "t", "bad", 200)
    get = store.get

    def damaged(kind: str, key: str) -> bytes | None:
        if "bad" in key:
            raise sqlite3.DatabaseError("database disk image is malformed")
        return get(kind, key)

    def full(*_: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(store, "get", damaged)
    monkeypatch.setattr(store, "save_and_prune", full)
    monkeypatch.setattr(store, "remove", full)
    archive = await opened(store)
    await archive.of("t").read()
    await archive.of("t").keep(result("new"))
    await archive.clean_up()
    assert [each.id for each in archive.of("t").latest()] == ["new", "good"]
    assert "target=t stored sweep bad cannot be read" in caplog.text
    assert "could not be saved" in caplog.text


async def test_only_as_much_is_read_as_is_enough(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The latest first; who comes later reads the rest, and nothing twice."""
    for number in range(6):
        write_old(store, "t", f"{number}", 600.0 - 100 * number)
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
