"""Filler text of about a given number of tokens, and prompts from a file.

The number of tokens per word depends on the server's tokenizer (see `prompt_length`). The pool repeats a list of words in a new
random order each time, so that long texts have nearly the same words and thus tokens. A prompt is a slice of one prepared text, which
takes far less than a millisecond.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from random import Random
from typing import Any

from prober.measure.quality import Expectation
from prober.measure.request import Message

Prompt = tuple[Message, ...]

_WORDS = """
time people way water day part place year work number night point home hand house side world school state
family group country problem story month book eye job word business issue head question power money mother
area end member law car city community name president team minute idea body information back parent face level
office door health person art war history party result change morning reason research girl guy moment air
teacher force education foot boy age policy process music market sense nation plan college interest death
experience effect use class control field development role effort rate heart drug show leader light voice wife
police mind price report decision son view relationship town road arm difference value building action season
society tax director position player record paper space ground form event official matter center couple site
project activity star table need court oil situation cost industry figure street image phone data picture
practice piece land product doctor wall patient worker news test movie north love support technology
""".split()  # noqa: SIM905 - a list of words is most readable as text
CYCLE_WORDS = len(_WORDS)
_POOL_WORDS = 45 * CYCLE_WORDS


@dataclass(frozen=True, slots=True)
class GoldenPrompt:
    """A prompt with a known right answer."""

    prompt: str
    expectation: Expectation


@cache
def _pool() -> tuple[str, list[int]]:
    """(text shared by all workloads, start of each word). The seed is fixed, so that warm prefixes stay the same after a restart."""
    rng = Random(0)
    words = [word for _ in range(_POOL_WORDS // CYCLE_WORDS) for word in rng.sample(_WORDS, CYCLE_WORDS)]
    return " ".join(words), [0, *accumulate(len(word) + 1 for word in words)]


def filler_text(words: int, at: int) -> str:
    """Returns `words` words of filler text from position `at` of the pool, which repeats at its end. Deterministic."""
    pieces: list[str] = []
    at %= _POOL_WORDS
    text, starts = _pool()
    while words > 0:
        taken = min(words, _POOL_WORDS - at)
        pieces.append(text[starts[at] : starts[at + taken] - 1])
        words, at = words - taken, 0
    return " ".join(pieces)


class BadPrompts(ValueError):
    """A prompts file is invalid. The message names the file, the place and the remedy."""


def parse_prompts(text: str, where: str) -> tuple[Prompt, ...]:
    """Parses a JSONL file (`{"messages": [...]}` or `{"prompt": "…"}` per line) or ShareGPT's JSON array.

    Raises BadPrompts.
    """
    text = text.removeprefix("\ufeff")
    prompts = tuple(_sharegpt(text, where) if text.lstrip().startswith("[") else _jsonl(text, where))
    if not prompts:
        raise BadPrompts(f"{where}: no prompts in it; put one JSON object with `messages` on each line")
    return prompts


def _jsonl(text: str, where: str) -> Iterator[Prompt]:
    # splitlines would also split at U+2028 and similar characters, which occur in texts and do not end a line of JSONL.
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        place = f"{where}: line {number}"
        try:
            document = json.loads(line)
        except (ValueError, RecursionError) as problem:
            raise BadPrompts(f"{place}: not JSON ({_reason(problem)}); each line is one JSON object") from None
        if isinstance(document, dict) and isinstance(document.get("prompt"), str):
            yield _sendable((("user", document["prompt"]),), place)
        else:
            messages = document.get("messages") if isinstance(document, dict) else None
            need = f'{place}: needs "messages" (a list of role and content)'
            if not messages:
                raise BadPrompts(need)
            yield _sendable(_messages(messages, "role", "content", {}, need), place)


_SHAREGPT_ROLES = {
    **dict.fromkeys(("human", "user"), "user"),
    **dict.fromkeys(("gpt", "assistant", "chatgpt", "bing", "bard"), "assistant"),
    "system": "system",
}


def _sharegpt(text: str, where: str) -> Iterator[Prompt]:
    try:
        documents = json.loads(text)
    except (ValueError, RecursionError) as problem:
        line = f"line {problem.lineno}: " if isinstance(problem, json.JSONDecodeError) else ""
        raise BadPrompts(f"{where}: {line}not JSON ({_reason(problem)}); mend it or use JSONL") from None
    for index, document in enumerate(documents):
        turns = document.get("conversations") if isinstance(document, dict) else None
        need = f'{where}: [{index}]: needs "conversations" (a list of from and value, from one of human, gpt, system)'
        messages = _messages(turns, "from", "value", _SHAREGPT_ROLES, need)
        users = [at for at, (role, _) in enumerate(messages) if role == "user"]
        if users:  # the published data set has empty conversations and some without a question
            # Chat templates reject an answer before the first question; the answer after the last one is dropped.
            opening = tuple(message for message in messages[: users[0]] if message[0] == "system")
            yield _sendable(opening + messages[users[0] : users[-1] + 1], f"{where}: [{index}]")


def _messages(turns: Any, role: str, content: str, roles: dict[str, str], need: str) -> Prompt:
    if not isinstance(turns, list):
        raise BadPrompts(need)
    for turn in turns:
        if not isinstance(turn, dict) or not isinstance(turn.get(role), str) or not isinstance(turn.get(content), str):
            raise BadPrompts(need)
        if roles and turn[role] not in roles:
            raise BadPrompts(need)
    return tuple((roles.get(turn[role], turn[role]), turn[content]) for turn in turns)


def _sendable(prompt: Prompt, place: str) -> Prompt:
    for _, text in prompt:
        try:
            text.encode()
        except UnicodeEncodeError:  # possible in JSON, but not in a request body
            raise BadPrompts(f"{place}: half a surrogate pair in its text (\\ud800 to \\udfff); remove it") from None
    return prompt


def _reason(problem: Exception) -> str:
    return problem.msg if isinstance(problem, json.JSONDecodeError) else str(problem)
