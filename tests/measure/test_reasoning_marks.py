"""Marks of reasoning in the text of an answer."""

import itertools

import pytest

from prober.measure.reasoning_marks import MARKS, ReasoningMarks


def answer_of(*texts: str) -> tuple[bool, str]:
    """Returns (whether reasoning was found, the answer without it)."""
    marks, answer = ReasoningMarks(), ""
    for text in texts:
        was_reasoning, part = marks.feed(text)
        answer = part if was_reasoning else answer + part
    return marks.has_reasoning, answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        *((f" \n{opening}a < b{closing}\n\n4", "4") for opening, closing in MARKS.items()),
        ("<think>a", ""),
        ("<think>a</think>", ""),
        ("a\n</think>\n\n4", "4"),
        ('it is "4"</think>{"x": 4}', '{"x": 4}'),
        ("`a` is 4. </think>\n4", "4"),
        ("a</think>4 </think> 5", "4 </think> 5"),
        ("4", None),
        ("<div>4</div>", None),
        ("<thinker>4", None),
        ("4 <think>a</think>5", None),
        ("`</think>` is 4", None),
        ("```\na\n</think>\n```", None),
        ("the tag </think>, or", None),
        ("the tag (</think>)", None),
        ("the tag is </think>", None),
    ],
)
def test_the_answer_is_the_same_wherever_the_text_is_cut(text: str, answer: str | None) -> None:
    """The text behind reasoning, or all text (None) where no mark counts, in one piece, in two of any size, and in characters."""
    expected = (answer is not None, text if answer is None else answer)
    assert answer_of(*text) == expected
    for cut in range(len(text) + 1):
        assert answer_of(text[:cut], text[cut:]) == expected, cut
    for first, second in itertools.pairwise(range(0, len(text), 3)):
        assert answer_of(text[:first], text[first:second], text[second:]) == expected
