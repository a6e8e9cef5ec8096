"""Checks of answers to golden prompts."""

import pytest

from prober.measure.quality import Expectation, answer_problem, expectation_problem

SCHEMA = {"type": "object", "required": ["a"], "properties": {"a": {"type": "integer"}}}


@pytest.mark.parametrize(
    ("expectation", "answer", "message"),
    [
        (Expectation("text", "Paris"), " Paris\n", ""),
        (Expectation("text", "Paris"), "Paris.", "'Paris.' is not 'Paris'"),
        (Expectation("regex", r"\b42\b"), "It is 42.", ""),
        (Expectation("regex", r"\b42\b"), "It is 421.", "does not match"),
        (Expectation("json_schema", SCHEMA), ' {"a": 1} ', ""),
        (Expectation("json_schema", SCHEMA), '{"a": "1"}', "at $.a: '1' is not of type 'integer'"),
        (Expectation("json_schema", SCHEMA), '```json\n{"a": 1}\n```', "is not JSON"),
        (Expectation("text", "x"), "", "'' is not 'x'"),
        (Expectation("text", ["yes", "no"]), " no\n", ""),
        (Expectation("text", ["yes", "no"]), "maybe", "'maybe' is not 'yes' or 'no'"),
        (Expectation("regex", r"\A(?:a+\n)\z"), "aa\n", ""),
    ],
)
def test_a_wrong_answer_is_explained(expectation: Expectation, answer: str, message: str) -> None:
    """A right answer gives no message, a wrong one the reason; white space at the ends is ignored."""
    problem = answer_problem(expectation, answer)
    assert (message in problem) if message else problem == ""


def test_a_long_wrong_answer_is_quoted_in_part() -> None:
    """The message stays short, however long the answer is."""
    assert len(answer_problem(Expectation("text", "x"), "y" * 10_000)) < 200


@pytest.mark.parametrize(
    ("expectation", "message"),
    [
        (Expectation("regex", "("), "is not a regular expression"),
        (Expectation("json_schema", {"type": "number s"}), "is not a JSON Schema"),
        (Expectation("text", "  "), "is empty"),
        (Expectation("text", []), "is empty"),
        (Expectation("regex", "a+"), ""),
        (Expectation("json_schema", SCHEMA), ""),
    ],
)
def test_an_invalid_expectation_is_reported(expectation: Expectation, message: str) -> None:
    """An expectation that no answer can be checked against is detected before use, with the reason."""
    problem = expectation_problem(expectation)
    assert (message in problem) if message else problem == ""


@pytest.mark.parametrize("answer", ["[" * 100_000, "[" * 900 + "]" * 900, '{"a": ' * 100_000])
def test_a_deeply_nested_answer_is_wrong(answer: str) -> None:
    """It is a wrong answer of the model and raises no exception in the prober."""
    assert answer_problem(Expectation("json_schema", SCHEMA), answer)
    assert len(answer_problem(Expectation("json_schema", {"items": {"$ref": "#"}}), answer)) < 600
