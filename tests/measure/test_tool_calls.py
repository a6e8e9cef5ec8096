"""Tool calls of answers: the first piece, the complete arguments, and which calls are valid.

The pieces are written as the engines named in the cases write them; the verdicts are those of a client that joins the pieces of a
call as OpenAI's and Anthropic's SDKs do.
"""

# ruff: noqa: E501 -- a table: one line a case

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from prober.measure.api import APIS
from prober.measure.quality import Expectation, answer_problem, expectation_problem
from prober.measure.recording import MAX_CHUNKS, Recording
from prober.measure.timeline import Timeline
from prober.measure.tool_calls import MAX_ARGUMENT_CHARS, MAX_CALLS

MS = 1_000_000
STREAMS = Path(__file__).parent.parent / "streams"
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city"],
}
EXPECTATION = Expectation("tool_call", {"weather": SCHEMA, "now": {}})
PARIS = '{"city":"Paris"}'
Piece = tuple[int, str, dict[str, Any]]


class Case(NamedTuple):
    """An answer. pieces: (ms, API, event); first_ms, arguments_ms: of the first call; problem: a part of it, "" if valid"""

    name: str
    pieces: tuple[Piece, ...]
    calls: int
    first_ms: int | None
    arguments_ms: int | None
    problem: str = ""


def call(at_ms: int, arguments: Any = None, name: str | None = None, index: int | None = 0, **more: Any) -> Piece:
    """A delta of the chat API with a piece of one call."""
    function = {key: value for key, value in (("name", name), ("arguments", arguments)) if value is not None}
    position = {} if index is None else {"index": index}
    return delta(at_ms, tool_calls=[{**position, **more, "function": function}])


def delta(at_ms: int, finish: str | None = None, **fields: Any) -> Piece:
    return at_ms, "chat", {"choices": [{"index": 0, "delta": fields, "finish_reason": finish}]}


def response(at_ms: int, kind: str, **fields: Any) -> Piece:
    return at_ms, "responses", {"type": f"response.{kind}", **fields}


def added(at_ms: int, name: str, item: str, **place: Any) -> Piece:
    function = {"type": "function_call", "id": item, "call_id": f"call_{item}", "name": name, "arguments": ""}
    return response(at_ms, "output_item.added", item=function, **place)


def arguments(at_ms: int, text: str, item: str, **place: Any) -> Piece:
    return response(at_ms, "function_call_arguments.delta", item_id=item, delta=text, **place)


def block(at_ms: int, kind: str, index: int, **fields: Any) -> Piece:
    return at_ms, "messages", {"type": f"content_block_{kind}", "index": index, **fields}


def tool(at_ms: int, index: int, name: str = "weather", **fields: Any) -> Piece:
    return block(at_ms, "start", index, content_block={"type": "tool_use", "id": "t", "name": name, **fields})


def partial(at_ms: int, index: int, text: str) -> Piece:
    return block(at_ms, "delta", index, delta={"type": "input_json_delta", "partial_json": text})


