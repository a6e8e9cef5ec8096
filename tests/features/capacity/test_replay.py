"""The engine behind a sweep's record: replayed, fitted, and asked for its knee."""

import pickle
from dataclasses import replace
from decimal import Decimal
from functools import cache
from math import hypot, inf, log
from random import Random

import numpy as np
import pytest

from prober.features.capacity import observations as observed
from prober.features.capacity.actions import Estimate
from prober.features.capacity.capacity_model import CapacityModel
from prober.features.capacity.estimate import CapacityEstimate, _with_mix, estimate_capacity
from prober.features.capacity.fitting import Fit, fit, ttft_error
from prober.features.capacity.observations import calibrate, ttfts_s
from prober.features.capacity.replay import Background, RequestLengths, background, build_scene
from prober.features.capacity.sweep_record import Record, RequestRecord, Stage
from prober.measure.engine_signals import EngineHistogram, EngineInfo, EngineSignals
from prober.measure.objective import Slo
from prober.results.capacity import Capacity
from prober.simulation.parameters import Parameters
from prober.simulation.serving import Service
from prober.workload.shapes import Lognormal
from tests.features.capacity.simulated_sweep import Driver, SimulatedTarget, Telemetry, Workload, sweep_spec

TTFT = Slo("ttft", "ttft", 0.6, Decimal("0.99"), 3_600.0)
WORLD = SimulatedTarget(
    2,
    "sharp",
    Parameters(step_s=0.02, sequence_s=1e-4, max_sequences=20, kv_blocks=2_000, max_batched_tokens=1_024),
    Workload(Lognormal(300, 0.4, 16, 1_200), Lognormal(40, 0.4, 4, 160)),
    Workload(Lognormal(400, 0.4, 16, 1_200), Lognormal(40, 0.4, 4, 160)),
    0.6,
    2.0,
)
SERVICE = Service(0.02, 1e-4, 100e-6, 65e-9, budget=1_024, slots=20, kv_tokens=32_000)  # the engine of WORLD
KNEE = 8.96  # of 60,000 requests


QUIET = replace(WORLD, others_per_s=0.0)


@cache
def record(target: SimulatedTarget = WORLD, telemetry: Telemetry = "counters") -> Record:
    rng = Random(1)
    lengths = tuple(target.own.draw(rng) for _ in range(3_000))
    driven = Driver(target, sweep_spec(TTFT), telemetry, 1, lengths=lengths).run()
    order = driven.orders[-1][1]
    assert isinstance(order, Estimate)
    return order.record


@cache
def estimated() -> CapacityEstimate:
    return estimate_capacity(record(), effort=0.25)


def fitted() -> Fit:
    found = estimated().fit
    assert found is not None
    return found


def test_lengths_of_others_are_drawn_from_the_engine_s_histograms() -> None:
    """Where it has them, less the sweep's own: a tenth of long prompts stays a tenth, and the mean is the page's."""
    bounds = (100.0, 200.0, 500.0, 1_000.0, 5_000.0, 10_000.0)
    own = tuple(RequestRecord(float(i), 150, 20, 1, i + 0.1, i + 0.2, i + 0.2) for i in range(10))

    def page(at_s: float, requests: float) -> tuple[float, EngineSignals]:
        prompts = EngineHistogram(
            bounds, (0.0, 910.0, 910.0, 910.0, 1_010.0, 1_010.0, 1_010.0), 900 * 150.0 + 10 * 150 + 100 * 3_000
        )
        outputs = EngineHistogram(bounds, (1_010.0,) * 7, 1_010 * 20.0)
        return at_s, EngineSignals(
            EngineInfo("vllm"),
            requests_running=0.0,
            requests_finished_total=requests,
            prompt_tokens_total=300 * requests,
            generation_tokens_total=20 * requests,
            prompt_tokens=prompts,
            output_tokens=outputs,
        )

    seen = Record((TTFT,), own, (), (page(-10.0, 1_000.0), page(10.0, 1_040.0)))
    found = background(seen, Random(1))
    prompts = [each.prompt for each in found.lengths]
    assert 0.07 < sum(each > 700 for each in prompts) / len(prompts) < 0.13
    assert sum(prompts) / len(prompts) == pytest.approx((900 * 150 + 100 * 3_000) / 1_000, rel=0.01)
    assert found.per_s == pytest.approx(1.5)
    without = replace(seen, readings=tuple((at, replace(s, prompt_tokens=None)) for at, s in seen.readings))
    assert max(each.prompt for each in background(without, Random(1)).lengths) < 5_000, "of the mean alone"


