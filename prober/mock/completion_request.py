"""Parses the body of a request as vLLM does.

Texts are split into tokens as real vocabularies do in different ways, and tokens are grouped into blocks.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from prober.mock.structured_answer import example
from prober.workload.requested_format import tool_schemas

TEMPLATE_TOKEN = "<|template|>"
BLOCK_TOKENS = 16
# Pieces of up to four letters with the space before them; each digit and any other character is one token.
_SUBWORDS = re.compile(r"\d| ?[^\W\d]{1,4}|\s|[^\w\s]|_")


def _bytes(text: str) -> list[str]:
    """Splits a text into pieces of four bytes, regardless of words."""
    data = text.encode()
    return [data[at : at + 4].hex() for at in range(0, len(data), 4)]


def _triples(text: str) -> list[str]:
    """Splits a text into three tokens per word: its start, its end and the space after it."""
    return [part for word in text.split() for part in (word[: len(word) // 2], word[len(word) // 2 :], " ")]


TOKENIZERS: dict[str, Callable[[str], list[str]]] = {
    "words": str.split,
    "bytes": _bytes,
    "subwords": _SUBWORDS.findall,
    "triples": _triples,
}


@dataclass(frozen=True, slots=True)
class Tokenizer:
    """A tokenizer and its chat template.

    kind: a key of TOKENIZERS
    template_tokens: tokens that the template puts before a chat's text
    """

    kind: str = "words"
    template_tokens: int = 0

    def tokens(self, text: str, *, is_chat: bool) -> tuple[str, ...]:
        """Split a prompt into tokens. Texts with equal beginnings begin with equal tokens."""
        return (*[TEMPLATE_TOKEN] * (self.template_tokens if is_chat else 0), *TOKENIZERS[self.kind](text))


def block_ids(salt: str, prompt: Sequence[str]) -> Iterator[int]:
    """Yield the ids of the complete blocks of BLOCK_TOKENS. Equal ids mean equal salt and equal text up to the block's end."""
    link = hash(salt)
    for start in range(0, len(prompt) - BLOCK_TOKENS + 1, BLOCK_TOKENS):
        link = hash((link, tuple(prompt[start : start + BLOCK_TOKENS])))
        yield link


MAX_MODEL_LEN = 262_144
DEFAULT_TOKENS = 64


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    """A request of the chat or completions API.

    prompt: tokens of the prompt
    tokens: number of tokens of the answer
    salt: text that separates prefix caches
    document: JSON of the answer, or of the arguments of its tool call; "" for an answer of words
    tool: name of the tool to call, "" for none
    """

    chat: bool
    stream: bool
    model: str
    prompt: tuple[str, ...]
    tokens: int
    finish_reason: str
    include_usage: bool
    continuous_usage: bool
    salt: str
    document: str = ""
    tool: str = ""


class RequestRefused(Exception):
    """The request is answered with an error.

    status: of HTTP; body: vLLM's error object
    """

    def __init__(self, status: int, body: bytes) -> None:
        super().__init__(status, body)
        self.status = status
        self.body = body


def error_body(message: str, kind: str, code: int, param: str | None = None) -> bytes:
    """JSON of vLLM's error object."""
    return orjson.dumps({"error": {"message": message, "type": kind, "param": param, "code": code}})


def bad_request(message: str, param: str | None = None) -> RequestRefused:
    """Refusal of a request with status 400 and vLLM's text."""
    return RequestRefused(400, error_body(message, "BadRequestError", 400, param))


def parse_completion_request(body: bytes, *, chat: bool, model: str, tokenizer: Tokenizer) -> CompletionRequest:
    """Parse the request in `body` to a server of `model`. Raises RequestRefused."""
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError as problem:
        raise bad_request(f"JSON decode error: {problem}") from None
    if not isinstance(document, dict):
        raise bad_request("Input should be a valid dictionary")
    if document.get("model") not in (None, model):
        message = f"The model `{document['model']}` does not exist. Valid aliases: {model}."
        raise RequestRefused(404, error_body(message, "NotFoundError", 404, "model"))
    prompt = tokenizer.tokens(_prompt(document, chat), is_chat=chat)
    tokens = _tokens(document, len(prompt))
    tool, schema = (_tool(document) if chat else None) or ("", _schema(document))
    options = document.get("stream_options") or {}
    if options and not document.get("stream"):
        raise bad_request("Stream options can only be defined when `stream=True`.", "stream_options")
    return CompletionRequest(
        chat=chat,
        stream=bool(document.get("stream")),
        model=model,
        prompt=prompt,
        tokens=tokens if tokens is not None else DEFAULT_TOKENS,
        finish_reason="stop" if tokens is None else "length",
        include_usage=bool(options.get("include_usage")),
        continuous_usage=bool(options.get("continuous_usage_stats")),
        salt=str(document.get("cache_salt") or ""),
        document="" if schema is None else orjson.dumps(example(schema)).decode(),
        tool=tool,
    )


def _prompt(document: dict[str, Any], chat: bool) -> str:
    if not chat:
        prompt = document.get("prompt")
        if isinstance(prompt, list):
            prompt = " ".join(str(part) for part in prompt)
        if not isinstance(prompt, str):
            raise bad_request("Either prompt or prompt_embeds must be provided and non-empty.", "prompt")
        return prompt
    messages = document.get("messages")
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        raise bad_request("messages: Input should be a valid list of objects", "messages")
    return "\n".join(_text(message.get("content")) for message in messages)


def _tool(document: dict[str, Any]) -> tuple[str, Any] | None:
    """(name, schema) of the tool to call: the chosen one, or the first; None without tools."""
    schemas, choice = tool_schemas(document), document.get("tool_choice")
    if not schemas or choice == "none":
        return None
    name = choice["function"]["name"] if isinstance(choice, dict) else next(iter(schemas))
    if name not in schemas:
        raise bad_request(f"Tool {name} has not been passed in the tools parameter.", "tool_choice")
    return name, schemas[name]


def _schema(document: dict[str, Any]) -> Any:
    """JSON Schema that `response_format` requests; None for an answer of words. Like vLLM, refuses unknown formats."""
    response_format = document.get("response_format") or {"type": "text"}
    kind = response_format.get("type") if isinstance(response_format, dict) else None
    if kind not in ("text", "json_object", "json_schema"):
        raise bad_request("response_format: Input should be 'text', 'json_object' or 'json_schema'", "response_format")
    if kind == "text":
        return None
    schema = (response_format.get("json_schema") or {}).get("schema")
    return schema or {"properties": {"answer": {"type": "string"}}}


def _text(content: Any) -> str:
    if isinstance(content, list):
        return " ".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""


def _tokens(document: dict[str, Any], prompt_tokens: int) -> int | None:
    name = "max_completion_tokens" if document.get("max_completion_tokens") is not None else "max_tokens"
    tokens, min_tokens = document.get(name), document.get("min_tokens") or 0
    if tokens is None:
        return None
    if type(tokens) is not int or tokens < 1:
        raise bad_request(f"{name} must be at least 1, got {tokens}.", name)
    if type(min_tokens) is not int or min_tokens > tokens:
        raise bad_request(
            f"min_tokens must be less than or equal to max_tokens={tokens}, got {min_tokens}.", "min_tokens"
        )
    if prompt_tokens + tokens > MAX_MODEL_LEN:
        message = (
            f"{name}={tokens} cannot be greater than max_model_len={MAX_MODEL_LEN}. "
            f"Please request fewer output tokens. (parameter={name}, value={tokens})"
        )
        raise bad_request(message, name)
    return tokens
