"""The check of answers that follows from the fields of a request."""

from random import Random
from typing import Any

import pytest

from prober.measure.quality import Expectation
from prober.workload.prompt_length import PromptCalibration
from prober.workload.requested_format import requested_format
from prober.workload.shapes import Fixed
from prober.workload.workloads import Mix, RequestGenerator, Workload, unchecked_formats

SCHEMA = {"type": "object", "required": ["city"]}
NESTED = {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}
FLAT = {"type": "function", "name": "weather", "parameters": SCHEMA}
ANTHROPIC = {"name": "weather", "input_schema": SCHEMA}
CALLS = Expectation("tool_call", {"weather": SCHEMA})
BY_CHOICE = Expectation("tool_call", {"weather": SCHEMA}, is_call_required=False)
JSON = Expectation("json_schema", SCHEMA)
OBJECT = Expectation("json_schema", {"type": "object"})
ANY_JSON = Expectation("json_schema", {})
DATE = Expectation("regex", r"(?s)\A(?:\p{Nd}{4}-[\p{Nd}]{2})\z")
YES = Expectation("text", ["yes", "no"])
NO_CALL = Expectation("tool_call", {}, is_call_required=False)
TIME = {"name": "time", "input_schema": {}}
TEXT = '{"type": "object", "required": ["city"]}'  # of SCHEMA
D = r"\d{4}-[\d]{2}"


@pytest.mark.parametrize(
    ("sampling", "expectation"),
    [
        ({"temperature": 0}, None),
        ({"tools": [NESTED], "tool_choice": "required"}, CALLS),
        ({"tools": [TIME, NESTED], "tool_choice": {"type": "function", "function": {"name": "weather"}}}, CALLS),
        ({"tools": [TIME, FLAT], "tool_choice": {"type": "function", "name": "weather"}}, CALLS),
        ({"tools": [TIME, ANTHROPIC], "tool_choice": {"type": "tool", "name": "weather"}}, CALLS),
        ({"tools": [TIME, NESTED], "tool_choice": {
            "type": "allowed_tools",
            "allowed_tools": {"mode": "auto", "tools": [{"type": "function", "function": {"name": "weather"}}]}}},
         BY_CHOICE),
        ({"tools": [TIME, FLAT], "tool_choice": {
            "type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "weather"}]}}, CALLS),
        ({"tools": [FLAT, {"type": "web_search"}], "tool_choice": {"type": "web_search"}}, BY_CHOICE),
        ({"tools": [FLAT], "tool_choice": "required"}, CALLS),
        ({"tools": [ANTHROPIC], "tool_choice": {"type": "any"}}, CALLS),
        ({"tools": [NESTED]}, BY_CHOICE),
        ({"tools": [NESTED], "tool_choice": "auto"}, BY_CHOICE),
        ({"tools": [NESTED], "tool_choice": None, "response_format": None}, BY_CHOICE),
        ({"tools": [ANTHROPIC], "tool_choice": {"type": "auto"}}, BY_CHOICE),
        ({"tools": [NESTED], "tool_choice": "none"}, NO_CALL),
        ({"tools": [ANTHROPIC], "tool_choice": {"type": "none"}}, NO_CALL),
        ({"tools": [{"type": "web_search"}]}, None),
        ({"tools": "weather"}, None),
        ({"tools": [{"name": "now"}], "tool_choice": "required"}, Expectation("tool_call", {"now": {}})),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "w", "schema": SCHEMA}}}, JSON),
        ({"response_format": {"type": "json_schema", "json_schema": SCHEMA}}, JSON),  # TensorRT-LLM takes both
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "w"}}}, Expectation("json_schema", {"name": "w"})),
        ({"response_format": {"type": "json_schema"}}, ANY_JSON),
        ({"response_format": {"type": "json", "schema": SCHEMA}}, JSON),  # TensorRT-LLM
        ({"response_format": {"type": "json", "value": SCHEMA}}, JSON),  # TGI
        ({"response_format": {"type": "json_object", "schema": TEXT}}, JSON),  # MLC
        ({"response_format": {"type": "json_object", "schema": None}}, OBJECT),
        ({"response_format": {"type": "regex", "regex": D}}, DATE),  # TensorRT-LLM
        ({"response_format": {"type": "regex", "pattern": D}}, DATE),
        ({"response_format": {"type": "regex_schema", "regex_schema": D}}, DATE),  # LMDeploy
        ({"text": {"format": {"type": "json_schema", "name": "w", "schema": SCHEMA}}}, JSON),
        ({"text": {"format": {"type": "text"}, "verbosity": "low"}}, None),
        ({"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}}, JSON),
        ({"output_format": {"type": "json_schema", "schema": SCHEMA}}, JSON),
        ({"response_format": {"type": "json_object"}}, OBJECT),
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": None, "guided_json": None, "structured_outputs": {"json": None, "json_object": False}}, None),
        ({"guided_json": SCHEMA}, JSON),
        ({"guided_json": TEXT}, JSON),
        ({"guided_regex": D}, DATE),
        ({"regex": r"\\d[\\w][^\w]\w"}, Expectation("regex", r"(?s)\A(?:\\d[\\w][^\w][\pL\pM\p{Nd}\p{Pc}])\z")),
        ({"guided_choice": ["yes", "no"]}, YES),
        ({"structured_outputs": {"json": SCHEMA}}, JSON),
        ({"structured_outputs": {"json": TEXT, "disable_any_whitespace": True}}, JSON),
        ({"structured_outputs": {"json_object": True}}, OBJECT),
        ({"structured_outputs": {"regex": D}}, DATE),
        ({"structured_outputs": {"choice": ["yes", "no"]}}, YES),
        ({"json_schema": TEXT}, JSON),  # SGLang
        ({"regex": D}, DATE),
        ({"guided_decoding": {"json_schema": SCHEMA}}, JSON),  # TensorRT Edge-LLM
        ({"guided_decoding": {"choice": ["yes", "no"]}}, YES),
        ({"nvext": {"guided_json": SCHEMA}}, JSON),  # NIM
        ({"extra_body": {"structured_outputs": {"choice": ["yes", "no"]}}}, YES),
        ({"extra_body": {"response_format": {"type": "json_object"}}}, OBJECT),
        ({"tools": [NESTED], "tool_choice": "none", "response_format": {"type": "json_object"}}, OBJECT),
        ({"tools": [NESTED], "tool_choice": "required", "response_format": {"type": "json_object"}}, CALLS),
    ],
)  # fmt: skip
def test_tools_and_formats_of_each_api_and_engine_are_checked(
    sampling: dict[str, Any], expectation: Expectation | None
) -> None:
    """Tools by their schemas: a call is demanded where the request demands one, of the tool that it names, and forbidden where it
    forbids one. A format by its schema, expression or choices, wherever servers read it."""
    assert requested_format(sampling) == (expectation, "")


