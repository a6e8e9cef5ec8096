"""When the daemon visits Grafana, with what, and what becomes of failures; in virtual time, the visit itself is a stand-in."""

import asyncio
import logging
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import typer
from typer.testing import CliRunner

from prober.cli.dashboards import dashboards
from prober.config.load import ConfigError
from prober.config.specs import GrafanaSpec
from prober.daemon.app import read_config
from prober.daemon.registry import registry
from prober.features.grafana import series as grafana_series
from prober.features.grafana.client.visit import Came, Order, order_of
from prober.features.grafana.sync import LONGEST_RETRY_S, MARKS_AN_HOUR, MARKS_EVERY_S, MARKS_KEPT, Grafana
from prober.measure.event import TargetEvent
from prober.probing.event_log import EventLog
from prober.results.result import Result

SPEC = GrafanaSpec(
    "http://grafana", "/token", None, "LLM SLO prober", None, dashboards=True, annotations=True, interval_s=3600
)
WELL = [("LLM SLO / Overview", "same", ""), ("LLM SLO / Target", "made", "")]


class Here:
    """A daemon's part with a history to fill, and the orders it gave. `came` is what each visit comes to."""

    def __init__(
        self, spec: GrafanaSpec | None = SPEC, *, writes: bool = True, sweeps: list[Any] | None = None
    ) -> None:
        self.orders: list[Order] = []
        self.came: Came | Exception = Came(WELL)
        self.writes = writes
        self.event_log, self.families = EventLog(), registry()
        found = cast("list[Result]", sweeps or [])
        self.part = Grafana(self.families, self.event_log, lambda _: found, lambda: self.writes, self._visited)
        self.part.configure(spec)

    async def _visited(self, order: Order) -> Came:
        assert order_of(order.as_json()) == order
        self.orders.append(order)
        if isinstance(self.came, Exception):
            raise self.came
        return self.came

    def happened(self, unix_s: float, kind: Any = "engine", text: str = "restart") -> None:
        self.event_log.append(TargetEvent(unix_s, "one", kind, text))

    def value(self, declared: Any, *labels: str) -> float:
        return self.families[declared.name].value(*labels).value


async def test_dashboards_are_looked_at_at_once_each_hour_and_after_a_reload() -> None:
    """And in between never."""
    here = Here()
    for now_s in (0.0, 5.0, 3599.0):
        await here.part.look(now_s)
    assert [each.dashboards for each in here.orders] == [True]
    await here.part.look(3600.0)
    here.part.configure(SPEC)
    await here.part.look(3605.0)
    assert len(here.orders) == 3
    assert here.value(grafana_series.GRAFANA_FAILURES, "dashboards") == 0
    assert here.value(grafana_series.GRAFANA_SUCCESS, "dashboards") > 1e9
    assert here.value(grafana_series.GRAFANA_DASHBOARDS, "current") == 2


async def test_without_a_configuration_there_is_nothing() -> None:
    """No visit, no series; and none are left when the block is taken away."""
    here = Here(None)
    here.happened(1.0)
    await here.part.look(0.0)
    assert here.orders == []
    declared = (grafana_series.GRAFANA_FAILURES, grafana_series.GRAFANA_SUCCESS, grafana_series.GRAFANA_DASHBOARDS)
    assert not any(here.families[each.name].children for each in declared)
    here.part.configure(SPEC)
    await here.part.look(1.0)
    assert all(here.families[each.name].children for each in declared)
    here.part.configure(None)
    assert not any(here.families[each.name].children for each in declared)


async def test_events_become_marks_once_and_a_minute_apart() -> None:
    """Oldest first; what only comes and goes with trouble is left out."""
    here = Here(replace(SPEC, dashboards=False))
    here.happened(1.0, "state", "failing, was ready")
    here.happened(2.0, "engine", "version was 1, is 2")
    here.happened(3.0, "drift", "ttft of probe: alarm")
    here.happened(4.0, "diagnosis", "queueing")
    await here.part.look(100.0)
    here.happened(5.0)
    await here.part.look(100.0 + MARKS_EVERY_S - 1)
    await here.part.look(100.0 + MARKS_EVERY_S)
    await here.part.look(1000.0)
    assert [[mark.time_ms for mark in each.marks] for each in here.orders] == [[2000, 3000], [5000]]


async def test_events_are_not_marked_when_that_is_taken_back() -> None:
    """Not even those that waited for their turn."""
    here = Here()
    here.came = Came(failures={"annotations": "HTTP 503"})
    here.happened(1.0)
    await here.part.look(0.0)
    here.part.configure(replace(SPEC, annotations=False))
    here.happened(2.0)
    await here.part.look(60.0)
    assert [len(each.marks) for each in here.orders] == [1, 0]


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
    await here.part.look(0.0)
    (order,) = here.orders
    assert [(each.time_ms, each.end_ms) for each in order.marks] == [(10_000, 20_500), (30_000, None)]


async def test_marks_are_bounded() -> None:
    """So many an hour; more wait, and when Grafana is away for long the oldest go."""
    here = Here(replace(SPEC, dashboards=False))
    for second in range(MARKS_KEPT + 50):
        here.happened(float(second))
    for now_s in range(0, 7200, 60):
        await here.part.look(float(now_s))
    made = [mark.time_ms for order in here.orders for mark in order.marks]
    assert made == [second * 1000 for second in range(50, MARKS_KEPT + 50)]
    assert [len(order.marks) for order in here.orders] == [MARKS_AN_HOUR, MARKS_KEPT - MARKS_AN_HOUR]


