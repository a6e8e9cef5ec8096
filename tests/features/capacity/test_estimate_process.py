"""The process of an estimate fails: a sweep keeps what it measured, says why it has no answer, and the next one works."""

import asyncio
import json
import os
import pickle
import select
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from prober.cli import experiment
from prober.cli import sweep as command
from prober.cli.exit_codes import ExitCode
from prober.features.capacity.estimate_process import EstimateFailed, estimate_in_process
from prober.features.capacity.sweep_record import Record
from prober.mock.delays import constant
from prober.mock.service import Behaviour, Settings
from prober.results.capacity import Capacity
from prober.results.result_file import from_json
from prober.results.stop_reason import ending
from tests.features.capacity.stage import staged
from tests.virtual import FIRST_FREE_PORT, VirtualClock, VirtualLoop, running

KILLED = "kill -9 $$"
ENGINE = Settings(behaviour=Behaviour(ttft=constant(0.1), itl=constant(0.01), slots=1))  # some 7 requests a second
Become = Callable[[str], None]


@pytest.fixture
def become(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Become:
    """Let the process of an estimate run these lines of shell instead."""
    program = tmp_path / "program"
    monkeypatch.setattr(sys, "executable", str(program))

    def write(lines: str) -> None:
        program.write_text(f"#!/bin/sh\n{lines}\n")
        program.chmod(0o700)

    return write


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        (KILLED, r"killed by signal 9; out of memory\? .* raise the limit of memory"),
        ("kill -11 $$", r"killed by signal 11 \(it wrote no error\): please report"),
        ("echo Traceback >&2; echo MemoryError >&2; exit 1", r"failed with exit code 1 \(MemoryError\): please report"),
        (None, r"could not be started \(.*No such file.*\): raise the limits of memory and processes"),
    ],
)
async def test_the_reason_names_how_the_process_ended_and_the_remedy(
    lines: str | None, reason: str, become: Become
) -> None:
    """Killed, failed, or not started."""
    if lines is not None:
        become(lines)
    with pytest.raises(EstimateFailed, match=reason):
        await estimate_in_process(Record((), (), ()), 1)


async def test_a_cancelled_estimate_leaves_no_process(tmp_path: Path, become: Become) -> None:
    """The prober ends meanwhile, and does not wait for it."""
    started = tmp_path / "started"
    os.mkfifo(started)
    become(f"cat > /dev/null; echo $$ > {started}; exec sleep 60")
    estimate = asyncio.create_task(estimate_in_process(Record((), (), ()), 1))
    process = os.pidfd_open(int(await asyncio.to_thread(started.read_text)))
    estimate.cancel()
    with pytest.raises(asyncio.CancelledError):
        await estimate
    ended, _, _ = await asyncio.to_thread(select.select, [process], [], [], 30.0)
    os.close(process)
    assert ended


@pytest.mark.virtual_time
async def test_a_daemon_keeps_a_sweep_without_an_estimate_and_sweeps_again(
    tmp_path: Path, become: Become, caplog: pytest.LogCaptureFixture
) -> None:
    """Result, series, event and log line have the reason; the capacity shown before stays; the next sweep finds one."""
    caplog.set_level("INFO")
    async with running(ENGINE) as url, staged(url, folder=tmp_path, least="5/s", threshold="300ms") as stage:
        await asyncio.sleep(1.0)  # of virtual time: until the store is read
        stage.demand.show_capacity([Capacity("quick", "found", 80.0, 90.0, 99.0)])
        become(KILLED)
        stage.sweeps.start("t")
        while not stage.is_swept():  # noqa: ASYNC110 -- an end has no event
            await asyncio.sleep(1.0)  # of virtual time
        assert stage.value("llmslo_sweeps_total", "no_estimate") == 1
        assert stage.value("llmslo_sweep_stops_total", "no_estimate") == 1
        assert stage.value("llmslo_capacity_requests_per_second", "quick", "estimate") == 90
        (result,) = stage.sweeps.results("t")
        reason = ending(result.stop, result.stop_detail)
        assert reason.startswith(
            "no estimate could be made: the process of the estimate was killed by signal 9; out of memory?"
        )
        assert "before it, the sending ended: " in reason
        assert result.capacities == ()
        assert sum(each.sent for each in result.stages) > 0
        assert reason in stage.events.latest("t")[0].text
        assert reason in caplog.text
        answer = tmp_path / "answer"
        answer.write_bytes(pickle.dumps((Capacity("quick", "found", 70.0, 80.0, 90.0),)))
        become(f"cat > {tmp_path}/record; cat {answer}")
        stage.sweeps.start("t")
        while not stage.value("llmslo_sweeps_total", "found"):  # noqa: ASYNC110
            await asyncio.sleep(1.0)
        assert stage.value("llmslo_capacity_requests_per_second", "quick", "estimate") == 80


Sweep = Callable[..., Any]


@pytest.fixture
def sweep(monkeypatch: pytest.MonkeyPatch) -> Sweep:
    """`prober sweep` with these further options, in virtual time against ENGINE."""

    def run(sweeps: Coroutine[Any, Any, Any]) -> Any:
        async def beside_an_engine() -> Any:
            monkeypatch.setattr(experiment, "Clock", VirtualClock)
            async with running(ENGINE):
                return await sweeps

        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            return runner.run(beside_an_engine())

    def invoke(*options: str) -> Any:
        app = typer.Typer()
        app.command()(command.sweep)
        plan = ("--slo", "ttft<300ms:90%", "--min-rate", "5/s", "--warm-up", "0")
        shape = ("--prompt-tokens", "20", "--output-tokens", "4")
        return CliRunner().invoke(app, [f"http://127.0.0.1:{FIRST_FREE_PORT}", *plan, *shape, *options])

    monkeypatch.setattr(asyncio, "run", run)
    return invoke


@pytest.mark.parametrize("as_json", [False, True])
def test_the_command_shows_and_saves_what_it_measured_and_exits_with_6(
    tmp_path: Path, become: Become, sweep: Sweep, *, as_json: bool
) -> None:
    """Stages, the reason, and the file of the result with its requests."""
    become(KILLED)
    output = tmp_path / "result.json"
    done = sweep("--output", str(output), *(["--json"] if as_json else []))
    assert done.exit_code == ExitCode.NO_ESTIMATE, done.output
    result = from_json(output.read_text(), str(output))
    assert result.stop == "no_estimate"
    assert len(result.requests) == sum(stage.sent for stage in result.stages) > 0
    if as_json:
        assert json.loads(done.stdout) == json.loads(output.read_text())
    else:
        assert "ramp 5/s" in done.stdout
        assert "It ended: no estimate could be made: the process of the estimate was killed by signal 9" in done.stdout