def test_a_replay_with_the_true_engine_shows_what_was_seen() -> None:
    """TTFTs of a sweep that is alone, from its record and the engine's parameters, to within a step."""
    seen = record(QUIET)
    others = background(seen, Random(1))
    scene = build_scene(seen, others, Random(1))
    course = scene.replayed(SERVICE)
    pairs = zip(seen.requests, ttfts_s(course, scene), strict=True)
    errors_s = sorted(abs(request.ttft_s - replayed_s) for request, replayed_s in pairs if request.ttft_s)
    assert len(errors_s) > 50
    assert errors_s[len(errors_s) // 2] < 0.005
    assert len(course.running) == len(seen.readings)
    assert max(course.running) <= 20


def test_the_fit_finds_the_engine() -> None:
    """What a step costs to a few percent, and its limit of sequences where it bit."""
    found = fitted()
    assert found.error < 0.1
    assert found.structure == "chunked prefill"
    assert abs(log(found.service.step_s / 0.02)) < 0.05
    assert abs(log(found.service.prefill_token_s / 100e-6)) < 0.15
    assert abs(found.service.slots - 20) <= 1
    assert found.service.kv_tokens == 32_000


def test_counters_tell_the_background() -> None:
    """Its rate and mean lengths, by increments of the engine's own counters less what the sweep sent."""
    found = background(record(), Random(1))
    assert found.known
    assert found.per_s == pytest.approx(2.0, rel=0.3)
    assert sum(each.prompt for each in found.lengths) / len(found.lengths) == pytest.approx(
        WORLD.others.prompt.mean(), rel=0.3
    )
    assert not background(record(telemetry="none"), Random(1)).known


def test_the_estimate_is_near_the_truth_and_its_interval_holds_it() -> None:
    """By the model, from some hundred requests. One interval of 90% may miss, one twice as wide may not."""
    (found,) = estimated().capacities
    assert (found.verdict, found.fit) == ("found", "model")
    assert found.lower is not None
    assert found.estimate is not None
    assert found.upper is not None
    assert abs(log(found.estimate / KNEE)) < 0.2
    wide = log(found.upper / found.lower)
    assert 0.05 < wide < 0.6
    assert abs(log(found.estimate / KNEE)) < wide
    assert found.samples < 500


@pytest.mark.parametrize(
    ("prompts", "outputs", "truth_per_s"),
    [(1, 1, 7.22), (4, 1, 1.42), (0.25, 0.25, 32.1), (2, 2, 3.27)],
    ids=["as seen", "four times the prompt", "a quarter", "twice"],
)
def test_a_request_of_another_size_takes_what_it_takes_of_the_engine(
    prompts: float, outputs: float, truth_per_s: float
) -> None:
    """The truth is of 30,000 requests of that size on the simulated engine, one in twenty of the sweep's, by bisection.

    The error that is stated holds, within twice of it and a little.
    """
    (found,) = estimated().capacities
    assert found.mix is not None
    assert found.estimate is not None
    assert found.log_error is not None
    cost, error = found.mix.cost(429 * prompts, 44 * outputs)
    assert abs(log(found.estimate / cost / truth_per_s)) < 2.2 * hypot(found.log_error, error)
    assert error < 0.65


@pytest.mark.parametrize("per_s", [0.0, 4.0])
def test_without_a_model_the_mix_at_the_knee_is_known_and_little_of_its_cost(per_s: float) -> None:
    """By hand: at 10/s, of which others sent 4/s of twice the tokens: 140 and 28 tokens on average; of the sweep's alone, at power 1,
    14/s fit. Where nobody else sent anything, it is 10/s of the sweep's."""
    found = Capacity("ttft", "found", 10.0, 10.0, 10.0)
    others = (RequestLengths(200, 40),) if per_s else ()
    found = _with_mix(found, [RequestLengths(100, 20)], Background(per_s, others, known=True))
    assert found.mix is not None
    assert (found.mix.prompt_tokens, found.mix.output_tokens) == pytest.approx((140, 28) if per_s else (100, 20))
    assert found.alone_per_s == pytest.approx(14 if per_s else 10)
    assert found.mix.cost(250, 20)[1] > 0.1, "how much more a longer prompt takes is not known"


def test_the_fitted_curve_is_that_of_the_true_engine_and_crosses_the_limit_at_the_knee() -> None:
    """From the lowest rate to beyond the knee, rising; against long runs of the engine with its true parameters."""
    (found,) = estimated().capacities
    rates, latencies_s = zip(*found.curve, strict=True)
    assert found.estimate is not None
    assert found.upper is not None
    assert rates[0] == pytest.approx(record().stages[1].total_per_s, rel=0.1)
    assert rates[-1] > found.estimate
    assert np.interp(0.6, latencies_s, rates) == pytest.approx(found.estimate, rel=0.1)
    others = background(record(), Random(1))
    truth = CapacityModel(SERVICE, 0.0, np.array(record().lengths), others)
    for rate_per_s in (3.0, 6.0, 8.0):
        true_s = truth.latency_s(TTFT, rate_per_s, 60_000, Random(5))
        assert np.interp(rate_per_s, rates, latencies_s) == pytest.approx(true_s, rel=0.25)
    overload = truth.latency_s(TTFT, 3 * KNEE, 20_000, Random(5))
    assert overload is None, "a queue that only grows has no quantile"
    assert truth.latency_s(replace(TTFT, signal="itl"), 3.0, 4_000, Random(5)) is None


@pytest.mark.parametrize(("late_stages", "fit_of_estimate"), [((6,), "model"), ((6, 8), "fractions")])
def test_a_flat_model_makes_no_knee_of_breaches_that_do_not_rise_with_the_rate(
    monkeypatch: pytest.MonkeyPatch, late_stages: tuple[int, ...], fit_of_estimate: str
) -> None:
    """Two neighbours breach at the highest rate, and two more at 60% of it."""
    engine = Service(0.02, 1e-4, 500e-6, 65e-9)
    load = Background(0.0, (), known=False)
    model = Fit(engine, "chunked prefill", 0.0, (), 0.1, None, load)
    monkeypatch.setattr("prober.features.capacity.estimate.fit", lambda *_: model)
    rates = [*(1.15**number for number in range(7)), 1.27, 1.4]
    stages = [Stage(n, "ramp", per_s, 8.0 * n, 8.0 * n + 8.0) for n, per_s in enumerate(rates)]
    requests = []
    for stage in stages:
        for place in range(round(8 * stage.rate_per_s)):
            at_s, late = stage.began_s + place / stage.rate_per_s, stage.number in late_stages and place in (4, 5)
            first_s, events = at_s + (0.7 if late else 0.35), {"ttft": (1, int(late))}
            requests.append(RequestRecord(at_s, 300, 40, stage.number, first_s, at_s + 2, at_s + 2, events=events))
    (found,) = estimate_capacity(Record((TTFT,), tuple(requests), tuple(stages)), effort=0.1).capacities
    assert found.fit == fit_of_estimate
    assert (found.verdict == "found") == (fit_of_estimate == "model")


def test_without_a_page_the_interval_is_wide() -> None:
    """Of the load added: nobody tells what else was there."""
    (found,) = estimate_capacity(record(telemetry="none")).capacities
    assert found.verdict == "found"
    assert found.lower is not None
    assert found.upper is not None
    assert found.lower < KNEE - 2.0 < found.upper
    assert found.upper / found.lower > 1.3


def test_a_poor_fit_finds_no_knee() -> None:
    """TTFTs that no such engine could have shown are not explained away: the interval is wider than any that is a finding."""
    rng = Random(5)
    seen = record()
    odd = tuple(
        each
        if each.first_s is None
        else replace(each, first_s=each.at_s + (each.ttft_s or 0.1) * rng.lognormvariate(0, 1.5))
        for each in seen.requests[:80]
    )
    (found,) = estimate_capacity(replace(seen, requests=odd, readings=seen.readings[:100])).capacities
    assert found.verdict == "between"
    assert found.lower is not None
    assert found.upper is not None
    assert found.lower < KNEE < found.upper


def test_the_tail_is_calibrated_by_counts() -> None:
    """Replayed TTFTs that are half as long, in another order, give the factor 2; the same ones give none."""
    rng = np.random.default_rng(1)
    ratios = 0.2 * rng.lognormal(0, 0.8, 400)
    bounds = np.zeros(400, dtype=bool)
    same, half = (calibrate(ratios, bounds, [factor * rng.permutation(ratios)]) for factor in (1.0, 0.5))
    assert abs(same.log_factor) < 0.05
    assert half.log_factor == pytest.approx(log(2), abs=0.1)


def test_requests_that_failed_or_were_held_back_are_no_matter_of_the_model() -> None:
    """A replay knows none; their breaches count in the fractions."""
    seen = record()
    failed = tuple(replace(each, failed=n % 20 == 5) for n, each in enumerate(seen.requests))
    assert estimate_capacity(replace(seen, requests=failed)).capacities[0].fit == "fractions"
    held_back = tuple(replace(request, held_back=True) for request in seen.requests)
    assert estimate_capacity(replace(seen, requests=held_back)).capacities[0].fit == "fractions"


def test_nothing_is_said_of_too_little() -> None:
    """Neither a fit of a handful of answers, nor a capacity of none."""
    seen = record()
    assert fit(replace(seen, requests=seen.requests[:10]), Random(1)) is None
    empty = replace(seen, requests=(), stages=())
    assert estimate_capacity(empty).capacities[0].verdict == "not_enough_data"


def test_an_slo_that_fails_at_the_lowest_rate_is_said_to() -> None:
    """Two breaches of four at 1/s are no accident."""
    asked = tuple(
        RequestRecord(float(n), 100, 10, 0, first_s=n + 1.0, end_s=n + 2.0, known_s=n + 2.0, events={"ttft": (1, 1)})
        for n in range(4)
    )
    stage = Stage(0, "ramp", 1.0, 0.0, 4.0, 4, 4, 0, {"ttft": (4, 4)}, other_per_s=2.0)
    (found,) = estimate_capacity(Record((TTFT,), asked, (stage,))).capacities
    assert (found.verdict, found.upper, found.estimate) == ("below", 3.0, None)


def test_the_forecast_counts_events_by_their_slo() -> None:
    """An idle engine misses no TPOT that is above its step, all that are below; ITL by gaps, E2E by the end."""
    ahead = CapacityModel(
        Service(0.02, 20e-6, 100e-6, 65e-9), 0.0, np.array([(100, 20)]), Background(0.0, (), known=True)
    )
    limits = {"tpot": 0.02, "itl": 0.02, "e2e": 0.42}
    for signal, limit_s in limits.items():
        slos = [Slo("x", signal, limit_s * times, Decimal("0.99"), 3_600.0) for times in (0.9, 1.5)]  # type: ignore[arg-type]
        tight, loose = (ahead.share(slo, 0.5, 200, Random(1)) for slo in slos)
        assert tight > 0.9
        assert loose < 0.05


def test_a_target_without_a_knee_has_none() -> None:
    """A threshold that no rate keeps."""
    ahead = CapacityModel(
        Service(0.02, 20e-6, 100e-6, 65e-9),
        0.0,
        np.array([(100, 20)]),
        Background(0.0, (), known=True),
        effort=0.05,
    )
    assert ahead.knee(replace(TTFT, threshold_s=0.001), 5.0, Random(1)) is None


def test_records_travel_to_another_process() -> None:
    """The estimate belongs where no stamp is taken."""
    seen = record()
    assert pickle.loads(pickle.dumps(seen)) == seen


def test_a_replay_that_answers_few_requests_explains_nothing() -> None:
    """Errors of 10, 20 and 30% are 20%; what a replay lacks is infinitely wrong, and so is a fit without any TTFT."""
    seen = np.log([0.1, 0.1, 0.1])
    off, missing = seen + np.log([1.1, 1.2, 1.3]), np.full(3, np.nan)

    def error(kind: int, *replayed: observed.Array, lower_bound: bool = False) -> float:
        no = np.zeros(3)
        bounds = np.full(3, lower_bound)
        items = observed.Observations(np.full(3, kind), no.astype(np.intp), no, no, seen, bounds, no.astype(np.intp))
        return ttft_error(items, replayed)

    assert error(observed.TTFT, off) == pytest.approx(np.log(1.2))
    assert error(observed.MEAN_TTFT, off, off) == pytest.approx(np.log(1.2))
    assert error(observed.TTFT, seen, seen + 0.3) == 0  # no more than what two replays differ by
    assert error(observed.TTFT, missing, missing) == inf
    assert error(observed.TTFT, off, missing, missing) == inf
    assert error(observed.TTFT, off, lower_bound=True) == inf
    assert error(observed.RUNNING, off) == inf
