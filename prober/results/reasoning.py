"""Reasoning models: the time to the first token of the answer, and the tokens of reasoning apart from those of the answer."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from prober.measure.outcome import ANSWERED
from prober.measure.result import ProbeResult
from prober.measure.timeline import Timeline
from prober.measure.timeline_text import format_duration
from prober.statistics.quantiles import MIN_SAMPLES_BY_QUANTILE, Quantile, quantiles


@dataclass(frozen=True, slots=True)
class Reasoning:
    """Answered requests whose answers began with reasoning, without warm-ups.

    requests: number of them
    unanswered: those of them that reached their length before the answer began
    counted: those of them for which the server reports reasoning tokens
    reasoning_tokens, answer_tokens: totals over `counted`
    ttft_answer: quantiles in seconds of the time to the first token of the answer, of those with an answer
    hidden: number of answers that do not show their reasoning, or only a summary of it
    unknown: what is not known of the hidden ones and why, a phrase each
    """

    requests: int
    unanswered: int
    counted: int
    reasoning_tokens: int
    answer_tokens: int
    ttft_answer: tuple[Quantile, ...] = ()
    hidden: int = 0
    unknown: tuple[str, ...] = ()

    def text(self) -> str:
        """Tokens by kind and first answers, as a sentence."""
        hidden = f", which {self.hidden:,} of them hide" if self.hidden else ""
        parts = [f"{self.requests:,} answers began with reasoning{hidden}"]
        if self.counted:
            reasoning, answer = (f"{n / self.counted:,.4g}" for n in (self.reasoning_tokens, self.answer_tokens))
            of = "" if self.counted == self.requests else f" (of {self.counted:,})"
            parts.append(f"{reasoning} reasoning and {answer} answer tokens each in the mean{of}")
        else:
            parts.append("the server does not tell how many of their tokens are reasoning")
        if times := median_and_p99_text(self.ttft_answer):
            parts.append(f"first token of the answer after {times}")
        if self.unanswered:
            parts.append(f"{self.unanswered:,} reached their length before the answer")
        return "; ".join((*parts, *self.unknown))


def reasoning_of(probes: Iterable[ProbeResult]) -> Reasoning | None:
    """Reasoning of these probes; None if no answer began with any."""
    reasoned = [
        probe
        for probe in probes
        if probe.outcome in ANSWERED
        and not probe.warm_up
        and (probe.timeline.has_reasoning or probe.timeline.first_answer_ns != probe.timeline.first_ns)
    ]
    if not reasoned:
        return None
    counts = [
        (usage.reasoning_tokens, usage.completion_tokens - usage.reasoning_tokens)
        for probe in reasoned
        if (usage := probe.timeline.usage) is not None
        and usage.reasoning_tokens is not None
        and usage.completion_tokens is not None
    ]
    hidden = [probe.timeline for probe in reasoned if probe.timeline.hidden_tokens]
    whys = [("TPOT", timeline.why_no_tpot) for timeline in hidden]
    whys += [("TTFT of the answer", timeline.why_no_ttft_answer) for timeline in hidden]
    first_answers_s = [s for probe in reasoned if (s := probe.timeline.ttft_answer_s) is not None]
    return Reasoning(
        len(reasoned),
        sum(_is_unanswered(probe.timeline) for probe in reasoned),
        len(counts),
        sum(reasoning for reasoning, _ in counts),
        sum(answer for _, answer in counts),
        tuple(quantiles(first_answers_s, (*MIN_SAMPLES_BY_QUANTILE, 1.0))),
        len(hidden),
        tuple(f"no {name} of {n:,}: {why}" for (name, why), n in Counter(whys).most_common() if why),
    )


def _is_unanswered(timeline: Timeline) -> bool:
    """Whether nothing but reasoning came. Where an answer does not show where its reasoning ends, the server's counts decide."""
    usage = timeline.usage
    is_hidden = usage is not None and (usage.reasoning_tokens or 0) < (usage.completion_tokens or 0)
    shows_reasoning = timeline.first_ns is None or timeline.streams_reasoning
    return timeline.first_answer_ns is None and (shows_reasoning or not is_hidden)


def median_and_p99_text(values: Iterable[Quantile]) -> str:
    """`p50 310 ms, p99 1.2 s*`, as far as they are among these; "" if neither is."""
    return ", ".join(f"p{100 * value.q:.4g} {quantile_text(value)}" for value in values if value.q in (0.5, 0.99))


def quantile_text(quantile: Quantile) -> str:
    """The estimate, of seconds; a star marks one of too few samples, but for the median."""
    return f"{format_duration(quantile.estimate)}{'' if quantile.has_enough_samples or quantile.q == 0.5 else '*'}"
