"""Sessions whose turns follow their answers."""

from itertools import pairwise
from random import Random

import pytest

from prober.workload.shapes import Exponential, Fixed, Lognormal, Uniform
from prober.workload.workloads import DrawnRequest, RequestGenerator, Sessions, Workload

CHAT = Workload("chat", Uniform(5, 50), Uniform(5, 50), sessions=Sessions(0, 4, Exponential(2_000, 60_000)))


def conversation(first: DrawnRequest) -> list[DrawnRequest]:
    turns = [first]
    while (follow_up := turns[-1].follow_up) is not None:
        turns.append(follow_up.draw("unused", None))
    return turns


def test_a_session_has_all_of_its_turns() -> None:
    """Each begins with the turn before and its answer, and has a series of its own; only the last one has no next."""
    turns = conversation(RequestGenerator(CHAT, Random(1)).draw("42", None))
    assert [turn.workload for turn in turns] == ["chat_turn1", "chat_turn2", "chat_turn3", "chat_turn4"]
    for before, turn in pairwise(turns):
        assert turn.messages[: len(before.messages)] == before.messages
        assert [role for role, _ in turn.messages[len(before.messages) :]] == ["assistant", "user"]
        assert turn.prompt_tokens > before.prompt_tokens + before.output_tokens
    assert turns[0].messages[0][1].startswith("[42] ")


def test_the_order_of_answers_changes_no_session() -> None:
    """With one seed each session has the same texts and think times, whether its turns come at once or between those of others."""
    generator = RequestGenerator(CHAT, Random(7))
    one_by_one = [conversation(generator.draw(str(number), None)) for number in range(5)]
    generator = RequestGenerator(CHAT, Random(7))
    firsts = [generator.draw(str(number), None) for number in range(5)]
    at_the_end = [conversation(first) for first in reversed(firsts)][::-1]
    for one, other in zip(one_by_one, at_the_end, strict=True):
        assert [turn.messages for turn in one] == [turn.messages for turn in other]
        assert [turn.follow_up.think_s for turn in one if turn.follow_up] == [
            turn.follow_up.think_s for turn in other if turn.follow_up
        ]


@pytest.mark.parametrize("think_time", [Fixed(1_500), Exponential(2_000, 9_000), Lognormal(3_000, 0.7, 100, 20_000)])
def test_think_times_are_of_their_distribution(think_time: Fixed | Exponential | Lognormal) -> None:
    """Their mean over 4,000 sessions is that of the clipped distribution, within 5 standard errors; none is beyond the bounds."""
    workload = Workload("chat", Fixed(5), Fixed(5), sessions=Sessions(0, 2, think_time))
    generator = RequestGenerator(workload, Random(3))
    times_s = []
    for number in range(4_000):
        follow_up = generator.draw(str(number), None).follow_up
        assert follow_up is not None
        times_s.append(follow_up.think_s)
    mean_s = sum(times_s) / len(times_s)
    deviation_s = (sum((time_s - mean_s) ** 2 for time_s in times_s) / len(times_s)) ** 0.5
    assert mean_s == pytest.approx(think_time.mean() / 1e3, abs=5 * deviation_s / len(times_s) ** 0.5 + 1e-3)
    assert 0 <= min(times_s) <= max(times_s) <= think_time.maximum / 1e3
