"""Sessions: each turn is drawn after the end of the one before it, and contains its answer."""

import re
from collections import Counter
from itertools import pairwise
from random import Random

import pytest

from prober.measure.request import AssistantMessage, Request, ToolUse
from prober.workload.sessions import SessionWorkload
from prober.workload.shapes import Exponential, Fixed, LengthDistribution, Lognormal, Uniform
from prober.workload.workloads import Mix, Prefix, RequestGenerator, Workload, sample_lengths

CHAT = SessionWorkload("chat", Uniform(5, 50), Uniform(5, 50), turns=4, think_time=Exponential(2_000, 60_000))


def conversation(first: Request) -> list[Request]:
    """All turns of a session, which answers each with its number."""
    turns = [first]
    while (session := turns[-1].session) is not None and session.turns_left:
        session.end_turn(AssistantMessage("assistant", f"answer {len(turns)}"), None)
        turns.append(session.draw(99, 0, None))
    return turns


def test_a_session_has_all_of_its_turns() -> None:
    """Each begins with the turn before and its answer, and has a series of its own; only the last one has no next."""
    turns = conversation(RequestGenerator(CHAT, Random(1)).draw(42, 0, None))
    assert [turn.workload for turn in turns] == ["chat_turn1", "chat_turn2", "chat_turn3", "chat_turn4"]
    for before, turn in pairwise(turns):
        assert turn.messages[: len(before.messages)] == before.messages
        answer, message = turn.messages[len(before.messages) :]
        assert answer == ("assistant", f"answer {len(before.messages) // 2 + 1}")
        assert message[0] == "user"
        assert turn.prompt_tokens > before.prompt_tokens + before.output_tokens
    assert turns[0].messages[0][1].startswith(f"[{42:020d}] ")


def test_lengths_are_those_of_the_texts() -> None:
    """Of system message, messages, results of tools and answers, in words, without nonce and calls; on average as `mean_tokens` says.

    Filler has the requested length of an answer, whatever the server's usage says.
    """
    agents = SessionWorkload(
        "agents",
        Uniform(5, 15),
        Uniform(5, 15),
        Prefix(40, 0.5),
        turns=4,
        think_time=Fixed(0),
        answers="filler",
        tool_results=0.5,
    )
    generator, lengths, kinds = RequestGenerator(agents, Random(3)), list[int](), Counter[object]()
    for number in range(400):
        for turn in conversation(generator.draw(number)):
            words = [
                message.text.split() + message.tools[0].result.split()
                if isinstance(message, AssistantMessage)
                else message[1].split()
                for message in turn.messages
            ]
            lengths.append(sum(map(len, words)) - 1)
            assert turn.prompt_tokens == lengths[-1]
        kinds.update("result" if isinstance(message, AssistantMessage) else message[0] for message in turn.messages)
    assert kinds["system"] / 400 == pytest.approx(0.5, abs=0.1)
    assert kinds["result"] / (kinds["result"] + kinds["user"] - 400) == pytest.approx(0.5, abs=0.05)
    full = SessionWorkload("a", Fixed(10), Fixed(10), Prefix(40, 0.5), turns=4, count=30)
    drawn = sample_lengths(full, Random(1), 4_000)
    assert sum(prompt for prompt, _ in drawn) / len(drawn) == pytest.approx(full.mean_tokens()[0], rel=0.02)
    assert full.mean_tokens() == (20 + 25 + 15, 10)


def test_calls_of_the_server_share_the_next_message_as_their_results() -> None:
    """Each gets a word at least, and another id if the server's is missing or used before. An answer without calls has none."""
    talk = SessionWorkload("talk", Fixed(5), Fixed(9), turns=5, count=1)
    turn = RequestGenerator(talk, Random(1)).draw(1)
    many = tuple(ToolUse("", "look", "{}") for _ in range(7))
    answers = [(ToolUse("a", "look", "{}"), ToolUse("a", "find", "{}")), (ToolUse("a", "look", "{}"),), many, ()]
    shares, ids = [], []
    for calls in answers:
        assert turn.session is not None
        turn.session.end_turn(AssistantMessage("assistant", "", calls), 3)
        before, turn = turn, turn.session.draw(2, 0, None)
        assert turn.prompt_tokens == before.prompt_tokens + 3 + 5
        assert turn.messages[: len(before.messages)] == before.messages
        last = turn.messages[-1]
        if isinstance(last, AssistantMessage):
            assert [tool[1:3] for tool in last.tools] == [call[1:3] for call in calls]
            shares.append([len(tool.result.split()) for tool in last.tools])
            ids += [tool.call_id for tool in last.tools]
    assert shares == [[2, 3], [5], [1] * 7]
    assert ids[0] == "a"
    assert len(set(ids)) == len(ids) == 10
    assert all(re.fullmatch("[0-9a-f]{9}", call_id) for call_id in ids[1:])
    assert [message[0] for message in turn.messages[-2:]] == ["assistant", "user"]


