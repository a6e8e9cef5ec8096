"""Spending is saved before it happens."""

import asyncio
import sqlite3
import threading
from collections.abc import Iterable
from pathlib import Path

import pytest

from prober.config.load import load
from prober.daemon.registry import registry
from prober.features.budget.monitor import BUDGET, Ledger
from prober.measure.engines import DIALECTS
from prober.net.clock import Clock
from prober.probing.supervisor import Supervisor
from prober.probing.target import Target
from prober.storage.saved_rows import SavedRows
from prober.storage.store import Store
from tests.virtual import VirtualClock

pytestmark = pytest.mark.virtual_time


class Full(Store):
    """A store whose disk is full."""

    full = True

    def save(self, kind: str, items: Iterable[tuple[str, bytes]], now_unix_s: float) -> None:
        if self.full:
            raise sqlite3.OperationalError("database or disk is full")
        super().save(kind, items, now_unix_s)


def target(clock: Clock, limit: int = 50_000_000, name: str = "t") -> Target:
    text = f"targets: [{{name: {name}, url: 'http://h', budget: {{tokens_per_day: {limit}}}}}]"
    return Target(load(text, source="c", engines=DIALECTS, environment={}, read=str).targets[0], clock)


async def test_a_request_is_covered_before_it_leaves_and_found_after_a_kill(tmp_path: Path) -> None:
    """Another process reads at least the reserved amount, and at most the margin more; after a stop it is exact."""
    clock, store = VirtualClock(), Store(str(tmp_path))
    ledger, spending = Ledger(store), target(clock)
    ledger.start(Supervisor(registry()))
    ledger.enter(spending)
    for _ in range(20):
        assert spending.reserve(10_000, 90_000) is not None
        await spending.covered(clock.now_ns() + 60 * 10**9)
        after = target(clock)
        Ledger(saved=SavedRows(store.load(BUDGET))).enter(after)
        over = after.budgets["tokens"].spent(clock.now_ns()) - spending.budgets["tokens"].spent(clock.now_ns())
        assert 0 <= over <= spending.budgets["tokens"].margin
    await ledger.close()
    after = target(clock)
    Ledger(saved=SavedRows(store.load(BUDGET))).enter(after)
    assert after.budgets["tokens"].spent(clock.now_ns()) == 2_000_000
    store.close()
    clock.close()


async def test_a_full_disk_holds_no_request_back_and_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Every failure is counted; what could not be written is written when there is room."""
    clock, store, failures = (
        VirtualClock(),
        Full(str(tmp_path)),
        registry()["llmslo_storage_write_failures_total"].value(),
    )
    ledger, spending = Ledger(store, failures), target(clock)
    ledger.start(Supervisor(registry()))
    ledger.enter(spending)
    for _ in range(3):
        assert spending.reserve(10_000, 90_000) is not None
        await asyncio.wait_for(spending.covered(clock.now_ns() + 3600 * 10**9), 30)
    assert failures.value >= 1
    assert caplog.text.count("cannot be saved") == 1
    store.full = False
    await ledger.close()
    assert set(store.load(BUDGET)) == {"t"}
    store.close()
    clock.close()


class Slow(Full):
    """Full too, and it takes until it is let go to say so."""

    def __init__(self, folder: str) -> None:
        super().__init__(folder)
        self.tries, self.let_go = 0, threading.Event()

    def save(self, kind: str, items: Iterable[tuple[str, bytes]], now_unix_s: float) -> None:
        self.tries += 1
        self.let_go.wait(30)
        super().save(kind, items, now_unix_s)


@pytest.mark.real_time
async def test_who_comes_while_a_write_fails_is_held_back_no_longer_than_by_that(tmp_path: Path) -> None:
    """Not until the next try, seconds later: a target whose configuration was changed goes on being probed."""
    clock, store = Clock(), Slow(str(tmp_path))
    ledger, spending = Ledger(store), target(clock)
    ledger.start(Supervisor(registry()))
    ledger.enter(spending)
    while not store.tries:  # noqa: ASYNC110 - a thread does it
        await asyncio.sleep(0)
    assert not await ledger.written(0.1), "the disk hangs"
    waiting = asyncio.create_task(ledger.written(60))
    await asyncio.sleep(0)
    store.let_go.set()
    assert not await waiting
    assert store.tries == 1
    await ledger.close()
    store.close()
    clock.close()


async def test_a_target_that_goes_and_comes_has_not_forgotten() -> None:
    """Discovery may lose a target for a minute: its budget is no fresh one. A new limit is for what was spent already."""
    clock, ledger = VirtualClock(), Ledger()
    first, again = target(clock), target(clock, 60_000_000)
    ledger.enter(first)
    assert first.reserve(10_000, 90_000) is not None
    ledger.leave(first)
    ledger.enter(again)
    assert again.budgets["tokens"].spent(clock.now_ns()) == 100_000
    assert again.budgets["tokens"].limit == 60_000_000
    clock.close()


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"{}", b'{"boot": "", "monotonic_ns": 1, "unix_s": 0, "budgets": {"tokens": {}}}', b"\xff"]
)
async def test_what_cannot_be_read_is_told_and_begun_anew(caplog: pytest.LogCaptureFixture, data: bytes) -> None:
    """With the target's name."""
    clock = VirtualClock()
    restored = target(clock)
    Ledger(saved=SavedRows({"t": data})).enter(restored)
    assert restored.budgets["tokens"].spent(clock.now_ns()) == 0
    assert "target=t: its saved budgets cannot be read" in caplog.text
    clock.close()


async def test_what_was_spent_without_a_store_is_added_to_what_is_in_it(tmp_path: Path) -> None:
    """The store could not be used for a time. Of a target that it does not know it has the amount spent meanwhile."""
    clock, store = VirtualClock(), Store(str(tmp_path))
    earlier, ledger, known, new = target(clock), Ledger(store), target(clock), target(clock, name="u")
    ledger.start(Supervisor(registry()))
    ledger.enter(earlier)
    assert earlier.reserve(10_000, 90_000) is not None
    await ledger.close()
    without = Ledger()
    for spending in (known, new):
        without.enter(spending)
        assert spending.reserve(1_000, 4_000) is not None
    await without.close()
    await without.merge(store, SavedRows(store.load(BUDGET)))
    after = {name: target(clock, name=name) for name in ("t", "u")}
    for name, amount in (("t", 105_000), ("u", 5_000)):
        Ledger(saved=SavedRows(store.load(BUDGET))).enter(after[name])
        assert after[name].budgets["tokens"].spent(clock.now_ns()) == amount
    store.close()
    clock.close()
