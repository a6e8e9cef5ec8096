"""The check of answers that follows from the fields of a request."""

from random import Random
from typing import Any

import pytest

from prober.measure.quality import Expectation
from prober.workload.prompt_length import PromptCalibration
from prober.workload.requested_format import requested_format
from prober.workload.shapes import Fixed
from prober.workload.workloads import Mix, RequestGenerator, Workload

SCHEMA = {"type": "object", "required": ["city"]}
NESTED = {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}
FLAT = {"type": "function", "name": "weather", "parameters": SCHEMA}
ANTHROPIC = {"name": "weather", "input_schema": SCHEMA}
CALLS = Expectation("tool_call", {"weather": SCHEMA})
BY_CHOICE = Expectation("tool_call", {"weather": SCHEMA}, is_call_required=False)
JSON = Expectation("json_schema", SCHEMA)


@pytest.mark.parametrize(
    ("sampling", "expectation"),
    [
        ({"temperature": 0}, None),
        ({"tools": [NESTED], "tool_choice": "required"}, CALLS),
        ({"tools": [NESTED], "tool_choice": {"type": "function", "function": {"name": "weather"}}}, CALLS),
        ({"tools": [FLAT], "tool_choice": "required"}, CALLS),
        ({"tools": [ANTHROPIC], "tool_choice": {"type": "any"}}, CALLS),
        ({"tools": [NESTED]}, BY_CHOICE),
        ({"tools": [NESTED], "tool_choice": "auto"}, BY_CHOICE),
        ({"tools": [ANTHROPIC], "tool_choice": {"type": "auto"}}, BY_CHOICE),
        ({"tools": [NESTED], "tool_choice": "none"}, None),
        ({"tools": [{"type": "web_search"}]}, None),
        ({"tools": "weather"}, None),
        ({"tools": [{"name": "now"}], "tool_choice": "required"}, Expectation("tool_call", {"now": {}})),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "w", "schema": SCHEMA}}}, JSON),
        ({"text": {"format": {"type": "json_schema", "name": "w", "schema": SCHEMA}}}, JSON),
        ({"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}}, JSON),
        ({"response_format": {"type": "json_object"}}, Expectation("json_schema", {"type": "object"})),
        ({"response_format": {"type": "text"}}, None),
        ({"tools": [NESTED], "tool_choice": "none", "response_format": {"type": "json_object"}},
         Expectation("json_schema", {"type": "object"})),
    ],
)  # fmt: skip
def test_tools_and_formats_of_each_api_are_checked(sampling: dict[str, Any], expectation: Expectation | None) -> None:
    """Tools are checked by their schemas, and demand a call where the request does; a JSON format is checked by its schema."""
    assert requested_format(sampling) == expectation


def test_checked_answers_have_their_own_length() -> None:
    """A call or JSON that must go on to a forced length is broken, so lengths are limits; sample prompts are not checked."""
    free = Workload("free", Fixed(40), Fixed(20))
    calls = Workload("calls", Fixed(40), Fixed(20), sampling={"tools": [NESTED], "tool_choice": "required"})
    assert not free.checks
    assert calls.checks == {"tool_call"}
    assert Mix("both", ((free, 1.0), (calls, 1.0))).checks == {"tool_call"}
    drawn = RequestGenerator(free, Random(1)).draw("n")
    assert (drawn.expectation, drawn.is_length_forced) == (None, True)
    calibration = PromptCalibration()
    generator = RequestGenerator(calls, Random(1))
    sample, drawn = generator.draw("n", calibration), generator.draw("n")
    assert (sample.expectation, sample.is_length_forced, drawn.expectation, drawn.is_length_forced) == (
        None, False, CALLS, False,
    )  # fmt: skip
