"""At most one holder, and not without one for long."""

from collections import Counter
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prober.features.replicas.lease_machine import MAX_CLAIMS, Candidate, Read, Record, Timing, Wait, Write
from tests.features.replicas.simulated_leases import Trouble, World

CALM = Trouble(drift=0, skew_s=0, dropped=0, slow=0, episodes=0)
BOUND = 0.2  # (1 + 0.2) / (1 - 0.2) is lease_s / renew_s


class Lasting(Timing):
    """Holds on for longer than others wait."""

    @property
    def renew_s(self) -> float:
        return 1.2 * self.lease_s


@settings(max_examples=150)
@given(st.integers(0, 2**32), st.integers(2, 5), st.floats(0, BOUND - 0.01))
def test_two_never_hold_it_at_one_moment(seed: int, replicas: int, drift: float) -> None:
    """Whatever is late, lost, cut off, stopped or wrongly set, while clock rates keep within the bound.

    Fencing numbers only grow and none is given to two; what is due is done once; and somebody holds it again soon.
    """
    history = World(Random(seed), replicas, Trouble(drift=drift)).run()
    assert history.two_holders == 0
    assert [number for _, number, _ in history.taken] == sorted(number for _, number, _ in history.taken)
    assert len({(number, who) for _, number, who in history.taken}) == len({number for _, number, _ in history.taken})
    assert all(times == 1 for times in Counter(due for due, _ in history.ran).values())
    assert history.last_held_s > 340


@pytest.mark.parametrize("broken", ["drift", "deadline"])
def test_the_simulation_finds_what_breaks_it(broken: str) -> None:
    """Clocks that differ by more than the bound, or a holder that lets go too late: two hold it."""
    trouble = Trouble(drift=0.4) if broken == "drift" else Trouble(drift=0.0)
    timing = Lasting if broken == "deadline" else Timing
    assert sum(World(Random(seed), 3, trouble, lambda _: timing()).run().two_holders for seed in range(40)) > 0


def test_a_holder_that_says_goodbye_is_followed_at_once_and_a_killed_one_after_the_lease() -> None:
    """Take-over within two polls, or within the lease and two polls of the last renewal."""
    timing = Timing()
    for ending, most_s in (
        (World.stop, 2 * 1.5 * timing.retry_s),
        (World.kill, timing.lease_s + 2 * 1.5 * timing.retry_s),
    ):
        for seed in range(20):
            world = World(Random(seed), 2, CALM)
            _, _, first = World(Random(seed), 2, CALM).run().taken[0]
            ending(world, first, 100.0)
            (_, _, before), (at_s, number, after) = world.run().taken
            assert (before, after, number) == (first, 1 - first, 1)
            assert at_s - 100 < most_s


def holder(rng: int = 1) -> Candidate:
    """A candidate that holds the lease from time 0."""
    candidate = Candidate("me", Timing(), Random(rng))
    candidate.next(0.0)
    candidate.record_read(Record("", 15, 4, "7", {"a": 1.0}), 0.0)
    taken = candidate.next(0.0)
    assert taken == Write(Record("me", 15, 5, "7", {"a": 1.0}), begins=True)
    candidate.record_written("8", 1.0)
    return candidate


def test_it_lets_go_by_its_own_clock_before_others_may_take_it() -> None:
    """Counted from when the renewal was sent, not answered; asked at that moment, whatever was missed before."""
    candidate = holder()
    assert (candidate.held(1.0), candidate.held(9.99)) == (5, 5)
    assert candidate.held(10.0) is None
    assert candidate.held(1e9) is None


def test_an_answer_that_does_not_come_renews_nothing() -> None:
    """It may have been written: what is there is read first, soon, and taken up with its version, as the same tenure."""
    candidate = holder()
    (wait,) = [candidate.next(1.0)]
    assert isinstance(wait, Wait)
    assert 3.0 <= wait.until_s <= 4.0
    assert candidate.next(wait.until_s) == Write(Record("me", 15, 5, "8", {"a": 1.0}), begins=False)
    candidate.failed(6.5)
    assert candidate.held(9.9) == 5
    assert candidate.held(10.1) is None
    assert candidate.next(7.3) == Read()
    candidate.record_read(Record("me", 15, 5, "9", {"a": 1.0}), 7.4)
    assert candidate.next(7.4) == Write(Record("me", 15, 5, "9", {"a": 1.0}), begins=False)
    candidate.record_written("10", 7.5)
    assert candidate.held(17.3) == 5


