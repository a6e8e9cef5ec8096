"""Requests that a target shed, and what a result says of them."""

import pytest

from prober.measure.outcome import Outcome
from prober.measure.result import ProbeResult
from prober.measure.timeline import Timeline
from prober.results.shedding import SheddingOnset, is_shed, shedding_onset


def ended(outcome: Outcome, detail: str = "", retry_after_s: float | None = None) -> ProbeResult:
    return ProbeResult("t", "w", "id", 0.0, outcome, detail, Timeline(0), retry_after_s=retry_after_s)


OK, BUSY, CUT = ended(Outcome.OK), ended(Outcome.HTTP_429, "HTTP 429"), ended(Outcome.CANCELLED)


@pytest.mark.parametrize(
    ("probe", "shed"),
    [
        (BUSY, True),
        (ended(Outcome.HTTP_5XX, "HTTP 503: busy", 2.0), True),
        (ended(Outcome.HTTP_5XX, "HTTP 503: broken"), False),
        (ended(Outcome.HTTP_5XX, "HTTP 500: broken", 2.0), False),
        (ended(Outcome.REJECTED, "HTTP 400: too long", 2.0), False),
        (ended(Outcome.SHED), False),  # the prober did not send it
        (OK, False),
    ],
)
def test_shed_is_429_and_503_with_a_time(probe: ProbeResult, *, shed: bool) -> None:
    """A 503 without Retry-After may be a fault, and other statuses are none of its load."""
    assert is_shed(probe) is shed


@pytest.mark.parametrize(
    ("stages", "onset"),
    [
        ([(1.0, [OK] * 4), (2.0, [OK] * 8)], None),
        ([(1.0, [OK] * 4), (2.0, [OK] * 8), (3.0, [OK, BUSY])], SheddingOnset(2.0, 8, 3.0, 1, 2)),
        ([(1.0, [BUSY, OK])], SheddingOnset(None, 0, 1.0, 1, 2)),
        # A rate of which nothing ended shows nothing; two stages of one rate are one.
        ([(1.0, [OK]), (2.0, [CUT]), (3.0, [OK]), (3.0, [BUSY])], SheddingOnset(1.0, 1, 3.0, 1, 2)),
        # A climb after the ramp met it at a lower rate.
        ([(2.0, [OK] * 3), (4.0, [OK, BUSY]), (1.0, [OK] * 5), (1.5, [OK, BUSY])], SheddingOnset(1.0, 5, 1.5, 1, 2)),
    ],
)
def test_it_began_between_the_highest_rate_without_and_the_lowest_with(
    stages: list[tuple[float, list[ProbeResult]]], onset: SheddingOnset | None
) -> None:
    """By requests that ended."""
    assert shedding_onset(stages) == onset
