"""Log lines and events of a target whose state changes all the time."""

from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from prober.measure.outcome import Outcome
from prober.measure.result import ProbeResult
from prober.measure.target_state import TargetState
from prober.measure.timeline import Timeline
from prober.probing.history import EventLog
from prober.probing.target_runner import TargetRunner
from tests.observed import StoppedClock
from tests.probing.test_probe import spec

HOUR_S = 3600


class Clock(StoppedClock):
    """Nothing is due by it."""

    def run_due(self) -> None: ...


def lines_of(states: dict[float, TargetState], caplog: pytest.LogCaptureFixture) -> tuple[list[str], int]:
    """(log lines on the state of a target that has these states at these times, with a probe a second; number of events)."""
    caplog.set_level("INFO")
    clock, events = Clock(), EventLog()
    context: Any = SimpleNamespace(
        clock=clock, has_answered_before=lambda _: False, budgets=Mock(), features=(), keys={}, forget=Mock(), events=events
    )  # fmt: skip
    runner = TargetRunner(spec("http://h", model="m").model_copy(update={"name": "t"}), context)
    result = ProbeResult("t", "w", "", 0.0, Outcome.OK, "", Timeline(0))
    for at_s in range(HOUR_S):
        clock.ns = at_s * 10**9
        runner.target.state = states.get(at_s, runner.target.state)
        runner._log_changes(result)
    return [line for line in caplog.messages if line.startswith("target=t is ")], len(events.latest())


def test_flapping_has_at_most_60_lines_an_hour(caplog: pytest.LogCaptureFixture) -> None:
    """And as many events; the first changes are logged at once, and then some in each five minutes."""
    both = (TargetState.READY, TargetState.FAILING)
    lines, events = lines_of({float(at_s): both[at_s // 3 % 2] for at_s in range(0, HOUR_S, 3)}, caplog)
    assert 30 <= len(lines) <= 60
    assert events == len(lines)
    assert lines[:2] == ["target=t is ready, was pending", "target=t is failing, was ready"]


def test_the_state_after_flapping_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Within five minutes of its last change."""
    both = (TargetState.READY, TargetState.FAILING)
    lines, _ = lines_of({float(at_s): both[at_s // 3 % 2] for at_s in range(0, 64, 3)} | {64.0: both[1]}, caplog)
    assert lines[-1].startswith("target=t is failing")


def test_changes_now_and_then_are_all_logged(caplog: pytest.LogCaptureFixture) -> None:
    """An outage every ten minutes has both its lines."""
    states = {
        600.0 * outage + later: state
        for outage in range(6)
        for later, state in ((0, TargetState.FAILING), (90, TargetState.READY))
    }
    lines, _ = lines_of(states, caplog)
    assert len(lines) == 12
