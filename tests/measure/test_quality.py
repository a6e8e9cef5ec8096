"""Is the answer right?"""

import pytest

from prober.measure.quality import Expectation, flaw, mistake

SCHEMA = {"type": "object", "required": ["a"], "properties": {"a": {"type": "integer"}}}


@pytest.mark.parametrize(
    ("expectation", "answer", "said"),
    [
        (Expectation("text", "Paris"), " Paris\n", ""),
        (Expectation("text", "Paris"), "Paris.", "'Paris.' is not 'Paris'"),
        (Expectation("regex", r"\b42\b"), "It is 42.", ""),
        (Expectation("regex", r"\b42\b"), "It is 421.", "does not match"),
        (Expectation("json_schema", SCHEMA), ' {"a": 1} ', ""),
        (Expectation("json_schema", SCHEMA), '{"a": "1"}', "at $.a: '1' is not of type 'integer'"),
        (Expectation("json_schema", SCHEMA), '```json\n{"a": 1}\n```', "is not JSON"),
        (Expectation("text", "x"), "", "'' is not 'x'"),
    ],
)
def test_an_answer_is_right_or_it_is_said_why_not(expectation: Expectation, answer: str, said: str) -> None:
    """White space at the ends means nothing; all else does."""
    problem = mistake(expectation, answer)
    assert (said in problem) if said else problem == ""


def test_a_long_wrong_answer_is_quoted_in_part() -> None:
    """A message is for people."""
    assert len(mistake(Expectation("text", "x"), "y" * 10_000)) < 200


@pytest.mark.parametrize(
    ("expectation", "said"),
    [
        (Expectation("regex", "("), "is not a regular expression"),
        (Expectation("json_schema", {"type": "number s"}), "is not a JSON Schema"),
        (Expectation("text", "  "), "is empty"),
        (Expectation("regex", "a+"), ""),
        (Expectation("json_schema", SCHEMA), ""),
    ],
)
def test_an_expectation_that_cannot_be_judged_is_told(expectation: Expectation, said: str) -> None:
    """Before it is used, with the reason."""
    assert said in flaw(expectation) if said else flaw(expectation) == ""


@pytest.mark.parametrize("answer", ["[" * 100_000, "[" * 900 + "]" * 900, '{"a": ' * 100_000])
def test_an_answer_that_is_nested_without_end_is_wrong(answer: str) -> None:
    """It is the model's mistake, not an exception of the prober."""
    assert mistake(Expectation("json_schema", SCHEMA), answer)
    assert len(mistake(Expectation("json_schema", {"items": {"$ref": "#"}}), answer)) < 600
