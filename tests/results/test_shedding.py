"""Requests that a target shed, and what a result says of them."""

import pytest

from prober.measure.outcome import Outcome
from prober.measure.result import ProbeResult
from prober.results.shedding import Shedding, SheddingOnset, is_shed, shedding_of, shedding_onset
from tests.known import known
from tests.results.samples import answered


def ended(outcome: Outcome, detail: str = "", retry_after_s: float | None = None) -> ProbeResult:
    return answered(outcome=outcome, detail=detail, retry_after_s=retry_after_s)


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


def shed(at_s: float, pause_s: float | None) -> ProbeResult:
    return answered(at_s, outcome=Outcome.HTTP_429, retry_after_s=pause_s)


def test_goodput_and_share_are_of_the_requests_that_ended() -> None:
    """An answer that breaks an SLO is neither good nor shed."""
    requests = [
        answered(0),
        shed(10, 4),
        shed(11, 3),
        shed(12, None),
        answered(14.2),
        shed(16.5, 8),
        answered(26),
        shed(30, 1),
    ]
    figures = shedding_of(requests, 32.0, lambda probe: probe.timeline.intended_ns > 0)
    assert figures == Shedding(8, 5, 2, 32.0, "")
    assert figures.text() == (
        "5 of 8 requests shed (62.5%; 429, or 503 with Retry-After), 2 good, a goodput of 0.0625/s of 0.25/s sent"
    )


def test_without_shed_requests_there_is_nothing_to_say_and_of_a_short_load_less() -> None:
    """No figures without any, and only a share of a short load."""
    assert shedding_of([answered(0), answered(1)], 10.0, bool) is None
    unnamed = [answered(0), shed(1, None)]
    for sending_s, end in (
        (2.0, "503 with Retry-After)"),
        (10.0, "a goodput of 0.1/s of 0.2/s sent"),
    ):
        figures = known(shedding_of(unnamed, sending_s, lambda _: True))
        assert figures.text().endswith(end)
