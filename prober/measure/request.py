"""A request, before it is sent."""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from prober.measure.quality import Expectation


class ToolUse(NamedTuple):
    """A tool call and its result. arguments: a JSON object as text"""

    call_id: str
    name: str
    arguments: str
    result: str = ""


class AssistantMessage(NamedTuple):
    """An answer of the server. With tool calls, the APIs send it as several messages: text, calls and results.

    role: assistant
    text: the answer without tool calls
    """

    role: str
    text: str
    tools: tuple[ToolUse, ...] = ()

    @property
    def content(self) -> str:
        """The whole message as text, for an API without messages."""
        uses = (f"{tool.name} {tool.arguments}\n{tool.result}" for tool in self.tools)
        return "\n".join((self.text, *uses))


Message = tuple[str, str]


def trace_ids(request_id: str) -> tuple[str, str]:
    """(trace id, parent id) of the W3C's Trace Context, version 00, for a request. They follow from its id, which is random."""
    digits = hashlib.blake2b(request_id.encode(), digest_size=24).hexdigest()
    return digits[:32], digits[32:]


class Drawer(Protocol):
    """A source of requests; see `workload.workloads.RequestGenerator`. calibration: a `PromptCalibration` or None"""

    def draw(self, number: int, due_ns: int, calibration: Any) -> "Request":
        """Draw the next request."""


class Conversation(Drawer, Protocol):
    """A session whose turns are requests; see `workload.sessions.Session`.

    think_s: pause before the next turn in seconds; None: the session sets no pause
    """

    think_s: float | None
    turns_left: int

    def end_turn(self, answer: AssistantMessage | None, tokens: int | None) -> None:
        """Record the end of a turn. answer: None ends the session; tokens: length of the answer, None if unknown"""


class BusySessions(Drawer, Protocol):
    """A pool of sessions in which no session is ready for its next turn; the interface of `workload.sessions.SessionPool`."""

    waiting: dict[object, Callable[[], None]]
    busy_text: str


@dataclass(frozen=True, slots=True)
class Request:
    """A request before it is sent.

    request_id: sent as `X-Request-Id`
    due_ns: intended time, of the monotonic clock
    workload: value of the `workload` label
    prompt_tokens: requested length; an estimate for prompts with fixed text
    messages: (role, content), or an answer with the results of its tool calls
    sampling: additional fields; they replace the prober's optional fields, or remove them with null
    warm: the prompt starts with text that was sent before
    expectation: check of the answer; None: not checked
    is_length_forced: force the answer to exactly `output_tokens` if API and engine support it; otherwise that is a limit
    has_asked_length: the prompt was composed to have `prompt_tokens` tokens
    sample_words: number of words of a sample prompt, which calibrates the length of other prompts; None: no sample
    adapter: name of the LoRA adapter, or other model, requested as the model; "": the target's model
    session: the conversation of which this request is a turn; None: no conversation
    keeps_answer: the session's next turn contains the answer
    busy: the pool if no session is ready: the request is sent only if a turn ends in time; None: a session is ready
    """

    request_id: str
    due_ns: int
    workload: str
    prompt_tokens: int
    output_tokens: int
    messages: tuple[Message | AssistantMessage, ...]
    sampling: Mapping[str, Any]
    warm: bool = False
    expectation: Expectation | None = None
    is_length_forced: bool = True
    has_asked_length: bool = False
    sample_words: int | None = None
    adapter: str = ""
    session: Conversation | None = None
    keeps_answer: bool = False
    busy: BusySessions | None = None

    @property
    def tokens(self) -> tuple[int, int]:
        """(prompt tokens, output tokens), as requested."""
        return self.prompt_tokens, self.output_tokens

    @property
    def salt(self) -> str | None:
        """Unique text that keeps the prompt out of the prefix cache; None: the prefix cache may be used."""
        return None if self.warm else self.request_id
