"""How many users fit: the search, and its evidence from requests that depend on each other."""

import heapq
import math
from decimal import Decimal
from random import Random
from statistics import median

import pytest

from prober.features.experiments.users import UserLevel, UserSearch, design_effect
from prober.measure.objective import Slo
from prober.measure.outcome import Outcome
from prober.measure.result import ProbeResult
from prober.measure.timeline import Timeline
from prober.results.capacity import words
from prober.workload.shapes import Fixed
from prober.workload.workloads import Workload

WORKLOAD = Workload("chat", Fixed(100), Fixed(1))
SLO = Slo("ttft", "ttft", 1.0, Decimal("0.9"), 2_592_000.0)
SERVICE_S, THINK_S = 0.2, 4.0


def late_ratio(users: int) -> float:
    """Share of requests that take over 1 s at one server (Erlang's tail of what an arrival finds: that of one user fewer)."""
    weights = [math.perm(users - 1, found) * (SERVICE_S / THINK_S) ** found for found in range(users)]
    tails = [
        sum(math.exp(-1 / SERVICE_S) * (1 / SERVICE_S) ** ahead / math.factorial(ahead) for ahead in range(found + 1))
        for found in range(users)
    ]
    return sum(map(math.prod, zip(weights, tails, strict=True))) / sum(weights)


def run(level: UserLevel, rng: Random, *, ends_clear: bool) -> None:
    """Send to one server in the order of arrival, with exponential service and think times, until the level is over."""
    due, free_s, results = [user / level.users * THINK_S for user in range(level.users)], 0.0, list[ProbeResult]()
    number = 0
    level.begin()
    while not (level.is_over or (ends_clear and level.is_clear)):
        at_s = heapq.heappop(due)
        free_s = max(at_s, free_s) + rng.expovariate(1 / SERVICE_S)
        heapq.heappush(due, free_s + rng.expovariate(1 / THINK_S))
        first_ns = round(free_s * 1e9)
        timeline = Timeline(round(at_s * 1e9), first_ns=first_ns, end_ns=first_ns, content_ns=(first_ns,))
        if (number := number + 1) <= level.users:
            continue  # the first request of each user
        results.append(ProbeResult("t", "chat", "id", 0.0, Outcome.OK, "", timeline))
        if len(results) % 10 == 0:
            level.judge(results, {})
            results.clear()


def test_intervals_hold_the_number_that_fits() -> None:
    """14 users fit on one server of 5 requests a second, by the closed form for exponential times; a tenth of 40 intervals may err."""
    truth = next(users for users in range(1, 100) if late_ratio(users + 1) > 0.1)
    assert truth == 14
    held, lowest = 0, []
    for seed in range(40):
        search, rng = UserSearch([SLO], WORKLOAD, 200), Random(seed)
        while (step := search.next()) is not None:
            run(step[0], rng, ends_clear=step[1])
        (capacity,) = search.capacities()
        lowest.append(capacity.lower or 0.0)
        held += lowest[-1] <= truth < (capacity.upper or math.inf)
    assert held >= 36
    assert median(lowest) >= truth / 3


def decided(search: UserSearch, most_that_holds: int, undecided: range = range(0), harmed: int = 10_000) -> list[int]:
    """The numbers of users that are tried if each number is decided at once, but those of `undecided` are not."""
    tried = []
    while (step := search.next()) is not None:
        level, ends_clear = step
        tried.append(level.users)
        assert len(tried) < 40
        if level.users >= harmed:
            level.harm = "slow"
        elif level.users in undecided:
            level.is_over = True
        elif level.users > most_that_holds:
            level.evidence["ttft"] = "fails"
        elif ends_clear:
            level.is_clear = True
        else:
            level.evidence["ttft"] = "holds"
    return tried


def test_numbers_are_multiplied_then_the_gap_is_halved() -> None:
    """A number is proven to hold before it is a lower bound, and the gap is less than half of it at the end."""
    search = UserSearch([SLO], WORKLOAD, 256)
    assert decided(search, 35) == [1, 4, 16, 64, 32, 45, 32]
    (capacity,) = search.capacities()
    assert (capacity.verdict, capacity.lower, capacity.upper) == ("found", 32, 45)
    assert words([capacity]) == "ttft: holds for 32 users and fails for 45 users, by 0 requests"


@pytest.mark.parametrize(
    ("most_that_holds", "undecided", "harmed", "verdict", "lower", "upper"),
    [
        (1_000, range(0), 10_000, "not_reached", 100, None),
        (0, range(0), 10_000, "below", None, 1),
        (40, range(20, 36), 10_000, "found", 16, 45),
        (26, range(20, 30), 10_000, "found", 16, 32),
        (1_000, range(0), 50, "not_reached", 45, None),  # that it did harm at 50 does not show that the SLO fails there
        (1_000, range(1, 101), 10_000, "not_enough_data", None, None),
    ],
)
def test_what_is_shown(
    most_that_holds: int, undecided: range, harmed: int, verdict: str, lower: float | None, upper: float | None
) -> None:
    """Bounds are numbers that evidence decided; doubts and harm only bound the search."""
    search = UserSearch([SLO], WORKLOAD, 100)
    decided(search, most_that_holds, undecided, harmed)
    (capacity,) = search.capacities()
    assert (capacity.verdict, capacity.lower, capacity.upper) == (verdict, lower, upper)


def test_requests_of_one_round_count_as_they_vary_together() -> None:
    """Five requests of a round that are good or bad together are one observation; independent ones count half by caution."""
    rng = Random(3)
    rounds = [float(rng.random() < 0.3) for _ in range(400)]
    together = [(number + place / 5, value) for number, value in enumerate(rounds) for place in range(5)]
    apart = [(place / 5, float(rng.random() < 0.3)) for place in range(2_000)]
    assert design_effect(together, 1.0) == pytest.approx(5.0)
    assert design_effect(apart, 1.0) == 2.0
    assert design_effect([(0.0, 0.0), (1.0, 0.0)], 1.0) == 2.0


def test_slow_requests_that_come_together_show_the_dependence_before_one_is_bad() -> None:
    """300 requests without a bad one show that the SLO holds if the slowest are scattered, and not if they are together."""
    slow = {"scattered": range(0, 300, 10), "together": range(100, 130)}
    shown = {}
    for name, places in slow.items():
        level = UserLevel(20, [SLO], WORKLOAD)
        waits_s = [0.5 + place / 1e4 if place in places else 0.1 for place in range(300)]
        results = []
        for place, wait_s in enumerate(waits_s):
            first_ns = place * 10**8 + round(wait_s * 1e9)
            timeline = Timeline(place * 10**8, first_ns=first_ns, end_ns=first_ns, content_ns=(first_ns,))
            results.append(ProbeResult("t", "chat", "id", 0.0, Outcome.OK, "", timeline))
        level.judge(results, {})
        shown[name] = level.state
    assert shown == {"scattered": "holds", "together": "undecided"}


def test_requests_in_flight_that_wait_too_long_are_bad() -> None:
    """A target that answers nothing more fails, though no late answer has come."""
    level = UserLevel(5, [SLO], WORKLOAD)
    timelines = [Timeline(place * 10**9, first_ns=place * 10**9 + 1, end_ns=place * 10**9 + 1) for place in range(50)]
    results = [ProbeResult("t", "chat", "id", 0.0, Outcome.OK, "", timeline) for timeline in timelines]
    level.judge(results, {"ttft": 60})
    assert level.state == "fails"
