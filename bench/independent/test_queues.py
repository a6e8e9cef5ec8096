"""The queues against the formulas of queueing theory. They lie here because the tests of the product import no benchmark."""

import math

import numpy as np
import pytest

from bench.independent.queues import (
    DAY_S,
    SHAPES,
    Change,
    Floats,
    Queue,
    Requests,
    Truth,
    probes,
    queue,
    requests,
    ttfts_s,
)

HOURS = np.ones(60 * 60)


def sent(service: Queue, seed: int = 1) -> Requests:
    return requests(np.random.default_rng(seed), service, HOURS)


def mean_s(service: Queue) -> float:
    return float(ttfts_s(service, sent(service)).mean())


def test_one_server_waits_as_long_as_pollaczek_and_khinchine_say() -> None:
    """Mean wait λ·E[S²] / (2·(1 − ρ)) and the work itself."""
    service = Queue("fifo", 0.8, 0.6, 0.7, 0.0)
    waiting_s = 1.0 * 0.6**2 * (1 + 0.7**2) / (2 * (1 - 0.6))
    assert mean_s(service) == pytest.approx(0.6 + waiting_s, rel=0.05)


def test_a_shared_server_is_indifferent_to_the_spread_of_the_work() -> None:
    """Mean sojourn E[S] / (1 − ρ), whatever the spread."""
    for spread in (0.3, 1.0):
        assert mean_s(Queue("sharing", 0.8, 0.6, spread, 0.0)) == pytest.approx(0.6 / 0.4, rel=0.06)


def test_slots_without_a_queue_take_the_work_by_the_slots_taken() -> None:
    """The slots taken are, by Little's law, arrivals times the time in a slot."""
    service = Queue("slots", 0.8, 0.5, 0.5, 0.0, servers=40, answer_works=11.0)
    assert mean_s(service) == pytest.approx(0.5 * (1 + 1.0 * 0.5 * 12 / 40), rel=0.03)


def test_slots_wait_as_erlang_says() -> None:
    """Probability and mean of a wait of M/M/c (exponential work: coefficient of variation 1, here log-normal: within 15%)."""
    service = Queue("slots", 1.8, 0.25, 1.0, 0.0, servers=3, answer_works=4.0)
    offered = 2.0 * 0.25 * 5
    terms = [offered**k / math.factorial(k) for k in range(3)]
    full = offered**3 / math.factorial(3) / (1 - offered / 3)
    waiting_s = full / (sum(terms) + full) * 0.25 * 5 / (3 - offered)
    arrived = sent(service)
    taken = ttfts_s(service, arrived) - arrived.work * service.work_s
    assert float(taken.mean()) == pytest.approx(waiting_s + 0.25 * 2.5 / 3 * 0.9, rel=0.2)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_load_stays_within_its_variation_and_uses_it(shape: str) -> None:
    """Half of the way from wall to wall at least in three days; none where it does not vary."""
    minutes = round(3 * DAY_S / 60)
    load = SHAPES[shape](np.random.default_rng(2), 0.2, minutes)
    assert load.min() >= 0.8
    assert load.max() <= 1.2
    assert np.ptp(load) > 0.2
    assert np.ptp(SHAPES[shape](np.random.default_rng(2), 0.0, minutes)) == 0


def test_the_truth_of_all_that_is_slower_is_the_factor_itself() -> None:
    """An idle service whose work takes twice as long, without overhead; before the change it is 1."""
    service = Queue("fifo", 0.01, 0.01, 0.5, 0.0)
    truth = Truth(np.random.default_rng(3), service, np.full(600, 5.0), 0.0, Change(2.0, at_s=18_000.0))
    assert truth.ratio(0.5, 18_000.0, 36_000.0) == pytest.approx(2.0, rel=0.02)
    assert truth.ratio(0.5, 0.0, 17_000.0) == 1.0


def test_a_queue_makes_more_of_a_slowdown_than_its_factor() -> None:
    """At 40% utilization twice the work is far more than twice the wait; an overhead is less than its factor."""
    service, rng = Queue("fifo", 0.8, 0.4, 0.7, 0.1), np.random.default_rng(4)
    assert Truth(rng, service, HOURS, 0.0, Change(2.0)).ratio(0.9, 0.0, 2e5) > 3
    assert 1 < Truth(rng, service, HOURS, 0.0, Change(2.0, "overhead")).ratio(0.5, 0.0, 2e5) < 1.5


def test_the_prober_sees_arrivals_and_not_how_slow_the_service_is() -> None:
    """Twice the work leaves the rate of arrivals as it was, and it is that of the users and the probes."""
    service = Queue("fifo", 0.8, 0.3, 0.7, 0.1)
    arrived = sent(service)
    usual: Floats = probes(arrived, ttfts_s(service, arrived)).arrivals_per_s
    slower: Floats = probes(arrived, ttfts_s(service, arrived, Change(2.0))).arrivals_per_s
    assert (usual == slower).all()
    assert float(usual.mean()) == pytest.approx(1.0, rel=0.02)


@pytest.mark.parametrize("kind", ["fifo", "sharing", "slots"])
def test_a_drawn_service_stands_the_change_it_is_drawn_for(kind: str) -> None:
    """Its utilization at the change and at the load above the mean is below 1."""
    for seed in range(20):
        drawn = queue(np.random.default_rng(seed), kind, 4.0)  # type: ignore[arg-type]
        assert drawn.busy_ratio * 4 * 1.4 < 1
