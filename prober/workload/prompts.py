"""Texts of about a given number of tokens, and prompts from a file.

A word of the pool is one token in the common byte-pair vocabularies when a space stands before it, so N words are about N
tokens; the count that is recorded is the server's own. Slices of one pre-made text keep composing far below a millisecond.
"""

import json
from collections.abc import Iterator
from random import Random
from typing import Any

Message = tuple[str, str]
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
""".split()  # noqa: SIM905 - a list of words is read best as text
_POOL_WORDS = 8192


class TextPool:
    """Deterministic filler text; `words(n, at)` is a slice of it."""

    def __init__(self, rng: Random) -> None:
        words = rng.choices(_WORDS, k=_POOL_WORDS)
        self._text = " ".join(words)
        self._starts = [0]
        for word in words:
            self._starts.append(self._starts[-1] + len(word) + 1)

    def words(self, count: int, at: int) -> str:
        """`count` words from position `at` on, going round at the end of the pool."""
        pieces: list[str] = []
        at %= _POOL_WORDS
        while count > 0:
            taken = min(count, _POOL_WORDS - at)
            pieces.append(self._text[self._starts[at] : self._starts[at + taken] - 1])
            count, at = count - taken, 0
        return " ".join(pieces)


class BadPrompts(ValueError):
    """A prompts file that cannot be used; the message names the file, where in it, and what to do."""


def parse_prompts(text: str, where: str) -> tuple[Prompt, ...]:
    """Prompts of a JSONL file (`{"messages": [...]}` or `{"prompt": "…"}` a line) or of ShareGPT's JSON array.

    Raises BadPrompts.
    """
    prompts = tuple(_sharegpt(text, where) if text.lstrip().startswith("[") else _jsonl(text, where))
    if not prompts:
        raise BadPrompts(f"{where}: no prompts in it; put one JSON object with `messages` on each line")
    return prompts


def _jsonl(text: str, where: str) -> Iterator[Prompt]:
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        place = f"{where}: line {number}"
        try:
            document = json.loads(line)
        except json.JSONDecodeError as problem:
            raise BadPrompts(f"{place}: not JSON ({problem.msg}); each line is one JSON object") from None
        if isinstance(document, dict) and isinstance(document.get("prompt"), str):
            yield (("user", document["prompt"]),)
        else:
            messages = document.get("messages") if isinstance(document, dict) else None
            yield _messages(messages, "role", "content", {}, f'{place}: needs "messages" (a list of role and content)')


_SHAREGPT_ROLES = {"human": "user", "gpt": "assistant", "system": "system", "user": "user", "assistant": "assistant"}


def _sharegpt(text: str, where: str) -> Iterator[Prompt]:
    try:
        documents = json.loads(text)
    except json.JSONDecodeError as problem:
        raise BadPrompts(f"{where}: line {problem.lineno}: not JSON ({problem.msg}); mend it or use JSONL") from None
    for index, document in enumerate(documents):
        turns = document.get("conversations") if isinstance(document, dict) else None
        need = f'{where}: [{index}]: needs "conversations" (a list of from and value, from one of human, gpt, system)'
        messages = _messages(turns, "from", "value", _SHAREGPT_ROLES, need)
        while messages and messages[-1][0] != "user":
            messages = messages[:-1]  # the last word is the user's: what follows is the answer that was recorded
        if messages:
            yield messages


def _messages(turns: Any, role: str, content: str, roles: dict[str, str], need: str) -> Prompt:
    if not isinstance(turns, list) or not turns:
        raise BadPrompts(need)
    for turn in turns:
        if not isinstance(turn, dict) or not isinstance(turn.get(role), str) or not isinstance(turn.get(content), str):
            raise BadPrompts(need)
        if roles and turn[role] not in roles:
            raise BadPrompts(need)
    return tuple((roles.get(turn[role], turn[role]), turn[content]) for turn in turns)
