"""When the daemon synchronises with Grafana, with which request, and how it handles failures; in virtual time with a stub."""

import asyncio
import logging
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import typer
from typer.testing import CliRunner

from prober.cli.dashboards import dashboards
from prober.config.grafana import GrafanaSpec
from prober.config.load import ConfigError
from prober.config.server import Auth
from prober.daemon.app import read_config
from prober.daemon.registry import registry
from prober.features.grafana import series as grafana_series
from prober.features.grafana.client.sync import SyncRequest, SyncResult, parse_request
from prober.features.grafana.sync import MARKS_INTERVAL_S, MAX_MARKS_PER_HOUR, MAX_PENDING_MARKS, MAX_RETRY_S, Grafana
from prober.measure.event import TargetEvent
from prober.net.clock import Clock
from prober.probing.event_log import EventLog
from prober.results.result import Result
from tests.observed import StoppedClock

SPEC = GrafanaSpec(url="http://grafana", auth=Auth(bearer_token_file="/token"))
WELL = [("LLM SLO / Overview", "same", ""), ("LLM SLO / Target", "made", "")]
CLOCK = cast(Clock, StoppedClock())


class Here:
    """The synchronisation with a history to fill, and its requests. `result` is the result of each run."""

    def __init__(
        self, spec: GrafanaSpec | None = SPEC, *, writes: bool = True, sweeps: list[Any] | None = None
    ) -> None:
        self.requests: list[SyncRequest] = []
        self.result: SyncResult | Exception = SyncResult(WELL)
        self.writes = writes
        self.event_log, self.families = EventLog(), registry()
        found = cast("list[Result]", sweeps or [])
        self.part = Grafana(self.families, self.event_log, lambda _: found, CLOCK, lambda: self.writes, self._run_sync)
        self.part.configure(spec)

    async def _run_sync(self, request: SyncRequest) -> SyncResult:
        assert parse_request(request.as_json()) == request
        self.requests.append(request)
        if isinstance(self.result, Exception):
            raise self.result
        return self.result

    def happened(self, unix_s: float, kind: Any = "engine", text: str = "restart") -> None:
        self.event_log.append(TargetEvent(unix_s, "one", kind, text))

    def value(self, declared: Any, *labels: str) -> float:
        return self.families[declared.name].value(*labels).value


async def test_dashboards_are_looked_at_at_once_each_hour_and_after_a_reload() -> None:
    """And in between never."""
    here = Here()
    for now_s in (0.0, 5.0, 3599.0):
        await here.part.run_due(now_s)
    assert [each.dashboards for each in here.requests] == [True]
    await here.part.run_due(3600.0)
    here.part.configure(SPEC)
    await here.part.run_due(3605.0)
    assert len(here.requests) == 3
    assert here.value(grafana_series.GRAFANA_FAILURES, "dashboards") == 0
    assert here.value(grafana_series.GRAFANA_SUCCESS, "dashboards") == CLOCK.unix_s()
    assert here.value(grafana_series.GRAFANA_DASHBOARDS, "current") == 2


async def test_without_a_configuration_nothing_is_synchronised() -> None:
    """No run and no series; removing the block removes the series."""
    here = Here(None)
    here.happened(1.0)
    await here.part.run_due(0.0)
    assert here.requests == []
    declared = (grafana_series.GRAFANA_FAILURES, grafana_series.GRAFANA_SUCCESS, grafana_series.GRAFANA_DASHBOARDS)
    assert not any(here.families[each.name].children for each in declared)
    here.part.configure(SPEC)
    await here.part.run_due(1.0)
    assert all(here.families[each.name].children for each in declared)
    here.part.configure(None)
    assert not any(here.families[each.name].children for each in declared)