CASES = (
    Case("vLLM: name, then pieces", (call(50, "", "weather", id="a"), call(60, '{"city"'), call(70, ':"Paris"}')), 1, 50, 70),
    Case("llama.cpp: the name with the first brace", (delta(1, role="assistant", content=None), call(50, "{", "weather", id="a"), call(60, '"city":"x"'), call(70, "}")), 1, 50, 70),
    Case("all in one piece", (call(50, PARIS, "weather", id="a"),), 1, 50, 50),
    Case("name and a new id in each delta", (call(50, '{"city"', "weather", id="a"), call(60, ':"P"', "weather", id="b"), call(70, "}", "weather", id="c"), call(80, "", "weather", id="d")), 1, 50, 70),
    Case("name in two pieces", (call(50, None, "wea"), call(55, "", "ther"), call(60, PARIS)), 1, 50, 60),
    Case("empty arguments of a tool without parameters", (call(50, "{}", "now", id="a"),), 1, 50, 50),
    Case("empty arguments of a tool with parameters", (call(50, "{}", "weather", id="a"),), 1, 50, 50, "'city' is a required property"),
    Case("no arguments at all", (call(50, "", "now", id="a"),), 1, 50, None, "is not JSON"),
    Case("parallel, interleaved by index", (call(50, "", "weather", 0, id="a"), call(60, "", "now", 1, id="b"), call(70, '{"city":', index=0), call(80, "{}", index=1), call(90, '"x"}', index=0)), 2, 50, 90),
    Case("parallel, the later index first", (call(50, "{", "now", 1, id="b"), call(60, PARIS, "weather", 0, id="a"), call(70, "}", index=1)), 2, 50, 70),
    Case("parallel in one delta", (delta(50, tool_calls=[{"index": i, "id": str(i), "function": {"name": "now", "arguments": "{}"}} for i in (0, 1)]),), 2, 50, 50),
    Case("parallel, the second one broken", (call(50, PARIS, "weather", 0), call(60, "{]", "now", 1)), 2, 50, 50, "is not JSON"),
    Case("SGLang of early 2025: every call has index 0, ids differ", (call(50, "", "weather", id="0"), call(60, PARIS, None, id="0"), call(70, "", "now", id="1"), call(80, "{}", id="1")), 2, 50, 60),
    Case("without an index, ids differ", (call(50, PARIS, "weather", None, id="a"), call(60, "{}", "now", None, id="b")), 2, 50, 50),
    Case("without index and id", (call(50, '{"city"', "weather", None), call(60, ':"x"}', None, None)), 1, 50, 60),
    Case("broken: a comma before the end", (call(50, '{"city":"x"', "weather"), call(60, ",}")), 1, 50, None, "is not JSON"),
    Case("broken: text behind the arguments", (call(50, PARIS, "weather"), call(60, " done")), 1, 50, None, "is not JSON"),
    Case("cut in the middle", (call(50, '{"city":"Pa', "weather"), delta(60, "length")), 1, 50, None, "is not JSON"),
    Case("white space behind the arguments", (call(50, PARIS, "weather"), call(60, "\n")), 1, 50, 50),
    Case("braces and escapes in text", (call(50, '{"city":"}{\\', "weather"), call(60, '"}"'), call(70, "}")), 1, 50, 70),
    Case("an escape at the end of a piece, an empty piece, a quote", (call(50, '{"city":"\\', "weather"), call(60, ""), call(70, '"x"'), call(80, "}")), 1, 50, 80),
    Case("a list is not arguments", (call(50, "[1]", "now"),), 1, 50, None, "is no JSON object"),
    Case("JSON inside a JSON text", (call(50, json.dumps("{}"), "now"),), 1, 50, None, "is no JSON object"),
    Case("an empty object before the text of the arguments", (call(50, {}, "weather"), call(60, PARIS)), 1, 50, 60),
    Case("arguments as an object", (call(50, {"city": "x"}, "weather"),), 1, 50, None, "an object is not JSON text"),
    Case("arguments that are a number", (call(50, 7, "weather"),), 1, 50, None, "is not JSON"),
    Case("a tool that does not exist", (call(50, "{}", "rain"),), 1, 50, 50, "calls 'rain', which is none of 'weather', 'now'"),
    Case("wrong type", (call(50, '{"city":3}', "weather"),), 1, 50, 50, "$.city: 3 is not of type 'string'"),
    Case("text before the call", (delta(10, content="I will look."), call(50, PARIS, "weather")), 1, 50, 50),
    Case("reasoning before the call", (delta(10, reasoning_content="hm"), call(50, PARIS, "weather")), 1, 50, 50),
    Case("an id alone is no content", (delta(40, tool_calls=[{"index": 0, "id": "a", "type": "function"}]), call(50, PARIS, "weather")), 1, 50, 50),
    Case("text and no call", (delta(10, content='{"name": "weather"}'),), 0, None, None, "calls no tool"),
    Case("an empty list is no call", (delta(10, content="x", tool_calls=[]), delta(20, tool_calls=None)), 0, None, None, "calls no tool"),
    Case("function_call of 2023", (delta(50, function_call={"name": "weather", "arguments": '{"city"'}), delta(60, function_call={"arguments": ':"x"}'})), 1, 50, 60),
    Case("responses: two calls", (added(50, "weather", "f1", output_index=0), arguments(60, PARIS, "f1", output_index=0), added(70, "now", "f2", output_index=1), arguments(80, "{}", "f2", output_index=1)), 2, 50, 60),
    Case("responses: llama.cpp has no output_index", (added(50, "weather", "fc_1"), arguments(60, '{"city":', "fc_1"), arguments(70, '"x"}', "fc_1")), 1, 50, 70),
    Case("responses: done repeats the arguments", (added(50, "weather", "f1", output_index=0), arguments(60, PARIS, "f1", output_index=0), response(70, "function_call_arguments.done", item_id="f1", output_index=0, arguments=PARIS)), 1, 50, 60),
    Case("responses: the arguments come with the item only", (added(50, "weather", "f1", output_index=0), response(70, "output_item.done", output_index=0, item={"type": "function_call", "id": "f1", "name": "weather", "arguments": PARIS})), 1, 50, 70),
    Case("responses: the call comes with its end only", (response(70, "output_item.done", output_index=0, item={"type": "function_call", "id": "f1", "name": "weather", "arguments": PARIS}),), 1, 70, 70),
    Case("responses: the item repeats the call", (added(50, "weather", "f1", output_index=0), arguments(60, PARIS, "f1", output_index=0), response(70, "output_item.done", output_index=0, item={"type": "function_call", "id": "f1", "name": "weather", "arguments": PARIS})), 1, 50, 60),
    Case("responses: an item without output_index repeats the call", (added(50, "weather", "fc_1"), arguments(60, PARIS, "fc_1"), response(70, "output_item.done", item={"type": "function_call", "id": "fc_1", "name": "weather", "arguments": PARIS})), 1, 50, 60),
    Case("responses: the arguments come with done only", (added(50, "weather", "f1", output_index=0), response(70, "function_call_arguments.done", item_id="f1", output_index=0, arguments=PARIS)), 1, 50, 70),
    Case("responses: a search by the server is no call", (response(50, "output_item.added", output_index=0, item={"type": "web_search_call", "id": "w", "name": "web"}),), 0, None, None, "calls no tool"),
    Case("messages: text, then a tool", (block(10, "delta", 0, delta={"type": "text_delta", "text": "I"}), tool(50, 1, input={}), partial(60, 1, ""), partial(70, 1, '{"city":'), partial(80, 1, '"x"}'), block(90, "stop", 1)), 1, 50, 80),
    Case("messages: no input is an empty object", (tool(50, 0, "now", input={}), partial(60, 0, ""), block(70, "stop", 0)), 1, 50, 70),
    Case("messages: the input with the start", (tool(50, 0, input={"city": "x"}), block(60, "stop", 0)), 1, 50, 50),
    Case("messages: cut before the first input", (tool(50, 0, input={}),), 1, 50, None, "is not JSON"),
    Case("messages: a search by the server is no call", (block(50, "start", 0, content_block={"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}), partial(60, 0, "{}"), block(61, "stop", 0)), 0, None, None, "calls no tool"),
    Case("messages: two tools", (tool(50, 0, input={}), partial(60, 0, PARIS), block(61, "stop", 0), tool(70, 1, "now", input={}), block(80, "stop", 1)), 2, 50, 60),
)  # fmt: skip


def recorded(case: Case, *, keeps_prose: bool = False, tokens: int = MAX_CHUNKS) -> Recording:
    recording = Recording(api=APIS[case.pieces[0][1]], tokens=tokens, keeps_prose=keeps_prose)
    for at_ms, _, event in case.pieces:
        recording.feed(at_ms * MS, b"data: " + json.dumps(event).encode() + b"\n\n")
    recording.finish()
    return recording


def call_problem(expectation: Expectation, recording: Recording) -> str:
    return answer_problem(expectation, "", [(call.name, call.arguments) for call in recording.answer.calls])


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_calls_are_measured_and_judged(case: Case) -> None:
    """The first call begins with its first name or arguments, and is complete with the piece that ends its JSON object."""
    recording = recorded(case)
    timeline = recording.complete(Timeline(10 * MS))
    assert recording.malformed is None
    assert timeline.calls == case.calls
    assert timeline.ttft_call_s == (None if case.first_ms is None else pytest.approx((case.first_ms - 10) / 1e3))
    complete_s = None if case.arguments_ms is None else pytest.approx((case.arguments_ms - 10) / 1e3)
    assert timeline.arguments_s == complete_s
    problem = call_problem(EXPECTATION, recording)
    assert case.problem in problem if case.problem else problem == "", problem


def test_a_captured_call_of_llama_cpp() -> None:
    """A call of llama.cpp, its arguments forced by a grammar: TTFT is that of the call, the arguments end before the finish reason."""
    _, _, body = (STREAMS / "llamacpp_chat_tool_call.http").read_bytes().partition(b"\r\n\r\n")
    recording = Recording()
    for at_ms, event in enumerate(body.split(b"\n\n")):
        recording.feed(at_ms * MS, event + b"\n\n")
    recording.finish()
    timeline = recording.complete(Timeline(0))
    (first,) = recording.answer.calls
    assert (first.name, json.loads(first.arguments)["days"]) == ("get_weather", 3)
    assert timeline.ttft_call_s == timeline.ttft_s
    assert timeline.arguments_s == pytest.approx(timeline.content_ns[-1] / 1e9)
    assert timeline.finish_reason == "tool_calls"


@pytest.mark.parametrize(
    ("text_first", "completion_tokens", "tpot_ms"),
    [(False, 3, 10.0), (False, 4, 20 / 3), (False, 20, None), (True, 20, 40 / 19)],
)
def test_tokens_that_are_not_sent_make_no_quick_ones(
    text_first: bool, completion_tokens: int, tpot_ms: float | None
) -> None:
    """TPOT of a call needs the tokens of its first piece: those of the markup before it are in the usage, and in no chunk."""
    pieces = [call(50, "", "weather"), call(60, '{"city"'), call(70, ':"x"}'), delta(71, "tool_calls")]
    if text_first:
        pieces.insert(0, delta(30, content="I"))
    usage: Piece = (72, "chat", {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": completion_tokens}})
    timeline = recorded(Case("", (*pieces, usage), 1, 50, 70)).complete(Timeline(0))
    assert timeline.tpot_s == (None if tpot_ms is None else pytest.approx(tpot_ms / 1e3))


def test_an_answer_that_is_not_streamed_has_calls_and_no_times() -> None:
    """All of it came at once: the calls are judged, and no time of theirs is made up. Marked reasoning is no text of a later request."""
    function = {"name": "weather", "arguments": PARIS}
    bodies = {
        "chat": {"choices": [{"message": {"content": "I look.", "tool_calls": [{"id": "a", "function": function}, {"function": {"name": "now", "arguments": "{}"}}]}, "finish_reason": "tool_calls"}]},
        "responses": {"status": "completed", "output": [{"type": "message", "content": [{"type": "output_text", "text": "I look."}]}, *[{"type": "function_call", "id": "f", **function}] * 2]},
        "messages": {"content": [{"type": "text", "text": "I look."}, {"type": "tool_use", "name": "weather", "input": {"city": "x"}}, {"type": "tool_use", "name": "now", "input": {}}], "stop_reason": "tool_use"},
    }  # fmt: skip
    marked = "<think>Which city?</think>\n\nI look."
    for api, body, text in ((api, body, text) for api, body in bodies.items() for text in ("I look.", marked)):
        recording = Recording(streamed=False, api=APIS[api], keeps_prose=True)
        recording.feed(5, json.dumps(body).replace('"I look."', json.dumps(text)).encode())
        recording.finish()
        timeline = recording.complete(Timeline(0))
        assert (timeline.calls, timeline.ttft_call_s, timeline.arguments_s) == (2, None, None), api
        assert call_problem(EXPECTATION, recording) == "", api
        assert recording.answer.message is not None
        assert (recording.answer.message.text, len(recording.answer.message.tools)) == ("I look.", 2), api


SHORT = '{"city":"x"}'


@pytest.mark.parametrize(
    ("pieces", "message"),
    [
        ((call(5, SHORT, "weather", 0, id="a"), call(6, "{}", "now", 1, id="b")), ("", (("a", "weather", SHORT), ("b", "now", "{}")))),
        ((delta(5, content="I will "), delta(6, content="look."), call(7, "", "now")), ("I will look.", (("", "now", "{}"),))),
        ((delta(5, content="It is noon."),), ("It is noon.", ())),
        ((call(5, '{"city":"\ud83c', "weather"), call(6, '\udf39"}')), ("", (("", "weather", '{"city":"\N{ROSE}"}'),))),
        ((call(5, '{"city":"', "weather"),), None),
        ((call(5, '["x"]', "weather"),), None),
        ((call(5, {"city": "x"}, "weather"),), None),
        ((added(5, "now", "f1"), response(6, "function_call_arguments.done", item_id="f1", arguments={})), ("", (("call_f1", "now", "{}"),))),
        ((call(5, '{"days":NaN}', "weather"),), None),
        (tuple(call(5, "{}", "now", index) for index in range(MAX_CALLS + 1)), None),
        ((call(5, '{"a":"' + "x" * MAX_ARGUMENT_CHARS, "now"), call(6, '"}')), None),
        ((added(5, "now", "f1", output_index=1), arguments(6, "{}", "f1", output_index=1)), ("", (("call_f1", "now", "{}"),))),
        ((block(5, "start", 0, content_block={"type": "text", "text": "I"}), tool(6, 1, "now", input={}), block(7, "stop", 1)), ("I", (("t", "now", "{}"),))),
    ],
)  # fmt: skip
def test_an_answer_becomes_a_message_of_a_later_request(pieces: tuple[Piece, ...], message: object) -> None:
    """With its text apart from its calls; None if APIs or chat templates would refuse the calls, or some are not stored."""
    seen = recorded(Case("", pieces, 0, 0, 0), keeps_prose=True).answer.message
    calls = [(call.call_id, call.name, call.arguments) for call in seen.tools] if seen else []
    assert (seen and (seen.text, tuple(calls))) == message


@pytest.mark.parametrize(("text_chars", "is_kept"), [(0, True), (1_000, False)])
def test_the_calls_of_a_message_count_in_its_length(text_chars: int, is_kept: bool) -> None:
    """As its text does: the bound for 400 tokens is 4,800 characters, of which two calls have 4,000."""
    calls = (call(5, json.dumps({"a": "x" * 1_991}), "now", index) for index in (0, 1))
    recording = recorded(Case("", (delta(4, content="x" * text_chars), *calls), 0, 0, 0), keeps_prose=True, tokens=400)
    assert recording.answer.length_problem == ""
    assert (recording.answer.message is not None) == is_kept


def test_a_model_that_may_choose_needs_no_call() -> None:
    """With `tool_choice: auto` an answer in words is right, and a broken call is wrong."""
    by_choice = Expectation("tool_call", {"now": {}}, is_call_required=False)
    assert answer_problem(by_choice, "It is noon.", ()) == ""
    broken = next(case for case in CASES if case.name.startswith("broken"))
    assert call_problem(by_choice, recorded(broken))


def test_a_flood_of_calls_is_bounded() -> None:
    """Memory is bounded however many calls there are; all of them count."""
    pieces = tuple(call(1, "{", "now", index) for index in range(3 * MAX_CALLS))
    recording = recorded(Case("", pieces, 0, 0, 0))
    assert len(recording.answer.calls) == MAX_CALLS
    assert recording.complete(Timeline(0)).calls == 3 * MAX_CALLS


def test_the_schema_of_a_tool_is_checked_before_use() -> None:
    """A schema against which no arguments can be checked is reported with the name of its tool."""
    assert "weather: is not a JSON Schema" in expectation_problem(
        Expectation("tool_call", {"weather": {"type": "objec"}})
    )
    assert expectation_problem(EXPECTATION) == ""
