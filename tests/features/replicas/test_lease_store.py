"""A lease in a file, among the processes of one machine."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from prober.features.replicas.lease_store import FileLease, UnusableFolder, network_file_system, now_s

HOLD = (
    "import sys; from prober.features.replicas.lease_store import FileLease\n"
    "lease = FileLease(sys.argv[1], 'lease-0'); print(lease.take('other'), flush=True)\n"
    "lease.claim('a', 5.0); print('claimed', flush=True); sys.stdin.read()"
)


def test_it_ends_with_its_process_and_what_was_claimed_stays(tmp_path: Path) -> None:
    """SIGKILL leaves no holder; the number grows with each."""
    other = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert other.stdout is not None
    assert other.stdin is not None
    assert [other.stdout.readline() for _ in range(2)] == ["True\n", "claimed\n"]
    here = FileLease(str(tmp_path), "lease-0")
    assert not here.take("me")
    assert (here.record.holder, here.record.transitions) == ("other", 0)
    assert FileLease(str(tmp_path), "lease-1").take("me"), "another shard's is another one"
    other.kill()
    other.wait(10)
    other.stdin.close()
    other.stdout.close()
    assert here.take("me")
    assert (here.record.holder, here.record.transitions, here.record.claims) == ("me", 1, {"a": 5.0})
    here.release()


def test_a_lock_that_was_deleted_is_not_held(tmp_path: Path) -> None:
    """Others would lock another file."""
    here = FileLease(str(tmp_path), "l")
    assert here.take("me")
    assert here.is_intact()
    (tmp_path / "l.lock").unlink()
    assert not here.is_intact()
    (tmp_path / "l.lock").touch()
    assert not here.is_intact()
    here.release()


def test_a_spoilt_file_is_begun_anew(tmp_path: Path) -> None:
    """The lock counts, not the file."""
    (tmp_path / "l.json").write_text('{"holder": "x", "transi')
    here = FileLease(str(tmp_path), "l")
    assert here.take("me")
    assert here.record.transitions == 0
    here.release()


def test_a_folder_that_cannot_keep_one_is_told(tmp_path: Path) -> None:
    """With what to do."""
    (tmp_path / "file").touch()
    with pytest.raises(
        UnusableFolder, match=r"--lease\.path .*file: cannot be used: .*; name a folder that all replicas"
    ):
        FileLease(str(tmp_path / "file"), "l")


def test_a_network_file_system_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    monkeypatch.setattr("prober.features.replicas.lease_store.network_file_system", lambda _: "nfs4")
    with pytest.raises(
        UnusableFolder, match="is on nfs4, whose locks cannot be relied on; name a folder on a local disk"
    ):
        FileLease(str(share), "l")


def test_the_clock_goes_on() -> None:
    """Never back."""
    before = now_s()
    assert now_s() >= before > 0


def test_claims_of_several_threads_are_all_written(tmp_path: Path) -> None:
    """None replaces another one, and no write fails."""
    here = FileLease(str(tmp_path), "l")
    assert here.take("me")
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda number: here.claim(f"k{number}", float(number)), range(64)))
    here.release()
    after = FileLease(str(tmp_path), "l")
    assert after.take("you")
    assert after.record.claims == {f"k{number}": float(number) for number in range(64)}
