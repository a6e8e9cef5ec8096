"""The throughput of a sweep in a span of time: tokens by the stamps of their chunks, answers by their end.

A stage of a ramp is shorter than its answers, so its own requests do not show the throughput of the target at that time.
A span counts what was stamped in it, of all requests of the sweep, so consecutive spans count every token once.

- A chunk has the tokens that the engine reports for it; else the answer's `usage` is spread evenly over its content chunks.
- An answer that is not streamed counts at its end.
- A failed or cancelled request counts what it delivered. Without usage, its chunks have the mean number of tokens of the sweep's
  other answers, and its prompt the requested length, scaled as the server counts the others.
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
    """Of these requests. tokens_a_chunk, prompt_ratio: means where the engine told: tokens a content chunk, and prompt tokens by
    the server's count ÷ those asked for; None where it never did.
    """

    probes: Sequence[ProbeResult]
    slos: Sequence[Slo]
    tokens_a_chunk: float | None
    prompt_ratio: float | None

    def between(self, begin_ns: int, end_ns: int) -> Throughput:
        """Per second of [begin_ns, end_ns), on the clock of the timelines. A figure that a request leaves unknown is None."""
        span_s = (end_ns - begin_ns) / 1e9
        if span_s <= 0:
            return Throughput()
        ended = [
            each
            for each in self.probes
            if each.outcome in ANSWERED and begin_ns <= (each.timeline.end_ns or 0) < end_ns
        ]
        return Throughput(
            requests_per_s=len(ended) / span_s,
            good_per_s=sum(is_good(each, self.slos) for each in ended) / span_s if self.slos else None,
            prompt_tokens_per_s=_per_s((self._prompt(each, begin_ns, end_ns) for each in self.probes), span_s),
            output_tokens_per_s=_per_s((self._output(each, begin_ns, end_ns) for each in self.probes), span_s),
        )

    def _output(self, probe: ProbeResult, begin_ns: int, end_ns: int) -> float | None:
        timeline = probe.timeline
        stamps, usage = timeline.content_ns, timeline.usage
        told = usage.completion_tokens if usage else None
        if not stamps:
            delivered = (told or probe.outcome in ANSWERED) and begin_ns <= (timeline.end_ns or 0) < end_ns
            return told if delivered else 0
        first, last = bisect_left(stamps, begin_ns), bisect_left(stamps, end_ns)
        if first == last:
            return 0
        if timeline.content_tokens is not None:
            return sum(timeline.content_tokens[first:last])
        a_chunk = told / len(stamps) if told is not None else self.tokens_a_chunk
        return None if a_chunk is None else a_chunk * (last - first)

    def _prompt(self, probe: ProbeResult, begin_ns: int, end_ns: int) -> float | None:
        usage = probe.timeline.usage
        told = usage.prompt_tokens if usage else None
        at_ns = _read_ns(probe)
        if at_ns is None or not begin_ns <= at_ns < end_ns:
            return 0
        if told is not None:
            return told
        return (
            self.prompt_ratio * probe.requested_prompt_tokens
            if self.prompt_ratio and probe.requested_prompt_tokens
            else None
        )


def deliveries(probes: Sequence[ProbeResult], slos: Sequence[Slo] = ()) -> Deliveries:
    """Deliveries of all requests of a sweep, including its warm-up and cancelled requests."""
    tokens = chunks = read = asked = 0
    for each in probes:
        timeline, usage = each.timeline, each.timeline.usage
        told = sum(timeline.content_tokens) if timeline.content_tokens else usage.completion_tokens if usage else None
        if told is not None and timeline.content_ns:
            tokens, chunks = tokens + told, chunks + len(timeline.content_ns)
        if usage and usage.prompt_tokens is not None and each.requested_prompt_tokens:
            read, asked = read + usage.prompt_tokens, asked + each.requested_prompt_tokens
    return Deliveries(probes, slos, tokens / chunks if chunks else None, read / asked if asked else None)


def _read_ns(probe: ProbeResult) -> int | None:
    """When prefill was over, as seen by the client; None if unknown."""
    timeline = probe.timeline
    if timeline.content_ns:
        return timeline.content_ns[0]
    return timeline.end_ns if probe.outcome in ANSWERED or timeline.usage is not None else None


def _per_s(amounts: Iterable[float | None], span_s: float) -> float | None:
    total = 0.0
    for each in amounts:
        if each is None:
            return None
        total += each
    return total / span_s
