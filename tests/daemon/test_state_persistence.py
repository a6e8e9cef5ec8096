"""States in the store while its disk takes nothing, and after."""

import asyncio
import logging
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from prober.daemon.registry import FEATURES, registry
from prober.daemon.series import STORAGE_FAILURES
from prober.daemon.state_persistence import ANSWERED, EVENTS, AnsweredTargets, StatePersistence
from prober.measure.target_state import TargetEvent
from prober.probing.feature import Stateful
from prober.probing.history import MAX_EVENTS, EventLog
from prober.probing.target import Target
from prober.storage.saved_rows import SavedRows
from prober.storage.store import Store
from tests.config.reading import loaded
from tests.observed import shared
from tests.virtual import VirtualClock

pytestmark = pytest.mark.virtual_time


class SometimesFull(Store):
    """A store whose disk is full at times."""

    full = False

    def save(self, kind: str, items: Any, now_unix_s: float, surplus: Any = None) -> None:
        if self.full:
            raise sqlite3.OperationalError("database or disk is full")
        super().save(kind, items, now_unix_s, surplus)


def persistence(
    clock: VirtualClock, store: Store | None, events: EventLog | None = None
) -> tuple[StatePersistence, Target]:
    """Of one target, which has answered."""
    specs = loaded("targets: [{name: t, url: 'http://h'}]")
    families, events, target = registry(), events or EventLog(), Target(specs.targets[0], clock)
    target.has_answered = True
    common = shared(families, clock, events=events, store=store)
    parts: dict[str, Stateful] = {ANSWERED: AnsweredTargets(lambda: [target], SavedRows()), EVENTS: events}
    parts |= {feature.saved: next(iter(feature.monitors(common))) for feature in FEATURES if feature.saved}
    return StatePersistence(parts, store, families[STORAGE_FAILURES.name].value(), clock), target


async def test_the_end_of_failed_writes_is_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """And their beginning each time."""
    caplog.set_level(logging.INFO)
    clock, store = VirtualClock(), SometimesFull(str(tmp_path))
    states, _ = persistence(clock, store)
    await states.save(store)
    assert not caplog.messages
    store.full = True
    for _ in range(2):
        await states.save(store)
    store.full = False
    for _ in range(2):
        await states.save(store)
    told = [message for message in caplog.messages if message.startswith("answered states ")]
    assert [message.partition(", ")[0] for message in told] == [
        "answered states cannot be saved",
        "answered states are saved again",
    ]
    store.close()
    clock.close()


async def test_what_a_store_has_is_not_replaced_by_what_was_learnt_without_it(tmp_path: Path) -> None:
    """What it lacks is added."""
    clock, store = VirtualClock(), Store(str(tmp_path))
    without, _ = persistence(clock, None)
    await without.add(store)
    assert store.load("answered") == {"all": b'{"t": "h:80"}'}
    store.save("answered", [("all", b'{"before": "h:81"}')], clock.unix_s())
    await without.add(store)
    assert store.load("answered") == {"all": b'{"before": "h:81"}'}
    store.close()
    clock.close()


def event(number: int) -> TargetEvent:
    return TargetEvent(1_700_000_000.0 + number, "t", "state", f"event {number}")


async def test_an_event_survives_a_kill_at_once(tmp_path: Path) -> None:
    """Events are in the store without a regular save; the latest MAX_EVENTS stay, over any number of restarts."""
    clock, store, events = VirtualClock(), Store(str(tmp_path)), EventLog()
    saving = asyncio.create_task(persistence(clock, store, events)[0].save_changes(EVENTS))
    for number in range(10):
        events.append(event(number))
    await asyncio.sleep(1)
    saving.cancel()  # a kill: nothing else is saved
    later = EventLog(SavedRows(store.load(EVENTS)))
    assert later.latest() == [event(number) for number in reversed(range(10))]
    states, _ = persistence(clock, store, later)
    for number in range(10, 10 + MAX_EVENTS):
        later.append(event(number))
    await states.save(store)
    assert len(store.load(EVENTS)) == MAX_EVENTS
    assert EventLog(SavedRows(store.load(EVENTS))).latest() == later.latest()
    store.close()
    clock.close()


async def test_an_event_that_the_disk_refused_is_saved_with_the_next_states(tmp_path: Path) -> None:
    """A full disk delays it."""
    clock, store, events = VirtualClock(), SometimesFull(str(tmp_path)), EventLog()
    states, _ = persistence(clock, store, events)
    saving = asyncio.create_task(states.save_changes(EVENTS))
    store.full = True
    events.append(event(1))
    await asyncio.sleep(1)
    store.full = False
    assert store.load(EVENTS) == {}
    await states.save(store)
    assert len(store.load(EVENTS)) == 1
    saving.cancel()
    store.close()
    clock.close()


def test_an_event_that_cannot_be_read_hides_no_other(caplog: pytest.LogCaptureFixture) -> None:
    """It is logged."""
    events = EventLog()
    events.append(event(1))
    rows = dict(events.states()) | {"b": b"{}", "c": b'{"unix_s": "x", "target": "t", "kind": "state", "text": ""}'}
    assert EventLog(SavedRows(rows)).latest() == [event(1)]
    assert len([message for message in caplog.messages if "event of an earlier process" in message]) == 2