def test_the_order_of_answers_changes_no_session() -> None:
    """With one seed each session has the same texts and think times, whether its turns come at once or between those of others."""
    generator = RequestGenerator(CHAT, Random(7))
    one_by_one = [conversation(generator.draw(number)) for number in range(5)]
    generator = RequestGenerator(CHAT, Random(7))
    firsts = [generator.draw(number) for number in range(5)]
    at_the_end = [conversation(first) for first in reversed(firsts)][::-1]
    for one, other in zip(one_by_one, at_the_end, strict=True):
        assert [turn.messages for turn in one] == [turn.messages for turn in other]
        assert [turn.prompt_tokens for turn in one] == [turn.prompt_tokens for turn in other]
        assert one[-1].session is not None
        assert other[-1].session is not None
        assert one[-1].session.think_s == other[-1].session.think_s


@pytest.mark.parametrize("think_time", [Fixed(1_500), Exponential(2_000, 9_000), Lognormal(3_000, 0.7, 100, 20_000)])
def test_think_times_are_of_their_distribution(think_time: Fixed | Exponential | Lognormal) -> None:
    """Their mean over 4,000 sessions is that of the clipped distribution, within 5 standard errors; none is beyond the bounds."""
    workload = SessionWorkload("chat", Fixed(5), Fixed(5), turns=2, think_time=think_time)
    generator = RequestGenerator(workload, Random(3))
    times_s = []
    for number in range(4_000):
        session = generator.draw(number).session
        assert session is not None
        times_s.append(session.think_s or 0.0)
    mean_s = sum(times_s) / len(times_s)
    deviation_s = (sum((time_s - mean_s) ** 2 for time_s in times_s) / len(times_s)) ** 0.5
    assert mean_s == pytest.approx(think_time.mean() / 1e3, abs=5 * deviation_s / len(times_s) ** 0.5 + 1e-3)
    assert 0 <= min(times_s) <= max(times_s) <= think_time.maximum / 1e3


def test_a_session_that_waits_for_its_answer_is_passed_over() -> None:
    """The next one that is ready takes its place; if there is none, the request says so, and can be drawn as soon as there is one."""
    talk = SessionWorkload("talk", Fixed(5), Fixed(5), turns=3, count=3)
    generator = RequestGenerator(talk, Random(1))
    first, second, third = (generator.draw(number) for number in range(3))
    assert len({drawn.messages for drawn in (first, second, third)}) == 3
    none = generator.draw(3)
    assert none.busy is not None
    assert (none.workload, none.messages, none.session) == ("talk_turn1", (), None)
    assert none.busy.busy_text == "all 3 sessions of talk waited for an answer (sessions.count)"
    assert none.busy.draw(4, 0, None).busy is not None
    assert second.session is not None
    second.session.end_turn(AssistantMessage("assistant", "yes"), 7)
    later = none.busy.draw(5, 0, None)
    assert later.messages[:2] == (*second.messages, ("assistant", "yes"))
    assert (later.workload, later.prompt_tokens) == ("talk_turn2", 5 + 7 + 5)


@pytest.mark.parametrize(("count", "think_time"), [(2, None), (0, Fixed(1))])
def test_a_turn_without_an_answer_ends_its_session(count: int, think_time: LengthDistribution | None) -> None:
    """No text takes the place of the answer: a new conversation begins."""
    workload = SessionWorkload("talk", Fixed(5), Fixed(5), turns=4, count=count, think_time=think_time)
    generator = RequestGenerator(workload, Random(1))
    first = generator.draw(1)
    assert first.session is not None
    assert first.keeps_answer
    first.session.end_turn(None, None)
    assert first.session.turns_left == 0
    drawn = [generator.draw(number) for number in range(2, 4)]
    assert [(request.workload, len(request.messages)) for request in drawn] == [("talk_turn1", 1)] * 2


def test_answers_change_no_request_beside_sessions() -> None:
    """Due times and requests of the others are drawn from the same random numbers, whether sessions are ready, begin, or wait."""
    talk, plain = (
        SessionWorkload("talk", Fixed(5), Fixed(5), turns=2, count=2),
        Workload("plain", Fixed(9), Fixed(5)),
    )

    def beside(answered: int) -> list[tuple[object, float]]:
        rng = Random(4)
        generator = RequestGenerator(Mix("m", ((talk, 1.0), (plain, 1.0))), rng)
        seen: list[tuple[object, float]] = []
        for number in range(40):
            drawn = generator.draw(number)
            if drawn.session is not None and number % 3 < answered:
                drawn.session.end_turn(AssistantMessage("assistant", "yes"), 5)
            seen.append((drawn.workload == "plain" and drawn.messages, rng.random()))
        return seen

    assert beside(0) == beside(1) == beside(3)
