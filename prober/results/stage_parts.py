"""Parts of a stage with their own sentences in reports: series, prompt lengths, tool calls, reasoning.

A series is one kind of request: a turn of sessions, a warm or cold prefix, a workload of a mix.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from prober.measure.outcome import ANSWERED
from prober.measure.result import RETRY_KINDS, ProbeResult
from prober.measure.timeline import Timeline, format_duration
from prober.statistics.quantiles import REPORTED_QUANTILES, Quantile, percentile_name, quantiles


@dataclass(frozen=True, slots=True)
class Series:
    """Figures of one kind of request (`chat_turn2`, `rag_warm`), without warm-ups and cached cold prompts.

    requests: number of answered requests
    ttft: quantiles in seconds
    prompt_tokens, cached_tokens: totals over answers for which the server reports both
    unanswered: number of requests that failed, were refused or not sent
    reason: their most frequent outcome with its detail
    """

    name: str
    requests: int
    ttft: tuple[Quantile, ...]
    prompt_tokens: int
    cached_tokens: int
    unanswered: int = 0
    reason: str = ""

    def text(self) -> str:
        """TTFT and cached share of the prompt, as a phrase."""
        times = median_and_p99_text(self.ttft, marks_median=True)
        ttft = f"TTFT {times}" if times else "no TTFT"
        cached = f", {self.cached_tokens / self.prompt_tokens:.0%} of the prompt cached" if self.prompt_tokens else ""
        failed = f", {self.unanswered:,} not answered, most often {self.reason}" if self.unanswered else ""
        return f"{self.name} {ttft} of {self.requests:,}{cached}{failed}"


def series_of(probes: Iterable[ProbeResult]) -> tuple[Series, ...]:
    """The series of these probes by name; empty if there is only one."""
    by_name: dict[str, list[ProbeResult]] = {}
    for probe in probes:
        if probe.workload and not probe.warm_up and not probe.cached:
            by_name.setdefault(probe.workload, []).append(probe)
    return tuple(_series(name, by_name[name]) for name in sorted(by_name)) if len(by_name) > 1 else ()


def most_often(probes: Iterable[ProbeResult]) -> tuple[int, str]:
    """(number of these probes, their most frequent outcome with its detail); (0, "") without probes."""
    reasons = Counter(probe.reason for probe in probes)
    return reasons.total(), next((reason for reason, _ in reasons.most_common(1)), "")


def _series(name: str, sent: list[ProbeResult]) -> Series:
    probes = [probe for probe in sent if probe.outcome in ANSWERED]
    usages = [usage for probe in probes if (usage := probe.timeline.usage) is not None]
    counts = [(u.prompt_tokens, u.cached_tokens) for u in usages]
    known = [(prompt, cached) for prompt, cached in counts if prompt is not None and cached is not None]
    ttfts_s = [ttft_s for probe in probes if (ttft_s := probe.timeline.ttft_s) is not None]
    return Series(
        name,
        len(probes),
        tuple(quantiles(ttfts_s, REPORTED_QUANTILES)),
        sum(prompt for prompt, _ in known),
        sum(cached for _, cached in known),
        *most_often(probe for probe in sent if probe.outcome not in ANSWERED),
    )


@dataclass(frozen=True, slots=True)
class PromptTokens:
    """Totals of prompt tokens over answered requests with prompts composed to a length.

    requests: number of requests with usage, or if none has usage of all
    asked, counted: their tokens as requested and as counted by the server; counted is None without usage
    """

    requests: int
    asked: int
    counted: int | None

    def text(self) -> str:
        """Mean requested and counted tokens and their difference, as text."""
        asked = f"{self.asked / self.requests:,.4g} tokens asked"
        if self.counted is None:
            return f"{asked}; the server counts none (no usage), so their true length is unknown"
        difference = self.counted / self.asked - 1
        return f"{asked}, {self.counted / self.requests:,.4g} counted by the server ({difference:+.1%})"


def prompt_tokens_of(probes: Iterable[ProbeResult]) -> PromptTokens | None:
    """Prompt tokens of these probes; None if no answered request has a prompt composed to a length."""
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
    """Sum of all parts. If any part has the server's usage, parts without it are left out."""
    known = [part for part in parts if part is not None]
    counted = [part for part in known if part.counted is not None] or known
    if not counted:
        return None
    counts = [part.counted for part in counted if part.counted is not None]
    return PromptTokens(
        sum(part.requests for part in counted), sum(part.asked for part in counted), sum(counts) if counts else None
    )


