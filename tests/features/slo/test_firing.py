"""The firing checks, compared with counting by brute force."""

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prober.features.slo.compliance import percentile_events, silence_s
from prober.features.slo.firing import firing_checks, needed_events
from prober.measure.objective import DAY_S, PAIRS, JudgedStream, Slo, format_rate, promql


def slo(objective: str = "0.99", window_s: float = 30 * DAY_S, signal: str = "ttft") -> Slo:
    return Slo("s", signal, 0.5, Decimal(objective), window_s)  # type: ignore[arg-type]


def use(rate: float = 0.2, tokens: int = 48) -> JudgedStream:
    return JudgedStream("t", "w", rate, tokens / 1.5, tokens)


def test_pairs_match_the_sre_workbook() -> None:
    """1h/5m x14.4, 6h/30m x6, 1d/2h x3, 3d/6h x1; of 30 days each spends the stated share of the budget."""
    windows = [(promql(p.long_s), promql(p.short_s), str(p.burn)) for p in PAIRS]
    assert windows == [("1h", "5m", "14.4"), ("6h", "30m", "6"), ("1d", "2h", "3"), ("3d", "6h", "1")]
    spent = [float(pair.burn) * pair.long_s / (30 * DAY_S) for pair in PAIRS]
    assert spent == pytest.approx([0.02, 0.05, 0.1, 0.1])


@given(
    objective=st.sampled_from(["0.9", "0.95", "0.99", "0.995", "0.999", "0.9999"]),
    signal=st.sampled_from(["ttft", "itl"]),
    tokens=st.integers(1, 2000),
)
def test_one_bad_probe_never_fires(objective: str, signal: str, tokens: int) -> None:
    """At the minimum of events, all events of one probe being bad do not exceed the share that fires."""
    judged = slo(objective, signal=signal)
    for pair in PAIRS:
        most = max(1, tokens) if signal == "itl" else 1
        least = needed_events(pair) * most / float(judged.error_budget_ratio)
        share = float(pair.burn * judged.error_budget_ratio)
        assert share / 1.12 < most / least < share


@given(st.sampled_from(["0.95", "0.99", "0.999"]), st.floats(0.002, 5))
def test_reported_bad_probes_are_the_fewest_that_fire(objective: str, rate: float) -> None:
    """Counted one by one over the whole probes of each window."""
    judged = slo(objective)
    for check in firing_checks(judged, [use(rate)]):
        if check.problem:
            continue
        share = check.pair.burn * judged.error_budget_ratio
        chance = 2.33 * (float(share) * check.probes_long) ** 0.5 if check.pair.severity == "warning" else 0.0
        for expected, reported, more in (
            (check.probes_long, check.bad_long, chance),
            (check.probes_short, check.bad_short, 0.0),
        ):
            fewest = next(bad for bad in range(1, int(expected) + 2) if bad > float(share) * expected + more)
            assert reported in (fewest, 2)
            assert reported <= expected + 1
        assert check.bad_long >= 2


@pytest.mark.parametrize(
    ("objective", "rate", "text"),
    [
        ("0.9", 0.2, "burn rate 14.4 of a budget of 10% is 144% of all events"),
        ("0.93", 0.2, "use an objective above 93.06%"),
        ("0.999", 1 / 300, "has 12 probes, and at least 77 are needed"),
        ("0.9", 1 / 3600, "use a rate of at least 2/h"),
    ],
)
def test_an_alert_that_cannot_fire_names_the_remedy(objective: str, rate: float, text: str) -> None:
    """Rate, objective or window, with figures."""
    problems = [check.problem for check in firing_checks(slo(objective), [use(rate)]) if check.problem]
    assert any(text in problem for problem in problems), problems


def test_the_suggested_rate_is_enough() -> None:
    """With the suggested rate the alert can fire."""
    rate = 0.0
    for poor in firing_checks(slo("0.999"), [use(1 / 300)]):
        if poor.problem:
            amount, per = poor.problem.split("rate of at least ")[1].split(" or")[0].split("/")
            rate = max(rate, float(amount) / {"s": 1, "min": 60, "h": 3600}[per])
    assert not any(p.problem for p in firing_checks(slo("0.999"), [use(rate)]))


def test_itl_checks_count_probes_not_gaps() -> None:
    """The 31 gaps of one slow probe are not 31 independent failures."""
    by_probe = firing_checks(slo(), [use()])[0]
    by_gap = firing_checks(slo(signal="itl"), [use()])[0]
    assert by_gap.bad_long == by_probe.bad_long


def test_a_percentile_needs_enough_events() -> None:
    """1,000 for p99 and below, 100,000 for p99.9."""
    assert percentile_events(slo("0.9")) == 1_000
    assert percentile_events(slo("0.99")) == 1_000
    assert percentile_events(slo("0.999")) == 100_000


def test_silence_is_ten_due_times_and_at_least_ten_minutes() -> None:
    """A random schedule rarely has a gap of ten due times."""
    assert silence_s([use(0.2), use(1 / 300)]) == 3_000
    assert silence_s([use(10)]) == 600


@given(st.floats(1e-4, 10))
def test_rate_text_rounds_up(per_s: float) -> None:
    """Rounded up, in a readable unit."""
    amount, unit = format_rate(per_s).split("/")
    assert float(amount) / {"s": 1, "min": 60, "h": 3600}[unit] >= per_s * (1 - 1e-9)
