"""Timeline of one probe: computes TTFT, TPOT, ITL and E2E from timestamped bytes.

All timestamps are nanoseconds of one monotonic clock; durations are seconds. A quantity that was not measured is None and never
estimated: without usage there is no TPOT, without a stream no TTFT, without gaps neither ITL nor TPOT.

A latency counts from the departure of the request, plus the delay after the due time that the target caused because the connection
was not ready. No latency includes the prober's lateness. If a time is known only to lie between two bounds, so is the latency.
"""

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import pairwise
from typing import ClassVar, Literal

from prober.measure.chunk import Usage
from prober.measure.outcome import LENGTH_REASONS, reason_word
from prober.measure.server_timing import PART_WORDS, Spans, TimeParts

# A prober that reads later than this may read several tokens at once, and cannot tell who held them back. A quiet machine reads within
# 0.1 ms (`bench/accuracy.py`).
MAX_READ_DELAY_S = 0.001
MERGED = "it was read together with later chunks, and came at some time before"
# A latency known only to lie between two bounds is a figure if they differ by at most this ratio: the width of the narrowest histogram
# buckets (`exposition.buckets`).
MAX_FIGURE_WIDTH = 0.12
BoundedSignal = Literal["ttft", "ttft_answer", "e2e"]
HiddenTokens = Literal["", "before", "within", "some", "choices"]
# An engine makes one token after the other. Content that arrives closer together was held back (by a gateway, the kernel or the prober)
# and released in one flush: its gaps are not the engine's. On a quiet machine a stream of 3,300 tokens/s
# stays above it in 9 of 10 gaps; the events of a held-back answer that a relay writes one by one stay below it in 9 of 10 gaps
# (`bench/buffering.py`).
FLUSH_GAP_NS = 250_000


@dataclass(frozen=True, slots=True)
class Connection:
    """Setup of one new connection. A phase that did not happen is None. Phases have the kernel's times, without the prober's delay in
    noticing their end; only DNS includes that delay.

    lead_ns: how long before the due time it should begin, so that it does not delay the request
    """

    start_ns: int
    ready_ns: int | None = None
    dns_s: float | None = None
    tcp_s: float | None = None
    proxy_s: float | None = None
    tls_s: float | None = None
    lead_ns: int = 0

    @property
    def delay_ns(self) -> int:
        """Time for which the request had to wait for the connection after the due time, if the connection began in time."""
        return 0 if self.ready_ns is None else max(0, self.ready_ns - self.start_ns - self.lead_ns)

    def shifted(self, offset_ns: int) -> "Connection":
        """The connection with all times moved by `offset_ns`."""
        ready_ns = None if self.ready_ns is None else self.ready_ns + offset_ns
        return replace(self, start_ns=self.start_ns + offset_ns, ready_ns=ready_ns)


