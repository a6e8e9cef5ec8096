"""`prober once` beside a mock engine in virtual time."""

import json
from dataclasses import replace
from random import Random

import pytest

from prober.cli.once import draw
from prober.measure.chunk import Usage
from prober.measure.outcome import Outcome
from prober.measure.server_timing import TimeParts
from prober.measure.timeline import Timeline
from prober.mock.delays import constant
from prober.mock.service import Behaviour, Settings
from tests.commands import prober
from tests.measure.test_buffering import AT_ONCE, STREAMED
from tests.virtual_commands import beside, mock
from tests.web.scenes import probe

ENGINE = Settings(behaviour=Behaviour(ttft=constant(0.02), itl=constant(0.001)))


def test_one_probe_is_drawn_or_a_document_and_its_outcome_is_the_exit_code() -> None:
    with beside(mock(ENGINE)) as (url,):
        drawn = prober("once", url)
        failed = prober("once", url, "--json", "--header", "X-Mock-Fault: truncated")
    assert drawn.returncode == 0
    assert "TTFT" in drawn.stdout
    assert "█" in drawn.stdout
    assert (failed.returncode, json.loads(failed.stdout)["outcome"]) == (1, "truncated")


@pytest.mark.parametrize(
    ("outcome", "timeline", "is_named"),
    [(Outcome.OK, AT_ONCE, True), (Outcome.OK, STREAMED, False), (Outcome.TRUNCATED, AT_ONCE, False)],
)
def test_a_gateway_that_holds_the_answer_back_is_named(
    outcome: Outcome, timeline: Timeline, is_named: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the words of the daemon; as there, a failed answer is not judged."""
    draw(replace(probe(0, Random(1)), outcome=outcome, timeline=timeline))
    words = "buffered: the answer arrived all at once or in flushes of 4 chunks or more; something on the way, such as a gateway"
    assert (words in capsys.readouterr().out) is is_named


def test_where_the_time_went_is_told_as_far_as_the_server_tells(capsys: pytest.CaptureFixture[str]) -> None:
    """With the server's own id of the request; a server that says nothing has neither line."""
    parts = TimeParts(network_s=0.002, gateway_s=0.011, queue_s=0.24)
    told = replace(probe(0, Random(1)), timeline=replace(STREAMED, parts=parts), server_request_id="req_1")
    draw(told)
    shown = " ".join(capsys.readouterr().out.split())
    assert "time network 2 ms, gateway 11 ms, queue 240 ms" in shown
    assert "server's id req_1" in shown
    draw(probe(0, Random(1)))
    assert "server's id" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("usage", "has_reasoning", "expected"),
    [
        (Usage(8, 40, None, 40), True, "TTFT answer  all content is reasoning"),
        (Usage(8, 40, None, 30), False, "TTFT answer  not measurable here: the usage counts reasoning"),
        (Usage(8, 40, None, 30), True, "40 completion, 30 of reasoning among them"),
        (Usage(8, None, None, 516), False, "unknown completion"),
    ],
)
def test_reasoning_is_told(
    usage: Usage, has_reasoning: bool, expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A missing TTFT of the answer says why, and tokens of reasoning are told as a part of the tokens, if that is known."""
    timeline = replace(STREAMED, usage=usage, first_ns=STREAMED.content_ns[0], streams_reasoning=has_reasoning)
    draw(replace(probe(0, Random(1)), timeline=timeline))
    shown = capsys.readouterr().out
    assert expected in shown
    assert ("of reasoning" in shown) is (usage.completion_tokens is not None)
