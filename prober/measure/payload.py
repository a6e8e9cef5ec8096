"""Tolerant reading of JSON from servers, and of error messages in every form seen in practice."""

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import islice
from typing import Any

import orjson

from prober.measure.printable import one_line

MAX_COUNTED_TOKENS = 1_000_000_000  # per answer; a larger number is ignored
MAX_SERVER_TEXT_CHARS = 300  # in an error message or a finish reason
MAX_VALUES = 100_000  # per document: each takes up to 60 bytes of memory, an empty list for two bytes of JSON
MAX_UNCOUNTED_BYTES = 64 << 10  # a smaller document cannot have too many values
MAX_ERROR_DEPTH = 4  # levels of objects that wrap the object with the message
MAX_FIELD_CHARS = 60  # of the name of a refused field
MAX_ERROR_NAMES = 3  # shown types and codes of an error
# Keys of error texts, most specific first: OpenAI, FastAPI, AWS, Google, problem details,
# Apigee, and others.
_MESSAGES = (
    "message",
    "detail",
    "error_description",
    "error_msg",
    "status_msg",
    "faultstring",
    "msg",
    "Message",
    "title",
)
_WRAPPERS = ("error", "errors", "detail", "Error", "fault", "base_resp")
_CODES = ("code", "status", "status_code", "statusCode")
_NAMES = ("type", "__type", "error_code", *_CODES)  # keys for the kind of an error
# Keys for the refused field of a request: FastAPI's, RFC 9457's, and others'. OpenAI's text names it.
_FIELDS = ("loc", "field", "pointer", "path")
_FIELD_PARTS = re.compile(r"[/.#$]+")
_NAME = re.compile(r"\w[\w.#-]{0,59}", re.ASCII)
_NO_TEXT = re.compile(rb"[\x00-\x08\x0e-\x1a\x1c-\x1f]")  # control characters that text never contains
_GOES_ON = frozenset({"null", "none", "not_finished"})  # "finish reasons" of DashScope and watsonx before the end
_FAILED = frozenset({"error", "fail", "failed", "failure"})
_REQUEST_IDS = frozenset({"requestId", "request_id", "RequestId", "id", "trace_id"})

# Service tiers in answers, each for itself, so that results share the text. Sources: the types of OpenAI's SDK 3.57 (`default` to
# `ultrafast`), Anthropic's 2.14 (`standard`, `priority`, `batch`) and Groq's 1.7.
SERVICE_TIERS = {
    tier: tier
    for tier in (
        *("default", "flex", "scale", "priority", "fast", "ultrafast"),
        *("standard", "batch", "on_demand", "performance"),
    )
}
OTHER_TIER = "other"


class Malformed(ValueError):
    """The payload is no event of the API."""


class NoObject(Malformed):
    """The payload is JSON, but no object; `value` is its value."""

    def __init__(self, payload: bytes, value: Any) -> None:
        super().__init__(f"not a JSON object: {excerpt(payload)}")
        self.value = value


def json_object(payload: bytes) -> dict[str, Any]:
    """Parse a JSON object. NaN and lone surrogates are allowed, as in OpenAI's SDKs. Raises Malformed."""
    document = _loaded(payload)
    if not isinstance(document, dict):
        raise NoObject(payload, document)
    return document


def is_json_object(payload: bytes) -> bool:
    """True if the payload is a JSON object."""
    try:
        json_object(payload)
    except Malformed:
        return False
    return True


def _loaded(payload: bytes) -> Any:
    if len(payload) > MAX_UNCOUNTED_BYTES and sum(map(payload.count, b"[{,")) > MAX_VALUES:
        raise Malformed(f"JSON of more than {MAX_VALUES:,} values: {excerpt(payload)}")
    try:
        return orjson.loads(payload)
    except orjson.JSONDecodeError as problem:
        why = str(problem)  # only the text: the exception refers to the payload, and would refer to itself
    with suppress(ValueError, RecursionError):
        if " limit " not in why:  # of depth: that of json depends on the release of Python
            return json.loads(payload)
    raise Malformed(f"not JSON ({why}): {excerpt(payload)}")


def excerpt(payload: bytes) -> str:
    """The first bytes of a payload, quoted."""
    return repr(payload[:80].decode("utf-8", "replace")) + ("…" if len(payload) > 80 else "")


def first_line(payload: bytes, limit: int = MAX_SERVER_TEXT_CHARS) -> str:
    """The first line that is not blank, shortened; for binary data the first bytes."""
    if binary := _binary(payload):
        return binary
    lines = payload[: 4 * limit].decode("utf-8", "replace").splitlines()
    return shortened(next((line.strip() for line in lines if line.strip()), ""), limit)


def _binary(payload: bytes) -> str:
    """Describe a binary payload; "" for text."""
    if not _NO_TEXT.search(payload[:64]):
        return ""
    return "gzip data" if payload.startswith(b"\x1f\x8b") else f"binary data: {payload[:8].hex(' ')} …"


def text_of(value: object) -> str:
    """Return a string unchanged, anything else as JSON. Raises Malformed if it is nested too deeply."""
    if isinstance(value, str):
        return value
    try:
        return orjson.dumps(value).decode()
    except orjson.JSONEncodeError:
        pass
    try:
        return json.dumps(value)
    except (ValueError, RecursionError) as problem:
        raise Malformed(f"nested too deeply ({problem})") from None


def shortened(text: str, limit: int = MAX_SERVER_TEXT_CHARS) -> str:
    """The text as one printable line, cut to `limit` characters."""
    text = one_line(text)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def finish_reason(value: object) -> str | None:
    """The finish reason sent by a server, on one line; None before the end. SGLang's native one is an object."""
    if isinstance(value, dict):
        value = value.get("type") or value
    reason = shortened(text_of(value)) if value else ""
    return None if not reason or reason.lower() in _GOES_ON else reason


