"""The gate: results in, a verdict out as soon as there is one."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from decimal import Decimal
from itertools import count
from random import Random

import pytest

from prober.features.experiments.gate import ANSWERS, Gate, GateVerdict, Reference, State, least_samples, reference
from prober.measure.objective import JudgedStream, Slo
from prober.measure.outcome import Outcome
from prober.measure.result import ProbeResult
from prober.measure.timeline import Timeline
from prober.results.result import RequestRow
from tests.known import known
from tests.results.samples import result

USE = JudgedStream("t", "probe", 2.0, 10.0, 10)
TTFT = (Slo("ttft", "ttft", 0.5, Decimal("0.95"), 1e6), USE)
ITL = (Slo("itl", "itl", 0.05, Decimal("0.9"), 1e6), USE)


def alone(*slos: tuple[Slo, JudgedStream], most: int = 500, baseline: Sequence[Reference] = ()) -> Gate:
    """A gate to which each result is an observation of its own."""
    return Gate(slos, rate_per_s=2.0, burst_s=0.0, most=most, baseline=baseline)


def run(gate: Gate, draw: Callable[[int], ProbeResult | None], rate_per_s: float = 2.0) -> GateVerdict:
    for number in range(gate.most):
        if (verdict := gate.take(draw(number), 1_000.0 + number / rate_per_s)) is not None:
            return verdict
    raise AssertionError("the gate goes on past its end")


def test_a_good_target_is_ready_with_as_many_as_that_takes() -> None:
    """68 for an objective of 95%, the verdict's error within the 5% asked for, the interval below the budget."""
    verdict = run(alone(TTFT), lambda _: result())
    assert (verdict.state, verdict.requests) == ("ready", 68)
    assert 0 < known(verdict.error) <= 0.05
    answers, ttft = verdict.findings
    assert (answers.name, answers.evidence, answers.bad) == (ANSWERS, "holds", 0)
    assert ttft.upper < 0.05
    assert ttft.error == known(verdict.error), "the least sure of the answers"


def test_each_workload_of_a_mix_is_judged_by_its_own_requests() -> None:
    """The slow quarter of the mix is 100% of its own workload: it misses an objective that the mix as a whole meets."""
    slo = Slo("ttft", "ttft", 0.5, Decimal("0.5"), 1e6)
    streams = [JudgedStream("t", name, rate, 10.0, 10) for name, rate in (("short", 1.5), ("long", 0.5))]
    gate = alone(*((slo, stream) for stream in streams))

    def draw(number: int) -> ProbeResult:
        return replace(result(2.0), workload="long") if number % 4 == 0 else replace(result(), workload="short")

    verdict = run(gate, draw)
    assert verdict.state == "degraded"
    findings = {finding.name: finding for finding in verdict.findings}
    assert set(findings) == {ANSWERS, "ttft of short", "ttft of long"}
    short, long = findings["ttft of short"], findings["ttft of long"]
    assert short.requests + long.requests == verdict.requests, "none is judged twice"
    assert (short.bad, long.bad) == (0, long.events)
    assert verdict.why.startswith("fails: ttft of long")


def test_a_rare_workload_of_a_mix_takes_more_requests() -> None:
    """A tenth of the requests are its own: ten times as many until it is shown, in blocks too."""
    streams = [JudgedStream("t", name, rate, 10.0, 10) for name, rate in (("often", 1.8), ("rare", 0.2))]
    gate = alone(*((TTFT[0], stream) for stream in streams), most=10_000)
    assert gate.least == 10 * alone(TTFT).least
    blocks = Gate(tuple((TTFT[0], stream) for stream in streams), rate_per_s=2.0, burst_s=15.0)
    assert blocks.least > 1.25 * Gate((TTFT,), rate_per_s=2.0, burst_s=15.0).least


def test_slow_answers_are_degraded() -> None:
    """Half above the threshold: nothing says that it does not answer, so no more requests are spent on that."""
    verdict = run(alone(TTFT), lambda n: result(1.0 if n % 2 else 0.1))
    assert verdict.state == "degraded"
    assert verdict.requests == 8
    assert "ttft" in verdict.why


