"""The proof that alerts can fire, held against counting by brute force."""

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prober.features.slo.firing import guard, percentile_events, percentile_window, proofs, silence_s
from prober.measure.burn_rate_windows import DAY_S, SHORTEST_SLO_WINDOW_S, pairs, promql
from prober.measure.objective import JudgedStream, Slo, format_rate


def slo(objective: str = "0.99", window_s: float = 30 * DAY_S, signal: str = "ttft") -> Slo:
    return Slo("s", signal, 0.5, Decimal(objective), window_s)  # type: ignore[arg-type]


def use(rate: float = 0.2, tokens: int = 48) -> JudgedStream:
    return JudgedStream("t", "w", rate, tokens / 1.5, tokens)


def test_the_pairs_are_the_workbook_s() -> None:
    """For 30 days: 1h/5m x14.4 (2%), 6h/30m x6 (5%), 1d/2h x3 (10%), 3d/6h x1 (10%); each spends what it is said to spend."""
    found = pairs(30 * DAY_S)
    said = [(promql(p.long_s), promql(p.short_s), str(p.burn)) for p in found]
    assert said == [("1h", "5m", "14.4"), ("6h", "30m", "6"), ("1d", "2h", "3"), ("3d", "6h", "1")]
    for window in (6 * DAY_S, 7 * DAY_S, 28 * DAY_S, 90 * DAY_S):
        for pair in pairs(window):
            assert float(pair.burn) * pair.long_s / window == pytest.approx(float(pair.spent), rel=0.01)


def test_a_window_scales_its_pairs_down_to_a_minute() -> None:
    """The shortest window a rate can be taken over bounds the SLO's."""
    assert pairs(SHORTEST_SLO_WINDOW_S)[0].short_s == 60
    assert next((promql(p.long_s), promql(p.short_s)) for p in pairs(7 * DAY_S)) == ("14m", "1m10s")


@given(
    objective=st.sampled_from(["0.9", "0.95", "0.99", "0.995", "0.999", "0.9999"]),
    signal=st.sampled_from(["ttft", "itl"]),
    tokens=st.integers(1, 2000),
)
def test_one_bad_probe_never_fires(objective: str, signal: str, tokens: int) -> None:
    """With as few events as the guard lets through, all events of one probe bad are not more than the share that fires."""
    judged = slo(objective, signal=signal)
    for pair in pairs(judged.window_s):
        least = guard(judged, pair, [use(tokens=tokens)])
        most = max(1, tokens) if signal == "itl" else 1
        assert Decimal(most) / least < pair.burn * judged.error_budget_ratio
        assert Decimal(most) / (least * Decimal("0.9")) <= pair.burn * judged.error_budget_ratio * Decimal("1.12")


@given(st.sampled_from(["0.95", "0.99", "0.999"]), st.floats(0.002, 5))
def test_the_bad_probes_told_are_the_fewest_that_fire(objective: str, rate: float) -> None:
    """Counted up one by one over the whole probes that each window holds."""
    judged = slo(objective)
    for proof in proofs(judged, [use(rate)]):
        if proof.problem:
            continue
        share = proof.pair.burn * judged.error_budget_ratio
        for expected, told in ((proof.probes_long, proof.bad_long), (proof.probes_short, proof.bad_short)):
            fewest = next(bad for bad in range(1, int(expected) + 2) if bad > float(share) * expected)
            assert told in (fewest, 2)
            assert told <= expected + 1
        assert proof.bad_long >= 2


@pytest.mark.parametrize(
    ("objective", "rate", "said"),
    [
        ("0.9", 0.2, "burn rate 14.4 of a budget of 10% is 144% of all events"),
        ("0.93", 0.2, "use an objective above 93.06%"),
        ("0.999", 1 / 300, "hold 12 probes, and at least 77 are needed"),
        ("0.9", 1 / 3600, "use a rate of at least 2/h"),
    ],
)
def test_an_alert_that_cannot_fire_says_what_to_change(objective: str, rate: float, said: str) -> None:
    """Rate, objective or window, with figures."""
    problems = [proof.problem for proof in proofs(slo(objective), [use(rate)]) if proof.problem]
    assert any(said in problem for problem in problems), problems


def test_the_rate_that_is_advised_is_enough() -> None:
    """Who follows the advice has an alert that can fire."""
    poor = next(p for p in proofs(slo("0.999"), [use(1 / 300)]) if p.problem)
    advised = poor.problem.split("rate of at least ")[1].split(",")[0]
    amount, per = advised.split("/")
    rate = float(amount) / {"s": 1, "min": 60, "h": 3600}[per]
    assert not any(p.problem for p in proofs(slo("0.999"), [use(rate)]))


def test_of_itl_probes_are_counted_and_not_gaps() -> None:
    """31 gaps a probe do not make one slow probe 31 independent failures."""
    by_probe = proofs(slo(), [use()])[0]
    by_gap = proofs(slo(signal="itl"), [use()])[0]
    assert by_gap.bad_long == by_probe.bad_long
    assert by_gap.guard > 40 * by_probe.guard


def test_a_percentile_takes_enough_events() -> None:
    """1,000 for p99 and below, 100,000 for p99.9; the shortest window that holds them, or none."""
    assert percentile_events(slo("0.9")) == 1_000
    assert percentile_events(slo("0.99")) == 1_000
    assert percentile_events(slo("0.999")) == 100_000
    assert percentile_window(slo(), [use()]) == (7_200, 1_000)
    assert percentile_window(slo("0.999"), [use(1 / 60)]) is None
    assert percentile_window(slo(signal="itl"), [use()]) == (7_200, 31_000)


def test_silence_is_longer_than_chance() -> None:
    """Ten due times, at least ten minutes."""
    assert silence_s([use(0.2), use(1 / 300)]) == 3_000
    assert silence_s([use(10)]) == 600


@given(st.floats(1e-4, 10))
def test_a_rate_is_written_no_lower_than_it_is(per_s: float) -> None:
    """Rounded up, in the unit a person would take."""
    amount, unit = format_rate(per_s).split("/")
    assert float(amount) / {"s": 1, "min": 60, "h": 3600}[unit] >= per_s * (1 - 1e-9)


def test_all_uses_share_one_guard() -> None:
    """What an SLO's alerts need is looked for once, not once for each of ten thousand targets."""
    uses = [JudgedStream(f"t{i}", "probe", 0.2, 32, 48) for i in range(10_000)]
    asked = pairs(30 * DAY_S)
    found = proofs(slo(), uses)
    assert len(found) == 10_000 * len(asked)
    assert {(proof.pair, proof.guard) for proof in found} == {(pair, guard(slo(), pair, uses)) for pair in asked}
