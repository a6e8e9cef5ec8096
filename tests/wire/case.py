"""A case of the wire suite: the bytes that a server writes, and the verdict on them.

A script is a tuple of steps, executed in order:

- `bytes` are written and the time of the write is taken;
- a `float` is a pause in seconds;
- an `Act` closes, resets or holds the connection, or waits for the request;
- a `Mark` names the next write (or the next `Act`): the prober's times are compared with the time of that step.

The verdicts were written from documents (the outcome list, WHATWG's event-stream text, RFC 9110 and 9112, the engines' own
sources, what the OpenAI and Anthropic clients read) before the code was read.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum


class Act(Enum):
    """An action of the server that writes nothing."""

    REQUEST = "wait for the complete request"
    FIN = "close"
    RST = "reset"
    HOLD = "keep the connection open and silent until the client leaves"


class Mark(Enum):
    """The meaning of the step that follows it in a script."""

    FIRST = "first content: TTFT"
    ANSWER = "first content of the answer itself, after reasoning"
    LAST = "last content"
    END = "end of the answer: E2E"


REQUEST, FIN, RST, HOLD = Act.REQUEST, Act.FIN, Act.RST, Act.HOLD
FIRST, ANSWER, LAST, END = Mark.FIRST, Mark.ANSWER, Mark.LAST, Mark.END

Step = bytes | float | Act | Mark
Script = tuple[Step, ...]


@dataclass(frozen=True)
class Limits:
    """Time limits of a probe, in seconds."""

    first_token: float = 3.0
    stall: float = 3.0
    total: float = 4.0


ANY = -1
"""A number of a case that no document decides."""


@dataclass(frozen=True)
class Case:
    """A server's answer and the verdict on it.

    Args:
        name: What the server does, in plain English; unique.
        verdict: The outcome; several separated by `|` if the documents allow several.
        script: What the server does.
        why: The rule or document that decides.
        api: The API that is probed.
        engine: The dialect as configured; empty: none.
        stream: Whether a streamed answer is requested.
        before_request: The server does not wait for the request before the first step.
        tls: The target is configured as https; the server speaks what the script says.
        limits: The probe's time limits.
        tokens: The requested length, forced where the dialect can force it.
        golden: The text that the answer must contain; empty: no golden prompt.
        chunks: Content chunks; `ANY`: not decided.
        completion: Completion tokens; None: absent; `ANY`: not decided; several: either of them.
        finish: The finish reason as the server wrote it; empty: not checked.
        tokens_after_first: Tokens after the first flush, over which TPOT is taken; None: TPOT must be absent; `ANY`: not checked.
        why_no_tpot: A text that the reason for an absent TPOT must contain.
        why_no_ttft_answer: A text that the reason for an absent TTFT of the answer must contain; empty: it is not absent.
        detail: A text that the detail of the outcome must contain, ignoring case.
    """

    name: str
    verdict: str
    script: Script = field(repr=False)
    why: str
    api: str = "chat"
    engine: str = "vllm"
    stream: bool = True
    before_request: bool = False
    tls: bool = False
    limits: Limits = Limits()
    tokens: int = 4
    golden: str = ""
    chunks: int = ANY
    completion: int | tuple[int | None, ...] | None = ANY
    finish: str = ""
    tokens_after_first: int | None = ANY
    why_no_tpot: str = ""
    why_no_ttft_answer: str = ""
    detail: str = ""

    @property
    def verdicts(self) -> frozenset[str]:
        """The outcomes that the case allows."""
        return frozenset(self.verdict.split("|"))
