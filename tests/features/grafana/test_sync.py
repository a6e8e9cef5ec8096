"""When the daemon synchronises with Grafana, and how it handles failures; in virtual time, with a stub of the calls."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
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
from prober.features.grafana import GrafanaError
from prober.features.grafana import series as grafana_series
from prober.features.grafana.push import PushResult
from prober.features.grafana.sync import INTERVAL_S, Grafana, Mark
from prober.measure.target_state import TargetEvent
from prober.net.clock import Clock
from prober.probing.history import EventLog
from prober.results.result import Result
from tests.observed import StoppedClock

pytestmark = pytest.mark.virtual_time
CLOCK = cast(Clock, StoppedClock())

SPEC = GrafanaSpec(url="http://grafana", auth=Auth(bearer_token_file="/token"))
PUSHED = [PushResult("o", "LLM SLO / Overview", "unchanged"), PushResult("t", "LLM SLO / Target", "created")]


class Scene:
    """The synchronisation with a history to fill, and the calls of Grafana, by second. `fail` raises from them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, sweeps: list[Any] | None = None, first: bool = True) -> None:
        self.pushes: list[int] = []
        self.marks: list[tuple[int, list[int]]] = []
        self.results, self.problem, self.writes = PUSHED, "", True
        self.event_log, self.families = EventLog(), registry()
        results = cast("list[Result]", sweeps or [])
        self.part = Grafana(
            self.families, self.event_log, lambda _: results, CLOCK, lambda: self.writes, tuple if first else None
        )

        async def call(work: Any, spec: GrafanaSpec, *marks: list[tuple[TargetEvent, Mark]]) -> Any:
            second = round(asyncio.get_running_loop().time() - self.began_s)
            if marks:
                self.marks.append((second, [mark["time_from"] for _, mark in marks[0]]))
                if not self.problem:
                    self.part._marked = marks[0][-1][0]
            else:
                self.pushes.append(second)
            if self.problem:
                raise GrafanaError(self.problem)
            return self.results

        monkeypatch.setattr("prober.features.grafana.sync.asyncio.to_thread", call)

    @asynccontextmanager
    async def running(self, spec: GrafanaSpec | None = SPEC) -> AsyncIterator[None]:
        self.part.configure(spec)
        self.began_s = asyncio.get_running_loop().time()
        task = asyncio.create_task(self.part.run())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def happened(self, unix_s: float, kind: Any = "engine", text: str = "restart") -> None:
        self.event_log.append(TargetEvent(unix_s, "one", kind, text))

    def value(self, declared: Any, *labels: str) -> float:
        return self.families[declared.name].value(*labels).value

    def has_series(self) -> bool:
        declared = (grafana_series.GRAFANA_FAILURES, grafana_series.GRAFANA_SUCCESS, grafana_series.GRAFANA_DASHBOARDS)
        return any(self.families[series.name].children for series in declared)


