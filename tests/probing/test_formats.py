"""Answers in a requested format, over a socket: from a server that honours the field, one that ignores it, and one that is cut."""

from random import Random
from typing import Any

import orjson
import pytest

from prober.measure.outcome import Outcome
from prober.measure.result import ProbeResult
from prober.probing.probe import run_probe
from prober.workload.shapes import Fixed
from prober.workload.workloads import RequestGenerator, Workload
from tests.probing.test_probe import answered
from tests.scripted import Asked, Script
from tests.wire.events import DONE, chat, end, usage
from tests.wire.heads import until_close

pytestmark = pytest.mark.virtual_time
TOKENS = 60
SCHEMA = {
    "type": "object",
    "required": ["city"],
    "additionalProperties": False,
    "properties": {"city": {"type": "string"}},
}
CITY = ('{"city":', ' "Bergen', ' op Zoom"}')  # one piece is one token
TOOL = {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}
OTHER = {"type": "function", "function": {"name": "time", "parameters": {}}}
OPTIONAL = {"tools": [TOOL, OTHER], "tool_choice": "auto"}
NAMED = {"tools": [TOOL, OTHER], "tool_choice": {"type": "function", "function": {"name": "weather"}}}
FORBIDDEN = {"tools": [TOOL, OTHER], "tool_choice": "none"}
FORCING = {"min_tokens", "ignore_eos"}


def call(name: str) -> dict[str, Any]:
    function = {"name": name, "arguments": '{"city": "Bergen"}'}
    return {"tool_calls": [{"index": 0, "id": "call_0", "type": "function", "function": function}]}


class Server:
    """Sends the pieces of `deltas`, one token each, and ends with `reason`; a forced answer goes on to its length.

    Nothing goes on from the end of a constraint, as in engines whose grammar allows only the end there. bodies: of the requests
    """

    def __init__(self, deltas: list[dict[str, Any]], reason: str = "stop", *, is_constrained: bool = False) -> None:
        self._deltas, self._reason, self._is_constrained = deltas, reason, is_constrained
        self.bodies: list[dict[str, Any]] = []

    def reply(self, asked: Asked) -> Script:
        self.bodies.append(body := asked.json)
        deltas, reason = self._deltas, self._reason
        if "min_tokens" in body and not self._is_constrained:
            deltas, reason = [{"content": " on"}] * body["min_tokens"], "length"
        return until_close(*map(chat, deltas), end(reason), usage(len(deltas), 40), DONE)


def texts(*pieces: str) -> list[dict[str, Any]]:
    return [{"content": piece} for piece in pieces]


async def asked(server: Server, sampling: dict[str, Any]) -> ProbeResult:
    """The result of one request with these fields, of vLLM, whose lengths can be forced."""
    drawer = RequestGenerator(Workload("w", Fixed(40), Fixed(TOKENS), sampling=sampling), Random(1))
    async with answered(server.reply) as target:
        result = await run_probe(target, drawer, target.clock.now_ns() + 50_000_000)
    assert result is not None
    return result


@pytest.mark.parametrize(
    ("sampling", "check", "right"),
    [
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "w", "schema": SCHEMA}}}, "json_schema", CITY),
        ({"guided_json": SCHEMA}, "json_schema", CITY),
        ({"structured_outputs": {"json": SCHEMA}}, "json_schema", CITY),
        ({"json_schema": orjson.dumps(SCHEMA).decode()}, "json_schema", CITY),
        ({"guided_regex": r"\w+ \d+\n"}, "regex", ("Straße", " 12", "\n")),
        ({"structured_outputs": {"choice": ["red wine", "beer"]}}, "text", ("red", " wine")),
    ],
)  # fmt: skip
async def test_an_answer_in_a_format_ends_by_itself_and_is_checked(
    sampling: dict[str, Any], check: str, right: tuple[str, ...]
) -> None:
    """Nothing forces its length; `ok` where it is right and far shorter than its limit, wrong where a server ignores the field, and
    wrong with the reason where its limit cuts it."""
    server = Server(texts(*right), is_constrained=True)
    honoured = await asked(server, sampling)
    assert (honoured.outcome, honoured.check, honoured.detail) == (Outcome.OK, check, "")
    assert not FORCING & server.bodies[0].keys()
    assert server.bodies[0]["max_tokens"] == TOKENS
    assert {key: server.bodies[0][key] for key in sampling} == sampling
    ignored = await asked(Server(texts("Sure,", " here", " it", " is.")), sampling)
    assert (ignored.outcome, ignored.check) == (Outcome.WRONG_ANSWER, check)
    assert ignored.detail.startswith("'Sure, here it is.' ")
    cut = await asked(Server(texts(*right[:1]), "length", is_constrained=True), sampling)
    assert cut.outcome is Outcome.WRONG_ANSWER
    assert "reached its limit of tokens" in cut.detail


@pytest.mark.parametrize(
    "sampling",
    [
        {"guided_grammar": 'root ::= "x"'},
        {"response_format": {"type": "structural_tag", "structures": [], "triggers": []}},
    ],
)
async def test_an_answer_in_a_format_that_cannot_be_checked_is_not_forced(sampling: dict[str, Any]) -> None:
    """It is `ok`, as nobody knows better, and has no check."""
    server = Server(texts("x"), is_constrained=True)
    result = await asked(server, sampling)
    assert (result.outcome, result.check) == (Outcome.OK, None)
    assert not FORCING & server.bodies[0].keys()


async def test_a_plain_answer_is_forced_and_judged_by_its_length() -> None:
    """On the same server, `short` where it ends early all the same, and not checked."""
    server = Server(texts("x"))
    full = await asked(server, {"temperature": 0, "response_format": {"type": "text"}})
    assert (full.outcome, full.check, len(full.timeline.content_ns)) == (Outcome.OK, None, TOKENS)
    assert server.bodies[0].keys() >= FORCING
    early = await asked(Server(texts("x", "y"), is_constrained=True), {"temperature": 0})
    assert (early.outcome, early.detail) == (Outcome.SHORT, f"2 tokens although {TOKENS} were forced")


@pytest.mark.parametrize(
    ("sampling", "deltas", "detail"),
    [
        (NAMED, [call("weather")], ""),
        (NAMED, [call("time")], "calls 'time', which is none of 'weather'"),
        (OPTIONAL, [call("time")], ""),
        (OPTIONAL, texts("It", " rains."), ""),
        (FORBIDDEN, texts("It", " rains."), ""),
        (FORBIDDEN, [call("weather")], "calls 'weather', though it may call no tool"),
    ],
)
async def test_a_choice_of_tools_is_held_to_and_forces_no_length(
    sampling: dict[str, Any], deltas: list[dict[str, Any]], detail: str
) -> None:
    """A named tool is the only right one; with `none` any call is wrong, and an answer ends where the model ends it."""
    server = Server(deltas, "tool_calls" if "tool_calls" in deltas[0] else "stop")
    result = await asked(server, sampling)
    assert (result.outcome, result.detail) == (Outcome.WRONG_ANSWER if detail else Outcome.OK, detail)
    assert result.check == "tool_call"
    assert not FORCING & server.bodies[0].keys()
