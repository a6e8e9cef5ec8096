"""What `prober once` prints about one probe."""

from dataclasses import replace
from random import Random

import pytest

from prober.cli.probe_drawing import draw
from prober.measure.chat import Usage
from prober.measure.outcome import Outcome
from prober.measure.timeline import Timeline
from tests.measure.test_buffering import AT_ONCE, STREAMED
from tests.web.scenes import probe


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
