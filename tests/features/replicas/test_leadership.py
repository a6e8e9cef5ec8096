"""The holder of a lease whose server answers late."""

import asyncio
from dataclasses import replace
from typing import Any, cast

import pytest

from prober.daemon.registry import registry
from prober.features.replicas.leadership import KubernetesLeadership, KubernetesLease
from prober.features.replicas.lease_machine import Record, Timing, Write

pytestmark = pytest.mark.virtual_time


class SlowLease:
    """A lease at a server that answers each write after `seconds`, even if the client has given up."""

    def __init__(self) -> None:
        self.seconds, self.record = 0.0, cast(Record | None, None)

    async def read(self, timeout_s: float) -> Record | None:
        return self.record

    async def write(self, write: Write, timeout_s: float) -> str:
        version = str(int(write.record.version or 0) + 1)
        self.record = replace(write.record, version=version)
        await asyncio.sleep(self.seconds)
        return version


async def test_a_claim_that_is_written_too_late_begins_nothing() -> None:
    """The prober that lost its lease meanwhile finds its own claim at the server, and does not take it for leave to begin."""
    lease, clock = SlowLease(), asyncio.get_running_loop().time
    leader = KubernetesLeadership(cast(KubernetesLease, cast(Any, lease)), "a", Timing(15.0), registry(), clock)
    task = asyncio.create_task(leader.run())
    await asyncio.sleep(1.0)
    assert (first := leader.held()) is not None
    assert await leader.claim("sweep", 4.0) == first
    lease.seconds = 20.0
    assert await leader.claim("sweep", 5.0) is None
    assert leader.held() is None
    lease.seconds = 0.0
    await asyncio.sleep(60.0)
    assert leader.claimed("sweep") == 5.0
    assert (second := leader.held()) is not None
    assert second > first
    task.cancel()
    await asyncio.wait([task])
