"""The first seconds of the daemon, in virtual time."""

import asyncio
import json
from functools import partial
from pathlib import Path

import pytest

from prober.net.clock import BEAT_NS
from prober.web.views import Snapshots
from tests.virtual import VirtualClock, VirtualLoop
from tests.virtual_daemon import MIDNIGHT, Daemon


@pytest.mark.virtual_time
@pytest.mark.usefixtures("garbage_collector")
async def test_a_busy_start_is_no_distrust(tmp_path: Path) -> None:
    """A standstill of the first seconds, in which everything is loaded, is not told; a later one is, for ten seconds."""
    loop, trusted = asyncio.get_running_loop(), dict[int, bool]()
    assert isinstance(loop, VirtualLoop)

    async def watch(snapshots: Snapshots) -> None:
        for second in range(25):
            trusted[second] = json.loads(await snapshots.take())["trusted"]
            await asyncio.sleep(0.5)
            if second in (1, 8):
                loop.stand_still(2.0)
            await asyncio.sleep(0.5)

    daemon = Daemon(tmp_path, "targets: [{url: 'http://192.0.2.1'}]", watch, partial(VirtualClock, MIDNIGHT, BEAT_NS))
    async with daemon.running():
        await asyncio.sleep(40)
    assert [second for second, is_trusted in trusted.items() if not is_trusted] == list(range(9, 19))
