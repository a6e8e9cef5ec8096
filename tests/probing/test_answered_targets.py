"""What a prober knows after a restart of targets that refuse connections: those that answered before are down, not starting."""

import json
import logging

import pytest

from prober.daemon.state_persistence import EXPECTED_SAVES, ROW
from prober.measure.target_state import TargetState
from tests.daemon.test_fleet import QUICK, specs, watched
from tests.probing.test_first_answer import state
from tests.processes import free_port
from tests.serving import until
from tests.virtual import running

pytestmark = pytest.mark.virtual_time
REFUSED = "llmslo_probe_failures_total"


async def test_a_restart_beside_a_dead_engine_does_not_wait_for_it() -> None:
    """It is failing as it was; a neighbour that has never answered is starting, and so is one that answered at another address."""
    ports = {name: free_port() for name in ("dead", "moved", "new")}
    targets = [f"name: {name}, url: 'http://127.0.0.1:{port}'" for name, port in ports.items()]
    row = json.dumps({"dead": f"127.0.0.1:{ports['dead']}", "moved": f"127.0.0.1:{ports['new']}"}).encode()
    async with watched(answered={ROW: row}) as seen:
        await seen.reconcile(specs(*targets), 1.0)
        await until(lambda: state(seen, "dead") == TargetState.FAILING)
        await until(lambda: state(seen, "moved") == state(seen, "new") == TargetState.STARTING)
        assert seen.count(REFUSED, "dead", "probe", "connect_refused") >= 3
        (event,) = seen.events.latest("dead")
        assert event.text.endswith("it has answered before, so this is an outage and no start")
        assert seen.count(REFUSED, "moved") == seen.count(REFUSED, "new") == 0


async def test_what_is_written_is_what_answered_and_is_still_probed() -> None:
    """Not what refuses, and not what was removed: at its address something new may be starting when the prober is."""
    port = free_port()
    stays, refuses = "name: stays, url: '{}'", f"name: refuses, url: 'http://127.0.0.1:{port}'"
    async with running(QUICK) as url, watched() as seen:
        assert list(seen.answered.states()) == [], "nothing is known yet, so what was written stays"
        await seen.reconcile(specs(stays.format(url), f"name: goes, url: '{url}'", refuses), 1.0)
        await until(lambda: seen.probes("stays") >= 1 and seen.probes("goes") >= 1)
        await until(lambda: state(seen, "refuses") == TargetState.STARTING)
        ((_, row),) = seen.answered.states()
        assert set(json.loads(row)) == {"stays", "goes"}
        await seen.reconcile(specs(stays.format(url), refuses), 1.0)
        ((_, row),) = seen.answered.states()
        assert json.loads(row) == {"stays": url.removeprefix("http://").rstrip("/")}
    async with watched(answered={ROW: row}) as seen:
        await seen.reconcile(specs(stays.format(url), refuses), 1.0)
        await until(lambda: state(seen, "stays") == TargetState.FAILING)
        assert list(seen.answered.states()) == [(ROW, row)], "a second restart knows it too"


async def test_a_target_that_is_removed_and_added_again_begins_anew() -> None:
    """What an earlier process knew is said once."""
    port = free_port()
    target = f"name: a, url: 'http://127.0.0.1:{port}'"
    async with watched(answered={ROW: json.dumps({"a": f"127.0.0.1:{port}"}).encode()}) as seen:
        await seen.reconcile(specs(target), 1.0)
        await until(lambda: state(seen, "a") == TargetState.FAILING)
        await seen.reconcile((), 1.0)
        await seen.reconcile(specs(target), 1.0)
        await until(lambda: state(seen, "a") == TargetState.STARTING)


async def test_a_target_whose_discovery_is_late_is_remembered_for_an_hour() -> None:
    """Over a second restart: an API server may be away for both. A neighbour that is configured is there at once."""
    port = free_port()
    row = json.dumps({"late": f"127.0.0.1:{port}", "never": "127.0.0.1:1"}).encode()
    async with running(QUICK) as url, watched(answered={ROW: row}) as seen:
        await seen.reconcile(specs(f"name: here, url: '{url}'"), 1.0)
        await until(lambda: seen.probes("here") >= 1)
        rows = [json.loads(row) for _ in range(EXPECTED_SAVES + 1) for _, row in seen.answered.states()]
    assert all(row.keys() == {"here", "late", "never"} for row in rows[:EXPECTED_SAVES])
    assert rows[-1].keys() == {"here"}, "what an earlier process had is not kept for ever"
    async with watched(answered={ROW: json.dumps(rows[0]).encode()}) as seen:
        await seen.reconcile(specs(f"name: late, url: 'http://127.0.0.1:{port}'"), 1.0)
        await until(lambda: state(seen, "late") == TargetState.FAILING)


@pytest.mark.parametrize("row", [b"{", b"[]", b"1", b"\xff", b'{"a": {"b": 1}}', b""])
async def test_an_odd_row_is_told_and_costs_nothing_else(row: bytes, caplog: pytest.LogCaptureFixture) -> None:
    """The target is starting, as one of which nothing is known."""
    port = free_port()
    with caplog.at_level(logging.ERROR):
        async with watched(answered={ROW: row}) as seen:
            await seen.reconcile(specs(f"name: a, url: 'http://127.0.0.1:{port}'"), 1.0)
            await until(lambda: state(seen, "a") == TargetState.STARTING)
    assert "which targets have answered before cannot be read" in caplog.text
