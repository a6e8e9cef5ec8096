"""Tokens that a target delivered in a time span, and the throughput of a stage at its rate.

**Delivered** is a count. A stage of a ramp is shorter than its answers, so the count of a span includes all chunks of the sweep whose
timestamp is in the span. Consecutive spans count every token once, in whole numbers.

- A chunk has the tokens that the engine reports for it; else the answer's `usage` is spread evenly over its content chunks.
- An answer that is not streamed counts at its end.
- A failed or cancelled request counts the chunks that arrived. Without usage, they have the mean number of tokens of the sweep's
  other answers, and its prompt has the requested length, scaled as the server counts the other prompts.
- Prompt tokens count at the first token, when prefill is over. A prompt without a first token does not count.

**Throughput at a rate** is what the target delivers per second if requests always come at this rate:

    answered requests/s = rate × share of the stage's requests that were answered
    goodput             = rate × share of its requests that were answered and good by every SLO, which falls with the rate
    tokens/s            = answered requests/s × mean tokens of a request of the workload, as the server counts them

A refused request is offered, but not answered. If more than `MAX_REFUSED_RATIO` are refused, tokens/s are unknown: long prompts are
refused first, so the answered requests do not have the mean tokens of the workload.

The planned rate is used instead of the number of arrivals, and the workload's mean tokens instead of those of the requests, because
their random variation comes from the prober and not from the target. A throughput is stated only with evidence that the target keeps up
with the rate:

- settled: after the time that nine of ten answers take, the stage lasts at least as long again and 10 s, and in this settled time the
  requests in flight grow by no more than chance explains. If they grow beyond chance in both of its halves, the throughput is what was
  delivered in it; otherwise nothing is stated, because one burst may have ended the stage,
- or delivered: in a span of the sweep as long as nine of ten answers take, the target delivered as many prompt and output tokens per
  second as the rate requires.

Otherwise it is unknown: the stage was too short to distinguish a target that fills up from one that falls behind.

A share of good requests that rises with the rate is chance: a stage of 4 s has a dozen requests. The shares come from an isotonic
regression over the rates of the sweep (pool adjacent violators; Barlow et al., Statistical Inference under Order Restrictions,
1972), weighted by the numbers of requests.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property

from prober.measure.objective import Slo, count_events
from prober.measure.outcome import ANSWERED, Outcome
from prober.measure.result import ProbeResult
from prober.results.refused_requests import NOT_COUNTED, refused_requests
from prober.results.result import Delivered, Throughput

SETTLED_SHARE = 0.9  # of answers, which the settling time covers
MIN_SETTLED_S = 10.0
# Growth of requests in flight, in standard deviations of the difference of two Poisson counts.
MAX_CHANCE_SIGMAS, MIN_GROWTH_SIGMAS = 1.5, 2.5
MAX_UNKNOWN_RATIO = 0.05  # of a stage's requests cut undecided; beyond it, shares of requests are unknown
Span = tuple[int, int]
RatedSpan = tuple[float | None, int, int]


class Deliveries:
    """All requests of a sweep, including warm-up and cancelled ones, with averages that the throughput of each stage needs."""

    def __init__(
        self,
        probes: Sequence[ProbeResult],
        slos: Sequence[Slo] = (),
        spans: Sequence[RatedSpan] = (),
        mean_tokens: tuple[float, float] | None = None,
    ) -> None:
        """Compute the averages.

        spans: (rate, begin, end) of the stages in ns, in order; the rate is None outside a stage, such as in a warm-up
        mean_tokens: requested mean (prompt tokens, output tokens) of the workload; None: mean of the sent requests
        """
        self.probes, self.slos, self.spans = probes, slos, spans
        output_tokens = chunks = 0
        counted = [(0, 0), (0, 0)]  # (counted by the server, requested) tokens of prompts and outputs
        for probe in probes:
            timeline, usage = probe.timeline, probe.timeline.usage
            tokens = (
                sum(timeline.content_tokens) if timeline.content_tokens else usage.completion_tokens if usage else None
            )
            if tokens is not None and timeline.content_ns:
                output_tokens, chunks = output_tokens + tokens, chunks + len(timeline.content_ns)
            reported = (usage.prompt_tokens if usage else None, usage.completion_tokens if usage else None)
            for kind, (count, requested) in enumerate(zip(reported, probe.requested_tokens, strict=True)):
                if count is not None and requested and (kind == 0 or probe.outcome in ANSWERED):
                    counted[kind] = (counted[kind][0] + count, counted[kind][1] + requested)
        number = max(1, len(probes))
        self.mean_tokens = mean_tokens or (
            sum(probe.requested_prompt_tokens for probe in probes) / number,
            sum(probe.requested_output_tokens for probe in probes) / number,
        )
        # Counted ÷ requested tokens of prompts and outputs, and tokens per chunk; None if never reported.
        self.ratios = tuple(tokens / requested if requested else None for tokens, requested in counted)
        self.tokens_per_chunk = output_tokens / chunks if chunks else None

    def between(self, begin_ns: int, end_ns: int) -> Delivered:
        """Count [begin_ns, end_ns), on the clock of the timelines. A total is None if one request leaves it unknown."""
        near = [probe for probe in self.probes if probe.timeline.intended_ns < end_ns]
        return Delivered(
            span_s=max(0.0, (end_ns - begin_ns) / 1e9),
            answers=sum(
                begin_ns <= (probe.timeline.end_ns or 0) < end_ns for probe in near if probe.outcome in ANSWERED
            ),
            prompt_tokens=_total(self._prompt(probe, begin_ns, end_ns) for probe in near),
            output_tokens=_total(self._output(probe, begin_ns, end_ns) for probe in near),
        )

    def throughput(self, rate_per_s: float | None, begin_ns: int, end_ns: int) -> Throughput:
        """Requests and tokens per second of the stage that ran in [begin_ns, end_ns).

        rate_per_s: planned requests per second; None in a closed loop
        """
        probes = self._counted(begin_ns, end_ns)
        settled = _settled(probes, begin_ns, end_ns)
        keeps_up = settled is not None and self._growth_sigmas(*settled) <= MAX_CHANCE_SIGMAS
        answered, good_per_s = _share(probes, is_answered), None
        if rate_per_s is not None:
            share = self._good_shares.get(rate_per_s) if _share(probes, self._is_good) is not None else None
            good_per_s = None if share is None else rate_per_s * share
        if rate_per_s is not None and answered is not None:
            is_sample = not refused_requests(probes).is_too_many
            tokens_per_s = [
                None if ratio is None or not is_sample else rate_per_s * answered * mean * ratio
                for mean, ratio in zip(self.mean_tokens, self.ratios, strict=True)
            ]
            if keeps_up or self._has_delivered(*tokens_per_s):
                return Throughput(rate_per_s * answered, good_per_s, *tokens_per_s)
        if settled is None or (rate_per_s is not None and not self._falls_behind(*settled)):
            return Throughput()
        delivered = self.between(*settled)
        return Throughput(
            requests_per_s=delivered.answers / delivered.span_s,
            good_per_s=good_per_s,
            prompt_tokens_per_s=delivered.prompt_tokens_per_s,
            output_tokens_per_s=delivered.output_tokens_per_s,
        )

    def _counted(self, begin_ns: int, end_ns: int) -> list[ProbeResult]:
        """Requests that were due in a span and offered to the target, including those that were cut."""
        return [
            probe
            for probe in self.probes
            if begin_ns <= probe.timeline.intended_ns < end_ns
            and probe.outcome not in NOT_COUNTED - {Outcome.CANCELLED}
        ]

    def _is_good(self, probe: ProbeResult) -> bool | None:
        return is_good(probe, self.slos)

    @cached_property
    def _good_shares(self) -> dict[float, float]:
        """Share of good requests by rate, made non-increasing. Rates with an unknown share are left out."""
        counts: dict[float, list[bool]] = {}
        for rate_per_s, begin_ns, end_ns in self.spans if self.slos else ():
            probes = self._counted(begin_ns, end_ns)
            if rate_per_s is not None and _share(probes, self._is_good) is not None:
                known = [is_met for probe in probes if (is_met := self._is_good(probe)) is not None]
                counts.setdefault(rate_per_s, []).extend(known)
        blocks: list[tuple[list[float], int, int]] = []  # rates, good requests, requests
        for rate_per_s in sorted(counts):
            rates, good, number = [rate_per_s], sum(counts[rate_per_s]), len(counts[rate_per_s])
            while blocks and blocks[-1][1] * number <= good * blocks[-1][2]:
                before = blocks.pop()
                rates, good, number = [*before[0], *rates], before[1] + good, before[2] + number
            blocks.append((rates, good, number))
        return {rate_per_s: good / number for rates, good, number in blocks for rate_per_s in rates}

    def _falls_behind(self, begin_ns: int, end_ns: int) -> bool:
        """True if the requests in flight grew beyond chance in both halves of a settled span."""
        middle_ns = (begin_ns + end_ns) // 2
        halves = (begin_ns, middle_ns), (middle_ns, end_ns)
        return all(self._growth_sigmas(*half) >= MIN_GROWTH_SIGMAS for half in halves)

    def _growth_sigmas(self, begin_ns: int, end_ns: int) -> float:
        """Growth of the requests in flight in a span, in standard deviations of the difference of two Poisson counts."""
        before, after = (
            sum(probe.timeline.intended_ns < at_ns <= _gone_ns(probe) for probe in self.probes)
            for at_ns in (begin_ns, end_ns)
        )
        return (after - before) / math.sqrt(max(1, before + after))

    def _has_delivered(self, prompt_per_s: float | None, output_per_s: float | None) -> bool:
        """True if the target delivered that many prompt and output tokens per second in one of the sweep's long spans."""
        if prompt_per_s is None or output_per_s is None:
            return False
        return any(
            (span.prompt_tokens_per_s or 0.0) >= prompt_per_s and (span.output_tokens_per_s or 0.0) >= output_per_s
            for span in self._long_spans
        )

    @cached_property
    def _long_spans(self) -> list[Delivered]:
        """Count the shortest runs of consecutive stages that last as long as nine of ten answers."""
        long_ns = max(_long_e2e_ns(self.probes) or 0, round(MIN_SETTLED_S * 1e9))
        pairs = (
            (max((begin_ns for _, begin_ns, _ in self.spans if begin_ns <= end_ns - long_ns), default=None), end_ns)
            for _, _, end_ns in self.spans
        )
        return [self.between(begin_ns, end_ns) for begin_ns, end_ns in pairs if begin_ns is not None]

    def _output(self, probe: ProbeResult, begin_ns: int, end_ns: int) -> int | None:
        timeline = probe.timeline
        stamps, usage = timeline.content_ns, timeline.usage
        reported = usage.completion_tokens if usage else None
        if not stamps:
            delivered = (reported or probe.outcome in ANSWERED) and begin_ns <= (timeline.end_ns or 0) < end_ns
            return reported if delivered else 0
        first, last = bisect_left(stamps, begin_ns), bisect_left(stamps, end_ns)
        if first >= last:
            return 0
        if timeline.content_tokens is not None:
            return sum(timeline.content_tokens[first:last])
        if reported is not None:  # totals up to a chunk in whole tokens: parts of an answer add up
            return reported * last // len(stamps) - reported * first // len(stamps)
        per_chunk = self.tokens_per_chunk
        return None if per_chunk is None else round(per_chunk * last) - round(per_chunk * first)

    def _prompt(self, probe: ProbeResult, begin_ns: int, end_ns: int) -> int | None:
        timeline, usage, ratio = probe.timeline, probe.timeline.usage, self.ratios[0]
        reported = usage.prompt_tokens if usage else None
        prefilled_ns = timeline.content_ns[0] if timeline.content_ns else None
        if prefilled_ns is None and (probe.outcome in ANSWERED or usage is not None):
            prefilled_ns = timeline.end_ns
        if prefilled_ns is None or not begin_ns <= prefilled_ns < end_ns:
            return 0
        if reported is not None:
            return reported
        requested = probe.requested_prompt_tokens
        return round(ratio * requested) if ratio and requested else None