def service_tier(value: object) -> str:
    """The service tier that an answer names: one of SERVICE_TIERS, or OTHER_TIER; "" for none.

    `auto` is none: it is what was asked, which vLLM repeats in every answer.
    """
    if value in (None, "", "auto"):
        return ""
    return SERVICE_TIERS.get(value, OTHER_TIER) if isinstance(value, str) else OTHER_TIER


def event_type(document: Mapping[str, Any], event_name: bytes) -> str:
    """The `type` in the data of an event, or else the event's name."""
    kind = document.get("type")
    return kind if isinstance(kind, str) else event_name.decode("utf-8", "replace")


def joined_surrogates(text: str) -> str:
    """Join surrogate pairs, and replace lone surrogates."""
    return text if text.isascii() else text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def count(table: Any, key: str) -> int | None:
    """Number of tokens under `key`, also from `12.0`; None if absent or impossible."""
    value = table.get(key) if isinstance(table, dict) else None
    if type(value) is float and value.is_integer():
        value = int(value)
    return value if type(value) is int and 0 <= value <= MAX_COUNTED_TOKENS else None


def error_of(document: Mapping[str, Any]) -> str | None:
    """The message of an error object, with its type and code; None if `document` is no error."""
    error = _error_in(document)
    return None if error is None else _message(error)


def error_message(payload: bytes, status: int = 0) -> str:
    """The error message in the body of a response with this HTTP status, or else the start of the body."""
    with suppress(Malformed):
        document = _loaded(payload)
        if isinstance(document, list) and document:
            document = document[0]
        if isinstance(document, dict):
            return _message(_error_in(document) or document, status)
    return _on_one_line(_binary(payload) or payload[: 4 * MAX_SERVER_TEXT_CHARS].decode("utf-8", "replace"))


def _error_in(document: Mapping[str, Any]) -> Any:
    """Find the part of a JSON object that describes an error; None if none does.

    An object describes an error if it has an `error`, if its type says so, or if it shows a sign of failure and has no content of
    an answer. OpenRouter puts the error into `choices[0]`.
    """
    if error := document.get("error"):
        return error if isinstance(error, dict | list) else document
    if document.get("object") == "error" or document.get("type") == "error":
        return document
    if choices := document.get("choices"):
        first = choices[0] if isinstance(choices, list) else None
        return (first.get("error") or None) if isinstance(first, dict) else None
    return document if not document.get("usage") and _tells_of_failure(document) else None


def _tells_of_failure(document: Mapping[str, Any]) -> bool:
    """True if an object without content wraps an error, has an error text and a sign of failure, or has only a text."""
    base = document.get("base_resp")  # MiniMax; code 0 is a success
    if any(document.get(key) for key in _WRAPPERS if key != "base_resp") or count(base, "status_code"):
        return True
    if not any(isinstance(document.get(key), str) for key in _MESSAGES):
        return False
    codes = [document[key] for key in _CODES if key in document]
    return (
        "__type" in document
        or bool(document.get("error_code"))
        or document.get("success") is False
        or any(
            (isinstance(code, int) and code >= 400) or (isinstance(code, str) and _is_failure(code)) for code in codes
        )
        or set(document) <= _REQUEST_IDS.union(_MESSAGES)
    )


def _is_failure(code: str) -> bool:
    return code.lower() in _FAILED or code[:1].isupper() or (code.isascii() and code.isdigit() and int(code[:9]) >= 400)


def _message(error: Any, status: int = 0) -> str:
    words, names = next(_words(error, 0), None) or (text_of(error), ())
    kinds = [name for name in dict.fromkeys(names) if name != str(status) and name.lower() not in words.lower()]
    beside = f" ({', '.join(kinds[:MAX_ERROR_NAMES])})" if kinds else ""
    return _on_one_line(words, MAX_SERVER_TEXT_CHARS - len(beside)) + beside


def _on_one_line(text: str, limit: int = MAX_SERVER_TEXT_CHARS) -> str:
    return shortened(" ".join(joined_surrogates(text).split()), limit)


def _words(error: Any, depth: int, names: tuple[str, ...] = ()) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yields (error text, names of its type and code), the most specific text first."""
    if isinstance(error, str):
        if error:
            yield error, names
    elif depth < MAX_ERROR_DEPTH and isinstance(error, list):
        items = [words for item in error[:3] for words in islice(_words(item, depth + 1, names), 1)]
        if items:
            yield "; ".join(dict.fromkeys(text for text, _ in items)), sum((kinds for _, kinds in items), ())
    elif depth < MAX_ERROR_DEPTH and isinstance(error, dict):
        own = tuple(str(error[key]) for key in _NAMES if type(error.get(key)) in (int, str))
        names = tuple(name for name in own if _NAME.fullmatch(name) and name.lower() not in _FAILED) or names
        field = _field(error, depth)
        for key in (*_WRAPPERS, *_MESSAGES):
            for text, kinds in _words(error.get(key), depth + 1, names):
                is_named = not field or re.search(rf"\b{re.escape(field)}\b", text)
                yield (text if is_named else f"{field}: {text}"), kinds


def _field(error: Mapping[str, Any], depth: int) -> str:
    """The request field that an error names, such as `messages.0.content`; "" if it names none."""
    for key in _FIELDS[: None if depth else -1]:  # the outermost `path` belongs to the URL
        place = error.get(key)
        parts = _FIELD_PARTS.split(place) if isinstance(place, str) else place if isinstance(place, list) else ()
        names = [str(part) for part in parts if _NAME.fullmatch(str(part))]
        if name := ".".join(names[names[:1] == ["body"] :])[:MAX_FIELD_CHARS]:
            return name
    return ""
