"""Sweeps that wait for their turn when the prober ends: begun by the next one, once, and no other."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from prober.daemon.registry import registry
from prober.features.capacity import monitor
from prober.features.capacity.refusal import Refused, StartRequest
from prober.features.capacity.waiting_sweeps import MAX_AGE_S, ROW, WAITING, WaitingSweeps
from prober.features.replicas.kubernetes_lease import KubernetesLease
from prober.features.replicas.leadership import KubernetesLeadership
from prober.features.replicas.lease_machine import Timing
from prober.measure.target_state import TargetState
from prober.net.kubernetes import Api
from prober.probing.leadership import Alone
from prober.probing.observer import ObservedTarget
from prober.probing.target import Target
from prober.storage.store import Store
from tests.features.capacity.stage import SLOTS, Stage, staged, target_spec, until
from tests.kubernetes.apiserver import ApiServer
from tests.virtual import make_clock, running

pytestmark = pytest.mark.virtual_time


def beside(stage: Stage, url: str, name: str) -> Target:
    """A further target of the stage."""
    target = Target(target_spec(url).model_copy(update={"name": name}), stage.clock)
    target.state = TargetState.READY
    ObservedTarget(name, target, (stage.headroom, stage.sweeps))
    return target


async def test_what_waited_is_begun_after_a_restart_once_and_nothing_else(tmp_path: Path) -> None:
    """The interrupted one is not repeated; one whose target is loading at first is begun when it is ready."""
    async with running(SLOTS) as url:
        async with staged(url, folder=tmp_path) as stage:
            for name in ("waits", "loads"):
                beside(stage, url, name)
            stage.sweeps.start("t")
            await until(lambda: stage.value("llmslo_sweep_rate_per_second") > 0)
            for name in ("waits", "loads"):
                with pytest.raises(Refused, match="waits for its end"):
                    stage.sweeps.start(name, "schedule")
        async with staged(url, folder=tmp_path) as stage:
            beside(stage, url, "waits")
            loads = beside(stage, url, "loads")
            loads.state = TargetState.STARTING
            await until(lambda: stage.sweeps.under_way == "waits")
            await until(lambda: stage.sweeps.stop("waits"))
            await until(lambda: stage.sweeps.under_way is None)
            loads.state = TargetState.READY
            await until(lambda: stage.sweeps.under_way == "loads")
            await until(lambda: stage.sweeps.stop("loads"))
            await until(lambda: stage.sweeps.under_way is None)
        async with staged(url, folder=tmp_path) as stage:
            assert len(stage.sweeps._kept) == 0


async def test_without_storage_it_is_told_that_they_are_lost(caplog: pytest.LogCaptureFixture) -> None:
    """With their names."""
    with caplog.at_level(logging.INFO):
        waiting = WaitingSweeps(None, make_clock(), Alone())
        waiting.add("llama", StartRequest("schedule", 1.0))
        await waiting.close()
    assert "are lost without --storage.path: targets llama" in caplog.text


@pytest.mark.parametrize(
    "row", [b"{", b"[]", b'{"a": ["other", 1]}', b'{"a": ["schedule", "x"]}', b'{"a": 1}', b"\xff"]
)
async def test_an_odd_row_is_set_aside(tmp_path: Path, row: bytes) -> None:
    """And a start goes on."""
    store, clock = Store(str(tmp_path)), make_clock()
    store.save(WAITING, [(ROW, row)], clock.unix_s())
    assert WaitingSweeps(store, clock, Alone()).left_over == {}
    store.close()
    clock.close()


async def test_old_ones_are_not_begun(tmp_path: Path) -> None:
    """Their schedule has come again since."""
    store, clock = Store(str(tmp_path)), make_clock()
    row = json.dumps({"a": ["schedule", 1.0]}).encode()
    store.save(WAITING, [(ROW, row)], clock.unix_s() - MAX_AGE_S - 60)
    assert WaitingSweeps(store, clock, Alone()).left_over == {}
    store.save(WAITING, [(ROW, row)], clock.unix_s() - MAX_AGE_S + 60)
    assert WaitingSweeps(store, clock, Alone()).left_over == {"a": StartRequest("schedule", 1.0)}
    store.close()
    clock.close()


@asynccontextmanager
async def replica(url: str, server: ApiServer, name: str) -> AsyncIterator[tuple[Stage, KubernetesLeadership]]:
    """A prober without a store, with two further targets, that holds the lease."""
    lease = KubernetesLease(Api(server.url(name)), "default", "test-0")
    leadership = KubernetesLeadership(lease, name, Timing(3.0), registry(), asyncio.get_running_loop().time)
    async with staged(url, leadership=leadership) as stage:
        for target in ("waits", "other"):
            beside(stage, url, target)
        task = asyncio.create_task(leadership.run())
        await until(lambda: leadership.held() is not None)
        try:
            yield stage, leadership
        finally:
            await stage.sweeps.close()
            await leadership.close()
            assert task.done()


@pytest.mark.parametrize("ends", ["cut off", "stopped"])
async def test_what_waited_is_begun_by_the_next_holder_of_the_lease_once(
    ends: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without any store: not the one that was under way, not its neighbour, and nothing when the lease changes hands again."""
    monkeypatch.setattr(monitor, "LEFT_OVER_EVERY_S", 0.2)
    async with running(SLOTS) as url, ApiServer() as server:
        async with replica(url, server, "a") as (stage, leadership):
            stage.sweeps.start("t")
            await until(lambda: stage.value("llmslo_sweep_rate_per_second") > 0)
            due_unix_s = stage.clock.unix_s()
            with pytest.raises(Refused, match="waits for its end"):
                stage.sweeps.start("waits", "schedule", due_unix_s)
            await until(lambda: due_unix_s in claims(server))
            if ends == "cut off":
                server.faults("a").cut = "requests"
                await until(lambda: leadership.held() is None)
        async with replica(url, server, "b") as (stage, _):
            await until(lambda: stage.sweeps.under_way == "waits")
            await until(lambda: stage.sweeps.stop("waits"))
            await until(lambda: stage.sweeps.under_way is None)
            await asyncio.sleep(0.6)
            assert stage.sweeps.under_way is None
        async with replica(url, server, "c") as (stage, _):
            await asyncio.sleep(0.6)
            assert stage.sweeps.under_way is None
            assert len(stage.sweeps._kept) == 0


def claims(server: ApiServer) -> list[float]:
    """Times noted in the Lease, as the server stores it."""
    lease = server.objects["leases", "default", "test-0"]
    return list(json.loads(lease["metadata"]["annotations"]["llm-slo-prober/swept"]).values())


async def test_one_that_may_not_begin_does_not_hold_up_the_next(tmp_path: Path) -> None:
    """Two wait; the first is not ready when its turn comes, and the second is begun all the same."""
    async with running(SLOTS) as url, staged(url, folder=tmp_path) as stage:
        ill, well = beside(stage, url, "ill"), beside(stage, url, "well")
        stage.sweeps.start("t")
        await until(lambda: stage.value("llmslo_sweep_rate_per_second") > 0)
        for target in (ill, well):
            with pytest.raises(Refused, match="waits for its end"):
                stage.sweeps.start(str(target.spec.name), "schedule")
        ill.state = TargetState.FAILING
        stage.sweeps.stop("t")
        await until(lambda: stage.sweeps.under_way == "well")
