"""Sessions of agents by the record of a server that knows the specification of each API and what it answered itself."""

import json
import re
from collections import defaultdict
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.commands import prober
from tests.traffic.answers import Answer, Exchange, Refusal, say
from tests.traffic.play import URL
from tests.traffic.server import Play, Server
from tests.virtual_commands import beside

ADAPTERS = ["sql", "law"]
SAMPLES = 3  # prompts that measure lengths, before all else
# A message as (role, text), an answer that calls a tool as ("call", text, id, name, arguments), its result as ("result", text, id).
Turn = tuple[Any, ...]


def reply(exchange: Exchange, earlier: list[Exchange]) -> Answer | Refusal:
    """A text that no other answer has."""
    return Answer(say(f"answer {exchange.number} |of {exchange.body['model']}"), stop="length")


def turns_of(exchange: Exchange) -> list[Turn]:
    """The request read by the reference of its API; a field that is not there, or has another type, fails."""
    body: dict[str, Any] = exchange.body
    return {"chat": chat, "messages": messages, "responses": responses}[exchange.api](body)


def chat(body: dict[str, Any]) -> list[Turn]:
    turns: list[Turn] = []
    for message in body["messages"]:
        match message:
            case {
                "role": "assistant",
                "content": text,
                "tool_calls": [{"id": i, "type": "function", "function": function}],
            }:
                turns.append(("call", text, i, function["name"], json.loads(function["arguments"])))
            case {"role": "tool", "tool_call_id": i, "content": text}:
                turns.append(("result", text, i))
            case {"role": "system" | "user" | "assistant" as role, "content": str(text)}:
                turns.append((role, text))
            case _:
                raise AssertionError(message)
    return turns