def is_answered(probe: ProbeResult) -> bool | None:
    """True if a request is answered. If it was cut: True if the answer had begun, else None."""
    if probe.outcome is Outcome.CANCELLED:
        return True if probe.timeline.first_ns is not None else None
    return probe.outcome in ANSWERED


def is_good(probe: ProbeResult, slos: Iterable[Slo]) -> bool | None:
    """True if a request is answered without a bad event of any SLO; of its ITL events, a share up to the error budget may be bad.

    None if it was cut before this was known; False if it had already waited longer than a threshold.
    """
    if probe.outcome is Outcome.CANCELLED:
        return _is_cut_good(probe, slos)
    if probe.outcome not in ANSWERED:
        return False
    counts = [(slo, *count_events(slo, probe)) for slo in slos]
    return all(bad <= (events * slo.error_budget_ratio if slo.signal == "itl" else 0) for slo, events, bad in counts)


def _is_cut_good(probe: ProbeResult, slos: Iterable[Slo]) -> bool | None:
    timeline = probe.timeline
    is_decided = timeline.first_ns is not None
    for slo in slos:
        first_ns = {"ttft": timeline.first_ns, "ttft_answer": timeline.first_answer_ns}.get(slo.signal)
        known_ns = timeline.cut_ns if first_ns is None else first_ns
        is_wait = slo.signal in ("ttft", "ttft_answer", "e2e")
        if is_wait and known_ns is not None and (known_ns - timeline.intended_ns) / 1e9 > (slo.threshold_s or math.inf):
            return False
        is_decided &= first_ns is not None
    return True if is_decided else None