@dataclass(frozen=True, slots=True)
class Timeline:
    """Timestamps of one probe.

    intended_ns: due time of the probe
    sent_ns: departure of the last byte of the request
    sent_earliest_ns: earliest possible departure; None: `sent_ns`, because the kernel has stamped it
    handed_ns: when the prober had handed over the whole request, so that only the other end could delay it; None: at `sent_ns`
    acknowledged_ns: when the host of the target, or of its proxy, had received the whole request
    round_trip_s: round trip of the connection at its end, smoothed by the kernel
    retransmitted: number of retransmitted segments
    read_delay_s, max_read_delay_s: mean and longest time from the arrival of bytes until the prober read them
    first_ns: first content of any kind; first_answer_ns: first content that is not reasoning, None if the answer does not show where
    its reasoning ends
    content_ns: arrival of each chunk with content, shape (chunks,); see `merged_chunks`
    earliest_ns: {stamp: earliest time} of other arrivals that are only known to lie between the two
    cut_ns: when the prober cancelled the request in flight
    content_tokens: tokens of these chunks, shape (chunks,); None unless every chunk reported usage
    answered_model: id of the model that the answer names; "" if it names none
    service_tier: tier that the answer names, one of `payload.SERVICE_TIERS` or `other`; "" if it names none
    streams_reasoning: reasoning was streamed, in its own fields or between marks
    hidden_tokens: place of tokens that the server counted but did not stream. Reasoning (encrypted, redacted, summarised, or only in
    the usage): `before` the answer or `within` it; `some`: more tokens than the text has bytes; `choices`: in other choices than the
    recorded one; "": none
    unusable_usage: why the server's usage is not used; "" if it is used, or absent
    calls: number of tool calls in the answer
    call_ns: arrival of the first piece of the first tool call
    arguments_ns: arrival of the piece that completed its arguments; None unless they are a JSON object
    charged_tokens: (prompt tokens, output tokens) charged to a budget
    parts: where its time went, by the server's own words; None if it says nothing of it
    """

    intended_ns: int
    connection: Connection | None = None
    sent_ns: int | None = None
    headers_ns: int | None = None
    first_ns: int | None = None
    first_answer_ns: int | None = None
    end_ns: int | None = None
    content_ns: Sequence[int] = ()
    content_tokens: Sequence[int] | None = None
    usage: Usage | None = None
    unusable_usage: str = ""
    finish_reason: str | None = None
    answered_model: str = ""
    service_tier: str = ""
    streams_reasoning: bool = False
    hidden_tokens: HiddenTokens = ""
    cut_ns: int | None = None
    calls: int = 0
    call_ns: int | None = None
    arguments_ns: int | None = None
    charged_tokens: tuple[int, int] = (0, 0)
    earliest_ns: Mapping[int, int] = field(default_factory=dict)
    sent_earliest_ns: int | None = None
    handed_ns: int | None = None
    acknowledged_ns: int | None = None
    round_trip_s: float | None = None
    retransmitted: int | None = None
    read_delay_s: float = 0.0
    max_read_delay_s: float = 0.0
    parts: TimeParts | None = None
    _flush_starts: Sequence[int] | None = field(default=None, init=False, repr=False, compare=False)
    _latest: ClassVar["tuple[Timeline, list[float]] | None"] = None  # the last timeline asked for its ITLs, and these

    def shifted(self, offset_ns: int) -> "Timeline":
        """The timeline with all stamps moved by `offset_ns`; durations stay."""
        stamps = {name: getattr(self, name) for name in _STAMPS}
        return replace(
            self,
            connection=None if self.connection is None else self.connection.shifted(offset_ns),
            content_ns=array("q", (at_ns + offset_ns for at_ns in self.content_ns)),
            earliest_ns={at_ns + offset_ns: early_ns + offset_ns for at_ns, early_ns in self.earliest_ns.items()},
            **{name: at_ns + offset_ns for name, at_ns in stamps.items() if at_ns is not None},
        )

    @property
    def flush_starts(self) -> Sequence[int]:
        """Index of the first chunk of each flush, shape (flushes,). Cached, as every decoding signal needs it."""
        if self._flush_starts is None:
            starts = flush_starts(self.content_ns)
            is_every_chunk = len(starts) == len(self.content_ns)  # the usual case; a range takes no memory
            object.__setattr__(self, "_flush_starts", range(len(starts)) if is_every_chunk else array("I", starts))
        assert self._flush_starts is not None
        return self._flush_starts

    @property
    def could_leave_ns(self) -> int:
        """When the request would have left without the prober's delay: it was due, and a connection begun in time was ready."""
        return self.intended_ns + (self.connection.delay_ns if self.connection is not None else 0)

    @property
    def origin_ns(self) -> int:
        """Start of all latencies: the due time, if the prober had no delay."""
        done_ns = self._done_ns
        return self.intended_ns + (0 if done_ns is None else max(0, done_ns - self.could_leave_ns))

    @property
    def send_lag_s(self) -> float | None:
        """Delay caused by the prober: sent − `could_leave_ns`. No latency includes it."""
        return None if self.sent_ns is None else (self.origin_ns - self.intended_ns) / 1e9

    @property
    def network_s(self) -> float | None:
        """Time from the departure of the request until the target's host acknowledged it; None if unknown."""
        if self.acknowledged_ns is None or self._done_ns is None:
            return None
        return max(0, self.acknowledged_ns - self._done_ns) / 1e9

    @property
    def _done_ns(self) -> int | None:
        return self.sent_ns if self.handed_ns is None else self.handed_ns

    @property
    def network_text(self) -> str:
        """The kernel's data on the network path as text; "" without any."""
        if self.network_s is None:
            return ""
        resent = f", {self.retransmitted} segments sent again" if self.retransmitted else ""
        round_trip = f" (round trip {format_duration(self.round_trip_s)}{resent})" if self.round_trip_s else ""
        return f"{format_duration(self.network_s)} until its host, or a proxy, had the request{round_trip}"

    @property
    def spans(self) -> Spans:
        """The measured times into which the parts of the probe's time must fit."""
        headers_s = (
            None if self.headers_ns is None or self._done_ns is None else (self.headers_ns - self._done_ns) / 1e9
        )
        last_ns = self.end_ns or self.cut_ns or (self.content_ns[-1] if self.content_ns else self.headers_ns)
        end, first = self._bounds_s(last_ns, last_ns), self.bounds_s("ttft")
        end_s = None if end is None else end[1]
        return Spans(self.network_s, headers_s, end_s if first is None else first[1], end_s)

    @property
    def parts_text(self) -> str:
        """The parts of the probe's time as text, with what is left of its E2E; "" if its server says nothing of it."""
        if self.parts is None:
            return ""
        shown = {PART_WORDS.get(name, name): seconds for name, seconds in self.parts.known().items()}
        if self.e2e_s is not None and (rest_s := self.e2e_s - sum(shown.values())) > 0:
            shown["unexplained"] = rest_s
        return ", ".join(f"{name} {format_duration(seconds)}" for name, seconds in shown.items())

    @property
    def ttft_s(self) -> float | None:
        """Latency of the first content of any kind."""
        return self._latency_s(self.first_ns)

    @property
    def ttft_answer_s(self) -> float | None:
        """Latency of the first content that is not reasoning."""
        return self._latency_s(self.first_answer_ns)

    @property
    def why_no_ttft(self) -> str:
        """Why an answer with content has no `ttft_s`; "" if it has one, or no content."""
        bounds = self.bounds_s("ttft")
        if bounds is None or self.ttft_s is not None:
            return ""
        low, high = map(format_duration, bounds)
        return f"the first content came {low} to {high} after the request: {MERGED}"

    @property
    def why_no_ttft_answer(self) -> str:
        """Why an answer with content has no `ttft_answer_s`; "" if it has one, or no content."""
        if self.first_ns is None or self.ttft_answer_s is not None:
            return ""
        if self.first_answer_ns is not None:
            return MERGED
        if self.streams_reasoning:
            return "all content is reasoning"
        return "not measurable here: the usage counts reasoning, and the stream does not show where it ends"

    @property
    def ttft_call_s(self) -> float | None:
        """Latency of the first piece of the first tool call."""
        return self._latency_s(self.call_ns)

    @property
    def arguments_s(self) -> float | None:
        """Latency of the complete arguments of the first tool call."""
        return self._latency_s(self.arguments_ns)

    @property
    def e2e_s(self) -> float | None:
        """Latency of the end of the answer."""
        return self._latency_s(self.end_ns, self.end_ns)

    def bounds_s(self, signal: BoundedSignal) -> tuple[float, float] | None:
        """(lowest, highest) possible latency in seconds; equal if it is exact, None without one."""
        if signal == "e2e":
            return self._bounds_s(self.end_ns, self.end_ns)
        return self._bounds_s(self.first_ns if signal == "ttft" else self.first_answer_ns)

    @property
    def chunk_gaps_s(self) -> list[float]:
        """Gaps between content chunks in seconds, not divided by tokens, shape (at most chunks − 1,).

        Chunks that were perhaps read together because the prober was late share the time since the previous chunk; the
        first ones, without a previous chunk, have no gaps.
        """
        gaps = [(b - a) / 1e9 for a, b in pairwise(self.content_ns)]
        if not self.may_have_merged or len(self.flush_starts) == len(self.content_ns):
            return gaps
        for begin, end in pairwise((*self.flush_starts[1:], len(self.content_ns))):
            gaps[begin - 1 : end - 1] = [sum(gaps[begin - 1 : end - 1]) / (end - begin)] * (end - begin)
        return gaps[self.flush_sizes[0] - 1 :]

    @property
    def is_read_late(self) -> bool:
        """True if the prober was often late, so that most chunks may have been read together without arriving together."""
        return self.read_delay_s > MAX_READ_DELAY_S

    @property
    def may_have_merged(self) -> bool:
        """True if the prober was late once, so that some chunks may have been read together without arriving together."""
        return self.max_read_delay_s > MAX_READ_DELAY_S

    @property
    def merged_chunks(self) -> int:
        """Number of content chunks read together with a later one. They have the timestamp of the read's last chunk, so they may have
        arrived earlier.
        """
        return len(self.content_ns) - len(set(self.content_ns))

    @property
    def flush_sizes(self) -> list[int]:
        """Number of content chunks in each flush, shape (flushes,)."""
        starts = self.flush_starts
        return [end - start for start, end in pairwise((*starts, len(self.content_ns)))]

    @property
    def itls_s(self) -> list[float]:
        """Inter-token latencies, shape (flushes − 1,). The last result is cached, because every observer of a probe needs it."""
        if Timeline._latest is None or Timeline._latest[0] is not self:
            Timeline._latest = self, self._itls_s()
        return Timeline._latest[1][:]

    def _itls_s(self) -> list[float]:
        """Inter-token latencies, shape (flushes − 1,): the gap before each flush, divided by the flush's tokens if they are known."""
        stamps, tokens, starts = self.content_ns, self.content_tokens, self.flush_starts
        if len(starts) == len(stamps):  # the usual case: chunks arrived one by one
            if tokens is None:
                return self.chunk_gaps_s
            return [gap / n if n > 1 else gap for gap, n in zip(self.chunk_gaps_s, tokens[1:], strict=True)]
        gaps = [(stamps[b] - stamps[a]) / 1e9 for a, b in pairwise(starts)]
        if tokens is None and not self.may_have_merged:
            return gaps
        tokens = tokens or [1] * len(stamps)  # at least one token per chunk
        later_flushes = pairwise((*starts[1:], len(stamps)))
        return [gap / max(1, sum(tokens[a:b])) for gap, (a, b) in zip(gaps, later_flushes, strict=True)]

    @property
    def has_reasoning(self) -> bool:
        """True if the stream contains reasoning, or the usage counts some."""
        is_counted = self.usage is not None and bool(self.usage.reasoning_tokens)
        return self.streams_reasoning or is_counted or self.hidden_tokens in ("before", "within")

    @property
    def streamed_tokens(self) -> int | None:
        """Number of streamed answer tokens: the server's `completion_tokens` without hidden ones. None if unknown.

        With hidden tokens, it is known only if no reasoning is within the answer and each chunk is one token. That is assumed
        if the number of chunks equals the server's count, with or without the reasoning tokens.
        """
        tokens = self.usage.completion_tokens if self.usage else None
        if tokens is None or not self.hidden_tokens:
            return tokens
        hidden = 0 if self.streams_reasoning or not self.usage else self.usage.reasoning_tokens or 0
        is_known = self._is_token_per_chunk(tokens) or self._is_token_per_chunk(tokens - hidden)
        return len(self.content_ns) if is_known and self.hidden_tokens not in ("within", "choices") else None

    @property
    def tpot_s(self) -> float | None:
        """(last content − first content) ÷ (streamed tokens − tokens of the first flush), in seconds.

        None if either is unknown, see `streamed_tokens` and `_first_flush_tokens`.
        """
        starts = self.flush_starts
        # If each chunk has a count, the first count includes all tokens before it, which need not be known.
        is_counted = self.content_tokens is not None and self.hidden_tokens
        n = sum(self.content_tokens or ()) if is_counted else self.streamed_tokens
        if n is None or len(starts) < 2:
            return None
        first = self._first_flush_tokens(n, starts[1])
        if first is None or first >= n:
            return None
        return (self.content_ns[-1] - self.content_ns[0]) / 1e9 / (n - first)

    @property
    def why_no_tpot(self) -> str:
        """Why an answer with content has no TPOT; "" if it has one, or no content. If it came at once it has no ITL either."""
        n, starts = self.streamed_tokens, self.flush_starts
        if not starts or self.tpot_s is not None:
            return ""
        if n is not None and n < 2:
            return "the answer has fewer than two tokens"
        if len(starts) < 2:
            if any(b - a >= FLUSH_GAP_NS for a, b in pairwise(self.content_ns)):
                return f"not measurable here: chunks came less than {FLUSH_GAP_NS / 1e6:g} ms apart on average, as if held back"
            return "not measurable here: all content arrived at once, so its TTFT is the time of the whole answer"
        if self.usage is None:
            return self.unusable_usage or "the server sent no usage"
        if self.usage.completion_tokens is None:
            return "the server's usage has no valid number of the answer's tokens"
        if n is None:
            choices, hidden = "of several choices", "that were not streamed, such as hidden reasoning, and not how many"
            return (
                f"not measurable here: the usage counts tokens {choices if self.hidden_tokens == 'choices' else hidden}"
            )
        return "not measurable here: the tokens after the first flush are not known"

    def _bounds_s(self, at_ns: int | None, earliest_ns: int | None = None) -> tuple[float, float] | None:
        """(lowest, highest) possible latency of an arrival with this stamp. earliest_ns: None: as recorded

        The end of an answer is exact: nothing follows it, so it has the stamp of the last segment.
        """
        if at_ns is None:
            return None
        origin_ns = self.origin_ns
        unsure_ns = 0 if self.sent_ns is None or self.sent_earliest_ns is None else self.sent_ns - self.sent_earliest_ns
        earliest_ns = max(self.earliest_ns.get(at_ns, at_ns) if earliest_ns is None else earliest_ns, origin_ns)
        return (earliest_ns - origin_ns) / 1e9, (at_ns - origin_ns + unsure_ns) / 1e9

    def _latency_s(self, at_ns: int | None, earliest_ns: int | None = None) -> float | None:
        """Latency of an arrival: the middle of its bounds if they are close together, else None."""
        bounds = self._bounds_s(at_ns, earliest_ns)
        if bounds is None or bounds[1] - bounds[0] > MAX_FIGURE_WIDTH * bounds[1]:
            return None
        return (bounds[0] + bounds[1]) / 2

    def _is_token_per_chunk(self, n: int) -> bool:
        """True if each chunk is one of n tokens: there are n chunks, or n − 1 and a stop token, which has no content."""
        without_content = n - len(self.content_ns)
        has_stop_token = self.finish_reason is not None and reason_word(self.finish_reason) not in LENGTH_REASONS
        return without_content == 0 or (without_content == 1 and has_stop_token)

    def _first_flush_tokens(self, n: int, chunks: int) -> int | None:
        """Number of tokens in the first flush; None if unknown. n: tokens of the answer; chunks: chunks in the flush

        Without usage in each chunk, a first chunk that came alone is one token, because a prefill makes one. Not so a tool call:
        the engine may have generated unsent tokens before it, such as `<tool_call>`. Otherwise the number is
        known only if every chunk of the answer is one token.
        """
        if self.content_tokens is not None:
            return max(1, sum(self.content_tokens[:chunks]))
        is_one_token = chunks == 1 and (self.call_ns is None or self.call_ns != self.first_ns)
        return chunks if is_one_token or self._is_token_per_chunk(n) else None


