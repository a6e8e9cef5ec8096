"""Begin and end of a trouble, by the events of an SLO in the order of time."""

from dataclasses import replace
from decimal import Decimal

import pytest

from prober.features.diagnosis.trouble import Burn, Course, burn
from prober.measure.objective import Slo
from prober.measure.outcome import Outcome
from prober.measure.result import ProbeResult
from prober.measure.timeline import Timeline

SUCCESS = Slo("success", "success", None, Decimal("0.99"), 3_600.0)
QUICK = Slo("quick", "ttft", 0.3, Decimal("0.95"), 3_600.0)


def probes(text: str, every_s: float = 1.0) -> list[ProbeResult]:
    """One probe every second. `.`: answered in 100 ms; `s`: in 1.1 s; `x`: failed"""
    results = []
    for place, letter in enumerate(text):
        due_ns = round(place * every_s * 1e9)
        first_ns = due_ns + (100_000_000 if letter == "." else 1_100_000_000)
        line = Timeline(due_ns, sent_ns=due_ns, first_ns=first_ns, content_ns=(first_ns,), end_ns=first_ns)
        results.append(ProbeResult("t", "w", "i", 0.0, Outcome.OK, "", line))
        if letter == "x":
            results[-1] = replace(results[-1], outcome=Outcome.HTTP_5XX, timeline=Timeline(due_ns))
    return results


def span(found: Burn | None) -> tuple[float, float] | None:
    return None if found is None else (found.since_s, found.until_s)


@pytest.mark.parametrize(
    ("slo", "text", "expected"),
    [
        (SUCCESS, "." * 120, None),
        (SUCCESS, "." * 50 + "x" + "." * 69, None),  # one failure
        (SUCCESS, "." * 100 + "x" * 11, (100.0, 110.0)),  # an outage
        (SUCCESS, "." * 200 + "xxx", None),  # of a moment
        (SUCCESS, "." * 20 + "x" + "." * 79 + "x" * 11, (100.0, 110.0)),  # with a failure long before
        (SUCCESS, "." * 40 + "xxxxx" + "." * 30, (40.0, 44.0)),  # it has ended, or pauses
        (SUCCESS, "." * 40 + "xxxxx" + "." * 31, None),  # it has ended
        (SUCCESS, "." * 60 + "x....x.x..x....x..xx..x" + "." * 31, None),
        (SUCCESS, "." * 20 + 3 * ("x" + "." * 18) + "x", (20.0, 77.0)),  # a twentieth fails
        (SUCCESS, "." * 20 + 3 * ("x" + "." * 18) + "x" + "." * 31, (20.0, 77.0)),  # and did not for as long before
        (SUCCESS, "xxxxx" + "." * 30 + "xxxxx" + "." * 31, (0.0, 39.0)),  # it comes and goes
        (SUCCESS, "xxxxx" + "." * 30 + "xxxxx" + "." * 40, None),
        (QUICK, "." * 100 + "s" * 10, None),  # up to three times the budget is chance
        (QUICK, "." * 100 + "s" * 11, (100.0, 110.0)),
        (QUICK, "." * 100 + "x" * 11, (100.0, 110.0)),
    ],
)
def test_a_trouble_begins_and_ends(slo: Slo, text: str, expected: tuple[float, float] | None) -> None:
    """Where the failures begin to be more than allowed, until the target was good for longer than before."""
    assert span(burn(slo, probes(text))) == expected


def test_less_evidence_is_enough_for_what_was_there_before() -> None:
    """Two failures, where three are wanted at first."""
    again = probes("." * 100 + "xx")
    assert burn(SUCCESS, again) is None
    assert span(burn(SUCCESS, again, is_expected=True)) == (100.0, 101.0)


def test_two_bad_probes_are_no_trouble_however_strict_the_objective() -> None:
    """Of 99.9%, 10 s apart; the third is one."""
    strict = replace(SUCCESS, objective=Decimal("0.999"))
    assert burn(strict, probes("." * 100 + "x.x", every_s=5.0)) is None
    assert span(burn(strict, probes("." * 100 + "x.xx", every_s=5.0))) == (500.0, 515.0)
    again = replace(SUCCESS, objective=Decimal("0.9999"))
    assert burn(again, probes("." * 100 + "x"), is_expected=True) is None


def test_ten_thousand_to_one_begins_a_trouble() -> None:
    """Four slow ones of five are 13,000 times as likely as in good times, five of nine 8,000 times."""
    assert span(burn(QUICK, probes("." * 100 + "s.sss", every_s=5.0))) == (500.0, 520.0)
    assert burn(QUICK, probes("." * 100 + "s..s.s.ss", every_s=5.0)) is None


@pytest.mark.parametrize(("good", "is_over"), [(14, False), (16, True)])
def test_a_hundred_to_one_ends_a_trouble(good: int, is_over: bool) -> None:
    """Of a fifth of failures: sixteen good probes are a hundred times as likely in good times."""
    assert (burn(SUCCESS, probes("." * 20 + "x....x....x....x" + "." * good, every_s=5.0)) is None) is is_over


def test_it_says_what_is_bad() -> None:
    """The latency where most are slow, else the share; of failures their share. Always with what is allowed."""
    texts = {
        "." * 30 + "s" * 20: "TTFT 1.1 s, 300 ms allowed",
        "." * 30 + 20 * "s..": "TTFT above 300 ms in 33% of the probes, 5% allowed",
        "." * 30 + 20 * "x..": "33% of 60 probes failed, 5% allowed",
    }
    for events, text in texts.items():
        found = burn(QUICK, probes(events))
        assert found is not None
        assert found.text == text
        assert found.signal == ("success" if "x" in events else "ttft")


@pytest.mark.parametrize(
    ("factors", "is_growing"),
    [
        ([1.0] * 60, False),
        ([1.0] * 20 + [1.01**minute for minute in range(40)], True),
        ([1.0] * 20 + [1.05**minute for minute in range(9)], True),
        ([1.0] * 20 + [1.5] * 40, False),  # a step
        ([1.0] * 4 + [4.0, *[20.0] * 2], False),  # one within a point
        ([1.0] * 20 + [1.003**minute for minute in range(40)], False),  # less than a fifth
        ([1.0] * 20 + [1.02**minute for minute in range(20)] + [1.0, 1.0], False),  # it is over
        ([1.0, 1.3] * 30, False),
    ],
)
def test_only_steady_growth_is_growth(factors: list[float], is_growing: bool) -> None:
    """Of a latency by the minute, with 30% of noise from answer to answer."""
    course = Course()
    for minute, factor in enumerate(factors):
        for place in range(30):
            course.add(60.0 * minute + 2 * place, 0.1 * factor * (1.3 if (place * 7 + minute * 3) % 5 < 2 else 1.0))
    growth = course.growth()
    assert (growth is not None) is is_growing
    if growth is not None:
        assert growth.since_s == pytest.approx(20 * 60.0, abs=300.0)