@dataclass(frozen=True, slots=True)
class ToolCalls:
    """Figures of answered requests with tools, without warm-ups and cached cold prompts.

    answers: number of answers; calling: number of answers with a call
    calls: number of calls
    ttft_call: quantiles in seconds of the time to the first piece of the first call
    arguments: quantiles in seconds of the time to its complete arguments, if they are a JSON object
    incomplete: number of streamed answers whose first call has no complete arguments
    """

    answers: int
    calling: int
    calls: int
    incomplete: int
    ttft_call: tuple[Quantile, ...] = ()
    arguments: tuple[Quantile, ...] = ()

    def text(self) -> str:
        """Number of answers with calls, and the latencies of the first call, as a sentence."""
        parts = [f"{self.calling:,} of {self.answers:,} answers call tools ({self.calls:,} calls)"]
        for name, values in (("first call", self.ttft_call), ("its complete arguments", self.arguments)):
            if times := median_and_p99_text(values):
                parts.append(f"{name} after {times}")
        if self.incomplete:
            parts.append(f"{self.incomplete:,} of them without complete arguments")
        return "; ".join(parts)


def tool_calls_of(probes: Iterable[ProbeResult]) -> ToolCalls | None:
    """Tool calls of these probes; None if no answer has a call or is checked for one."""
    timelines = [
        probe.timeline
        for probe in probes
        if probe.outcome in ANSWERED
        and not (probe.warm_up or probe.cached)
        and (probe.check == "tool_call" or probe.timeline.calls > 0)
    ]
    if not timelines:
        return None
    qs = REPORTED_QUANTILES
    return ToolCalls(
        len(timelines),
        sum(timeline.calls > 0 for timeline in timelines),
        sum(timeline.calls for timeline in timelines),
        sum(timeline.call_ns is not None and timeline.arguments_ns is None for timeline in timelines),
        tuple(quantiles([s for timeline in timelines if (s := timeline.ttft_call_s) is not None], qs)),
        tuple(quantiles([s for timeline in timelines if (s := timeline.arguments_s) is not None], qs)),
    )


@dataclass(frozen=True, slots=True)
class Retries:
    """Retries by gateways, from response headers. A gateway may report less: some count no retries before a fallback.

    responses: number of responses, failures included, with such a header
    retried, fell_back: how many of these the gateway tried more than once, and sent to another model
    """

    responses: int
    retried: int
    fell_back: int

    def text(self) -> str:
        """Number of responses after a retry and after a fallback, as a sentence."""
        parts = [f"{self.retried:,} of {self.responses:,} responses came after a retry of the gateway"]
        if self.fell_back:
            parts.append(f"{self.fell_back:,} after its fallback to another model")
        return ", ".join(parts)


def retries_of(probes: Iterable[ProbeResult]) -> Retries | None:
    """Gateway retries for these probes; None if no response reports any."""
    counts = [probe.retries for probe in probes if probe.retries]
    retried, fell_back = (sum(retries.get(kind, 0) > 0 for retries in counts) for kind in RETRY_KINDS)
    return Retries(len(counts), retried, fell_back) if counts else None


@dataclass(frozen=True, slots=True)
class Reasoning:
    """Figures of answers that began with reasoning, without warm-ups.

    requests: number of these answers
    unanswered: how many of them reached their length limit before the answer began
    counted: for how many of them the server reports reasoning tokens
    reasoning_tokens, answer_tokens: totals over `counted`
    ttft_answer: quantiles in seconds of the time to the first token of the answer, if it has one
    hidden: number of answers that hide their reasoning or show only a summary
    unknown: phrases on what is unknown about hidden reasoning, and why
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
        """Tokens by kind, and times to the first token of the answer, as a sentence."""
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
    """Reasoning of these probes; None if no answer began with reasoning."""
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
        tuple(quantiles(first_answers_s, REPORTED_QUANTILES)),
        len(hidden),
        tuple(f"no {name} of {n:,}: {why}" for (name, why), n in Counter(whys).most_common() if why),
    )


def _is_unanswered(timeline: Timeline) -> bool:
    """True if only reasoning came. If the stream does not show the end of reasoning, the server's token counts decide."""
    usage = timeline.usage
    is_hidden = usage is not None and (usage.reasoning_tokens or 0) < (usage.completion_tokens or 0)
    shows_reasoning = timeline.first_ns is None or timeline.streams_reasoning
    return timeline.first_answer_ns is None and (shows_reasoning or not is_hidden)


def median_and_p99_text(values: Iterable[Quantile], *, marks_median: bool = False) -> str:
    """Text such as `p50 310 ms, p99 1.2 s*` for these two quantiles if `values` has them; "" for neither."""
    shown = (value for value in values if value.q in (0.5, 0.99))
    return ", ".join(f"{percentile_name(value.q)} {quantile_text(value, marks_median=marks_median)}" for value in shown)


def quantile_text(quantile: Quantile | None, *, marks_median: bool = True) -> str:
    """The estimate as a duration, with a star if it has too few samples; a dash for None. marks_median: stars medians too"""
    if quantile is None:
        return "–"
    is_marked = not quantile.has_enough_samples and (marks_median or quantile.q != 0.5)
    return f"{format_duration(quantile.estimate)}{'*' if is_marked else ''}"
