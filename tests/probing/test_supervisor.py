"""Tasks that fail are started again, counted, and leave others alone."""

import asyncio
import logging

import pytest

from prober.daemon.registry import registry
from prober.probing import series
from prober.probing.supervisor import MAX_RESTART_S, SETTLED_S, Supervisor

pytestmark = pytest.mark.virtual_time


class Work:
    """Runs for `lives_s` seconds each time, and ends with an exception; the last time it returns."""

    def __init__(self, *lives_s: float, problem: type[BaseException] = RuntimeError) -> None:
        self.lives_s, self.problem = list(lives_s), problem
        self.started_s: list[float] = []

    async def __call__(self) -> None:
        self.started_s.append(asyncio.get_running_loop().time())
        if not self.lives_s:
            return
        await asyncio.sleep(self.lives_s.pop(0))
        raise self.problem("of the test")


async def test_a_task_that_fails_is_started_again_with_a_growing_pause(caplog: pytest.LogCaptureFixture) -> None:
    families, work = registry(), Work(*[0.0] * 9)
    with caplog.at_level(logging.ERROR):
        await Supervisor(families).start("diagnosis", work, "target=one")
    pauses = [after - before for before, after in zip(work.started_s, work.started_s[1:], strict=False)]
    assert pauses == pytest.approx([1, 2, 4, 8, 16, 32, 60, 60, 60])
    assert pauses[-1] == pytest.approx(MAX_RESTART_S)
    assert families.value(series.TASK_FAILURES, "diagnosis").value == 9
    assert caplog.records[0].getMessage() == (
        "task=diagnosis target=one failed and is started again in 1 s; please report this"
    )
    assert caplog.records[0].exc_info is not None


async def test_the_pause_is_short_again_after_a_long_life() -> None:
    work = Work(0.0, 0.0, SETTLED_S + 1, 0.0)
    await Supervisor(registry()).start("gpus", work)
    ended_s = [work.started_s[0], work.started_s[1], work.started_s[2] + SETTLED_S + 1, work.started_s[3]]
    assert [after - end for end, after in zip(ended_s, work.started_s[1:], strict=True)] == pytest.approx([1, 2, 1, 2])


async def test_an_end_that_is_asked_for_is_no_failure() -> None:
    families = registry()
    returned = Work()
    await Supervisor(families).start("gpus", returned)
    assert len(returned.started_s) == 1
    sleeping = Supervisor(families).start("gpus", Work(3600.0))
    await asyncio.sleep(1)
    sleeping.cancel()
    await asyncio.gather(sleeping, return_exceptions=True)
    assert families.value(series.TASK_FAILURES, "gpus").value == 0


async def test_a_cancellation_inside_the_work_is_a_failure() -> None:
    families, work = registry(), Work(1.0, problem=asyncio.CancelledError)
    await Supervisor(families).start("gpus", work)
    assert len(work.started_s) == 2
    assert families.value(series.TASK_FAILURES, "gpus").value == 1


async def test_a_task_that_waits_to_start_again_can_be_cancelled() -> None:
    failing = Supervisor(registry()).start("gpus", Work(*[0.0] * 20))
    await asyncio.sleep(30)
    failing.cancel()
    await asyncio.gather(failing, return_exceptions=True)
    assert failing.cancelled()


async def test_a_neighbour_does_not_notice() -> None:
    families = registry()
    supervisor = Supervisor(families)
    ticks: list[float] = []

    async def neighbour() -> None:
        while True:
            ticks.append(asyncio.get_running_loop().time())
            await asyncio.sleep(1)

    well = supervisor.start("grafana", neighbour)
    ill = supervisor.start("gpus", Work(*[0.0] * 30))
    await asyncio.sleep(100.5)
    assert len(ticks) == 101
    assert families.value(series.TASK_FAILURES, "grafana").value == 0
    for task in (well, ill):
        task.cancel()
