"""Prompt tokens that were asked for, beside those that the server counted."""

from collections.abc import Iterable
from dataclasses import dataclass

from prober.measure.outcome import ANSWERED
from prober.measure.result import ProbeResult


@dataclass(frozen=True, slots=True)
class PromptTokens:
    """Totals over answered requests whose prompts were composed to have a length.

    requests: those with usage, or all of them if none has usage
    asked, counted: tokens of these requests; counted is None without usage
    """

    requests: int
    asked: int
    counted: int | None

    def text(self) -> str:
        """Means of both and their difference, as text."""
        asked = f"{self.asked / self.requests:,.4g} tokens asked"
        if self.counted is None:
            return f"{asked}; the server counts none (no usage), so their true length is unknown"
        difference = self.counted / self.asked - 1
        return f"{asked}, {self.counted / self.requests:,.4g} counted by the server ({difference:+.1%})"


def prompt_tokens_of(probes: Iterable[ProbeResult]) -> PromptTokens | None:
    """Prompt tokens of these probes; None if none of them was answered and asked for a length."""
    sized = [probe for probe in probes if probe.has_asked_length and probe.outcome in ANSWERED]
    if not sized:
        return None
    counts = [
        (probe.requested_prompt_tokens, usage.prompt_tokens)
        for probe in sized
        if (usage := probe.timeline.usage) is not None and usage.prompt_tokens is not None
    ]
    if not counts:
        return PromptTokens(len(sized), sum(probe.requested_prompt_tokens for probe in sized), None)
    return PromptTokens(len(counts), sum(asked for asked, _ in counts), sum(counted for _, counted in counts))


def pooled(parts: Iterable[PromptTokens | None]) -> PromptTokens | None:
    """Prompt tokens of all parts; those without usage count only if none has usage."""
    known = [part for part in parts if part is not None]
    counted = [part for part in known if part.counted is not None] or known
    if not counted:
        return None
    counts = [part.counted for part in counted if part.counted is not None]
    return PromptTokens(
        sum(part.requests for part in counted), sum(part.asked for part in counted), sum(counts) if counts else None
    )
