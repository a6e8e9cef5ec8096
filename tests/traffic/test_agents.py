"""Sessions of agents by the record of a server that knows the specification of each API and what it answered itself."""

import json
import re
from collections import Counter, defaultdict
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.commands import prober
from tests.traffic.answers import Answer, Exchange, Refusal, call, say
from tests.traffic.play import URL
from tests.traffic.server import Play, Script, Server
from tests.virtual_commands import beside

ADAPTERS = ["sql", "law"]
SAMPLES = 3  # prompts that measure lengths, before all else
# A message as (role, text), a call of a tool as ("call", id, name, arguments), its result as ("result", text, id).
Turn = tuple[Any, ...]


def reply(exchange: Exchange, earlier: list[Exchange]) -> Answer | Refusal:
    """A text that no other answer has."""
    return Answer(say(f"answer {exchange.number} |of {exchange.body['model']}"), stop="length")


def turns_of(exchange: Exchange) -> list[Turn]:
    """The request read by the reference of its API; a field that is not there, or has another type, fails."""
    body: dict[str, Any] = exchange.body
    return checked({"chat": chat, "messages": messages, "responses": responses}[exchange.api](body))


def checked(turns: list[Turn]) -> list[Turn]:
    """The turns, if each call has an id of its own, and its one result before anything else is said, as all three APIs demand."""
    open_ids: list[str] = []
    seen: set[str] = set()
    for before, turn in pairwise([("",), *turns]):
        if turn[0] == "call":
            assert turn[1] not in seen
            assert before[0] != "result" or not open_ids, "all calls of an answer come before their results"
            assert isinstance(turn[3], dict)
            seen.add(turn[1])
            open_ids.append(turn[1])
        elif turn[0] == "result":
            open_ids.remove(turn[2])
        else:
            assert not open_ids, f"{open_ids} have no results"
    assert not open_ids, f"{open_ids} have no results"
    return turns


def chat(body: dict[str, Any]) -> list[Turn]:
    turns: list[Turn] = []
    for message in body["messages"]:
        match message:
            case {"role": "assistant", "content": None | str() as text, "tool_calls": [_, *_] as calls}:
                turns += [("assistant", text)] if text else []
                for call in calls:
                    assert call.keys() == {"id", "type", "function"}
                    assert call["type"] == "function"
                    turns.append(
                        ("call", call["id"], call["function"]["name"], json.loads(call["function"]["arguments"]))
                    )
            case {"role": "tool", "tool_call_id": i, "content": str(text)}:
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
            case {"role": "assistant", "content": [_, *_] as blocks}:
                for block in blocks:
                    match block:
                        case {"type": "text", "text": str(text)} if text:
                            turns.append(("assistant", text))
                        case {"type": "tool_use", "id": i, "name": name, "input": arguments}:
                            turns.append(("call", i, name, arguments))
                        case _:
                            raise AssertionError(block)
            case {"role": "user", "content": [_, *_] as blocks}:
                assert {block["type"] for block in blocks} == {"tool_result"}
                turns += [("result", block["content"], block["tool_use_id"]) for block in blocks]
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
                turns.append(("call", i, name, json.loads(arguments)))
            case {"type": "function_call_output", "call_id": i, "output": text}:
                turns.append(("result", text, i))
            case {"role": "system" | "user" | "assistant" as role, "content": str(text)}:
                turns.append((role, text))
            case _:
                raise AssertionError(item)
    return turns


