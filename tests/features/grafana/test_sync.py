"""When the daemon synchronises with Grafana, with which request, and how it handles failures; in virtual time with a stub."""

import asyncio
import logging
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import typer
from typer.testing import CliRunner

from prober.cli.dashboards import dashboards
from prober.config.configuration import GrafanaSpec
from prober.config.problems import ConfigError
from prober.config.server import Auth
from prober.daemon.configuration_file import read_config
from prober.daemon.registry import registry
from prober.features.grafana import series as grafana_series
from prober.features.grafana.sync import (
    MARKS_INTERVAL_S,
    MAX_MARKS_PER_HOUR,
    MAX_PENDING_MARKS,
    MAX_RETRY_S,
    Grafana,
    SyncRequest,
    SyncResult,
)
from prober.measure.target_state import TargetEvent
from prober.net.clock import Clock
from prober.probing.history import EventLog
from prober.results.result import Result
from tests.observed import StoppedClock
from tests.processes import HANG_S

SPEC = GrafanaSpec(url="http://grafana", auth=Auth(bearer_token_file="/token"))
PUSHED = [("LLM SLO / Overview", "unchanged", ""), ("LLM SLO / Target", "created", "")]
CLOCK = cast(Clock, StoppedClock())


class Scene:
    """The synchronisation with a history to fill, and its requests. `result` is the result of each run."""

    def __init__(
        self, spec: GrafanaSpec | None = SPEC, *, writes: bool = True, sweeps: list[Any] | None = None
    ) -> None:
        self.requests: list[SyncRequest] = []
        self.result = SyncResult(PUSHED)
        self.writes = writes
        self.event_log, self.families = EventLog(), registry()
        results = cast("list[Result]", sweeps or [])
        self.part = Grafana(
            self.families, self.event_log, lambda _: results, CLOCK, lambda: self.writes, self._run_sync
        )
        self.part.configure(spec)

    def _run_sync(self, request: SyncRequest) -> SyncResult:
        self.requests.append(request)
        return self.result

    def happened(self, unix_s: float, kind: Any = "engine", text: str = "restart") -> None:
        self.event_log.append(TargetEvent(unix_s, "one", kind, text))

    def value(self, declared: Any, *labels: str) -> float:
        return self.families[declared.name].value(*labels).value


async def test_dashboards_are_synchronised_at_the_start_hourly_and_after_a_reload() -> None:
    """Not in between."""
    scene = Scene()
    for now_s in (0.0, 5.0, 3599.0):
        await scene.part.run_due(now_s)
    assert [request.dashboards for request in scene.requests] == [True]
    await scene.part.run_due(3600.0)
    scene.part.configure(SPEC)
    await scene.part.run_due(3605.0)
    assert len(scene.requests) == 3
    assert scene.value(grafana_series.GRAFANA_FAILURES, "dashboards") == 0
    assert scene.value(grafana_series.GRAFANA_SUCCESS, "dashboards") == CLOCK.unix_s()
    assert scene.value(grafana_series.GRAFANA_DASHBOARDS, "current") == 2


async def test_without_a_configuration_nothing_is_synchronised() -> None:
    """No run and no series; removing the block removes the series."""
    scene = Scene(None)
    scene.happened(1.0)
    await scene.part.run_due(0.0)
    assert scene.requests == []
    declared = (grafana_series.GRAFANA_FAILURES, grafana_series.GRAFANA_SUCCESS, grafana_series.GRAFANA_DASHBOARDS)
    assert not any(scene.families[series.name].children for series in declared)
    scene.part.configure(SPEC)
    await scene.part.run_due(1.0)
    assert all(scene.families[series.name].children for series in declared)
    scene.part.configure(None)
    assert not any(scene.families[series.name].children for series in declared)


async def test_events_become_marks_once_and_a_minute_apart() -> None:
    """Oldest first, without changes of state and diagnoses."""
    scene = Scene(SPEC.model_copy(update={"dashboards": False}))
    scene.happened(1.0, "state", "failing, was ready")
    scene.happened(2.0, "engine", "version was 1, is 2")
    scene.happened(3.0, "drift", "ttft of probe: alarm")
    scene.happened(4.0, "diagnosis", "queueing")
    await scene.part.run_due(100.0)
    scene.happened(5.0)
    await scene.part.run_due(100.0 + MARKS_INTERVAL_S - 1)
    await scene.part.run_due(100.0 + MARKS_INTERVAL_S)
    await scene.part.run_due(1000.0)
    assert [[mark.time_ms for mark in request.marks] for request in scene.requests] == [[2000, 3000], [5000]]