async def test_events_become_marks_once_and_a_minute_apart() -> None:
    """Oldest first; what only comes and goes with trouble is left out."""
    here = Here(SPEC.model_copy(update={"dashboards": False}))
    here.happened(1.0, "state", "failing, was ready")
    here.happened(2.0, "engine", "version was 1, is 2")
    here.happened(3.0, "drift", "ttft of probe: alarm")
    here.happened(4.0, "diagnosis", "queueing")
    await here.part.run_due(100.0)
    here.happened(5.0)
    await here.part.run_due(100.0 + MARKS_INTERVAL_S - 1)
    await here.part.run_due(100.0 + MARKS_INTERVAL_S)
    await here.part.run_due(1000.0)
    assert [[mark.time_ms for mark in each.marks] for each in here.requests] == [[2000, 3000], [5000]]


async def test_events_are_not_marked_when_that_is_taken_back() -> None:
    """Not even those that waited for their turn."""
    here = Here()
    here.result = SyncResult(failures={"annotations": "HTTP 503"})
    here.happened(1.0)
    await here.part.run_due(0.0)
    here.part.configure(SPEC.model_copy(update={"annotations": False}))
    here.happened(2.0)
    await here.part.run_due(60.0)
    assert [len(each.marks) for each in here.requests] == [1, 0]


async def test_a_sweep_is_a_span() -> None:
    """From its beginning, which its result knows, to its end."""
    here = Here(
        sweeps=[
            SimpleNamespace(started_unix_s=7.0, ended_unix_s=8.5),
            SimpleNamespace(started_unix_s=10.0, ended_unix_s=20.5),
        ]
    )
    here.happened(20.5, "sweep", "found")
    here.happened(30.0, "sweep", "of an older result")
    await here.part.run_due(0.0)
    (request,) = here.requests
    assert [(each.time_ms, each.end_ms) for each in request.marks] == [(10_000, 20_500), (30_000, None)]


async def test_marks_are_bounded() -> None:
    """So many an hour; more wait, and when Grafana is away for long the oldest go."""
    here = Here(SPEC.model_copy(update={"dashboards": False}))
    for second in range(MAX_PENDING_MARKS + 50):
        here.happened(float(second))
    for now_s in range(0, 7200, 60):
        await here.part.run_due(float(now_s))
    made = [mark.time_ms for request in here.requests for mark in request.marks]
    assert made == [second * 1000 for second in range(50, MAX_PENDING_MARKS + 50)]
    assert [len(request.marks) for request in here.requests] == [
        MAX_MARKS_PER_HOUR,
        MAX_PENDING_MARKS - MAX_MARKS_PER_HOUR,
    ]


@pytest.mark.parametrize(
    "result", [SyncResult(failures={"dashboards": "HTTP 503", "annotations": "HTTP 503"}), OSError("it ended with 1")]
)
async def test_a_failure_is_a_series_a_line_and_a_later_try(
    result: SyncResult | Exception, caplog: pytest.LogCaptureFixture
) -> None:
    """Each wait twice as long up to an hour; nothing is lost, and one success ends it."""
    here = Here()
    here.result = result
    here.happened(1.0)
    tried = []
    for now_s in range(0, 20_000, 5):
        before = len(here.requests)
        await here.part.run_due(float(now_s))
        tried += [now_s] * (len(here.requests) - before)
    gaps = [later - earlier for earlier, later in pairwise(tried)]
    assert gaps[:7] == [30, 60, 120, 240, 480, 960, 1920]
    assert set(gaps[7:]) == {MAX_RETRY_S}
    assert here.value(grafana_series.GRAFANA_FAILURES, "dashboards") == len(tried)
    assert here.value(grafana_series.GRAFANA_FAILURES, "annotations") == len(tried)
    assert "synchronisation of dashboards failed, next try in 30 s" in caplog.text
    here.result = SyncResult(WELL)
    await here.part.run_due(30_000.0)
    assert [mark.time_ms for mark in here.requests[-1].marks] == [1000]
    here.happened(2.0)
    await here.part.run_due(30_000.0 + MARKS_INTERVAL_S)
    assert [mark.time_ms for mark in here.requests[-1].marks] == [2000]


