"""Single answers with verdicts that were written before the code was read: what people send today, in each API that can say it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, get_args

from tests.traffic.answers import Answer, Piece, Refusal, both, call, hide, say, summarise, tag, think
from tests.traffic.verdicts import (
    ANSWER,
    CITY,
    CONTEXT,
    DATE,
    FORCED,
    KEY,
    MAX_TOKENS,
    PARIS,
    PROSE,
    REASON,
    SCHEMA,
    STRUCTURAL,
    UNCHECKED,
    VALID,
    ZONE,
    Api,
    ProbeCase,
    Verdict,
    json_schema,
    tools,
)

APIS: tuple[Api, ...] = get_args(Api)
SAID = Verdict()
BEHIND = Verdict(ttft_answer="answer")
HIDDEN = Verdict(tpot="pace or reason")
SUMMARISED = Verdict(ttft_answer="answer", tpot="pace or reason")
EMPTY = Verdict("empty", ttft=False, tpot="none")
USED_UP = Verdict("!empty", ttft=False, tpot="none", says=REASON)
STREAMED = think("Let| me| see|,| yes") + ANSWER
TAGGED = tag("<think>|Let| me| see|</think>")
SUMMARY = summarise("It| thought| hard|.", 60)


def cases(
    name: str, apis: str, reply: Answer | tuple[Piece, ...] | Refusal, verdict: Verdict = SAID, **more: Any
) -> Iterator[ProbeCase]:
    """A case in each of these APIs. more: fields of the case; `sampling` may be a function of the API."""
    reply = Answer(reply) if isinstance(reply, tuple) else reply
    for api in APIS:
        if api in apis.split():
            fields = more.get("sampling", {})
            sampling = fields(api) if callable(fields) else fields
            yield ProbeCase(f"{api}: {name}", api, reply, verdict, **more | {"sampling": sampling})


def reasoning() -> Iterator[ProbeCase]:
    """Reasoning that is hidden, summarised, streamed apart or marked in the text, before the answer `PARIS`."""
    every, marked = "chat completions responses messages", "chat completions messages"
    up_to_30 = Answer(hide(30), "length")
    for name, apis, reply, verdict in (
        ("no reasoning", every, ANSWER, SAID),
        ("hidden, counted in the usage", "chat completions responses", hide(30) + ANSWER, HIDDEN),
        ("hidden, left out of completion_tokens", "chat", Answer(hide(30) + ANSWER, excludes_reasoning=True), HIDDEN),
        ("streamed, counted in the usage", "chat responses", STREAMED, BEHIND),
        ("streamed, not counted apart", "chat", Answer(STREAMED, counts_reasoning=False), BEHIND),
        ("streamed", "messages", STREAMED, SUMMARISED),
        ("a summary of it", "chat responses messages", SUMMARY + ANSWER, SUMMARISED),
        ("redacted", "messages", hide(30, "redacted") + ANSWER, HIDDEN),
        ("omitted", "messages", hide(30, "omitted") + ANSWER, HIDDEN),
        ("tagged", marked, TAGGED + ANSWER, BEHIND),
        ("tagged, tags split over chunks", "chat", tag("<|thi|nk>|Let| me| see|</|thi|nk>") + ANSWER, BEHIND),
        ("tagged, tags split over chunks", "responses", tag("<th|ink>|Let| me| see|</thi|nk>") + ANSWER, BEHIND),
        ("a line break before tags", "chat", tag("\n|<think>|\nLet| me| see\n|</think>") + ANSWER, BEHIND),
        ("tagged by the template", "chat", tag("Let| me| see|.|</think>") + ANSWER, BEHIND),
        ("tagged by the template", "completions", tag("Let| me| see|</th|ink>") + ANSWER, BEHIND),
        ("tags around nothing", "chat", tag("<think>|\n\n|</think>|\n\n") + ANSWER, Verdict(ttft_answer="any")),
        (
            "the end of tagged reasoning and the answer in one chunk",
            "chat",
            tag("<think>|Let| me| see") + both("</think>", "Par") + say("is| is| it|, I| am| sure"),
            BEHIND,
        ),
        (
            "golden words in tagged reasoning only",
            "chat",
            tag("<think>|Paris is it, I am sure|</think>") + say("I| do| not| know"),
            Verdict("wrong_answer", ttft_answer="answer"),
        ),
    ):
        yield from cases(f"reasoning, {name}", apis, reply, verdict, golden=PARIS)
    for text in (
        "<thin|k_twice>| is| no| tag| of| reasoning",
        "<|th| is| how| a| row| begins",
        "Use| <think>| tags|,| not| </think>| alone",
    ):
        yield from cases(f"text and no tag: {text}", "chat", say(text), golden=text.replace("|", ""))
    for name, apis, reply, verdict, limit in (
        ("hidden reasoning uses up the limit", "chat completions responses", up_to_30, USED_UP, 30),
        ("redacted thinking does", "messages", Answer(hide(30, "redacted"), "length"), USED_UP, 30),
        ("omitted thinking does", "messages", Answer(hide(30, "omitted"), "length"), USED_UP, 30),
        ("a summary does", "responses", Answer(SUMMARY, "length"), Verdict("!empty", tpot="pace or reason"), 60),
        ("streamed reasoning does", "chat", Answer(think("Let| me| see|,| yes"), "length"), SAID, 5),
        ("tagged reasoning does", "chat", Answer(tag("<think>|Let| me| see|,| no"), "length"), SAID, 6),
        ("hidden reasoning, then a stop", "chat responses", hide(30), EMPTY, 64),
        ("a stop at once", "chat", (), EMPTY, 64),
        (
            "nothing up to the limit, and no reasoning counted",
            "chat",
            Answer((Piece("hidden", tokens=30),), "length", counts_reasoning=False),
            EMPTY,
            30,
        ),
    ):
        yield from cases(f"no answer: {name}", apis, reply, verdict, output_tokens=limit)


def called() -> Iterator[ProbeCase]:
    """Tools that may, must or must not be called. A choice begins with `get_` where it names the tool."""
    every, weather, time = "chat responses messages", call("get_weather", CITY), call("get_time", ZONE)
    both_tools, wrong = weather + call("get_time", ZONE, 1), weather + call("get_time", CITY, 1)
    for name, apis, choice, pieces, outcome in (
        ("the named tool is called", every, "get_weather", weather, "ok"),
        ("another tool than the named one is called", every, "get_weather", time, "wrong_answer"),
        ("the named tool is not called", "chat", "get_weather", (), "wrong_answer"),
        ("the named tool and another one are called", "chat", "get_weather", both_tools, "wrong_answer"),
        ("a required call is missing", every, "required", (), "wrong_answer"),
        ("no tool may be called, and none is", every, "none", (), "ok"),
        ("no tool may be called, and one is", "chat responses", "none", time, "wrong_answer"),
        ("two parallel calls", "chat responses", "required", both_tools, "ok"),
        ("the second of two calls has wrong arguments", "chat messages", "required", wrong, "wrong_answer"),
        ("hidden reasoning, then a required call", "chat", "required", hide(30) + time, "ok"),
        ("hidden reasoning, then the named tool", "responses", "get_weather", hide(30) + weather, "ok"),
        ("redacted, then another tool", "messages", "get_weather", hide(30, "redacted") + time, "wrong_answer"),
    ):
        answer = Answer(pieces, "tool_calls") if pieces else Answer(say(PROSE))
        tpot = "pace or reason" if pieces else "pace"
        says = "get_time|get_weather" if pieces and outcome == "wrong_answer" else ""
        verdict = Verdict(outcome, calls=len(answer.calls), tpot=tpot, says=says)  # type: ignore[arg-type]
        yield from cases(name, apis, answer, verdict, sampling=lambda api, choice=choice: tools(api, choice))
    one, two, missed = replace(HIDDEN, calls=1), replace(HIDDEN, calls=2), Verdict("wrong_answer", calls=1)
    behind, told = replace(SUMMARISED, calls=1), replace(SUMMARISED, outcome="wrong_answer", calls=1)
    for name, api, choice, reply, verdict, more in (
        ("the named tool is called, which is a stop", "chat", "get_weather", Answer(weather), one, {}),
        ("a required call of vLLM", "chat", "required", time, one, {"owner": "vllm", "absent": FORCED}),
        ("a call is cut at the limit", "chat", "required", Answer(call("get_weather", '{"city"|: "Pa'), "length"),
         replace(missed, tpot="pace or reason"), {"output_tokens": 3}),
        ("streamed reasoning, then another tool", "chat", "get_weather", think("Let| me| see|.") + time, told, {}),
        ("tagged reasoning, then a required call", "chat", "required", TAGGED + time, behind, {}),
        ("text, then two parallel calls", "messages", "required", say("Let| me| see") + both_tools, two, {}),
    ):  # fmt: skip
        reply = Answer(reply, "tool_calls") if isinstance(reply, tuple) else reply
        yield from cases(name, api, reply, verdict, sampling=tools(api, choice), **more)  # type: ignore[arg-type]
    parallel = tools("chat", "required", parallel_tool_calls=True)
    yield from cases("parallel_tool_calls", "chat", Answer(both_tools, "tool_calls"), two, sampling=parallel)


CHOICES = ["positive", "negative"]
CHOSEN = ("posi|tive", "It| is| positive|, I| think", "po|si")
DATES = ("20|26|-11|-24", "It| is| 2026|-11|-24| to|day", "20|26|-11|-")
CITIES = (VALID, PROSE, '{"|city|":| "Par')
FORMATS: list[tuple[str, str, dict[str, Any] | Callable[[Api], dict[str, Any]], tuple[str, str, str]]] = [
    # name, APIs, request fields; answers that honour the format, ignore it and are cut
    ("json_schema", "chat", json_schema, CITIES),
    ("json_schema", "responses messages", json_schema, CITIES),
    ("guided_json", "chat completions", {"guided_json": SCHEMA}, CITIES),
    ("guided_json as a text", "chat", {"guided_json": json.dumps(SCHEMA)}, CITIES),
    ("guided_regex", "chat", {"guided_regex": DATE}, DATES),
    ("guided_choice", "chat completions", {"guided_choice": CHOICES}, CHOSEN),
    ("structured_outputs.json", "chat", {"structured_outputs": {"json": SCHEMA}}, CITIES),
    ("structured_outputs.regex", "chat", {"structured_outputs": {"regex": DATE}}, DATES),
    (
        "structured_outputs.choice",
        "chat",
        {"structured_outputs": {"choice": CHOICES}},
        ("posi|tive", "posi|tive|!", "po|si"),
    ),
]


def formatted() -> Iterator[ProbeCase]:
    """Answers in a format; vLLM is not made to go on to a length beside one."""
    vllm: dict[str, Any] = {"owner": "vllm", "absent": FORCED}
    wrong, cut = (
        Verdict("wrong_answer"),
        Verdict("wrong_answer", says="limit|length|output_tokens"),
    )
    for name, apis, sampling, (good, other, part) in FORMATS:
        own = vllm | {"sampling": sampling} if "chat" in apis else {"sampling": sampling}
        yield from cases(f"{name} is honoured", apis, say(good), **own)
        yield from cases(f"{name} is ignored", apis, say(other), wrong, **own)
        yield from cases(f"{name} is cut", apis, Answer(say(part), "length"), cut, output_tokens=len(say(part)), **own)
    unsure = Verdict("wrong_answer|ok", says=f"wrong_answer|{UNCHECKED}")
    begun = tag("<think>|A| map| {} |.|</think>")
    for name, reply, verdict, sampling, limit in (
        ("a forced length", Answer(say("a| b| c| d"), "length"), SAID, {}, 4),
        ("structural_tag is honoured", say(f"Look:| <get_weather>|{VALID}|</get_weather>"), SAID, STRUCTURAL, 64),
        ("structural_tag is ignored", say(f"Look:| <get_weather>|{PROSE}|</get_weather>"), unsure, STRUCTURAL, 64),
        ("structural_tag is cut", Answer(say('Look:| <get_weather>|{"|city|":| "Par'), "length"), unsure, STRUCTURAL, 6),
        ("tagged reasoning, then a json_schema", begun + say(VALID), BEHIND, json_schema("chat"), 64),
        ("structured_outputs.grammar is not checked, and that is said", say("SELECT| city| FROM| t"),
         Verdict(says=UNCHECKED), {"structured_outputs": {"grammar": 'root ::= "SELECT " [a-z]+ " FROM t"'}}, 64),
        ("tagged by the template, then guided_choice is ignored", tag("positive|?|</think>") + say("No| idea"),
         replace(BEHIND, outcome="wrong_answer"), {"guided_choice": CHOICES}, 64),
    ):  # fmt: skip
        forced = {"owner": "vllm", "present": FORCED} if not sampling else vllm
        yield from cases(name, "chat", reply, verdict, sampling=sampling, output_tokens=limit, **forced)
    up_to_30, used_up = Answer(hide(30), "length"), replace(USED_UP, outcome="!empty|ok")
    schema, redacted = {"sampling": json_schema}, hide(30, "redacted") + say(VALID)
    yield from cases("hidden reasoning uses up a json_schema", "chat", up_to_30, used_up, output_tokens=30, **schema)
    yield from cases("redacted thinking, then a json_schema", "messages", redacted, HIDDEN, **schema)


def refused() -> Iterator[ProbeCase]:
    """Requests that are not answered, with the server's words."""
    for api, refusal, outcome, says in (
        ("chat", CONTEXT, "rejected", "maximum context length"),
        ("chat", KEY, "rejected", "Incorrect API key"),
        ("responses", Refusal(403, "Project has no access to model", "model_not_found"), "rejected", "no access"),
        ("messages", Refusal(413, "Request exceeds the maximum size"), "rejected", "maximum size"),
        ("completions", Refusal(422, "best_of must be 1"), "rejected", "best_of"),
        ("messages", Refusal(529, "Overloaded"), "http_5xx", "Overloaded"),
    ):
        yield from cases(f"{refusal.status}", api, refusal, Verdict(outcome, ttft=False, tpot="none", says=says))
    named = Verdict("rejected", ttft=False, tpot="none", says="max_completion_tokens")
    yield from cases("max_tokens is unsupported, one probe", "chat", MAX_TOKENS, named, present=("max_tokens",))


CASES = [*reasoning(), *called(), *formatted(), *refused()]