async def test_events_are_not_marked_after_annotations_are_disabled() -> None:
    """Pending ones neither."""
    scene = Scene()
    scene.result = SyncResult(failures={"annotations": "HTTP 503"})
    scene.happened(1.0)
    await scene.part.run_due(0.0)
    scene.part.configure(SPEC.model_copy(update={"annotations": False}))
    scene.happened(2.0)
    await scene.part.run_due(60.0)
    assert [len(request.marks) for request in scene.requests] == [1, 0]


async def test_a_sweep_is_a_span() -> None:
    """From the start in its result to its end."""
    scene = Scene(
        sweeps=[
            SimpleNamespace(started_unix_s=7.0, ended_unix_s=8.5),
            SimpleNamespace(started_unix_s=10.0, ended_unix_s=20.5),
        ]
    )
    scene.happened(20.5, "sweep", "found")
    scene.happened(30.0, "sweep", "of an older result")
    await scene.part.run_due(0.0)
    (request,) = scene.requests
    assert [(mark.time_ms, mark.end_ms) for mark in request.marks] == [(10_000, 20_500), (30_000, None)]


async def test_marks_are_bounded() -> None:
    """At most MAX_MARKS_PER_HOUR; more wait, and of more than MAX_PENDING_MARKS the oldest are dropped."""
    scene = Scene(SPEC.model_copy(update={"dashboards": False}))
    for second in range(MAX_PENDING_MARKS + 50):
        scene.happened(float(second))
    for now_s in range(0, 7200, 60):
        await scene.part.run_due(float(now_s))
    created = [mark.time_ms for request in scene.requests for mark in request.marks]
    assert created == [second * 1000 for second in range(50, MAX_PENDING_MARKS + 50)]
    assert [len(request.marks) for request in scene.requests] == [
        MAX_MARKS_PER_HOUR,
        MAX_PENDING_MARKS - MAX_MARKS_PER_HOUR,
    ]


async def test_a_failure_is_counted_logged_and_retried(caplog: pytest.LogCaptureFixture) -> None:
    """With exponential backoff up to an hour; no mark is lost, and a success ends the backoff."""
    scene = Scene()
    scene.result = SyncResult(failures={"dashboards": "HTTP 503", "annotations": "HTTP 503"})
    scene.happened(1.0)
    tried = []
    for now_s in range(0, 20_000, 5):
        before = len(scene.requests)
        await scene.part.run_due(float(now_s))
        tried += [now_s] * (len(scene.requests) - before)
    gaps = [later - earlier for earlier, later in pairwise(tried)]
    assert gaps[:7] == [30, 60, 120, 240, 480, 960, 1920]
    assert set(gaps[7:]) == {MAX_RETRY_S}
    assert scene.value(grafana_series.GRAFANA_FAILURES, "dashboards") == len(tried)
    assert scene.value(grafana_series.GRAFANA_FAILURES, "annotations") == len(tried)
    assert "synchronisation of dashboards failed, next try in 30 s" in caplog.text
    scene.result = SyncResult(PUSHED)
    await scene.part.run_due(30_000.0)
    assert [mark.time_ms for mark in scene.requests[-1].marks] == [1000]
    scene.happened(2.0)
    await scene.part.run_due(30_000.0 + MARKS_INTERVAL_S)
    assert [mark.time_ms for mark in scene.requests[-1].marks] == [2000]


async def test_the_tasks_fail_independently() -> None:
    """Refused annotations do not affect the dashboards."""
    scene = Scene()
    scene.result = SyncResult(PUSHED, failures={"annotations": "HTTP 403"})
    scene.happened(1.0)
    await scene.part.run_due(0.0)
    await scene.part.run_due(30.0)
    assert [(request.dashboards, len(request.marks)) for request in scene.requests] == [(True, 1), (False, 1)]