def played(
    api: str, folder: Path, sessions: dict[str, Any], script: Script = reply, **more: Any
) -> tuple[str, list[Exchange]]:
    """What `prober matrix` says, and the exchanges, of many sessions at a time."""
    talk = {"prompt_tokens": 6, "output_tokens": 3, "sessions": {"turns": 3, **sessions}} | more
    config, rows = folder / "prober.yaml", folder / "rows.yaml"
    config.write_text(yaml.safe_dump({"targets": [{"url": URL}], "workloads": {"talk": talk}}))
    row = {"name": "a", "workload": "talk", "rate": "30/s", "duration": "4s", "accept": ["success:80%"]}
    rows.write_text(yaml.safe_dump({"rows": [row]}))
    play = Play(script)
    with beside(partial(Server, {"case": play})):
        words = ["--file", rows, "--config.file", config, "--warm-up", "0", "--burst", "0s", "--api", api]
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
            *history, (role, text), call, result = turns_of(exchange)
            assert history == turns_of(before)
            own = f"answer {before.number} of {before.body['model']}"
            assert (text == own) is (answers == "own")
            assert len(text.split()) == 3 or answers == "own"
            assert (role, call[0], result[0]) == ("assistant", "call", "result")
            assert re.fullmatch(r"[0-9a-f]{9}", call[1]), "Mistral's templates take nine letters and digits"
            ids.append(call[1])
    assert later > 20
    assert len(set(ids)) == len(ids)
    begun = [session[0].body["model"] for session in by_nonce.values()]
    assert begun[:6] in (ADAPTERS * 3, ADAPTERS[::-1] * 3), "sessions take the adapters in turn"
    assert ("later turns have the server's own answers" in out) is (answers == "own")
    assert "may be at other turns of their sessions" in out


def calling(exchange: Exchange, earlier: list[Exchange]) -> Answer | Refusal:
    """In groups of four: a text, a text and a call, two calls at a time. Only in chat do the ids differ from answer to answer."""
    text, first = say(f"look {exchange.number}"), call("look", f'{{"path"|:"{exchange.number}"}}')
    answers = (
        Answer(text),
        Answer((*text, *first), stop="tool_calls"),
        Answer((*first, *call("find", "{}", 1)), stop="tool_calls"),
    )
    return answers[exchange.number // 4 % 3]


def tools_of(api: str) -> list[dict[str, Any]]:
    """Two tools without required parameters, as the reference of the API has them."""
    schema = {"type": "object", "properties": {"path": {"type": "string"}}}
    tools = [{"name": name, "parameters": schema} for name in ("look", "find")]
    match api:
        case "chat":
            return [{"type": "function", "function": tool} for tool in tools]
        case "messages":
            return [{"name": tool["name"], "input_schema": schema} for tool in tools]
        case _:
            return [{"type": "function", **tool} for tool in tools]


@pytest.mark.parametrize("api", ["chat", "messages", "responses"])
def test_a_session_goes_on_after_the_calls_of_the_server(api: str, tmp_path: Path) -> None:
    """The next turn has the answer with its calls, then their results in place of a message of the user, as long as that in all."""
    sampling = {"tools": tools_of(api)}
    out, exchanges = played(api, tmp_path, {"count": 40}, calling, sampling=sampling, output_tokens=30)
    by_nonce: dict[str, list[Exchange]] = defaultdict(list)
    for exchange in exchanges:
        by_nonce[turns_of(exchange)[0][1][:22]].append(exchange)
    kinds = Counter[int]()
    for before, exchange in (pair for session in by_nonce.values() for pair in pairwise(session)):
        turns, history, answer = turns_of(exchange), turns_of(before), before.reply
        assert isinstance(answer, Answer)
        assert turns[: len(history)] == history
        said, news = [turn for turn in turns[len(history) :] if turn[0] in ("assistant", "call")], turns[-1:]
        assert [turn[1] for turn in said if turn[0] == "assistant"] == [answer.text] * bool(answer.text)
        assert [(turn[2], turn[3]) for turn in said if turn[0] == "call"] == [
            (name, json.loads(arguments)) for name, arguments in answer.calls
        ]
        if answer.calls:
            news = turns[-len(answer.calls) :]
            assert {turn[0] for turn in news} == {"result"}
            if api == "chat":
                ids = [f"call_{before.number}_{index}" for index in range(len(answer.calls))]
                assert [turn[1] for turn in said if turn[0] == "call"] == ids
        else:
            assert news[0][0] == "user"
        assert len(history) + len(said) + len(news) == len(turns)
        assert sum(len(turn[1].split()) for turn in news) == 6
        kinds[len(answer.calls)] += 1
    assert min(kinds[0], kinds[1], kinds[2]) > 5
    assert "talk_turn3" in out
    assert "not answered" not in out


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
