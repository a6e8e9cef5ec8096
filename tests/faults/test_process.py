"""Faults of the prober itself: stopped, killed, out of descriptors, out of disk."""

import os
import resource
import signal
import sqlite3
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from prober.storage.store import FILE_NAME
from tests.faults.conftest import absent_if_impossible
from tests.faults.disks import allow, empty, fill, real_disk, refuse, repair, small_disk, turn_read_only
from tests.faults.endpoint import Endpoint, well
from tests.faults.rig import (
    SAVED_AGAIN,
    Impossible,
    descriptors,
    kept_tokens,
    patient,
    probes,
    seen,
    settled,
    slow_samples,
)
from tests.processes import Daemon, until

LIMIT = 110_000_000
PROBE_TOKENS = 24  # 20 of the prompt, 4 of the answer


slowly = partial(well, pause_s=0.2)  # so that answers are always under way


@pytest.fixture(scope="module")
def shared() -> Iterator[Endpoint]:
    """Known by its name, which has to be resolved."""
    with Endpoint() as serving:
        yield serving


@pytest.fixture(scope="module")
def daemon(shared: Endpoint, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """With good probes behind it."""
    text = patient(f"http://localhost:{shared.port}")
    with Daemon(tmp_path_factory.mktemp("process"), text) as running:
        until(lambda: seen(running).outcomes["ok"] >= 10, "good probes")
        yield running


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    """Of one test only."""
    with Endpoint() as serving:
        yield serving


def test_a_prober_that_was_stopped_says_invalid_and_not_slow(shared: Endpoint, daemon: Daemon) -> None:
    """SIGSTOP: what was due more than 3 s before its end is `invalid`; no target looks slow or dead by what is late."""
    before = seen(daemon)
    shared.act = slowly
    until(lambda: seen(daemon).since(before).samples["itl"] >= 30, "answers that take their time")
    before = seen(daemon)
    os.kill(daemon.process.pid, signal.SIGSTOP)
    time.sleep(6)
    os.kill(daemon.process.pid, signal.SIGCONT)
    until(lambda: seen(daemon).since(before).outcomes["ok"] >= 15, "good probes after it")
    seen_since = seen(daemon).since(before)
    assert set(seen_since.outcomes) == {"ok", "invalid"}, [
        probe for probe in probes(daemon) if probe["outcome"] not in ("ok", "invalid")
    ]
    assert 10 <= seen_since.outcomes["invalid"] <= 40, "those due in the first three seconds"
    assert slow_samples(daemon, 2.0) == 0, (
        "each answer under way was read up to 6 s late, and others were sent 3 s late"
    )
    assert daemon.value("llmslo_target_state", state="ready") == 1


def test_out_of_descriptors_the_prober_says_that_it_is_its_own_fault(shared: Endpoint, daemon: Daemon) -> None:
    """No target is down because the prober can open no socket, and no name is gone because its resolver cannot.

    With descriptors again all is as before, the pages too.
    """
    shared.act = well
    until(lambda: not shared.misbehaving, "the slow answers to end")
    before, pid = seen(daemon), daemon.process.pid
    files, limits = descriptors(pid), resource.prlimit(pid, resource.RLIMIT_NOFILE)
    for _ in range(5):  # a prober that gets no processor time opens nothing meanwhile
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (3, limits[1]))
        time.sleep(1.5)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)
        good = seen(daemon).outcomes["ok"]
        until(lambda: seen(daemon).outcomes["ok"] >= good + 5, "good probes after it")  # noqa: B023
        if is_named := any("Too many open files" in str(probe["detail"]) for probe in probes(daemon)):
            break
    assert is_named
    seen_since = seen(daemon).since(before)
    assert set(seen_since.outcomes) == {"ok", "invalid"}
    assert seen_since.outcomes["invalid"] >= 5
    assert daemon.value("llmslo_target_state", state="ready") == 1
    settled(daemon, files + 12)


def spent(daemon: Daemon, endpoint: Endpoint) -> tuple[float, float]:
    """Least and most tokens by which the budget's series is above what the endpoint was asked for meanwhile."""
    before = endpoint.requests[4]
    tokens = LIMIT * (1 - daemon.value("llmslo_budget_remaining_ratio", budget="tokens"))
    return tokens - endpoint.requests[4] * PROBE_TOKENS, tokens - before * PROBE_TOKENS