@pytest.mark.parametrize(
    ("sampling", "expectation", "says"),
    [
        ({"guided_grammar": "root ::= x"}, None, "guided_grammar: "),
        ({"grammar": "root ::= x"}, None, "grammar: "),  # llama.cpp
        ({"structured_outputs": {"grammar": "root ::= x"}}, None, "structured_outputs.grammar: "),
        ({"structured_outputs": {"structural_tag": "{}"}}, None, "structured_outputs.structural_tag: "),
        ({"ebnf": "root ::= x"}, None, "ebnf: "),
        ({"structural_tag": "{}"}, None, "structural_tag: "),
        ({"response_format": {"type": "structural_tag", "structures": [], "triggers": []}}, None, "response_format structural_tag: "),
        ({"response_format": {"type": "ebnf", "ebnf": "root ::= x"}}, None, "response_format ebnf: "),
        ({"response_format": {"type": "of tomorrow"}}, None, "response_format of tomorrow: "),
        ({"guided_regex": "a(?=b)"}, None, "RE2 has no lookahead"),
        ({"guided_regex": r"\w+@\w+\.com\n", "stop": ["\n"]}, None, "`stop`"),
        ({"tools": [NESTED], "response_format": {"type": "json_object"}}, BY_CHOICE, "response_format json_object: "),
        ({"tools": [NESTED], "tool_choice": "none", "guided_grammar": "root ::= x"}, NO_CALL, "guided_grammar: "),
    ],
)  # fmt: skip
def test_a_format_that_cannot_be_checked_says_so(
    sampling: dict[str, Any], expectation: Expectation | None, says: str
) -> None:
    """The field and the reason; the length of such an answer is its own all the same, and what can be checked is."""
    found, unchecked = requested_format(sampling)
    assert found == expectation
    assert says in unchecked
    workload = Workload("w", Fixed(40), Fixed(20), sampling=sampling)
    assert (workload.is_length_forced, workload.expectation, workload.unchecked) == (False, expectation, unchecked)
    assert unchecked_formats(Mix("m", ((workload, 1.0), (Workload("free", Fixed(40), Fixed(20)), 1.0)))) == (unchecked,)


def test_checked_answers_have_their_own_length() -> None:
    """A call or JSON that must go on to a forced length is broken, so lengths are limits; sample prompts are not checked."""
    free = Workload("free", Fixed(40), Fixed(20))
    calls = Workload("calls", Fixed(40), Fixed(20), sampling={"tools": [NESTED], "tool_choice": "required"})
    assert not free.checks
    assert calls.checks == {"tool_call"}
    assert Mix("both", ((free, 1.0), (calls, 1.0))).checks == {"tool_call"}
    drawn = RequestGenerator(free, Random(1)).draw(0)
    assert (drawn.expectation, drawn.is_length_forced) == (None, True)
    calibration = PromptCalibration()
    generator = RequestGenerator(calls, Random(1))
    sample, drawn = generator.draw(0, 0, calibration), generator.draw(0)
    assert (sample.expectation, sample.is_length_forced, drawn.expectation, drawn.is_length_forced) == (
        None, False, CALLS, False,
    )  # fmt: skip