def test_failures_are_not_ready_and_soon() -> None:
    """Refused connections, and loading: nobody is served by them; with what was seen most."""
    for draw in (
        lambda _: result(outcome=Outcome.CONNECT_REFUSED),
        lambda _: None,
    ):
        verdict = run(alone(TTFT), draw)
        assert verdict.state == "not_ready"
        assert verdict.requests <= 4
        assert known(verdict.error) <= 0.05
    assert "loading" in verdict.why


@pytest.mark.parametrize(("up_s", "down_s"), [(5, 5), (10, 20), (20, 10), (30, 30)])
def test_a_flapping_target_is_not_ready_within_a_minute(up_s: int, down_s: int) -> None:
    """It is `failing` by the rule of the daemon, whatever its share of failures is."""
    refused = result(outcome=Outcome.CONNECT_REFUSED)
    verdict = run(Gate([TTFT], rate_per_s=2.0), lambda n: result() if n / 2 % (up_s + down_s) < up_s else refused)
    assert (verdict.state, verdict.error) == ("not_ready", None)
    assert verdict.requests <= 2 * 60
    assert verdict.why == "failing: connect_refused"


def test_rare_single_failures_do_not_condemn() -> None:
    """A target that fails once in 20 requests is ready."""
    failed = result(outcome=Outcome.HTTP_5XX)
    assert run(Gate([], rate_per_s=2.0), lambda n: failed if n % 20 == 0 else result()).state == "ready"


@pytest.mark.parametrize("kind", [Outcome.HTTP_429, Outcome.SHED, Outcome.HTTP_5XX])
def test_half_of_the_requests_is_never_ready(kind: Outcome) -> None:
    """Nor degraded: in 200 runs of random halves, of whatever kind they are."""
    rng = Random(1)
    states = {
        run(alone(TTFT), lambda _: result(outcome=kind) if rng.random() < 0.5 else result()).state for _ in range(200)
    }
    assert states == {"not_ready"}


def test_one_bad_request_never_condemns() -> None:
    """Not even at an objective of 99.99%, where one in the first three is unlikely enough."""
    strict = (Slo("e2e", "e2e", 1.0, Decimal("0.9999"), 1e6), USE)
    gate = alone(strict, most=50_000)
    for number in range(40):
        assert gate.take(result(2.0 if number == 0 else 0.1), 0.0) is None
    assert gate.take(result(2.0), 0.0) is not None


def test_at_the_budget_there_is_not_enough_data() -> None:
    """The state says what is open, and claims no error; requests that the prober did not send are named, not counted."""
    gate = alone(TTFT, most=200)
    verdict = run(
        gate, lambda n: result(outcome=Outcome.INVALID) if n % 4 == 0 else result(1.0 if n % 20 == 1 else 0.1)
    )
    assert (verdict.state, verdict.error, verdict.requests) == ("not_enough_data", None, 200)
    assert verdict.not_counted == 50
    assert "ttft" in verdict.why
    assert "50 of 200 were not counted" in verdict.why
    found = verdict.findings[1]
    assert found.lower < 0.05 < found.upper


def test_what_was_shown_is_taken_back_if_it_breaks() -> None:
    """A target that breaks while another question is open is not ready for what it was before."""
    strict = (Slo("e2e", "e2e", 1.0, Decimal("0.99"), 1e6), USE)
    verdict = run(alone(strict, most=2_000), lambda n: result() if n < 300 else result(outcome=Outcome.RESET))
    assert verdict.state in ("degraded", "not_ready")


def test_warm_ups_are_nobodys_latency() -> None:
    """A slow one does not count against the SLO, nor for it; it answered all the same."""
    gate = alone(TTFT)
    for _ in range(3):
        assert gate.take(result(5.0, warm_up=True), 0.0) is None
    verdict = run(gate, lambda _: result())
    assert verdict.state == "ready"
    assert verdict.findings[1].events == 68
    assert verdict.findings[0].events == 71


def test_gaps_of_one_answer_are_one_observation() -> None:
    """Ratio of sums: 1 gap in 90 bad is ready at 90%; all bad in a third of the answers is not, whatever their number."""
    verdict = run(alone(ITL, most=2_000), lambda n: result(slow=n % 10 == 0))
    assert verdict.state == "ready"
    found = verdict.findings[1]
    assert found.events == 9 * found.requests
    assert found.lower < found.bad / found.events < found.upper
    assert run(alone(ITL, most=2_000), lambda n: result(slow=9 if n % 3 == 0 else 0)).state == "degraded"
    single = alone(ITL, most=2_000)
    assert single.take(result(slow=9), 0.0) is None, "nine bad gaps, one bad request"