def _share(probes: Sequence[ProbeResult], holds: Callable[[ProbeResult], bool | None]) -> float | None:
    """Share of requests for which `holds` is true, ignoring None; None if it is None for too many."""
    known = [value for probe in probes if (value := holds(probe)) is not None]
    if not known or len(probes) - len(known) > MAX_UNKNOWN_RATIO * len(probes):
        return None
    return sum(known) / len(known)


def _settled(probes: Sequence[ProbeResult], begin_ns: int, end_ns: int) -> Span | None:
    """The part of a stage in which the requests in flight have adapted to its rate; None if the stage is too short."""
    filled_ns = _long_e2e_ns(probes)
    if filled_ns is None or end_ns - begin_ns - filled_ns < max(filled_ns, MIN_SETTLED_S * 1e9):
        return None
    return begin_ns + filled_ns, end_ns


def _long_e2e_ns(probes: Iterable[ProbeResult]) -> int | None:
    """Time within which nine of ten requests end. A cut request counts with its time until the cut. None without answers."""
    lengths_ns = sorted(
        _gone_ns(probe) - probe.timeline.intended_ns
        for probe in probes
        if probe.outcome in ANSWERED or probe.timeline.cut_ns is not None
    )
    return lengths_ns[math.ceil(SETTLED_SHARE * len(lengths_ns)) - 1] if lengths_ns else None


def _gone_ns(probe: ProbeResult) -> int:
    """When a request was last known to be in flight."""
    timeline = probe.timeline
    last_ns = timeline.content_ns[-1] if timeline.content_ns else timeline.intended_ns
    return timeline.end_ns or timeline.cut_ns or last_ns


def _total(amounts: Iterable[int | None]) -> int | None:
    total = 0
    for amount in amounts:
        if amount is None:
            return None
        total += amount
    return total