def messages(body: dict[str, Any]) -> list[Turn]:
    turns: list[Turn] = [("system", body["system"])] if "system" in body else []
    roles = [message["role"] for message in body["messages"]]
    assert roles == ["user", "assistant"] * (len(roles) // 2) + ["user"], "user and assistant take turns"
    for message in body["messages"]:
        match message:
            case {"role": "assistant", "content": [{"type": "text", "text": text}, {"type": "tool_use", **use}]}:
                turns.append(("call", text, use["id"], use["name"], use["input"]))
            case {"role": "user", "content": [{"type": "tool_result", "tool_use_id": i, "content": text}]}:
                turns.append(("result", text, i))
            case {"role": "user" | "assistant" as role, "content": str(text)}:
                turns.append((role, text))
            case _:
                raise AssertionError(message)
    return turns


def responses(body: dict[str, Any]) -> list[Turn]:
    turns: list[Turn] = []
    for item in body["input"]:
        match item:
            case {"type": "function_call", "call_id": i, "name": name, "arguments": arguments}:
                role, text = turns.pop()
                assert role == "assistant"
                turns.append(("call", text, i, name, json.loads(arguments)))
            case {"type": "function_call_output", "call_id": i, "output": text}:
                turns.append(("result", text, i))
            case {"role": "system" | "user" | "assistant" as role, "content": str(text)}:
                turns.append((role, text))
            case _:
                raise AssertionError(item)
    return turns


def played(api: str, folder: Path, sessions: dict[str, Any], **more: Any) -> tuple[str, list[Exchange]]:
    """What `prober matrix` says, and the exchanges, of many sessions at a time."""
    talk = {"prompt_tokens": 6, "output_tokens": 3, "sessions": {"turns": 3, **sessions}} | more
    config, rows = folder / "prober.yaml", folder / "rows.yaml"
    config.write_text(yaml.safe_dump({"targets": [{"url": URL}], "workloads": {"talk": talk}}))
    row = {"name": "a", "workload": "talk", "rate": "30/s", "duration": "4s", "accept": ["success:80%"]}
    rows.write_text(yaml.safe_dump({"rows": [row]}))
    play = Play(reply)
    with beside(partial(Server, {"case": play})):
        words = ["--file", rows, "--config.file", config, "--warm-up", "0", "--api", api]
        done = prober("matrix", f"{URL}/case/v1", *words)
    assert done.returncode in (0, 3), done.stderr
    return done.stdout, play.exchanges[SAMPLES:]


@pytest.mark.parametrize("api", ["chat", "messages", "responses"])
@pytest.mark.parametrize("answers", ["own", "filler"])
def test_a_turn_has_the_whole_session_and_nothing_of_another(api: str, answers: str, tmp_path: Path) -> None:
    """By its nonce: the same adapter, and the messages of the turn before, its answer with a tool call, and the result of that call."""
    sessions = {"think_time": "200ms", "count": 40, "answers": answers, "tool_results": "100%"}
    out, exchanges = played(api, tmp_path, sessions, adapters={"names": ADAPTERS})
    by_nonce: dict[str, list[Exchange]] = defaultdict(list)
    for exchange in exchanges:
        by_nonce[turns_of(exchange)[0][1][:22]].append(exchange)
    later, ids = 0, []
    for session in by_nonce.values():
        (opening,) = turns_of(session[0])
        assert opening[0] == "user"
        for before, exchange in pairwise(session):
            later += 1
            assert before.body["model"] == exchange.body["model"], "a session keeps its adapter"
            assert before.ended_s is not None
            assert exchange.received_s - before.ended_s == pytest.approx(0.2, abs=0.01)
            *history, call, result = turns_of(exchange)
            assert history == turns_of(before)
            own = f"answer {before.number} of {before.body['model']}"
            assert (call[1] == own) is (answers == "own")
            assert len(call[1].split()) == 3 or answers == "own"
            assert (call[0], result[0], result[2]) == ("call", "result", call[2])
            assert re.fullmatch(r"[0-9a-f]{9}", call[2]), "Mistral's templates take nine letters and digits"
            assert isinstance(call[4], dict)
            ids.append(call[2])
    assert later > 20
    assert len(set(ids)) == len(ids)
    begun = [session[0].body["model"] for session in by_nonce.values()]
    assert begun[:6] in (ADAPTERS * 3, ADAPTERS[::-1] * 3), "sessions take the adapters in turn"
    assert ("later turns have the server's own answers" in out) is (answers == "own")
    assert "may be at other turns of their sessions" in out


@pytest.mark.parametrize("api", ["chat", "messages", "responses"])
def test_sessions_share_a_system_message(api: str, tmp_path: Path) -> None:
    """Equal in all of them and first in each turn; without tool results every later message is the user's."""
    _, exchanges = played(api, tmp_path, {"count": 40}, prefix={"tokens": 50, "reuse": "100%"})
    systems = {turns_of(exchange)[0] for exchange in exchanges}
    ((role, text),) = systems
    assert (role, len(text.split())) == ("system", 50)
    roles = {tuple(turn[0] for turn in turns_of(exchange)[1:]) for exchange in exchanges}
    assert roles == {("user", "assistant") * turns + ("user",) for turns in range(3)}


@pytest.mark.parametrize("answers", ["own", "filler"])
def test_a_comparison_says_whether_both_sides_got_the_same_prompts(answers: str, tmp_path: Path) -> None:
    """Filler is the same at both, but for the nonce; answers are each side's own."""
    talk = {"prompt_tokens": 6, "output_tokens": 3, "sessions": {"turns": 2, "count": 5, "answers": answers}}
    config = tmp_path / "prober.yaml"
    config.write_text(yaml.safe_dump({"targets": [{"url": URL}], "workloads": {"talk": talk}}))
    plays = {side: Play(reply) for side in "ab"}
    with beside(partial(Server, plays)):
        words = ["--config.file", config, "--workload", "talk", "--rate", "10/s", "--rounds", "9"]
        done = prober("compare", f"{URL}/a/v1", f"{URL}/b/v1", *words, "--requests", "20")
    assert done.returncode in (0, 1, 3, 4), done.stderr
    second = [
        {
            tuple(text.partition("] ")[2] or text for _, text in turns)
            for e in play.exchanges
            if len(turns := chat(e.body)) == 3
        }
        for play in plays.values()
    ]
    assert len(second[0]) > 20
    assert (second[0] == second[1]) is (answers == "filler")
    assert ("A and B were not sent the same prompts" in done.stdout) is (answers == "own")