def test_answers_that_stall_as_a_whole_do_not_pass_for_many_events() -> None:
    """A tenth of answers of 16 to 48 gaps, all of them bad, at a budget of a tenth: no claim in most of 40 gates."""
    itl = (ITL[0], JudgedStream("t", "probe", 2.0, 32.0, 48))
    claims = 0
    for seed in range(40):
        rng = Random(seed)

        def stalling(_: int, rng: Random = rng) -> ProbeResult:
            count, gap_ns = rng.randint(17, 48), 100_000_000 if rng.random() < 0.1 else 10_000_000
            stamps = tuple(10**8 + gap_ns * number for number in range(count))
            timeline = Timeline(0, first_ns=stamps[0], end_ns=stamps[-1], content_ns=stamps)
            return ProbeResult("t", "probe", "id", 0.0, Outcome.OK, "", timeline, requested_output_tokens=count)

        claims += run(alone(itl, most=300), stalling).state != "not_enough_data"
    assert claims <= 5  # 4 of either kind are allowed on average


def test_a_gate_that_can_never_open_is_refused() -> None:
    """With how many it would take; so is none at all."""
    with pytest.raises(ValueError, match="takes 68 requests"):
        alone(TTFT, most=67)


# -- blocks of time


def in_bursts(share: float, rng: Random, burst_s: float = 15.0, rate_per_s: float = 2.0) -> Iterator[ProbeResult]:
    """Results of which a share is slow in the long run, in bursts of a mean length."""
    is_bad, ends_s, at_s = rng.random() >= share, 0.0, 0.0  # it changes at once
    for number in count():
        at_s = number / rate_per_s
        while at_s >= ends_s:
            is_bad = not is_bad
            ends_s += rng.expovariate(1 / (burst_s if is_bad else burst_s * (1 - share) / share))
        yield result(1.0 if is_bad else 0.1)


def states(share: float, gates: int) -> list[State]:
    """Verdicts on targets whose slow results come in bursts."""
    found = []
    for seed in range(gates):
        results = in_bursts(share, Random(seed))
        found.append(run(Gate([TTFT], rate_per_s=2.0), lambda _, results=results: next(results)).state)  # type: ignore[misc]
    return found


def test_bursts_between_which_all_is_well_do_not_pass() -> None:
    """At five times the budget, in bursts of 15 s: none of 100 gates is ready; at twice the budget at most 15 of 100."""
    assert states(0.25, 100).count("ready") == 0
    assert states(0.10, 100).count("ready") <= 15


def test_rare_bursts_seldom_condemn() -> None:
    """At a fifth of the budget: a gate that lasts for minutes meets a burst more often, and says `degraded` in 5% at most."""
    found = states(0.01, 100)
    assert found.count("ready") >= 80
    assert found.count("degraded") + found.count("not_ready") <= 5


@pytest.mark.parametrize("rate_per_s", [1.0, 2.0, 5.0])
def test_a_good_target_needs_its_time_at_any_rate(rate_per_s: float) -> None:
    """68 blocks of 7.5 s for an objective of 95%, which is known before."""
    gate = Gate([TTFT], rate_per_s=rate_per_s)
    assert gate.block_s == 7.5
    assert gate.least == pytest.approx(510 * rate_per_s, rel=0.01)
    assert gate.most == max(1_000, 3 * gate.least)
    verdict = run(gate, lambda _: result(), rate_per_s)
    assert verdict.state == "ready"
    assert verdict.findings[1].blocks == 68
    assert verdict.requests / rate_per_s == pytest.approx(510, abs=1)


def test_at_a_low_rate_many_blocks_have_no_request() -> None:
    """At 0.2/s, Poisson, eight of ten have one: the gate takes longer, by as much as it says."""
    gate, rng, at_s, verdict = Gate([TTFT], rate_per_s=0.2), Random(1), 0.0, None
    while verdict is None:
        at_s += rng.expovariate(0.2)
        verdict = gate.take(result(), at_s)
    assert gate.least == 132
    assert verdict.state == "ready"
    assert verdict.requests == pytest.approx(132, abs=20)


