"""The APIs of a target: path, request, events and end of an answer."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from prober.measure import chat, messages, responses
from prober.measure.chat import Chunk, Dialect
from prober.measure.request import Request


@dataclass(frozen=True, slots=True)
class Api:
    """An API of a target, such as chat completions.

    path: below the base path
    parse_event: event name and data to a chunk; raises Malformed
    parse_answer: body of an answer that is not streamed to a chunk; raises Malformed
    end_event: the event that ends the answer, whether or not the engine sends `[DONE]`; "" without one
    can_force_length: engines that can force the length of an answer can do so with this API
    headers: names in small letters and values that every request needs, also the look-up of models
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
