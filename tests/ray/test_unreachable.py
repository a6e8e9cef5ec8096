"""A Ray cluster that cannot be joined is an error at once, which says what to do."""

import time

import pytest

pytest.importorskip("ray", reason="make test-ray has an environment with Ray")

from prober.probing.worker_host import WorkersUnavailable
from prober.probing.workers import open_workers
from tests.processes import free_port

pytestmark = pytest.mark.filterwarnings("default")
REMEDY = "check the address with `ray status`"


@pytest.mark.parametrize("is_variable", [False, True], ids=["named", "RAY_ADDRESS"])
async def test_a_port_that_refuses(monkeypatch: pytest.MonkeyPatch, is_variable: bool) -> None:
    """Ray itself would try for minutes."""
    address = f"127.0.0.1:{free_port()}"
    if is_variable:
        monkeypatch.setenv("RAY_ADDRESS", address)
    begin_s = time.monotonic()
    with pytest.raises(WorkersUnavailable, match=f"cannot be joined .*{REMEDY}"):
        async with open_workers(2, ray="auto" if is_variable else address):
            raise AssertionError
    assert time.monotonic() - begin_s < 30


async def test_no_cluster_on_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """`auto` without one; said by Ray as it says it, since another cluster may run here."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)

    def init(*_: object, **__: object) -> None:
        raise ConnectionError("Could not find any running Ray instance.")

    monkeypatch.setattr("ray.init", init)
    with pytest.raises(WorkersUnavailable, match=f"the Ray cluster auto cannot be joined .*{REMEDY}"):
        async with open_workers(2, ray="auto"):
            raise AssertionError


async def test_a_host_that_does_not_exist() -> None:
    """The name is in the message."""
    with pytest.raises(WorkersUnavailable, match=r"the Ray cluster nowhere\.invalid:6379 cannot be joined"):
        async with open_workers(2, ray="nowhere.invalid:6379"):
            raise AssertionError
