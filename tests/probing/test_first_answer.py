"""Targets that do not listen yet, in a fleet: not counted, shown with their bound, probed as soon as they answer."""

import asyncio

import pytest

from prober.measure.target_state import TargetState
from prober.web.views import Views
from tests.daemon.test_fleet import QUICK, Watched, specs, watched
from tests.processes import free_port
from tests.serving import until
from tests.virtual import running

pytestmark = pytest.mark.virtual_time
STATE, UNTIL = "llmslo_target_state", "llmslo_target_starting_until_timestamp_seconds"


def state(seen: Watched, name: str) -> str:
    """The one state that the series say."""
    found = [key[1] for key, value in seen.families[STATE].children.items() if key[0] == name and value.value]  # type: ignore[union-attr]
    return found[0] if found else ""


async def test_a_target_that_does_not_listen_yet_counts_nothing_and_its_neighbour_goes_on() -> None:
    """Its series say since when and until when; those of a target that answers say nothing of the kind."""
    port = free_port()
    async with running(QUICK) as url, watched() as seen:
        await seen.reconcile(specs(f"name: late, url: 'http://127.0.0.1:{port}'", f"name: well, url: '{url}'"), 1.0)
        await until(lambda: seen.probes("well") >= 20 and state(seen, "late") == TargetState.STARTING)
        assert seen.probes("late") == seen.count("llmslo_probe_failures_total", "late") == 0
        assert 1190 < seen.count(UNTIL, "late") - seen.clock.unix_s() < 1201
        assert ("well",) not in seen.families[UNTIL].children
        view = next(each for each in await Views(seen.fleet, seen.sweeps).targets() if each.name == "late")
        answer = view.starting
        assert answer is not None
        assert answer.until - answer.since == pytest.approx(1200, abs=1)
        assert "refuses connections since" in answer.detail
        assert "counted as failures after 20m, from" in answer.detail
        async with running(QUICK, port):
            await until(lambda: seen.probes("late") >= 3)
            await until(lambda: state(seen, "late") == TargetState.READY)
            assert ("late",) not in seen.families[UNTIL].children
        assert seen.count("llmslo_probe_failures_total", "well") == 0


async def test_a_rare_probe_is_sent_as_soon_as_the_engine_listens() -> None:
    """One an hour does not wait for its next due time."""
    port = free_port()
    async with watched() as seen:
        await seen.reconcile(specs(f"name: late, url: 'http://127.0.0.1:{port}', rate: 1/h"), 1.0)
        await until(lambda: state(seen, "late") == TargetState.STARTING)
        async with running(QUICK, port):
            await until(lambda: seen.probes("late") == 1)
        assert seen.count("llmslo_probe_failures_total", "late") == 0


async def test_past_the_bound_it_is_failing() -> None:
    """Also where its probes are rare nothing says `starting` any more, and no bound is shown that has passed."""
    where = f"url: 'http://127.0.0.1:{free_port()}', starting_timeout: 300ms"
    async with watched() as seen:
        await seen.reconcile(specs(f"name: often, {where}", f"name: rare, {where}, rate: 1/h"), 1.0)
        await until(lambda: state(seen, "often") == state(seen, "rare") == TargetState.STARTING)
        await until(lambda: state(seen, "often") == TargetState.FAILING and state(seen, "rare") == TargetState.PENDING)
        assert seen.count("llmslo_probe_failures_total", "often", "probe", "connect_refused") >= 3
        assert not seen.families[UNTIL].children


async def test_a_reload_neither_begins_the_start_anew_nor_forgets_an_answer() -> None:
    """A changed target keeps its bound, also one written as another path of the same server; another server begins its own."""
    port = free_port()
    changed = f"name: a, url: 'http://127.0.0.1:{port}/v1', max_in_flight: 50"
    async with watched() as seen:
        await seen.reconcile(specs(f"name: a, url: 'http://127.0.0.1:{port}'"), 1.0)
        await until(lambda: state(seen, "a") == TargetState.STARTING)
        since = seen.fleet.runners["a"].target.waiting_since_ns
        await seen.reconcile(specs(f"name: a, url: 'http://127.0.0.1:{port}', max_in_flight: 60"), 1.0)
        assert seen.fleet.runners["a"].target.waiting_since_ns == since
        await until(lambda: state(seen, "a") == TargetState.STARTING)
        assert seen.count(UNTIL, "a") > 0
        async with running(QUICK, port):
            await until(lambda: state(seen, "a") == TargetState.READY)
        before = seen.count("llmslo_probe_failures_total", "a", "probe", "connect_refused")
        await seen.reconcile(specs(changed), 1.0)
        await until(lambda: seen.count("llmslo_probe_failures_total", "a", "probe", "connect_refused") >= before + 3)
        await until(lambda: state(seen, "a") == TargetState.FAILING)
        await seen.reconcile(specs(f"name: a, url: 'http://127.0.0.1:{free_port()}'"), 1.0)
        assert state(seen, "a") == TargetState.PENDING, "nothing is known of another server yet"
        await until(lambda: state(seen, "a") == TargetState.STARTING)


async def test_nothing_is_asked_of_a_paused_target() -> None:
    """It stays as it was until it is resumed."""
    port = free_port()
    async with watched() as seen:
        await seen.reconcile(specs(f"name: a, url: 'http://127.0.0.1:{port}'"), 1.0)
        await until(lambda: state(seen, "a") == TargetState.STARTING)
        line = seen.fleet.runners["a"]
        line.pause(seen.clock.unix_s())
        await until(lambda: not line._probes)
        async with running(QUICK, port):
            await asyncio.sleep(0.2)  # ten times the pause between two questions
            assert state(seen, "a") == TargetState.STARTING
            line.pause(None)
            await until(lambda: state(seen, "a") == TargetState.READY)
