"""One objective, as declared."""

from dataclasses import dataclass
from decimal import Decimal
from typing import Literal, get_args

Signal = Literal["ttft", "ttft_answer", "tpot", "itl", "e2e", "success", "quality"]
SIGNALS: tuple[Signal, ...] = get_args(Signal)
WITHOUT_THRESHOLD: tuple[Signal, ...] = ("success", "quality")
WITHOUT_STREAM: tuple[Signal, ...] = ("e2e", "success", "quality")


@dataclass(frozen=True, slots=True)
class Slo:
    """`objective` of the events of `signal` shall be good over any `window_s`.

    threshold_s: seconds up to which an event is good, None for `success` and `quality`; objective: exact ratio of good events;
    window_s: seconds.
    """

    name: str
    signal: Signal
    threshold_s: float | None
    objective: Decimal
    window_s: float

    @property
    def budget(self) -> Decimal:
        """The error budget: the ratio of events that may be bad."""
        return 1 - self.objective
