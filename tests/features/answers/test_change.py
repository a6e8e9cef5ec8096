"""The test of checked answers against their own baseline: sequences of answers in, events out."""

from itertools import cycle, islice
from random import Random

import pytest

from prober.features.answers.change import AnswerChange, threshold
from prober.storage.saved_rows import Moment
from tests.seeds import seeds

DAY = 1_440  # answers, one a minute
LEVEL = threshold(1 / 60, 1 / (30 * 86_400.0))
WEEK_S = 7 * 86_400.0


class Watch:
    """A check that answers once a minute. events: (number of the answer, event)"""

    def __init__(self) -> None:
        self.state, self.count = AnswerChange(), 0
        self.events: list[tuple[int, str]] = []

    def now(self) -> Moment:
        return Moment("boot", self.count * 60 * 10**9, 1e9 + 60.0 * self.count)

    def feed(self, answers: "list[bool]") -> "Watch":
        for wrong in answers:
            event = self.state.step(wrong, self.now(), LEVEL, WEEK_S)
            self.count += 1
            if event is not None:
                self.events.append((self.count, event))
        return self

    def kinds(self) -> list[str]:
        return [event for _, event in self.events]


def drawn(wrong: float, number: int, seed: int = 1) -> list[bool]:
    rng = Random(seed)
    return [rng.random() < wrong for _ in range(number)]


# By hand: (wrong before, wrong after, most answers until the alarm). None: no alarm in two days.
VERDICTS: list[tuple[float, float, int | None]] = [
    (0.0, 0.2, 150),
    (0.0, 1.0, 30),
    (0.05, 0.3, 400),
    (0.05, 0.05, None),
    (0.5, 0.5, None),
    (0.5, 0.2, None),  # better is no alarm
    (1.0, 1.0, None),  # a check that no answer ever passed
]


@pytest.mark.parametrize(("before", "after", "most"), VERDICTS)
@seeds(8)
def test_a_lasting_rise_of_wrong_answers_is_found_and_the_same_share_is_not(
    before: float, after: float, most: int | None, seeds: range
) -> None:
    """After a week of learning; the delay is counted in answers."""
    for seed in seeds:
        watch = Watch().feed(drawn(before, 7 * DAY + 10, seed))
        assert watch.kinds() == ["learnt"]
        learned = watch.count
        watch.feed(drawn(after, 2 * DAY, seed + 1_000))
        alarms = [at - learned for at, event in watch.events if event == "alarm"]
        if most is None:
            assert not alarms
        else:
            assert alarms
            assert alarms[0] <= most


@pytest.mark.parametrize("length", [1, 5, 20])
def test_a_burst_of_wrong_answers_is_no_change(length: int) -> None:
    """Up to PAUSE_ANSWERS in a row, and again the next day."""
    watch = Watch().feed([False] * 8 * DAY)
    for _ in range(2):
        watch.feed([True] * length + [False] * DAY)
    assert watch.kinds() == ["learnt"]


def test_prompts_that_always_fail_are_part_of_the_baseline() -> None:
    """One of seven prompts in turn was never answered rightly; a second one that breaks is a change."""
    one, two = [True] + [False] * 6, [True, True] + [False] * 5
    watch = Watch().feed(list(islice(cycle(one), 10 * DAY)))
    assert watch.kinds() == ["learnt"]
    watch.feed(list(islice(cycle(two), 2 * DAY)))
    assert watch.kinds() == ["learnt", "alarm"]


def test_nothing_is_judged_before_a_day_and_200_answers() -> None:
    """The first answers have nothing to be compared with."""
    watch = Watch().feed([False] * 300 + [True] * 300)
    assert (watch.kinds(), watch.state.baseline) == ([], None)
    assert Watch().feed([False] * (DAY + 1)).state.learning is not None
    assert Watch().feed([False] * (7 * DAY + 1)).state.learning is None


def test_a_change_of_the_engine_settles_the_baseline_and_is_named_with_a_rise_that_begins_then() -> None:
    """With 100 answers or more; a neighbour whose answers stay right has no alarm."""
    watch, neighbour = Watch().feed([False] * 120), Watch().feed([False] * 120)
    for one in (watch, neighbour):
        one.state.engine_changed("version was 1, is 2", one.now(), is_restart=False)
        assert (one.state.baseline is not None, one.state.learning) == (True, None)
    watch.feed(drawn(0.5, 200))
    neighbour.feed([False] * 200)
    assert watch.kinds() == ["alarm"]
    assert neighbour.kinds() == []
    assert watch.state.alarm is not None
    assert watch.state.alarm.change == (1e9 + 120 * 60, "version was 1, is 2")
    assert watch.state.alarm.since_unix_s == pytest.approx(1e9 + 120 * 60, abs=600)


def test_a_change_of_the_engine_long_before_a_rise_is_not_named_with_it() -> None:
    """A day of right answers lies between."""
    watch = Watch().feed([False] * 8 * DAY)
    watch.state.engine_changed("restart", watch.now(), is_restart=True)
    watch.feed([False] * DAY + drawn(0.5, 200))
    assert watch.state.alarm is not None
    assert watch.state.alarm.change is None


def test_too_few_answers_before_a_change_of_the_engine_are_forgotten() -> None:
    """The answers of two engines are no baseline; those before and after a mere restart are."""
    changed, restarted = Watch().feed([False] * 99), Watch().feed([False] * 99)
    changed.state.engine_changed("model was a, is b", changed.now(), is_restart=False)
    restarted.state.engine_changed("restart", restarted.now(), is_restart=True)
    for watch in (changed, restarted):
        watch.feed([False] * (DAY - 98))
    assert changed.kinds() == []
    assert restarted.kinds() == ["learnt"]


def test_an_alarm_ends_when_answers_are_right_again_or_the_change_has_become_usual() -> None:
    """Recovered within a day; accepted after a week, from when on a further rise is found against the new share."""
    watch = Watch().feed([False] * 8 * DAY + drawn(0.4, 200)).feed([False] * DAY)
    assert watch.kinds() == ["learnt", "alarm", "recovered"]
    watch = Watch().feed([False] * 8 * DAY + drawn(0.3, 8 * DAY))
    assert watch.kinds() == ["learnt", "alarm", "accepted"]
    watch.feed(drawn(0.7, DAY))
    assert watch.kinds() == ["learnt", "alarm", "accepted", "alarm"]


def test_a_lasting_improvement_is_learned_anew() -> None:
    """So that the loss of it is found."""
    watch = Watch().feed(drawn(0.3, 8 * DAY) + drawn(0.02, 10 * DAY))
    assert watch.kinds() == ["learnt", "improved", "learnt"]
    watch.feed(drawn(0.3, DAY))
    assert watch.kinds()[3:] == ["alarm"]
