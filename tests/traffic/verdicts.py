"""Kinds of cases, and the verdicts that a case can have. The verdicts of a table are written before the code is read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from tests.traffic.answers import PAUSE_S, Answer, Exchange, Refusal, say
from tests.traffic.server import Script

Api = Literal["chat", "completions", "responses", "messages"]
Truth = Callable[[Sequence[Exchange]], None]


@dataclass(frozen=True)
class Verdict:
    """What `prober once` must say of one answer.

    Args:
        outcome: an outcome of docs/methods.md, or several that are right; `!` before them: any but these.
        ttft: whether there is a first token; its time must be the server's.
        ttft_answer: `answer`: the time of the first piece of the answer; `none`: no data; `either`: one of the two; `any`: not judged.
        tpot: `pace`: that of the streamed tokens; `pace or reason`: that, or no data and a reason; `none`: no data.
        calls: number of tool calls.
        says, never: regular expressions that the output must, and must not, contain, in any case.
    """

    outcome: str = "ok"
    ttft: bool = True
    ttft_answer: Literal["answer", "none", "either", "any"] = "either"
    tpot: Literal["pace", "pace or reason", "none"] = "pace"
    calls: int | None = None
    says: str = ""
    never: str = "Traceback"


@dataclass(frozen=True)
class ProbeCase:
    """One answer to `prober once`.

    Args:
        golden: the expected text of a golden prompt, in place of a prompt of some length.
        sampling: request fields.
        output_tokens: the length that is asked for.
        owner: engine, as the list of models tells it.
        present, absent: fields that the request must, and must not, have.
    """

    name: str
    api: Api
    reply: Answer | Refusal
    verdict: Verdict
    golden: str | None = None
    sampling: dict[str, Any] = field(default_factory=dict)
    output_tokens: int = 64
    owner: str = "traffic"
    present: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()


@dataclass(frozen=True)
class RunCase:
    """A command that sends many requests.

    Args:
        command: its name and flags; `{url}` is the server, `{b}` a second, healthy one, `{config}` and `{rows}` are files.
        exits: right exit codes.
        truth: raises if the requests that the server had are wrong.
        then: another command that reads `{out}` afterwards, its right exit codes, and what it must say.
    """

    name: str
    api: Api
    command: str
    script: Script
    exits: tuple[int, ...]
    says: str = ""
    never: str = "Traceback"
    truth: Truth | None = None
    rows: dict[str, Any] = field(default_factory=dict)
    workload: dict[str, Any] = field(default_factory=dict)
    owner: str = "traffic"
    pause_s: float = PAUSE_S
    then: tuple[str, tuple[int, ...], str] | None = None


@dataclass(frozen=True)
class BudgetCase:
    """A target of a daemon with a budget of tokens a day.

    Args:
        spent: lowest and highest right number of tokens spent, by what the server sent.
    """

    name: str
    api: Api
    script: Script
    spent: Callable[[Sequence[Exchange]], tuple[float, float]]
    truth: Truth | None = None
    output_tokens: int = 64


# --- words of the tables

REASON = "reason|thinking"
UNCHECKED = r"unchecked|not checked|cannot be checked|can't be checked|no check"
PARIS = "Paris is it, I am sure"
ANSWER = say("Par|is| is| it|, I| am| sure")

SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "degrees": {"type": "integer"}},
    "required": ["city", "degrees"],
    "additionalProperties": False,
}
VALID = '{"|city|":| "Paris|",| "degrees|":| 21|}'
PROSE = "It| is| warm| in| Paris| to|day|."
_CITY = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
_ZONE = {
    "type": "object",
    "properties": {"zone": {"type": "string"}},
    "required": ["zone"],
    "additionalProperties": False,
}
CITY, ZONE = '{"city"|: "Pa|ris"}', '{"zone"|: "CE|T"}'


def tools(api: Api, choice: str, **fields: Any) -> dict[str, Any]:
    """Request fields with two tools, as `api` documents them; `choice` is a tool's name, or required, none or auto."""
    functions: list[dict[str, Any]] = [{"name": "get_weather", "description": "w", "parameters": _CITY}]
    functions += [{"name": "get_time", "description": "t", "parameters": _ZONE}]
    is_named = choice.startswith("get_")
    if api == "messages":
        declared = [
            {"name": f["name"], "description": f["description"], "input_schema": f["parameters"]} for f in functions
        ]
        word = {"required": "any"}.get(choice, choice)
        return {
            "tools": declared,
            "tool_choice": {"type": "tool", "name": choice} if is_named else {"type": word},
        } | fields
    if api == "responses":
        declared = [{"type": "function", "strict": False} | f for f in functions]
        return {"tools": declared, "tool_choice": {"type": "function", "name": choice} if is_named else choice} | fields
    declared = [{"type": "function", "function": f} for f in functions]
    return {
        "tools": declared,
        "tool_choice": {"type": "function", "function": {"name": choice}} if is_named else choice,
    } | fields


