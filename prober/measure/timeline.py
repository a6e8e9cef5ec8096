"""Timeline of one probe: turns timestamped bytes into TTFT, TPOT, ITL and E2E.

All timestamps are nanoseconds of one monotonic clock; durations are seconds. A quantity that was not measured is None and never
estimated: without usage there is no TPOT, without a stream no TTFT.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from prober.measure import chat


@dataclass(frozen=True, slots=True)
class Connection:
    """Setup of one new connection. A phase that did not happen is None."""

    start_ns: int
    ready_ns: int | None = None
    dns_s: float | None = None
    tcp_s: float | None = None
    proxy_s: float | None = None
    tls_s: float | None = None


@dataclass(frozen=True, slots=True)
class Timeline:
    """Timestamps of one probe.

    intended_ns: due time of the probe; latencies are measured from it
    first_ns: first content of any kind; first_answer_ns: first content that is not reasoning
    content_ns: arrival of each chunk with content, shape (chunks,)
    content_tokens: tokens in each of these chunks, shape (chunks,), or None unless the engine reported usage in all of them
    answered_model: id of the model that answered, as the answer itself says; "" if it does not
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
    usage: chat.Usage | None = None
    finish_reason: str | None = None
    answered_model: str = ""

    @property
    def send_lag_s(self) -> float | None:
        """Delay caused by the prober: sent − max(intended, connection ready)."""
        if self.sent_ns is None:
            return None
        ready = self.connection.ready_ns if self.connection else None
        return (self.sent_ns - max(self.intended_ns, ready or 0)) / 1e9

    @property
    def ttft_s(self) -> float | None:
        """First content of any kind − intended."""
        return None if self.first_ns is None else (self.first_ns - self.intended_ns) / 1e9

    @property
    def ttft_answer_s(self) -> float | None:
        """First content that is not reasoning − intended."""
        return None if self.first_answer_ns is None else (self.first_answer_ns - self.intended_ns) / 1e9

    @property
    def e2e_s(self) -> float | None:
        """End of the answer − intended."""
        return None if self.end_ns is None else (self.end_ns - self.intended_ns) / 1e9

    @property
    def chunk_gaps_s(self) -> list[float]:
        """Gaps between content chunks, not divided by tokens, shape (chunks − 1,)."""
        return [(b - a) / 1e9 for a, b in pairwise(self.content_ns)]

    @property
    def itls_s(self) -> list[float]:
        """Inter-token latencies, shape (chunks − 1,): the gap before a chunk ÷ the tokens in it, if known, else the gap."""
        gaps = self.chunk_gaps_s
        if self.content_tokens is None:
            return gaps
        return [gap / max(1, n) for gap, n in zip(gaps, self.content_tokens[1:], strict=True)]

    @property
    def tpot_s(self) -> float | None:
        """(last content − first content) ÷ (n − tokens of the first chunk), where n is the server's `completion_tokens`."""
        n = self.usage.completion_tokens if self.usage else None
        if n is None or len(self.content_ns) < 2:
            return None
        after_first = n - (max(1, self.content_tokens[0]) if self.content_tokens else 1)
        return (self.content_ns[-1] - self.content_ns[0]) / 1e9 / after_first if after_first > 0 else None
