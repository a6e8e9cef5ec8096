"""The throughput of a sweep in a span of time: tokens by the stamps of their chunks, answers by their end.

A stage of a ramp is shorter than its answers, so its own requests do not show the throughput of the target at that time.
A span counts the chunks with a timestamp in it, of all requests of the sweep, so consecutive spans count every token once.

- A chunk has the tokens that the engine reports for it; else the answer's `usage` is spread evenly over its content chunks.
- An answer that is not streamed counts at its end.
- A failed or cancelled request counts the chunks that arrived. Without usage, they have the mean number of tokens of the sweep's
  other answers, and its prompt has the requested length, scaled as the server counts the other prompts.
- Prompt tokens count at the first token, when prefill is over. A prompt without a first token does not count.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from prober.measure.objective import Slo
from prober.measure.outcome import ANSWERED
from prober.measure.result import ProbeResult
from prober.results.result import Throughput
from prober.results.stage import is_good


@dataclass(frozen=True, slots=True)
class Deliveries:
    """Requests of a sweep with what their answers have in common.

    tokens_per_chunk: mean tokens of a content chunk; None if the engine never reported tokens
    prompt_ratio: mean of prompt tokens by the server's count ÷ requested prompt tokens; None if the server never reported them
    """

    probes: Sequence[ProbeResult]
    slos: Sequence[Slo]
    tokens_per_chunk: float | None
    prompt_ratio: float | None

    def between(self, begin_ns: int, end_ns: int) -> Throughput:
        """Throughput in [begin_ns, end_ns), on the clock of the timelines. A value that one request leaves unknown is None."""
        span_s = (end_ns - begin_ns) / 1e9
        if span_s <= 0:
            return Throughput()
        ended = [
            probe
            for probe in self.probes
            if probe.outcome in ANSWERED and begin_ns <= (probe.timeline.end_ns or 0) < end_ns
        ]
        return Throughput(
            requests_per_s=len(ended) / span_s,
            good_per_s=sum(is_good(probe, self.slos) for probe in ended) / span_s if self.slos else None,
            prompt_tokens_per_s=_per_s((self._prompt(probe, begin_ns, end_ns) for probe in self.probes), span_s),
            output_tokens_per_s=_per_s((self._output(probe, begin_ns, end_ns) for probe in self.probes), span_s),
        )

    def _output(self, probe: ProbeResult, begin_ns: int, end_ns: int) -> float | None:
        timeline = probe.timeline
        stamps, usage = timeline.content_ns, timeline.usage
        reported = usage.completion_tokens if usage else None
        if not stamps:
            delivered = (reported or probe.outcome in ANSWERED) and begin_ns <= (timeline.end_ns or 0) < end_ns
            return reported if delivered else 0
        first, last = bisect_left(stamps, begin_ns), bisect_left(stamps, end_ns)
        if first == last:
            return 0
        if timeline.content_tokens is not None:
            return sum(timeline.content_tokens[first:last])
        per_chunk = reported / len(stamps) if reported is not None else self.tokens_per_chunk
        return None if per_chunk is None else per_chunk * (last - first)

    def _prompt(self, probe: ProbeResult, begin_ns: int, end_ns: int) -> float | None:
        usage = probe.timeline.usage
        reported = usage.prompt_tokens if usage else None
        prefilled_ns = _prefilled_ns(probe)
        if prefilled_ns is None or not begin_ns <= prefilled_ns < end_ns:
            return 0
        if reported is not None:
            return reported
        requested = probe.requested_prompt_tokens
        return self.prompt_ratio * requested if self.prompt_ratio and requested else None


def deliveries(probes: Sequence[ProbeResult], slos: Sequence[Slo] = ()) -> Deliveries:
    """Deliveries of all requests of a sweep, including its warm-up and cancelled requests."""
    output_tokens = chunks = prompt_tokens = requested_tokens = 0
    for probe in probes:
        timeline, usage = probe.timeline, probe.timeline.usage
        tokens = sum(timeline.content_tokens) if timeline.content_tokens else usage.completion_tokens if usage else None
        if tokens is not None and timeline.content_ns:
            output_tokens, chunks = output_tokens + tokens, chunks + len(timeline.content_ns)
        if usage and usage.prompt_tokens is not None and probe.requested_prompt_tokens:
            prompt_tokens += usage.prompt_tokens
            requested_tokens += probe.requested_prompt_tokens
    per_chunk = output_tokens / chunks if chunks else None
    return Deliveries(probes, slos, per_chunk, prompt_tokens / requested_tokens if requested_tokens else None)


def _prefilled_ns(probe: ProbeResult) -> int | None:
    """End of prefill, as observed by the client; None if unknown."""
    timeline = probe.timeline
    if timeline.content_ns:
        return timeline.content_ns[0]
    return timeline.end_ns if probe.outcome in ANSWERED or timeline.usage is not None else None


def _per_s(amounts: Iterable[float | None], span_s: float) -> float | None:
    total = 0.0
    for amount in amounts:
        if amount is None:
            return None
        total += amount
    return total / span_s