async def test_a_duty_fails_for_itself() -> None:
    """Annotations that are refused do not hold the dashboards back."""
    here = Here()
    here.result = SyncResult(WELL, failures={"annotations": "HTTP 403"})
    here.happened(1.0)
    await here.part.run_due(0.0)
    await here.part.run_due(30.0)
    assert [(each.dashboards, len(each.marks)) for each in here.requests] == [(True, 1), (False, 1)]


async def test_only_the_prober_that_writes_goes() -> None:
    """What the others saw is dropped, since it has seen it too."""
    here = Here(writes=False)
    here.happened(1.0)
    await here.part.run_due(0.0)
    assert here.requests == []
    here.writes = True
    here.happened(2.0)
    await here.part.run_due(5.0)
    assert [mark.time_ms for mark in here.requests[0].marks] == [2000]


async def test_losing_the_lease_cancels_a_running_synchronisation() -> None:
    """In its middle; what was to be done stays to be done, and is no failure."""
    here, begun, ended = Here(), asyncio.Event(), asyncio.Event()

    async def endless(request: SyncRequest) -> SyncResult:
        begun.set()
        try:
            await asyncio.get_running_loop().create_future()
            raise AssertionError("nobody answers")
        finally:
            ended.set()

    part = Grafana(here.families, here.event_log, lambda _: [], CLOCK, lambda: here.writes, endless)
    part.configure(SPEC)
    looking = asyncio.create_task(part.run_due(0.0))
    await begun.wait()
    here.writes = False
    part.lost()
    await asyncio.wait_for(looking, 10)
    assert ended.is_set()
    assert here.value(grafana_series.GRAFANA_FAILURES, "dashboards") == 0
    begun.clear()
    await part.run_due(5.0)
    assert not begun.is_set()
    here.writes = True
    looking = asyncio.create_task(part.run_due(10.0))
    await begun.wait()
    part.lost()
    await looking


async def test_only_the_first_shard_keeps_the_dashboards() -> None:
    """Each marks the events of its own targets."""
    here = Here()
    here.part = Grafana(here.families, here.event_log, lambda _: [], CLOCK, lambda: True, here._run_sync, first=False)
    here.part.configure(SPEC)
    await here.part.run_due(0.0)
    assert here.requests == []
    here.happened(1.0)
    await here.part.run_due(5.0)
    assert [(each.dashboards, len(each.marks)) for each in here.requests] == [(False, 1)]


async def test_a_dashboard_that_people_edited_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    """And again when something else is left alone."""
    here = Here()
    here.result = SyncResult([("Overview", "edited", "somebody else saved it"), ("Target", "updated", "")])
    for now_s in (0.0, 3600.0):
        await here.part.run_due(now_s)
    warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert [record.getMessage() for record in warnings] == [
        "grafana: dashboard 'Overview' not replaced (edited): somebody else saved it"
    ]
    assert here.value(grafana_series.GRAFANA_DASHBOARDS, "edited") == 1
    assert here.value(grafana_series.GRAFANA_DASHBOARDS, "current") == 1
    assert here.value(grafana_series.GRAFANA_FAILURES, "dashboards") == 0


@pytest.mark.parametrize("spec", [SPEC, SPEC.model_copy(update={"url": "http://other"})], ids=["the same", "another"])
async def test_a_reload_discards_the_result_of_a_running_synchronisation(spec: GrafanaSpec) -> None:
    """The result belongs to the old configuration; the new one is used at once."""
    here = Here()

    async def reloaded(request: SyncRequest) -> SyncResult:
        here.requests.append(request)
        here.part.configure(spec)
        return SyncResult(failures={"dashboards": "gone"})

    here.part._run_sync = reloaded
    await here.part.run_due(0.0)
    here.part._run_sync = here._run_sync
    await here.part.run_due(1.0)
    assert [each.spec for each in here.requests] == [SPEC, spec]
    assert here.value(grafana_series.GRAFANA_FAILURES, "dashboards") == 0


def test_without_the_client_library_the_configuration_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("prober.features.grafana.client.find_spec", lambda name: None)
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
