"""Status of an SLO: met, missed, no data."""

from decimal import Decimal

import pytest

from prober.features.slo.compliance import UNTRUSTED, compliance
from prober.measure.objective import JudgedStream, Slo

TTFT = Slo("s", "ttft", 0.5, Decimal("0.99"), 30 * 86400.0)
ITL = Slo("s", "itl", 0.05, Decimal("0.99"), 30 * 86400.0)
SUCCESS = Slo("s", "success", None, Decimal("0.99"), 30 * 86400.0)
USE = JudgedStream("t", "w", 0.2, 32.0, 48)

CASES = [
    (TTFT, 1_000, 10, True, 5.0, "met", ""),
    (TTFT, 1_000, 11, True, 5.0, "missed", ""),
    (TTFT, 20, 11, True, 5.0, "missed", ""),  # more than the budget of 1,000 events
    (TTFT, 999, 0, True, 5.0, "no_data", "999 of the 1,000 events needed"),
    (TTFT, 0, 0, True, None, "no_data", "no event yet"),
    (TTFT, 5_000, 0, True, 601.0, "no_data", "no event for 601 s"),
    (TTFT, 5_000, 5_000, True, 601.0, "no_data", "no event for 601 s"),
    (TTFT, 5_000, 0, False, 5.0, "no_data", UNTRUSTED),
    (TTFT, 5_000, 51, False, 5.0, "missed", ""),
    (SUCCESS, 5_000, 0, False, 5.0, "met", ""),
    (ITL, 30_999, 0, True, 5.0, "no_data", "30,999 of the 31,000 events needed"),
    (ITL, 31_000, 0, True, 5.0, "met", ""),
]


@pytest.mark.parametrize(("slo", "events", "bad", "trusted", "quiet_s", "state", "why"), CASES)
def test_no_data_is_a_state_of_its_own(
    slo: Slo, events: int, bad: int, trusted: bool, quiet_s: float | None, state: str, why: str
) -> None:
    """Too few events, silence, and latencies that are not judged are never met; the gaps of one probe count as one event."""
    assert compliance(slo, USE, events, bad, trusted=trusted, quiet_s=quiet_s) == (state, why)


@pytest.mark.parametrize(
    ("events", "quiet_s", "why"), [(0, None, "no event yet; why"), (9, 601.0, "no event for 601 s; why")]
)
def test_no_data_has_the_reason_why_answers_are_no_events(events: int, quiet_s: float | None, why: str) -> None:
    """As where a gateway releases all content of an answer at once: TPOT and ITL are not measurable, and not met."""
    assert compliance(ITL, USE, events, 0, trusted=True, quiet_s=quiet_s, why_no_event="why") == ("no_data", why)
