"""Targets that begin together: one event and one line of the log for all that answer, and one each for what is unusual."""

import logging

import pytest

from tests.daemon.test_fleet import QUICK, Watched, specs, watched
from tests.serving import until
from tests.virtual import running

pytestmark = pytest.mark.virtual_time
DOWN = "url: 'http://127.0.0.1:1/v1', model: m, starting_timeout: 0s, rate: 1/s"


def events(seen: Watched) -> list[tuple[str, str]]:
    """(target, first words) of each event, oldest first."""
    return [(event.target, event.text.partition(": refused")[0][:60]) for event in seen.events.latest()[::-1]]


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "ready" in record.getMessage()]


async def test_many_targets_that_become_ready_are_one_event(caplog: pytest.LogCaptureFixture) -> None:
    """With the first names and how many more, as soon as the last has answered or failed; a failure keeps its own event."""
    caplog.set_level(logging.INFO)
    async with running(QUICK) as url, watched() as seen:
        many = [f"name: t{index:02}, url: '{url}', rate: 1/h" for index in range(12)]
        await seen.reconcile(specs(*many, f"name: down, {DOWN}"), 1.0)
        await until(lambda: len(seen.events.latest()) == 2)
        ready, failing = sorted(events(seen))
        assert failing[0] == "down"
        assert failing[1].startswith("failing, was pending: connect_refused")
        assert ready == ("", "12 targets are ready: t00, t01, t02 and 9 more")
        assert lines(caplog) == [ready[1]]


async def test_who_answers_late_has_an_event_of_its_own(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the time is up the others are told; who is missing then stands out."""
    monkeypatch.setattr("prober.probing.fleet.FIRST_ANSWERS_S", 2.0)
    caplog.set_level(logging.INFO)
    async with running(QUICK) as url, watched() as seen:
        many = [f"name: t{index:02}, url: '{url}', rate: 1/h" for index in range(11)]
        await seen.reconcile(specs(*many, f"name: late, url: '{url}', rate: 1/h"), 1.0)
        late = seen.fleet.runners["late"]
        late.pause(1.0)
        await until(lambda: len(seen.events.latest()) == 2)
        late.pause(None)
        late._launches["probe"](seen.clock.now_ns())
        await until(lambda: len(seen.events.latest()) == 4)
        told = ["11 targets are ready: t00, t01, t02 and 8 more", "ready, was pending"]
        assert [text for _, text in events(seen) if "ready" in text] == told
        assert lines(caplog) == [told[0], "target=late is ready, was pending"]


async def test_a_few_targets_are_told_apart(caplog: pytest.LogCaptureFixture) -> None:
    """Up to ten, at once; and one that is added to many later."""
    caplog.set_level(logging.INFO)
    async with running(QUICK) as url, watched() as seen:
        many = [f"name: t{index:02}, url: '{url}', rate: 1/h" for index in range(11)]
        await seen.reconcile(specs(*many[:10]), 1.0)
        await until(lambda: len(seen.events.latest()) == 10)
        await seen.reconcile(specs(*many), 1.0)
        await until(lambda: len(seen.events.latest()) == 11)
        assert {text for _, text in events(seen)} == {"ready, was pending"}
        assert sorted(target for target, _ in events(seen)) == [f"t{index:02}" for index in range(11)]
        assert len(lines(caplog)) == 11