async def test_only_the_replica_that_may_write_synchronises() -> None:
    """Other replicas drop their marks, because the writing one has the same events."""
    scene = Scene(writes=False)
    scene.happened(1.0)
    await scene.part.run_due(0.0)
    assert scene.requests == []
    scene.writes = True
    scene.happened(2.0)
    await scene.part.run_due(5.0)
    assert [mark.time_ms for mark in scene.requests[0].marks] == [2000]


@pytest.mark.parametrize("how", ["the lease is lost", "a reload", "a reload with another configuration"])
async def test_a_running_synchronisation_is_stopped(how: str) -> None:
    """Its result counts for nothing, neither as a failure nor as done: the next one is due at once."""
    scene = Scene()
    spec = SPEC.model_copy(update={"url": "http://other"}) if "another" in how else SPEC
    loop = asyncio.get_running_loop()

    def until_stopped(request: SyncRequest) -> SyncResult:
        scene.requests.append(request)
        loop.call_soon_threadsafe(scene.part.stop if "lease" in how else partial(scene.part.configure, spec))
        assert request.stopping.wait(HANG_S)
        return SyncResult(failures={"dashboards": "stopped"})

    scene.part._run_sync = until_stopped
    await scene.part.run_due(0.0)
    scene.part._run_sync = scene._run_sync
    await scene.part.run_due(5.0)
    assert [request.spec for request in scene.requests] == [SPEC, spec]
    assert scene.value(grafana_series.GRAFANA_FAILURES, "dashboards") == 0


async def test_the_end_of_the_prober_stops_a_running_synchronisation() -> None:
    scene, called = Scene(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def until_stopped(request: SyncRequest) -> SyncResult:
        scene.requests.append(request)
        loop.call_soon_threadsafe(called.set)
        assert request.stopping.wait(HANG_S)
        return SyncResult()

    scene.part._run_sync = until_stopped
    running = asyncio.create_task(scene.part.run_due(0.0))
    await called.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert scene.requests[0].stopping.is_set()


async def test_only_the_first_shard_writes_the_dashboards() -> None:
    """Every shard marks the events of its own targets."""
    scene = Scene()
    scene.part = Grafana(
        scene.families, scene.event_log, lambda _: [], CLOCK, lambda: True, scene._run_sync, first=False
    )
    scene.part.configure(SPEC)
    await scene.part.run_due(0.0)
    assert scene.requests == []
    scene.happened(1.0)
    await scene.part.run_due(5.0)
    assert [(request.dashboards, len(request.marks)) for request in scene.requests] == [(False, 1)]


async def test_an_edited_dashboard_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """Again only if the set of dashboards that are not replaced changes."""
    scene = Scene()
    scene.result = SyncResult([("Overview", "edited", "somebody else saved it"), ("Target", "updated", "")])
    for now_s in (0.0, 3600.0):
        await scene.part.run_due(now_s)
    warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert [record.getMessage() for record in warnings] == [
        "grafana: dashboard 'Overview' not replaced (edited): somebody else saved it"
    ]
    assert scene.value(grafana_series.GRAFANA_DASHBOARDS, "edited") == 1
    assert scene.value(grafana_series.GRAFANA_DASHBOARDS, "current") == 1
    assert scene.value(grafana_series.GRAFANA_FAILURES, "dashboards") == 0


def test_without_the_client_library_the_configuration_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("prober.features.grafana.find_spec", lambda name: None)
    token, config = tmp_path / "token", tmp_path / "prober.yaml"
    token.write_text("secret")
    config.write_text(
        f"grafana: {{url: http://127.0.0.1:1, auth: {{bearer_token_file: {token}}}}}\n"
        "targets: [{url: http://127.0.0.1:2, rate: 1/s}]\n"
    )
    with pytest.raises(ConfigError, match=r"grafana: .*pip install 'llm-slo-prober\[grafana\]'"):
        read_config(str(config))
    app = typer.Typer()
    app.command()(dashboards)
    pushed = CliRunner().invoke(app, ["push", "--url", "http://127.0.0.1:1", "--token-file", str(token)])
    assert pushed.exit_code == 2
    assert "pip install" in pushed.stderr