@pytest.mark.parametrize(
    "came", [Came(failures={"dashboards": "HTTP 503", "annotations": "HTTP 503"}), OSError("it ended with 1")]
)
async def test_a_failure_is_a_series_a_line_and_a_later_try(
    came: Came | Exception, caplog: pytest.LogCaptureFixture
) -> None:
    """Each wait twice as long up to an hour; nothing is lost, and one success ends it."""
    here = Here()
    here.came = came
    here.happened(1.0)
    tried = []
    for now_s in range(0, 20_000, 5):
        before = len(here.orders)
        await here.part.look(float(now_s))
        tried += [now_s] * (len(here.orders) - before)
    gaps = [later - earlier for earlier, later in pairwise(tried)]
    assert gaps[:7] == [30, 60, 120, 240, 480, 960, 1920]
    assert set(gaps[7:]) == {LONGEST_RETRY_S}
    assert here.value(grafana_series.GRAFANA_FAILURES, "dashboards") == len(tried)
    assert here.value(grafana_series.GRAFANA_FAILURES, "annotations") == len(tried)
    assert "not in step, the next try is in 30 s" in caplog.text
    here.came = Came(WELL)
    await here.part.look(30_000.0)
    assert [mark.time_ms for mark in here.orders[-1].marks] == [1000]
    here.happened(2.0)
    await here.part.look(30_000.0 + MARKS_EVERY_S)
    assert [mark.time_ms for mark in here.orders[-1].marks] == [2000]


async def test_a_duty_fails_for_itself() -> None:
    """Annotations that are refused do not hold the dashboards back."""
    here = Here()
    here.came = Came(WELL, failures={"annotations": "HTTP 403"})
    here.happened(1.0)
    await here.part.look(0.0)
    await here.part.look(30.0)
    assert [(each.dashboards, len(each.marks)) for each in here.orders] == [(True, 1), (False, 1)]


async def test_only_the_prober_that_writes_goes() -> None:
    """What the others saw is dropped, since it has seen it too."""
    here = Here(writes=False)
    here.happened(1.0)
    await here.part.look(0.0)
    assert here.orders == []
    here.writes = True
    here.happened(2.0)
    await here.part.look(5.0)
    assert [mark.time_ms for mark in here.orders[0].marks] == [2000]


async def test_a_visit_ends_when_this_prober_writes_no_more() -> None:
    """In its middle; what was to be done stays to be done, and is no failure."""
    here, begun, ended = Here(), asyncio.Event(), asyncio.Event()

    async def endless(order: Order) -> Came:
        begun.set()
        try:
            await asyncio.get_running_loop().create_future()
            raise AssertionError("nobody answers")
        finally:
            ended.set()

    part = Grafana(here.families, here.event_log, lambda _: [], lambda: here.writes, endless)
    part.configure(SPEC)
    looking = asyncio.create_task(part.look(0.0))
    await begun.wait()
    here.writes = False
    part.lost()
    await asyncio.wait_for(looking, 10)
    assert ended.is_set()
    assert here.value(grafana_series.GRAFANA_FAILURES, "dashboards") == 0
    begun.clear()
    await part.look(5.0)
    assert not begun.is_set()
    here.writes = True
    looking = asyncio.create_task(part.look(10.0))
    await begun.wait()
    part.lost()
    await looking


async def test_only_the_first_shard_keeps_the_dashboards() -> None:
    """Each marks the events of its own targets."""
    here = Here()
    here.part = Grafana(here.families, here.event_log, lambda _: [], lambda: True, here._visited, first=False)
    here.part.configure(SPEC)
    await here.part.look(0.0)
    assert here.orders == []
    here.happened(1.0)
    await here.part.look(5.0)
    assert [(each.dashboards, len(each.marks)) for each in here.orders] == [(False, 1)]


async def test_a_dashboard_that_people_edited_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    """And again when something else is left alone."""
    here = Here()
    here.came = Came([("Overview", "edited", "somebody else saved it"), ("Target", "updated", "")])
    for now_s in (0.0, 3600.0):
        await here.part.look(now_s)
    warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert [record.getMessage() for record in warnings] == [
        "grafana: dashboard 'Overview' not replaced (edited): somebody else saved it"
    ]
    assert here.value(grafana_series.GRAFANA_DASHBOARDS, "edited") == 1
    assert here.value(grafana_series.GRAFANA_DASHBOARDS, "current") == 1
    assert here.value(grafana_series.GRAFANA_FAILURES, "dashboards") == 0


@pytest.mark.parametrize("spec", [SPEC, replace(SPEC, url="http://other")], ids=["the same", "another"])
async def test_a_reload_during_a_visit_counts(spec: GrafanaSpec) -> None:
    """What came of a visit by the old configuration is nothing to the new one, which is gone by at once."""
    here = Here()

    async def reloaded(order: Order) -> Came:
        here.orders.append(order)
        here.part.configure(spec)
        return Came(failures={"dashboards": "gone"})

    here.part._visited = reloaded
    await here.part.look(0.0)
    here.part._visited = here._visited
    await here.part.look(1.0)
    assert [each.spec for each in here.orders] == [SPEC, spec]
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
