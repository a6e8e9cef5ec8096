"""The verdict on a target that holds answers back."""

from dataclasses import replace

import pytest

from prober.measure.buffering import WINDOW, Buffering, is_held_back
from prober.measure.timeline import Timeline
from tests.measure.test_flushes import answer, flushes

STREAMED = answer(flushes((1,) * 16, 10), 16)
AT_ONCE = answer(flushes((16,), 10), 16)


@pytest.mark.parametrize(
    ("timeline", "held_back"),
    [
        (STREAMED, False),
        (AT_ONCE, True),
        (answer(flushes((8, 8, 3), 80), 19), True),
        (answer(flushes((1, 15), 80), 16), True),  # the first token at once, the others at the end
        (answer(flushes((1, 1, 1, 6, 1, 1, 5), 10), 16), False),  # a busy reader: most reads have one chunk
        (answer(flushes((2, 3, 1, 3, 2), 20), 11), False),  # steps of speculative decoding, written token by token
        (answer((100, 130, 160, 190), 32), False),  # eight tokens in a chunk
        (answer((100,), 32), True),  # one chunk for all
        (answer(flushes((8, 8, 8), 8), 24), None),  # a busy machine stops a stream of 1 ms a token as often
        (answer(flushes((8,), 10), 8), None),
        (answer((100, 100, 100), 3), None),
        (answer((100,)), None),
        (replace(AT_ONCE, read_delay_s=0.0011), None),  # the prober was late, and may have held it back itself
        (replace(AT_ONCE, read_delay_s=0.001, max_read_delay_s=0.009), True),  # once only
        (Timeline(0), None),
    ],
)
def test_an_answer_is_held_back_if_its_median_flush_is(timeline: Timeline, held_back: bool | None) -> None:
    """All at once, or four chunks and more at a time; what a busy machine may have done does not tell."""
    assert is_held_back(timeline) is held_back


def verdicts(*answers: Timeline) -> list[bool | None]:
    """The verdict after each answer."""
    buffering, after = Buffering(), []
    for timeline in answers:
        buffering = buffering.after(timeline)
        after.append(buffering.is_buffered)
    return after


def test_the_verdict_needs_five_answers() -> None:
    """Answers that do not tell are not counted."""
    assert verdicts(*[AT_ONCE] * 5) == [None] * 4 + [True]
    assert verdicts(*[STREAMED] * 5) == [None] * 4 + [False]
    assert verdicts(*[answer((100,), 1)] * 20)[-1] is None


def test_single_answers_do_not_change_the_verdict() -> None:
    """Two of ten that differ change nothing, and neither do halves; eight of ten do."""
    assert verdicts(*[STREAMED] * 8, *[AT_ONCE, STREAMED, STREAMED, STREAMED, STREAMED] * 8)[-1] is False
    assert verdicts(*[STREAMED] * 8, *[AT_ONCE, STREAMED] * 20)[-1] is False
    assert verdicts(*[AT_ONCE] * 8, *[AT_ONCE, STREAMED] * 20)[-1] is True
    assert verdicts(*[AT_ONCE, STREAMED] * 20)[-1] is None
    began = verdicts(*[STREAMED] * WINDOW, *[AT_ONCE] * WINDOW)[WINDOW:]
    assert began == [False] * 7 + [True] * 3
    assert len(Buffering((True,) * WINDOW).after(AT_ONCE).held_back) == WINDOW
