"""How well does `prober sweep --over users` find the number of users that fit?

    python -m bench.users [--engines N] [--seed N] [--batches]

Engines that serve some requests at a time, in the order of their arrival, and let the others wait: a closed queue of exponential
think and service times (the machine repairman's), whose distribution of waits is known exactly. A user who sends finds what is
there without that user (arrival theorem: Lavenberg and Reiser, "Stationary state probabilities at arrival instants for closed queueing
networks", 1980), so P(wait > t) is a sum of Erlang tails. The truth is the largest number of users of whom at most the budget waits too
long. The search and its evidence are those of the command; the requests are simulated here, without a network.

With `--batches` the engines are of another kind: continuous batching, whose steps take longer with each running request, with
lognormal answers and think times, and, in half of them, pauses of a second in which nothing moves. Their truth is that of long runs.

An interval holds if the largest number that fits is at least its lower bound and below its upper one.
"""

import argparse
import heapq
import math
from bisect import bisect_left
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from itertools import islice
from random import Random
from statistics import fmean, median

from bench.report import goal, part, percentile, show
from prober.features.experiments.users import UserLevel, UserSearch
from prober.features.experiments.users_run import MAX_HARMED_RATIO
from prober.measure.objective import Slo
from prober.measure.outcome import Outcome
from prober.measure.result import ProbeResult
from prober.measure.timeline import Timeline
from prober.probing.stop_conditions import TTFT_FACTOR
from prober.workload.shapes import Fixed
from prober.workload.workloads import Workload

WORKLOAD = Workload("users", Fixed(100), Fixed(1))
MOST_USERS = 1_000


@dataclass(frozen=True)
class Queue:
    """An engine and its users. Means in seconds; threshold_s: of the wait for one of `slots`"""

    slots: int
    service_s: float
    think_s: float
    threshold_s: float
    budget: float

    def late_ratio(self, users: int) -> float:
        """Share of the requests of so many users that wait longer than the threshold."""
        weights = [1.0]  # of the numbers of requests that one user finds
        for present in range(1, users):
            rate = (users - present) / self.think_s
            weights.append(weights[-1] * rate * self.service_s / min(present, self.slots))
        mean = self.threshold_s * self.slots / self.service_s  # departures in the threshold while all slots are busy
        late, term, below = 0.0, math.exp(-mean), 0.0
        for present in range(self.slots, users):
            below += term
            term *= mean / (present - self.slots + 1)
            late += weights[present] * below
        return late / sum(weights)

    def most_users(self) -> int:
        """The largest number of users of whom at most the budget waits too long."""
        return next(users for users in range(1, MOST_USERS) if self.late_ratio(users + 1) > self.budget)

    def requests(self, users: int, rng: Random) -> Iterator[tuple[float, float]]:
        """(due time, wait) of each request, in seconds and in this order. The first ones are spread over a mean think time."""
        free, due = [0.0] * self.slots, [user / users * self.think_s for user in range(users)]
        while True:
            at_s = heapq.heappop(due)
            begin_s = max(at_s, heapq.heappop(free))
            end_s = begin_s + rng.expovariate(1 / self.service_s)
            heapq.heappush(free, end_s)
            heapq.heappush(due, end_s + rng.expovariate(1 / self.think_s))
            yield at_s, begin_s - at_s


@dataclass(frozen=True)
class Batch:
    """An engine that serves its requests in a batch. Means in seconds; tokens: median of an answer

    step_s: of one running request; further_s: longer for each further one
    pause_every_s: mean time between pauses; 0: none
    """

    slots: int
    step_s: float
    further_s: float
    tokens: float
    think_s: float
    think_sigma: float
    threshold_s: float
    budget: float
    pause_every_s: float

    def requests(self, users: int, rng: Random) -> Iterator[tuple[float, float]]:
        """(due time, wait) of each request, in seconds and in this order."""
        think_mu = math.log(self.think_s) - self.think_sigma**2 / 2
        due = [user / users * self.think_s for user in range(users)]
        waiting, running = deque[float](), list[float]()  # running: tokens of a request from the start at its end
        at_s = served = 0.0
        pause_s = rng.expovariate(1 / self.pause_every_s) if self.pause_every_s else math.inf
        while True:
            step_s = self.step_s + self.further_s * max(0, len(running) - 1)
            end_s = at_s + (running[0] - served) * step_s if running else math.inf
            due_s = due[0] if due else math.inf
            next_s = min(end_s, due_s, pause_s)
            served += (next_s - at_s) / step_s if running else 0.0
            at_s = next_s
            if pause_s == next_s:
                at_s += rng.expovariate(1)
                pause_s = at_s + rng.expovariate(1 / self.pause_every_s)
                while due and due[0] < at_s:
                    waiting.append(heapq.heappop(due))
            elif end_s == next_s:
                heapq.heappop(running)
                heapq.heappush(due, at_s + rng.lognormvariate(think_mu, self.think_sigma))
            else:
                waiting.append(heapq.heappop(due))
            while waiting and len(running) < self.slots:
                tokens = max(1.0, rng.lognormvariate(math.log(self.tokens), 0.8))
                heapq.heappush(running, served + tokens)
                sent_s = waiting.popleft()
                yield sent_s, at_s - sent_s + self.step_s + self.further_s * (len(running) - 1)

    def late_ratio(self, users: int, count: int = 60_000) -> float:
        """Share of requests that wait longer than the threshold, in a long run."""
        waits = (wait_s for _, wait_s in islice(self.requests(users, Random(1)), 5 * users, 5 * users + count))
        return sum(wait_s > self.threshold_s for wait_s in waits) / count

    def most_users(self) -> int:
        """The largest number of users of whom at most the budget waits too long."""
        return bisect_left(range(MOST_USERS), True, key=lambda users: self.late_ratio(users + 1) > self.budget)