def test_a_renewal_that_changes_nothing_is_none() -> None:
    """A server keeps its version then, and nobody who watches it could tell."""
    candidate = holder()
    candidate.next(4.0)
    candidate.record_written("8", 4.1)
    assert candidate.held(10.0) is None


def test_what_lapsed_is_a_new_tenure_even_of_the_same_process() -> None:
    """Work of the old one is told from that of the new one by the number."""
    candidate = holder()
    assert candidate.next(11.0) == Write(Record("me", 15, 6, "8", {"a": 1.0}), begins=True)


def test_a_lease_that_was_taken_away_is_not_held_any_more() -> None:
    """By force, by somebody who edits it, or by deleting it; what is made anew counts on."""
    for record in (Record("other", 15, 9, "20"), None):
        candidate = holder()
        candidate.next(4.0)
        candidate.conflicted(4.0)
        assert candidate.next(5.0) == Read()
        candidate.record_read(record, 5.0)
        assert candidate.held(5.0) is None
        if record is None:
            assert candidate.next(5.0) == Write(Record("me", 15, 6, "", {"a": 1.0}), begins=True)
        else:
            assert isinstance(candidate.next(5.0), Wait)


def test_a_longer_lease_of_the_holder_is_kept() -> None:
    """During a change of --lease.duration the longer one counts, on both sides; others' clocks are never read."""
    candidate = Candidate("me", Timing(15), Random(1))
    candidate.next(0.0)
    candidate.record_read(Record("other", 60, 2, "1"), 0.0)
    for now_s in range(0, 59):
        if candidate.next(float(now_s)) == Read():
            candidate.record_read(Record("other", 60, 2, "1"), float(now_s))
        assert not isinstance(candidate.next(float(now_s)), Write)
    while not isinstance(action := candidate.next(now_s + 1.0), Write):
        candidate.record_read(Record("other", 60, 2, "1"), now_s := now_s + 1)
    assert action.record.holder == "me"
    assert now_s >= 59


def test_a_claim_is_written_at_once_and_only_by_the_holder() -> None:
    """Claims of an earlier tenure are not written in the next one; the newest claims are kept."""
    candidate = holder()
    candidate.claim("b", 2.0)
    action = candidate.next(1.1)
    assert isinstance(action, Write)
    assert action.record.claims == {"a": 1.0, "b": 2.0}
    candidate.record_written("9", 1.2)
    candidate.claim("c", 3.0)
    action = candidate.next(20.0)
    assert isinstance(action, Write)
    assert action.begins
    assert action.record.claims == {"a": 1.0, "b": 2.0}
    candidate.record_written("10", 20.0)
    for number in range(MAX_CLAIMS + 5):
        candidate.claim(f"k{number}", 10.0 + number)
    action = candidate.next(20.1)
    assert isinstance(action, Write)
    assert len(action.record.claims) == MAX_CLAIMS
    assert "a" not in action.record.claims


def test_leaving_gives_back_only_what_is_ones_own() -> None:
    """At once nothing is held; the record says nobody, with its number; another one's record is left alone."""
    candidate = holder()
    candidate.leave()
    assert candidate.held(1.0) is None
    assert candidate.next(1.0) == Write(Record("", 1.0, 5, "8", {"a": 1.0}), begins=False)
    candidate.failed(1.1)
    assert candidate.next(1.1) == Read()
    candidate.record_read(Record("other", 15, 6, "9"), 1.2)
    assert candidate.next(1.2) == Wait(float("inf"))


def test_candidates_do_not_ask_in_step() -> None:
    """Their tries are spread, and so are those after a lost race."""
    waits = set()
    for seed in range(10):
        candidate = Candidate("me", Timing(), Random(seed))
        candidate.next(0.0)
        candidate.record_read(Record("other", 15, 1, "1"), 0.0)
        wait = candidate.next(0.0)
        assert isinstance(wait, Wait)
        assert 2.0 <= wait.until_s <= 3.0
        waits.add(wait.until_s)
    assert len(waits) == 10


def test_a_quiet_world_has_one_holder_all_along() -> None:
    """Nothing befalls it: nobody takes anything from anybody."""
    history = World(Random(1), 5, CALM).run()
    assert len(history.taken) == 1
    assert history.held_s > 390