def json_schema(api: Api) -> dict[str, Any]:
    """Request fields for structured output, as `api` documents them."""
    if api == "messages":
        return {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}}
    if api == "responses":
        return {"text": {"format": {"type": "json_schema", "name": "weather", "schema": SCHEMA, "strict": True}}}
    return {
        "response_format": {"type": "json_schema", "json_schema": {"name": "weather", "schema": SCHEMA, "strict": True}}
    }


TAG = {"begin": "<get_weather>", "schema": SCHEMA, "end": "</get_weather>"}
STRUCTURAL = {"response_format": {"type": "structural_tag", "structures": [TAG], "triggers": ["<get_"]}}
DATE = r"\d{4}-\d{2}-\d{2}"
FORCED = ("ignore_eos", "min_tokens")

# --- scripts


def always(reply: Answer | Refusal) -> Script:
    return lambda exchange, earlier: reply


def every(period: int, phase: int, reply: Answer | Refusal, otherwise: Answer) -> Script:
    """One request of `period` gets `reply`, wherever one begins to count."""
    return lambda exchange, earlier: reply if exchange.number % period == phase else otherwise


def turn_of(exchange: Exchange, earlier: Sequence[Exchange]) -> int:
    """Number of the turn, from 1: one more than the longest conversation that it continues."""
    return 1 + max((turn_of(e, earlier[: e.number]) for e in earlier if exchange.continues(e)), default=0)


def from_turn(turn: int, reply: Answer | Refusal, otherwise: Answer) -> Script:
    return lambda exchange, earlier: reply if turn_of(exchange, earlier) >= turn else otherwise


def refuses_field(name: str, reply: Refusal, otherwise: Answer) -> Script:
    return lambda exchange, earlier: reply if name in exchange.body else otherwise


# --- truths


def turns(exchanges: Sequence[Exchange]) -> list[int]:
    return [turn_of(exchange, exchanges[: exchange.number]) for exchange in exchanges]


def turns_follow(exchanges: Sequence[Exchange]) -> None:
    """A turn is sent after the end of the answer before it, and there were later turns."""
    assert max(turns(exchanges)) > 1, "no later turn was sent"
    for exchange in exchanges:
        for before in exchanges[: exchange.number]:
            if exchange.continues(before):
                assert before.ended_s is not None
                assert before.ended_s <= exchange.received_s, (
                    f"turn {exchange.number} was sent before answer {before.number} ended"
                )


def failure_ends_session(exchanges: Sequence[Exchange]) -> None:
    """After a second turn that failed no third one is sent, and other sessions begin."""
    numbers = turns(exchanges)
    assert numbers.count(2) >= 2, numbers
    assert max(numbers) == 2, f"a session went on after its failed turn: {numbers}"
    first = [exchange.prompt for exchange, number in zip(exchanges, numbers, strict=True) if number == 1]
    assert len(first) == len(set(first)) >= 3


def completion_tokens_after_refusal(exchanges: Sequence[Exchange], lead_s: float = 0.05) -> None:
    """Requests that are made after the first refusal, `lead_s` before they are sent, have `max_completion_tokens`."""
    refused = next(e for e in exchanges if isinstance(e.reply, Refusal))
    assert refused.ended_s is not None
    later = [e for e in exchanges if e.received_s > refused.ended_s + lead_s]
    assert later, "nothing was sent after the refusal"
    for exchange in later:
        assert "max_tokens" not in exchange.body, exchange.number
        assert "max_completion_tokens" in exchange.body, exchange.number


def keeps_max_tokens(exchanges: Sequence[Exchange]) -> None:
    assert all("max_tokens" in exchange.body for exchange in exchanges)


def nothing(exchanges: Sequence[Exchange]) -> tuple[float, float]:
    assert exchanges
    return 0, 0


def as_counted(exchanges: Sequence[Exchange]) -> tuple[float, float]:
    """The usage of all answers; those still under way are charged with more."""
    counted = [e for e in exchanges if isinstance(e.reply, Answer) and e.ended_s is not None]
    total = sum(e.reply.tokens + e.prompt_tokens for e in counted if isinstance(e.reply, Answer))
    return total, total + 300 * (len(exchanges) - len(counted))


# --- replies of several cases

CONTEXT = Refusal(
    400,
    "This model's maximum context length is 4096 tokens. However, your messages resulted in 5000 tokens.",
    "context_length_exceeded",
)
KEY = Refusal(401, "Incorrect API key provided: sk-x.", "invalid_api_key")
MAX_TOKENS = Refusal(
    400,
    "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead.",
    "unsupported_parameter",
    "max_tokens",
)
SHORT = Answer(say("a| b| c"))
SLOW = Answer(say("a| b| c| d| e| f| g"))
TALK = {"prompt_tokens": 8, "output_tokens": 8, "sessions": {"count": 2, "turns": 5}}