def batches(count: int, rng: Random) -> list[Batch]:
    """Random engines with batches on which 3 to 200 users fit."""
    found: list[Batch] = []
    while len(found) < count:
        step_s = rng.uniform(0.01, 0.05)
        batch = Batch(
            slots=rng.choice((2, 4, 8, 16, 32, 64)),
            step_s=step_s,
            further_s=step_s * rng.choice((0.02, 0.05, 0.15)),
            tokens=rng.choice((20.0, 70.0, 140.0)),
            think_s=rng.uniform(0.5, 20.0),
            think_sigma=rng.choice((0.5, 1.0, 1.5)),
            threshold_s=rng.choice((0.3, 0.5, 1.0, 2.0)),
            budget=rng.choice((0.1, 0.05, 0.01)),
            pause_every_s=rng.choice((0.0, 0.0, 120.0, 300.0)),
        )
        if batch.late_ratio(3, 20_000) <= batch.budget < batch.late_ratio(200, 20_000):
            found.append(batch)
    return found


def engines(count: int, rng: Random) -> list[Queue]:
    """Random engines on which 3 to 300 users fit."""
    found: list[Queue] = []
    while len(found) < count:
        service_s = rng.uniform(0.3, 5.0)
        queue = Queue(
            slots=rng.choice((1, 2, 4, 8, 16, 32)),
            service_s=service_s,
            think_s=rng.uniform(0.5, 20.0),
            threshold_s=service_s * rng.uniform(0.2, 1.5),
            budget=rng.choice((0.1, 0.05, 0.01)),
        )
        if queue.late_ratio(3) <= queue.budget < queue.late_ratio(300):
            found.append(queue)
    return found


def run_level(queue: Queue | Batch, level: UserLevel, rng: Random, *, ends_clear: bool) -> float:
    """Send to one engine until the evidence decides; returns the seconds that it takes."""
    results: list[ProbeResult] = []
    at_s = 0.0
    level.begin()
    slow: deque[bool] = deque(maxlen=level.users)
    for number, (at_s, wait_s) in enumerate(queue.requests(level.users, rng)):
        if at_s <= queue.think_s:  # each user's first request
            continue
        due_ns, first_ns = round(at_s * 1e9), round((at_s + wait_s) * 1e9)
        timeline = Timeline(due_ns, first_ns=first_ns, end_ns=first_ns, content_ns=(first_ns,))
        results.append(ProbeResult("t", "users", str(number), 0.0, Outcome.OK, "", timeline))
        slow.append(wait_s > TTFT_FACTOR * queue.threshold_s)
        is_harmed = sum(slow) > max(1.0, MAX_HARMED_RATIO * level.users)
        if number % max(5, level.users // 4) == 0 or is_harmed:
            level.judge(results, {})
            level.samples += len(results)
            results.clear()
            if is_harmed and level.state != "fails":
                level.stop("slow")
            if level.is_over or is_harmed or (ends_clear and level.is_clear):
                break
    return at_s


def search(queue: Queue | Batch, rng: Random) -> tuple[UserSearch, float]:
    """The finished search, and the seconds of sending."""
    slo = Slo("ttft", "ttft", queue.threshold_s, Decimal(1) - Decimal(str(queue.budget)), 2_592_000.0)
    found, seconds = UserSearch([slo], WORKLOAD, MOST_USERS), 0.0
    while (step := found.next()) is not None:
        level, ends_clear = step
        seconds += run_level(queue, level, rng, ends_clear=ends_clear)
    return found, seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engines", type=int, default=20)
    parser.add_argument("--seed", type=int, default=2)
    parser.add_argument("--batches", action="store_true")
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args()
    rng, errors, held, widths, requests, spans_s, below, verdicts = Random(options.seed), [], [], [], [], [], [], []
    found_engines = (batches if options.batches else engines)(options.engines, rng)
    for queue in found_engines:
        truth = queue.most_users()
        found, seconds = search(queue, rng)
        (capacity,) = found.capacities()
        verdicts.append(capacity.verdict)
        lower, upper = capacity.lower or 0.0, capacity.upper or math.inf
        held.append(lower <= truth < upper)
        below.append(lower > truth)
        errors.append(abs(lower / truth - 1))
        widths.append(upper / max(lower, 1.0))
        requests.append(capacity.samples)
        spans_s.append(seconds)
        part(str(queue), {"truth": truth, "lower": lower, "upper": upper, "requests": capacity.samples})
        if options.verbose:
            tried = {users: (level.state, level.harm, level.is_clear) for users, level in found.levels.items()}
            print(queue, truth, lower, upper, capacity.samples, round(seconds), tried)
    show(
        "users",
        [
            goal("intervals that do not hold the largest number that fits", 100 * (1 - fmean(held)), 10.0, "%"),
            goal("lower bounds above the largest number that fits", 100 * fmean(below), 5.0, "%"),
            goal("lower bound below the largest number that fits, median", 100 * median(errors), 20.0, "%"),
            goal("requests, median", median(requests), 3_000, "requests"),
            goal("minutes, median", median(spans_s) / 60, 15.0, "min"),
        ],
        engines=options.engines,
        error_p90_percent=100 * percentile(errors, 0.9),
        upper_to_lower_median=median(widths),
        verdicts={verdict: verdicts.count(verdict) for verdict in set(verdicts)},
    )


if __name__ == "__main__":
    main()