def flush_starts(stamps_ns: Sequence[int]) -> list[int]:
    """Indices of the first chunk of each flush, shape (flushes,). stamps_ns: arrival of each content chunk, shape (chunks,).

    If the mean gap is below FLUSH_GAP_NS, all chunks are one flush: a long answer that was held back takes several reads,
    some of them further apart.
    """
    if not stamps_ns:
        return []
    if stamps_ns[-1] - stamps_ns[0] < FLUSH_GAP_NS * (len(stamps_ns) - 1):
        return [0]
    return [0, *(index for index, (a, b) in enumerate(pairwise(stamps_ns), 1) if b - a >= FLUSH_GAP_NS)]


_STAMPS = [
    part.name
    for part in fields(Timeline)
    if part.name.endswith("_ns") and part.name not in ("content_ns", "earliest_ns")
]


def format_duration(seconds: float | None) -> str:
    """Format a duration in ms or s with three significant digits; a dash for None."""
    if seconds is None:
        return "–"
    value = seconds * 1e3
    return f"{value:.3g} ms" if value < 1000 else f"{value / 1e3:.3g} s"


def render_timeline(timeline: Timeline, width: int = 72) -> list[str]:
    """Render a bar of the time that latencies count, to the end ('─' waiting, '█' first content, '│' content), and its scale line."""
    end = timeline.end_ns or (timeline.content_ns[-1] if timeline.content_ns else timeline.sent_ns)
    origin = timeline.origin_ns
    if end is None or end <= origin:
        return []
    span = end - origin
    bar = ["─"] * width
    for stamp in timeline.content_ns:
        bar[min(width - 1, (stamp - origin) * width // span)] = "│"
    if timeline.first_ns is not None:
        bar[min(width - 1, (timeline.first_ns - origin) * width // span)] = "█"
    right = format_duration(span / 1e9)
    return ["".join(bar), "0" + right.rjust(width - 1)]
