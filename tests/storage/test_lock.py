"""A lock between processes."""

import subprocess
import sys

import pytest

from prober.storage.watched_file import Lock, LockHeld
from tests.processes import HANG_S

HOLD = (
    "import sys; from prober.storage.watched_file import Lock\n"
    "with Lock(sys.argv[1], 'prober matrix'): print('held', flush=True); sys.stdin.read()"
)


def test_one_process_has_it_and_its_death_gives_it_back() -> None:
    """The other one is named; another name is another lock; SIGKILL leaves nothing behind."""
    other = subprocess.Popen([sys.executable, "-c", HOLD, "http://one"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert other.stdout is not None
    assert other.stdin is not None
    assert other.stdout.readline() == b"held\n"
    with pytest.raises(LockHeld, match=f"^prober matrix, process {other.pid}$"), Lock("http://one"):
        pass
    with Lock("http://two"):
        pass
    other.kill()
    other.wait(HANG_S)
    with Lock("http://one"):
        pass
    other.stdin.close()
    other.stdout.close()
