"""Background load of the engine: requests over time, fitted to a production trace.

The figures are fitted to the Azure LLM inference trace 2023, conversation (CC-BY 4.0; Patel et al., Splitwise, ISCA 2024):
19,366 requests in 58 minutes. `python -m bench.simulation --fit PATH` computes them from the published file.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Protocol

from prober.simulation.request import Request

# Quantiles of prompt tokens at 0, 1/40, ..., 1. The last is not the maximum (14,050), but gives the last interval its mean
# under linear interpolation.
PROMPT_TOKENS = (
    2, 120, 181, 200, 207, 235, 372, 379, 387, 393, 396, 400, 403, 407, 414, 428, 703, 922, 984, 1005, 1020,
    1034, 1045, 1058, 1071, 1083, 1097, 1112, 1130, 1153, 1189, 1277, 1315, 1434, 1877, 2310, 2735, 4075,
    4083, 4092, 4858,
)  # fmt: skip
# Quantiles of answer tokens at 0, 1/10, ..., 1, for each tenth of the prompts by length: the two are dependent,
# though not by rank (Spearman's rho 0.07). The last ones as above.
OUTPUT_TOKENS = (
    (11, 66, 101, 122, 144, 161, 169, 182, 204, 217, 304),
    (7, 18, 53, 62, 69, 76, 82, 91, 110, 162, 231),
    (36, 80, 86, 89, 92, 96, 100, 105, 113, 128, 165),
    (25, 81, 87, 91, 95, 99, 103, 110, 122, 141, 209),
    (10, 81, 104, 373, 389, 395, 400, 411, 421, 446, 594),
    (33, 379, 391, 396, 399, 407, 414, 421, 431, 482, 689),
    (28, 376, 388, 395, 398, 407, 414, 425, 438, 500, 686),
    (26, 92, 157, 207, 384, 396, 401, 413, 424, 456, 657),
    (15, 50, 63, 75, 85, 95, 108, 126, 149, 192, 379),
    (17, 35, 41, 46, 51, 58, 68, 79, 100, 132, 243),
)

TRACE_RATE_PER_S = 5.53
# Counts over 1 to 10 s vary 1.23 times as much as in a Poisson process with the slow rate. A replica with a random
# share of the requests has that share of the excess.
GAP_EXCESS = 0.23
# The slow rate is exp of an autoregressive process, fitted to the covariance of counts per minute.
RATE_SIGMA = 0.21
RATE_CORRELATION_S = 600.0
_PIECE_S = 60.0
_DAY_S = 86_400.0


class Load(Protocol):
    """Source of requests in order of time."""

    def requests(self, rng: Random, start_unix_s: float, duration_s: float) -> Iterator[Request]:
        """Yields the requests that arrive in [0, duration_s) after `start_unix_s`."""


@dataclass(frozen=True, slots=True)
class AzureConversation:
    """Requests like those of the trace, at the mean rate of one replica.

    daily_amplitude: amplitude of the daily variation ÷ mean rate. An assumption, because the trace is shorter than an hour
    peak_hour: hour of the highest rate, UTC
    """

    rate_per_s: float = 1.0
    daily_amplitude: float = 0.3
    peak_hour: float = 14.0

    def __post_init__(self) -> None:
        if not 0 < self.rate_per_s < math.inf:
            raise ValueError(f"rate_per_s is {self.rate_per_s}; it must be above 0")
        if not 0 <= self.daily_amplitude < 1:
            raise ValueError(f"daily_amplitude is {self.daily_amplitude}; it must be at least 0 and below 1")

    def requests(self, rng: Random, start_unix_s: float, duration_s: float) -> Iterator[Request]:
        """Yields requests with gamma-distributed gaps, scaled to a rate that changes every minute."""
        shape = 1 / (1 + GAP_EXCESS * self.rate_per_s / TRACE_RATE_PER_S)
        keep = math.exp(-_PIECE_S / RATE_CORRELATION_S)
        noise = RATE_SIGMA * math.sqrt(1 - keep * keep)
        log_rate = rng.gauss(0.0, RATE_SIGMA)
        begin_s = 0.0
        gap = rng.gammavariate(shape, 1 / shape)
        while begin_s < duration_s:
            angle = 2 * math.pi * ((start_unix_s + begin_s) / _DAY_S - self.peak_hour / 24)
            mean_rate = self.rate_per_s * (1 + self.daily_amplitude * math.cos(angle))
            rate = mean_rate * math.exp(log_rate - RATE_SIGMA**2 / 2)
            end_s = min(begin_s + _PIECE_S, duration_s)
            at_s = begin_s + gap / rate
            while at_s < end_s:
                yield Request(at_s, *lengths(rng), (), True)
                at_s += rng.gammavariate(shape, 1 / shape) / rate
            gap = (at_s - end_s) * rate
            begin_s = end_s
            log_rate = keep * log_rate + noise * rng.gauss(0.0, 1.0)


def lengths(rng: Random) -> tuple[int, int]:
    """Draw (prompt tokens, output tokens) of a request, distributed as in the trace."""
    u = rng.random()
    outputs = OUTPUT_TOKENS[int(u * len(OUTPUT_TOKENS))]
    return _between(PROMPT_TOKENS, u), _between(outputs, rng.random())


def _between(quantiles: tuple[int, ...], u: float) -> int:
    """The quantile at `u` in [0, 1), interpolated between equally spaced quantiles."""
    place = u * (len(quantiles) - 1)
    cell = int(place)
    low = quantiles[cell]
    return int(low + (quantiles[cell + 1] - low) * (place - cell) + 0.5)
