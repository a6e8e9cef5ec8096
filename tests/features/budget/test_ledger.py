"""Amounts that targets have spent, for the next process."""

import pytest

from prober.config.load import load
from prober.features.budget.monitor import Ledger
from prober.measure.engines import DIALECTS
from prober.net.clock import Clock
from prober.probing.target import Target
from prober.storage.saved_rows import SavedRows
from tests.virtual import VirtualClock

pytestmark = pytest.mark.virtual_time


def target(clock: Clock, limit: int = 50_000_000, name: str = "t") -> Target:
    text = f"targets: [{{name: {name}, url: 'http://h', budget: {{tokens_per_day: {limit}}}}}]"
    return Target(load(text, source="c", engines=DIALECTS, environment={}, read=str).targets[0], clock)


async def test_amounts_are_saved_and_found_after_a_kill() -> None:
    """Only rows that have changed are saved each second; what the next process reads is exact."""
    clock, ledger = VirtualClock(), Ledger()
    spending, idle = target(clock), target(clock, name="idle")
    for entering in (spending, idle):
        ledger.enter(entering)
    assert [key for key, _ in ledger.changed_states()] == ["t", "idle"]
    assert spending.reserve(10_000, 90_000) is not None
    saved = dict(ledger.changed_states())
    assert set(saved) == {"t"}
    assert list(ledger.changed_states()) == []
    after = target(clock)
    Ledger(SavedRows(saved)).enter(after)
    assert after.budgets["tokens"].spent(clock.now_ns()) == 100_000
    assert [key for key, _ in ledger.states()] == ["t", "idle"]
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
    "data", [b"", b"[]", b"{}", b'{"boot": "", "monotonic_ns": 1, "unix_s": 0, "budgets": {"tokens": 3}}', b"\xff"]
)
async def test_what_cannot_be_read_is_told_and_begun_anew(caplog: pytest.LogCaptureFixture, data: bytes) -> None:
    """With the target's name."""
    clock = VirtualClock()
    restored = target(clock)
    Ledger(SavedRows({"t": data})).enter(restored)
    assert restored.budgets["tokens"].spent(clock.now_ns()) == 0
    assert "target=t: its saved budgets cannot be read" in caplog.text
    clock.close()


async def test_what_was_spent_without_a_store_is_added_to_what_is_in_it() -> None:
    """The store could not be used for a time. Of a target that it does not know it has the amount spent meanwhile."""
    clock = VirtualClock()
    earlier, without = Ledger(), Ledger()
    first, known, new = target(clock), target(clock), target(clock, name="u")
    earlier.enter(first)
    assert first.reserve(10_000, 90_000) is not None
    for spending in (known, new):
        without.enter(spending)
        assert spending.reserve(1_000, 4_000) is not None
    without.merge(SavedRows(dict(earlier.states())))
    again = Ledger(SavedRows(dict(without.states())))
    for name, amount in (("t", 105_000), ("u", 5_000)):
        after = target(clock, name=name)
        again.enter(after)
        assert after.budgets["tokens"].spent(clock.now_ns()) == amount
    clock.close()
