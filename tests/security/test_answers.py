"""Answers that are made to cost the prober its time: each check is bounded, and the answers of a neighbour are checked as before."""

import asyncio
import os
import signal
from collections.abc import Iterator

import orjson
import pytest

from prober.measure.quality import Expectation, expectation_problem
from prober.measure.recording import Recording
from prober.measure.tool_calls import CallPiece, ToolCall
from prober.probing.answer_checks import AnswerChecks, CheckUnavailable

UNIQUE = {"type": "array", "uniqueItems": True}
DISTINCT = orjson.dumps([{"a": number} for number in range(4_000)]).decode()  # 48 KB; objects are compared in pairs
STOPPED = "was stopped"


@pytest.fixture(scope="module")
def checks() -> Iterator[AnswerChecks]:
    made = AnswerChecks()
    yield made
    made.close()


def call(arguments: str) -> ToolCall:
    made = ToolCall("", 0, "f")
    made.add(0, CallPiece(None, arguments=arguments))
    return made


# --- what a check may cost


@pytest.mark.parametrize(
    ("expectation", "answer", "calls"),
    [
        (Expectation("json_schema", UNIQUE), DISTINCT, ()),
        (Expectation("tool_call", {"f": {"properties": {"x": UNIQUE}}}), "", (call(f'{{"x": {DISTINCT}}}'),)),
    ],
)
async def test_a_check_that_takes_too_long_is_stopped_and_says_so(
    checks: AnswerChecks, expectation: Expectation, answer: str, calls: tuple[ToolCall, ...]
) -> None:
    """The loop goes on meanwhile, and the next answer, of a neighbour, is checked by a new process."""
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0.001)

    counting = asyncio.create_task(count())
    problem = await checks.problem(expectation, answer, calls)
    counting.cancel()
    assert STOPPED in problem
    assert turns > 20, "the event loop waited for the check"
    assert await checks.problem(Expectation("json_schema", UNIQUE), "[1, 2, 3]") == ""
    assert "[1, 1] has non-unique elements" in await checks.problem(Expectation("json_schema", UNIQUE), "[1, 1]")


@pytest.mark.parametrize("regex", [r"(a+)+$", r"(a|a)*b", r"(a|aa)+$", r"^(([a-z])+.)+[A-Z]([a-z])+$", r"(.*)*x"])
async def test_an_answer_that_makes_other_engines_go_back_is_simply_wrong(checks: AnswerChecks, regex: str) -> None:
    """RE2 reads each character once: the check ends by itself, and its neighbour's is right."""
    problem = await checks.problem(Expectation("regex", regex), "a" * 48_000 + "!")
    assert "does not match" in problem
    assert await checks.problem(Expectation("regex", r"^42$"), " 42\n") == ""


@pytest.mark.parametrize("answer", ["[" * 60_000, '{"a":' * 12_000, "[" * 900 + "]" * 900, "9" * 60_000, "\0" * 60_000])
async def test_a_check_that_cannot_be_done_is_a_failure_of_that_check(checks: AnswerChecks, answer: str) -> None:
    """Deep nesting, huge numbers and a schema that refers to itself end in a message, not in the prober."""
    assert await checks.problem(Expectation("json_schema", {"items": {"$ref": "#"}, "type": "object"}), answer)
    assert await checks.problem(Expectation("json_schema", {"$ref": "#/missing"}), "{}") != ""
    assert await checks.problem(Expectation("json_schema", {}), "{}") == ""


async def test_a_process_that_was_killed_between_two_checks_is_started_again(checks: AnswerChecks) -> None:
    """For instance by the kernel, for want of memory: no answer is called wrong for it."""
    right = Expectation("regex", "a")
    assert await checks.problem(right, "a") == ""
    assert checks.process_id is not None
    os.kill(checks.process_id, signal.SIGKILL)
    os.waitid(os.P_PID, checks.process_id, os.WEXITED | os.WNOWAIT)  # noqa: ASYNC222 - it is dead
    assert await checks.problem(right, "a") == ""


async def test_a_process_that_does_not_start_makes_no_answer_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is a fault of the machine: such a probe is `invalid`."""
    monkeypatch.setattr("sys.executable", "/bin/false")
    with pytest.raises(CheckUnavailable, match="does not start"):
        await AnswerChecks().problem(Expectation("regex", "a"), "a")


# --- how much of an answer is checked


@pytest.mark.parametrize("streamed_chars", [30, 700, 100_000])
def test_an_answer_far_longer_than_asked_for_is_not_checked(streamed_chars: int) -> None:
    """64 tokens were asked for: a few KB are kept, whatever the size of its chunks, and the failure says why."""
    short, long = Recording(tokens=64, keeps_prose=True), Recording(tokens=64, keeps_prose=True)
    for recording, size in ((short, 400), (long, 100_000)):
        text = "x" * size
        for at in range(0, size, streamed_chars):
            document = {"choices": [{"index": 0, "delta": {"content": text[at : at + streamed_chars]}}]}
            recording.feed(1, b"data: " + orjson.dumps(document) + b"\n\n")
    assert (len(short.answer.prose), short.answer.length_problem) == (400, "")
    assert len(long.answer.prose) <= 4096
    assert "more than 4,096 characters, though 64 tokens were asked for" in long.answer.length_problem


# --- patterns


@pytest.mark.parametrize(
    ("regex", "says"),
    [
        (r"4(?=2)", ("(?=", "character 2", "lookahead")),
        (r"a(?!b)", ("(?!", "character 2", "lookahead")),
        (r"(?<=x)42", ("(?<=", "character 1", "lookbehind")),
        (r"(a)\1", ("\\1", "character 4", "backreferences")),
        (r"ab\Z", ("\\Z", "character 3", "\\z")),
        (r"x(?>a)", ("(?>", "character 2", "(?:")),
        (r"[0-9", ("missing ]", "character 1", "Syntax")),
        (r"a{5000}", ("{5000}", "character 2", "Syntax")),
    ],
)
def test_a_pattern_that_re2_cannot_do_is_refused_with_its_place_and_remedy(regex: str, says: tuple[str, ...]) -> None:
    """Before it is used, so that a configuration for Python's `re` does not fail at its first answer."""
    problem = expectation_problem(Expectation("regex", regex))
    for part in says:
        assert part in problem
    assert expectation_problem(Expectation("regex", r"(?i)\bforty[- ]two\b|^42$")) == ""
