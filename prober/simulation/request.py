"""Requests to the simulated engine, and the exact times of their service."""

from collections.abc import Iterator
from enum import Enum
from itertools import accumulate
from math import ceil
from typing import NamedTuple

Run = tuple[int, float, float]


class Request(NamedTuple):
    """A request. Times are seconds of virtual time.

    prefix: ids of the blocks of `prefix_block_tokens` at the start of the prompt (equal ids mean equal text up to there)
    background: belongs to the background load
    """

    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    prefix: tuple[int, ...] = ()
    background: bool = False


class End(Enum):
    """How a request ended."""

    COMPLETE = "complete"
    CANCELLED = "cancelled"
    LOST = "lost"  # in a crash


class Truth:
    """Exact times and counts of one request, updated while it is in the engine and final once `end` is not None.

    admitted_s: begin of its first step; None while it waits; all times are seconds of virtual time
    first_token_s: time of its first token
    end_s: time of its last token, or of its cancellation or loss
    tokens: generated tokens, current once it has ended (see `Engine.tokens`)
    cached_tokens: prompt tokens that were in the prefix cache at its first admission
    runs: ITLs in compact form: (n, first, slope) stands for the n values first, first + slope, …
    """

    # The second line is for the scheduler only.
    __slots__ = (
        *("request", "admitted_s", "first_token_s", "end_s", "tokens", "preemptions", "cached_tokens", "runs", "end"),
        *("left", "blocks", "shared", "offset", "finish", "mark", "cut_s"),
    )

    def __init__(self, request: Request) -> None:
        self.request = request
        self.admitted_s: float | None = None
        self.first_token_s: float | None = None
        self.end_s: float | None = None
        self.tokens = 0
        self.preemptions = 0
        self.cached_tokens = 0
        self.runs: list[Run] = []
        self.end: End | None = None
        self.left = 0  # prompt tokens left to compute
        self.blocks = 0  # held while its prompt is computed, with `shared`
        self.shared: list[int] = []  # ids of prefix blocks shared with the cache
        self.offset = 0  # while decoding: prompt and generated tokens − rounds of the engine
        self.finish = -1  # round of its last token; -1: not decoding
        self.mark = 0  # index of its first ITL in the engine's log
        self.cut_s: float | None = None  # time of its last token before a preemption

    @property
    def ttft_s(self) -> float | None:
        """Time from arrival to the first token; None before it."""
        return None if self.first_token_s is None else self.first_token_s - self.request.arrival_s

    @property
    def tpot_s(self) -> float | None:
        """Mean ITL; None with fewer than two tokens, and before the end."""
        if self.first_token_s is None or self.end_s is None or self.tokens < 2:
            return None
        return sum(n * first + slope * (n * (n - 1) / 2) for n, first, slope in self.runs) / (self.tokens - 1)

    def itls_s(self) -> list[float]:
        """Inter-token latencies in seconds, in order."""
        return [first + slope * i for n, first, slope in self.runs for i in range(n)]

    def itl_quantile_s(self, q: float) -> float | None:
        """The ITL at rank ceil(q·n); None without ITLs."""
        itls = sorted(self.itls_s())
        return itls[max(1, ceil(q * len(itls))) - 1] if itls else None

    def token_times_s(self) -> Iterator[float]:
        """Yields the time of each token."""
        return iter(()) if self.first_token_s is None else accumulate(self.itls_s(), initial=self.first_token_s)
