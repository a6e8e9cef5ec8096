"""The firing checks, compared with counting by brute force."""

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prober.features.slo.compliance import percentile_events, silence_s
from prober.features.slo.firing import firing_checks, guard, percentile_window
from prober.measure.objective import DAY_S, MIN_SLO_WINDOW_S, JudgedStream, Slo, format_rate, pairs, promql


def slo(objective: str = "0.99", window_s: float = 30 * DAY_S, signal: str = "ttft") -> Slo:
    return Slo("s", signal, 0.5, Decimal(objective), window_s)  # type: ignore[arg-type]


def use(rate: float = 0.2, tokens: int = 48) -> JudgedStream:
    return JudgedStream("t", "w", rate, tokens / 1.5, tokens)


def test_pairs_match_the_sre_workbook() -> None:
    """For 30 days: 1h/5m x14.4 (2%), 6h/30m x6 (5%), 1d/2h x3 (10%), 3d/6h x1 (10%); each spends the stated share of the budget."""
    windows = [(promql(p.long_s), promql(p.short_s), str(p.burn)) for p in pairs(30 * DAY_S)]
    assert windows == [("1h", "5m", "14.4"), ("6h", "30m", "6"), ("1d", "2h", "3"), ("3d", "6h", "1")]
    for window in (6 * DAY_S, 7 * DAY_S, 28 * DAY_S, 90 * DAY_S):
        for pair in pairs(window):
            assert float(pair.burn) * pair.long_s / window == pytest.approx(float(pair.spent), rel=0.01)


def test_pairs_scale_with_the_slo_window_down_to_one_minute() -> None:
    """The shortest usable rate window limits the SLO window."""
    assert pairs(MIN_SLO_WINDOW_S)[0].short_s == 60
    assert next((promql(p.long_s), promql(p.short_s)) for p in pairs(7 * DAY_S)) == ("14m", "1m10s")


@given(
    objective=st.sampled_from(["0.9", "0.95", "0.99", "0.995", "0.999", "0.9999"]),
    signal=st.sampled_from(["ttft", "itl"]),
    tokens=st.integers(1, 2000),
)
def test_one_bad_probe_never_fires(objective: str, signal: str, tokens: int) -> None:
    """At the minimum of events, all events of one probe being bad do not exceed the share that fires."""
    judged = slo(objective, signal=signal)
    for pair in pairs(judged.window_s):
        least = guard(judged, pair, [use(tokens=tokens)])
        most = max(1, tokens) if signal == "itl" else 1
        assert Decimal(most) / least < pair.burn * judged.error_budget_ratio
        assert Decimal(most) / (least * Decimal("0.9")) <= pair.burn * judged.error_budget_ratio * Decimal("1.12")


@given(st.sampled_from(["0.95", "0.99", "0.999"]), st.floats(0.002, 5))
def test_reported_bad_probes_are_the_fewest_that_fire(objective: str, rate: float) -> None:
    """Counted one by one over the whole probes of each window."""
    judged = slo(objective)
    for check in firing_checks(judged, [use(rate)]):
        if check.problem:
            continue
        share = check.pair.burn * judged.error_budget_ratio
        variance = float(share * (1 - share)) * check.probes_long
        chance = 2.326 * variance**0.5 if check.pair.severity == "warning" else 0.0  # 99%, one-sided
        for expected, reported, more in (
            (check.probes_long, check.bad_long, chance),
            (check.probes_short, check.bad_short, chance * check.probes_short / check.probes_long),
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
    poor = next(p for p in firing_checks(slo("0.999"), [use(1 / 300)]) if p.problem)
    advised = poor.problem.split("rate of at least ")[1].split(",")[0]
    amount, per = advised.split("/")
    rate = float(amount) / {"s": 1, "min": 60, "h": 3600}[per]
    assert not any(p.problem for p in firing_checks(slo("0.999"), [use(rate)]))


def test_itl_checks_count_probes_not_gaps() -> None:
    """The 31 gaps of one slow probe are not 31 independent failures."""
    by_probe = firing_checks(slo(), [use()])[0]
    by_gap = firing_checks(slo(signal="itl"), [use()])[0]
    assert by_gap.bad_long == by_probe.bad_long
    assert by_gap.guard > 40 * by_probe.guard


def test_a_percentile_needs_enough_events() -> None:
    """1,000 for p99 and below, 100,000 for p99.9; the shortest window that holds them, or none."""
    assert percentile_events(slo("0.9")) == 1_000
    assert percentile_events(slo("0.99")) == 1_000
    assert percentile_events(slo("0.999")) == 100_000
    assert percentile_window(slo(), [use()]) == (7_200, 1_000)
    assert percentile_window(slo("0.999"), [use(1 / 60)]) is None
    assert percentile_window(slo(signal="itl"), [use()]) == (7_200, 31_000)


def test_silence_is_ten_due_times_and_at_least_ten_minutes() -> None:
    """A random schedule rarely has a gap of ten due times."""
    assert silence_s([use(0.2), use(1 / 300)]) == 3_000
    assert silence_s([use(10)]) == 600


@given(st.floats(1e-4, 10))
def test_rate_text_rounds_up(per_s: float) -> None:
    """Rounded up, in a readable unit."""
    amount, unit = format_rate(per_s).split("/")
    assert float(amount) / {"s": 1, "min": 60, "h": 3600}[unit] >= per_s * (1 - 1e-9)


def test_all_streams_share_one_guard() -> None:
    """The guard is computed once per SLO, not once per target."""
    uses = [JudgedStream(f"t{i}", "probe", 0.2, 32, 48) for i in range(10_000)]
    window_pairs = pairs(30 * DAY_S)
    checks = firing_checks(slo(), uses)
    assert len(checks) == 10_000 * len(window_pairs)
    assert {(check.pair, check.guard) for check in checks} == {
        (pair, guard(slo(), pair, uses)) for pair in window_pairs
    }
