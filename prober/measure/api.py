"""The APIs of a target: path, request, events and end of an answer."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from prober.measure import chat, messages, responses
from prober.measure.chat import Dialect
from prober.measure.chunk import Chunk
from prober.measure.request import Request


@dataclass(frozen=True, slots=True)
class Api:
    """An API of a target, such as chat completions.

    path: URL path below the base path
    parse_event: parses the name and the data of an event; raises Malformed
    parse_answer: parses the body of an answer that is not streamed; raises Malformed
    end_event: name of the event that ends the answer, with or without `[DONE]`; "" if the API has none
    can_force_length: the API can force the length of an answer if the engine supports it
    headers: (name in lower case, value) for every request, including the look-up of models
    """

    name: str
    path: str
    request_body: Callable[[Dialect, Request, str, bool], bytes]
    parse_event: Callable[[bytes, bytes], Chunk]
    parse_answer: Callable[[bytes], Chunk]
    end_event: str = ""
    can_force_length: bool = False
    headers: tuple[tuple[str, str], ...] = ()


CHAT = Api(
    "chat",
    "chat/completions",
    partial(chat.request_body, is_chat=True),
    chat.parse_event,
    chat.parse_answer,
    can_force_length=True,
)
COMPLETIONS = replace(
    CHAT, name="completions", path="completions", request_body=partial(chat.request_body, is_chat=False)
)
RESPONSES = Api(
    "responses",
    "responses",
    responses.request_body,
    responses.parse_event,
    responses.parse_answer,
    end_event="response.completed",
)
MESSAGES = Api(
    "messages",
    "messages",
    messages.request_body,
    messages.parse_event,
    messages.parse_answer,
    end_event="message_stop",
    headers=messages.HEADERS,
)
APIS = {api.name: api for api in (CHAT, COMPLETIONS, RESPONSES, MESSAGES)}
