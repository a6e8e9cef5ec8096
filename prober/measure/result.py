"""Result of one finished probe."""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Literal, get_args

from prober.measure.outcome import ANSWERED, Outcome
from prober.measure.printable import shown_name
from prober.measure.timeline import Timeline

RetryKind = Literal["retry", "fallback"]
RETRY_KINDS: tuple[RetryKind, ...] = get_args(RetryKind)


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """Identity, outcome and timeline of one probe.

    request_id: also sent as `X-Request-Id`, to find the probe in the engine's logs
    unix_s: wall clock at the intended time, for display only
    has_asked_length: the prompt was composed to have `requested_prompt_tokens` tokens
    warm_up: a success whose latency includes the engine's warm-up, or that calibrates the length of prompts
    cached: a cold prompt that the engine had in its prefix cache
    check: how the answer is checked (text, regex, json_schema, tool_call), None if it is not
    on_request: the probe was started by a user: it is shown, but not counted
    worker: number of the process that sent it, from 1; 0: the prober itself
    rate_limit: remaining allowance by kind, from the headers of the response
    retries: further tries of a gateway for this response, by kind (retry: of the same model, or of which one is unknown; fallback: of
        another model), as its headers tell them; empty if no header does
    retry_after_s: pause that a failed answer asks for, in seconds from its end
    cert_expiry_unix_s: expiry of the server's certificate, Unix time
    adapter: name of the LoRA adapter, or other model, that was requested instead of the target's `model`; "" if none
    """

    target: str
    workload: str
    request_id: str
    unix_s: float
    outcome: Outcome
    detail: str
    timeline: Timeline
    model: str = ""
    engine: str = ""
    requested_prompt_tokens: int = 0
    requested_output_tokens: int = 0
    warm_up: bool = False
    cached: bool = False
    text: str = ""
    check: str | None = None
    rate_limit: dict[str, float] = field(default_factory=dict)
    retries: dict[RetryKind, int] = field(default_factory=dict)
    retry_after_s: float | None = None
    cert_expiry_unix_s: float | None = None
    on_request: bool = False
    has_asked_length: bool = False
    adapter: str = ""
    worker: int = 0

    @property
    def reason(self) -> str:
        """The outcome with its detail, such as `http_429: too many requests`."""
        return f"{self.outcome.value}: {self.detail}" if self.detail else self.outcome.value

    @property
    def requested_tokens(self) -> tuple[int, int]:
        """(prompt tokens, output tokens), as requested."""
        return self.requested_prompt_tokens, self.requested_output_tokens

    def named_instead(self, adapters: Collection[str]) -> str:
        """The wrong model that the answer names instead of `adapter`: the target's, or one of `adapters`. "" for any other name, which
        may be an alias or a path.
        """
        named = self.timeline.answered_model
        is_other = named != shown_name(self.adapter) and (named == self.model or named in adapters)
        return named if self.adapter and self.outcome in ANSWERED and is_other else ""


def unsent(due_ns: int, outcome: Outcome, detail: str, workload: str = "") -> ProbeResult:
    """Returns the result of a request that was not sent."""
    return ProbeResult("", workload, "", 0.0, outcome, detail, Timeline(due_ns))