def test_a_kill_loses_a_second_of_what_was_spent(endpoint: Endpoint, tmp_path: Path) -> None:
    """Whenever it comes: what the endpoint was asked for before is counted, and no more; a clean stop is exact."""
    text = patient(f"http://127.0.0.1:{endpoint.port}", rate=50, more=f"budget: {{tokens_per_day: {LIMIT}}}")
    store = ("--storage.path", tmp_path / "store")
    page = 110 * PROBE_TOKENS  # of the probes that a page lacks, and of those under way
    for kills in range(1, 3):
        with Daemon(tmp_path, text, *store) as daemon:
            until(lambda: seen(daemon).outcomes["ok"] >= 5 + 20 * kills, "probes")  # noqa: B023
            daemon.kill()
    with Daemon(tmp_path, text, *store) as daemon:
        until(lambda: seen(daemon).outcomes["ok"] >= 1, "the first probe")
        least, most = spent(daemon, endpoint)
        assert daemon.stop() == 0
    assert most >= -page - 2 * 3 * 50 * PROBE_TOKENS, (
        "a write each second, by a process that may have to wait for its turn"
    )
    assert least <= page
    with Daemon(tmp_path, text, *store) as daemon:
        until(lambda: seen(daemon).outcomes["ok"] >= 1, "the first probe")
        least_again, most_again = spent(daemon, endpoint)
    assert least_again - page < most, "a stop costs nothing but what was probed until then"
    assert most_again + page > least


def unkept(daemon: Daemon) -> None:
    """Wait until what was spent was to be written, which a disk that refuses does not take; probing goes on beside it."""
    until(lambda: daemon.value("llmslo_storage_write_failures_total") >= 1, "what it says of the disk")
    before = seen(daemon)
    until(lambda: seen(daemon).since(before).outcomes["ok"] >= 5, "probes without a disk")
    assert set(seen(daemon).since(before).outcomes) == {"ok"}


def test_a_full_disk_stops_no_probe_and_is_told(endpoint: Endpoint, tmp_path: Path) -> None:
    """Writes fail and are counted; with room again everything is kept again; a start on a full disk probes as well."""
    text = patient(f"http://127.0.0.1:{endpoint.port}", more=f"budget: {{tokens_per_day: {LIMIT}}}")
    with absent_if_impossible(), small_disk(tmp_path) as disk:
        with Daemon(tmp_path, text, "--storage.path", disk) as daemon:
            until(lambda: seen(daemon).outcomes["ok"] >= 3, "probes")
            fill(disk)
            unkept(daemon)
            daemon.kill()
        with Daemon(tmp_path, text, "--storage.path", disk) as daemon:
            unkept(daemon)
            empty(disk)
            until(lambda: SAVED_AGAIN in daemon.log.read_text(), "the disk to be used again")
            assert daemon.stop() == 0
        assert rows(disk) >= {"budget", "drift"}


def test_a_disk_that_turns_read_only_stops_no_probe_and_loses_nothing(endpoint: Endpoint, tmp_path: Path) -> None:
    """Under files that are open. Writable again, what was spent meanwhile is kept, though a kill comes at once.

    After an error of the disk it stays read-only: mended and mounted anew, the store is whole and as it was before the error.
    """
    text = patient(f"http://127.0.0.1:{endpoint.port}", more=f"budget: {{tokens_per_day: {LIMIT}}}")
    try:
        with real_disk(tmp_path) as disk:
            with Daemon(tmp_path, text, "--storage.path", disk) as daemon:
                until(lambda: seen(daemon).outcomes["ok"] >= 3, "probes")
                refuse(disk)
                unkept(daemon)
                asked_for = endpoint.requests[4] * PROBE_TOKENS
                allow(disk)
                until(lambda: SAVED_AGAIN in daemon.log.read_text(), "the disk to be used again")
                daemon.kill()
            before = kept_tokens(disk)
            assert before >= asked_for
            with Daemon(tmp_path, text, "--storage.path", disk) as daemon:
                until(lambda: seen(daemon).outcomes["ok"] >= 3, "probes")
                turn_read_only(disk)
                unkept(daemon)
                daemon.kill()
        repair(tmp_path)
        with real_disk(tmp_path) as disk:
            assert rows(disk) >= {"budget"}
            assert kept_tokens(disk) >= before
    except Impossible as why:
        pytest.skip(f"no disk that can fail: {why}")  # loop devices are not to be had everywhere


def rows(folder: Path) -> set[str]:
    """Kinds that the store in this folder holds; it is whole."""
    connection = sqlite3.connect(folder / FILE_NAME)
    assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    kinds = {str(kind) for (kind,) in connection.execute("SELECT DISTINCT kind FROM state")}
    connection.close()
    return kinds