async def test_dashboards_are_synchronised_at_the_start_hourly_and_after_a_reload(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scene = Scene(monkeypatch)
    async with scene.running():
        await asyncio.sleep(3700)
        scene.part.configure(SPEC)
        await asyncio.sleep(1)
    assert scene.pushes == [0, 3600, 3700]
    assert scene.value(grafana_series.GRAFANA_FAILURES, "dashboards") == 0
    assert scene.value(grafana_series.GRAFANA_SUCCESS, "dashboards") > 0
    assert scene.value(grafana_series.GRAFANA_DASHBOARDS, "current") == 2


async def test_without_a_configuration_nothing_is_synchronised(monkeypatch: pytest.MonkeyPatch) -> None:
    """No call and no series; removing the block removes the series."""
    scene = Scene(monkeypatch)
    scene.happened(1.0)
    async with scene.running(None):
        await asyncio.sleep(100)
        assert (scene.pushes, scene.marks, scene.has_series()) == ([], [], False)
        scene.part.configure(SPEC)
        await asyncio.sleep(100)
        assert scene.has_series()
        scene.part.configure(None)
        await asyncio.sleep(100)
        assert not scene.has_series()


async def test_events_become_marks_once_and_half_a_minute_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Oldest first, without changes of state and diagnoses, and without those of before the start."""
    scene = Scene(monkeypatch)
    scene.happened(0.5)
    async with scene.running():
        await asyncio.sleep(1)
        scene.happened(1.0, "state", "failing, was ready")
        scene.happened(2.0, "engine", "version was 1, is 2")
        scene.happened(3.0, "drift", "ttft of probe: alarm")
        scene.happened(4.0, "diagnosis", "queueing")
        await asyncio.sleep(30)
        scene.happened(5.0)
        await asyncio.sleep(1000)
    assert scene.marks == [(30, [2000, 3000]), (60, [5000])]


async def test_events_are_not_marked_if_annotations_are_disabled(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(monkeypatch)
    async with scene.running(SPEC.model_copy(update={"annotations": False})):
        await asyncio.sleep(1)
        scene.happened(1.0)
        await asyncio.sleep(100)
    assert (scene.pushes, scene.marks) == ([0], [])


async def test_a_sweep_is_a_span() -> None:
    """From the start in its result to its end; another event is a moment."""
    swept = TargetEvent(20.5, "one", "sweep", "found")
    results = [
        SimpleNamespace(started_unix_s=7.0, ended_unix_s=8.5),
        SimpleNamespace(started_unix_s=10.0, ended_unix_s=20.5),
    ]
    part = Grafana(registry(), EventLog(), lambda _: cast("Any", results), CLOCK, lambda: True, None)
    for event, span in ((swept, (10_000, 20_500)), (replace(swept, unix_s=30.0), (30_000, None))):
        mark = part._mark(event)
        assert (mark["time_from"], mark["time_to"]) == span


async def test_a_failure_is_counted_logged_once_and_retried(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Every half minute; no mark is lost."""
    scene = Scene(monkeypatch)
    scene.problem = "HTTP 503"
    async with scene.running():
        await asyncio.sleep(1)
        scene.happened(1.0)
        await asyncio.sleep(99)
        assert scene.pushes == [0, 30, 60, 90]
        assert scene.value(grafana_series.GRAFANA_FAILURES, "dashboards") == 4
        assert scene.value(grafana_series.GRAFANA_FAILURES, "annotations") == 3
        assert caplog.text.count("synchronisation of dashboards fails, and is tried every 30 s: HTTP 503") == 1
        scene.problem = ""
        await asyncio.sleep(30)
        assert (scene.pushes[-1], scene.marks[-1]) == (120, (120, [1000]))
        scene.happened(2.0)
        await asyncio.sleep(INTERVAL_S + 1)
        assert scene.marks[-1][1] == [2000]


async def test_only_the_replica_that_may_write_synchronises(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another one drops its marks, because the writing one has the same events."""
    scene = Scene(monkeypatch)
    scene.writes = False
    scene.happened(1.0)
    async with scene.running():
        await asyncio.sleep(INTERVAL_S + 1)
        assert (scene.pushes, scene.marks) == ([], [])
        scene.writes = True
        scene.happened(2.0)
        await asyncio.sleep(INTERVAL_S + 1)
    assert [times for _, times in scene.marks] == [[2000]]


async def test_only_the_first_shard_writes_the_dashboards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every shard marks the events of its own targets."""
    scene = Scene(monkeypatch, first=False)
    async with scene.running():
        await asyncio.sleep(1)
        scene.happened(1.0)
        await asyncio.sleep(INTERVAL_S)
    assert (scene.pushes, scene.marks) == ([], [(30, [1000])])


async def test_an_edited_dashboard_is_logged_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Again only if the set of dashboards that are not replaced changes; one that is refused is a failure."""
    scene = Scene(monkeypatch)
    edited = PushResult("o", "Overview", "edited", "somebody else saved it")
    scene.results = [edited, PushResult("t", "Target", "updated")]
    async with scene.running():
        await asyncio.sleep(3700)
        warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
        assert [record.getMessage() for record in warnings] == [
            "grafana: dashboard 'Overview' not replaced (edited): somebody else saved it"
        ]
        assert scene.value(grafana_series.GRAFANA_DASHBOARDS, "edited") == 1
        assert scene.value(grafana_series.GRAFANA_DASHBOARDS, "current") == 1
        assert scene.value(grafana_series.GRAFANA_FAILURES, "dashboards") == 0
        scene.results = [PushResult("o", "Overview", "failed", "HTTP 403")]
        await asyncio.sleep(3600)
        assert scene.value(grafana_series.GRAFANA_DASHBOARDS, "failed") == 1
        assert scene.value(grafana_series.GRAFANA_FAILURES, "dashboards") >= 1


@pytest.mark.real_time
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