def test_a_dead_target_is_not_ready_as_soon_as_it_is_no_burst() -> None:
    """Three blocks and the request that shows their end; a slow one is degraded as soon, a failing one in 3 s."""
    for draw, state, seconds in (
        (lambda _: result(outcome=Outcome.CONNECT_REFUSED), "not_ready", 3.0),
        (lambda _: None, "not_ready", 22.5),
        (lambda _: result(1.0), "degraded", 22.5),
    ):
        verdict = run(Gate([TTFT], rate_per_s=2.0), draw)
        assert verdict.state == state
        assert verdict.requests <= 2.0 * seconds + 1
    assert run(Gate([TTFT], rate_per_s=2.0), lambda n: result(1.0 if n < 15 else 0.1)).state == "ready"


def test_results_of_a_block_are_one_observation() -> None:
    """Seven seconds of slow results are one bad block, however many there are; a block without a result is none."""
    gate = Gate([TTFT], rate_per_s=50.0)
    for number in range(350):
        assert gate.take(result(1.0), number / 50) is None
    assert gate.take(result(), 60.0) is None
    assert gate.take(result(), 70.0) is None
    found = gate.verdict().findings[1]
    assert (found.blocks, found.requests, found.bad) == (2, 352, 350)


def test_a_gate_longer_than_a_person_waits_is_refused_by_default() -> None:
    """99.9% in blocks: it says how many requests and blocks that takes, and `most` allows it."""
    strict = (replace(TTFT[0], objective=Decimal("0.999")), USE)
    with pytest.raises(
        ValueError, match=r"52,126 requests if all are good \(3,475 blocks of 7.5 s at 2/s\), and 7,200 are"
    ):
        Gate([strict], rate_per_s=2.0)
    assert Gate([strict], rate_per_s=2.0, most=60_000).least == 52_126


def baseline(count: int, level: float = 0.1, seed: int = 2) -> list[RequestRow]:
    rng = Random(seed)
    return [RequestRow(float(n), ttft_s=level * rng.lognormvariate(0, 0.2)) for n in range(count)]


def test_slower_than_the_baseline_is_degraded_and_as_fast_is_ready() -> None:
    """By its p50 and p90; slower by half of what is material is not claimed to be slower."""
    rows = baseline(300)
    references = [reference(rows, "ttft", q, 0.2) for q in (0.5, 0.9)]
    rng = Random(4)

    def at(level: float) -> GateVerdict:
        gate = alone(most=2_000, baseline=references)
        return run(gate, lambda _: result(level * rng.lognormvariate(0, 0.2)))

    assert at(0.1).state == "ready"
    slower = at(0.15)
    assert slower.state == "degraded"
    assert "of baseline" in slower.why
    assert at(0.11).state != "degraded"


def test_a_baselines_uncertainty_is_on_the_side_of_caution() -> None:
    """Not slower is measured from the lower end of its quantile's interval, slower from the upper end; failures are slowest."""
    rows = [*baseline(100), *(RequestRow(0.0, outcome="reset") for _ in range(5))]
    found = reference(rows, "ttft", 0.5, 0.0)
    middle = sorted(each.ttft_s or 9.0 for each in rows)[52]
    assert found.sure_s < middle < found.slower_s
    assert isinstance(found, Reference)
    with pytest.raises(ValueError, match="10 requests with a TTFT are too few for its p90; keep one of 300 or more"):
        reference(baseline(10), "ttft", 0.9, 0.2)
    with pytest.raises(ValueError, match="0 requests with a TPOT"):
        reference(rows[:100], "tpot", 0.5, 0.2)
    with pytest.raises(ValueError, match="fail too often for its p50"):
        reference([*baseline(60), *(RequestRow(0.0, outcome="reset") for _ in range(60))], "ttft", 0.5, 0.2)


def test_it_says_how_many_requests_it_takes_at_least() -> None:
    """Those of the hardest question: 346 for 99%, 34 where only answers are asked for."""
    assert alone((replace(TTFT[0], objective=Decimal("0.99")), USE)).least == 346
    assert alone().least == 34
    assert {q: least_samples(q) for q in (0.5, 0.9)} == {0.5: 8, 0.9: 53}
