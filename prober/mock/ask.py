"""Reading a request's body as vLLM does: what is asked for, or why it is refused."""

from dataclasses import dataclass
from typing import Any

import orjson

MAX_MODEL_LEN = 262_144
DEFAULT_TOKENS = 64


@dataclass(frozen=True, slots=True)
class Ask:
    """What a request asks for; `words` is its prompt, a token each. `salt` keeps prefix caches apart."""

    chat: bool
    stream: bool
    model: str
    words: tuple[str, ...]
    tokens: int
    finish_reason: str
    include_usage: bool
    continuous_usage: bool
    salt: str


class Refused(Exception):
    """The request is answered with an error: HTTP status and body."""

    def __init__(self, status: int, body: bytes) -> None:
        super().__init__(status, body)
        self.status = status
        self.body = body


def error_body(message: str, kind: str, code: int, param: str | None = None) -> bytes:
    """vLLM's error object."""
    return orjson.dumps({"error": {"message": message, "type": kind, "param": param, "code": code}})


def bad_request(message: str, param: str | None = None) -> Refused:
    """A 400 in vLLM's words."""
    return Refused(400, error_body(message, "BadRequestError", 400, param))


def parse_ask(body: bytes, *, chat: bool, model: str) -> Ask:
    """The request in `body`, for a server that serves `model` only. Raises Refused."""
    try:
        asked = orjson.loads(body)
    except orjson.JSONDecodeError as problem:
        raise bad_request(f"JSON decode error: {problem}") from None
    if not isinstance(asked, dict):
        raise bad_request("Input should be a valid dictionary")
    if asked.get("model") not in (None, model):
        message = f"The model `{asked['model']}` does not exist. Valid aliases: {model}."
        raise Refused(404, error_body(message, "NotFoundError", 404, "model"))
    words = tuple(_prompt(asked, chat).split())
    tokens = _tokens(asked, len(words))
    options = asked.get("stream_options") or {}
    if options and not asked.get("stream"):
        raise bad_request("Stream options can only be defined when `stream=True`.", "stream_options")
    return Ask(
        chat=chat,
        stream=bool(asked.get("stream")),
        model=model,
        words=words,
        tokens=tokens if tokens is not None else DEFAULT_TOKENS,
        finish_reason="stop" if tokens is None else "length",
        include_usage=bool(options.get("include_usage")),
        continuous_usage=bool(options.get("continuous_usage_stats")),
        salt=str(asked.get("cache_salt") or ""),
    )


def _prompt(asked: dict[str, Any], chat: bool) -> str:
    if not chat:
        prompt = asked.get("prompt")
        if isinstance(prompt, list):
            prompt = " ".join(str(part) for part in prompt)
        if not isinstance(prompt, str):
            raise bad_request("Either prompt or prompt_embeds must be provided and non-empty.", "prompt")
        return prompt
    messages = asked.get("messages")
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        raise bad_request("messages: Input should be a valid list of objects", "messages")
    return "\n".join(_text(message.get("content")) for message in messages)


def _text(content: Any) -> str:
    if isinstance(content, list):
        return " ".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""


def _tokens(asked: dict[str, Any], prompt_tokens: int) -> int | None:
    name = "max_completion_tokens" if asked.get("max_completion_tokens") is not None else "max_tokens"
    tokens, least = asked.get(name), asked.get("min_tokens") or 0
    if tokens is None:
        return None
    if type(tokens) is not int or tokens < 1:
        raise bad_request(f"{name} must be at least 1, got {tokens}.", name)
    if type(least) is not int or least > tokens:
        raise bad_request(f"min_tokens must be less than or equal to max_tokens={tokens}, got {least}.", "min_tokens")
    if prompt_tokens + tokens > MAX_MODEL_LEN:
        message = (
            f"{name}={tokens} cannot be greater than max_model_len={MAX_MODEL_LEN}. "
            f"Please request fewer output tokens. (parameter={name}, value={tokens})"
        )
        raise bad_request(message, name)
    return tokens
