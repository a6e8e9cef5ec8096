"""The engine that a sweep has met, as parameters of the simulated one: fitted so that a replay shows what was seen.

Least squares on logarithms (Levenberg–Marquardt, the derivatives by replay), robust (Huber), each kind of observation weighed
by its own spread. First the beginning of the record, while the engine is nearly idle, then more and more of it; at the end a walk
by chance, since what a busy engine does hangs on each step before and no slope leads far. Batch limits are not smooth: they are
tried. Seconds of CPU; pure.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import exp, inf, log, sqrt
from random import Random
from typing import NamedTuple

from prober.features.capacity.observations import FitObservation, neighbours, observations
from prober.features.capacity.replay import (
    Background,
    Look,
    Pair,
    Scene,
    Shown,
    background,
    blocks_of,
    replay,
    scene,
    until,
)
from prober.features.capacity.request_record import RequestRecord
from prober.features.capacity.sweep_record import Record
from prober.simulation.parameters import Parameters

BLOCK_TOKENS = 16
UNSEEN = 2_048  # a batch limit that nothing shows
SMOOTH = ("step_s", "sequence_s", "prefill_token_s", "kv_token_s", "max_batched_tokens", "front_s")
STEP = (0.04, 0.3, 0.04, 0.3, 0.15, 0.3)  # of log parameters, for derivatives
SPREAD = (2.0, 1.2, 2.0, 1.2, 1.0, 1.5)  # of what is taken for granted before anything is seen, of log parameters
# Spread below which no observation is trusted: what no engine repeats, and what phases of steps hide.
FLOOR = {"ttft": 0.03, "tpot": 0.01, "gap": 0.01, "gap_most": 0.05, "running": 0.15, "waiting": 0.15}
GROUP = (
    8  # neighbours that are compared as a whole too: a replay out of step errs by chance in each, and not in their mean
)
WEIGHT = {"group": 1.0, "ttft": 0.3, "tpot": 1.0, "gap": 1.0, "gap_most": 0.5, "running": 0.3, "waiting": 0.3}
HUBER = 1.5
BEFORE_S = 10.0  # of the load before the sweep is replayed
BUDGET = SMOOTH.index("max_batched_tokens")
# Token budgets that are tried, as multiples of the best one so far.
COARSE = tuple(exp(0.12 * n) for n in range(-13, 14))
FINE = tuple(exp(0.02 * n) for n in range(-6, 7))
FINEST = tuple(exp(0.004 * n) for n in range(-5, 6))
# Limits of sequences that are tried, as multiples of the most that ran.
PEAKS = (1, 1.03, 1.07, 1.12, 1.2, 1.3, 1.45, 1.6, 1.8, 2, 2.5)
SHARES = (0.35, 0.7, 1.0)  # of the record that is looked at, one after the other
FULL, SHOWN = 0.9, 3  # KV usage from which it is the cache that lets nobody in; readings that show a limit
POLISH, WALK = 200, (0.03, 0.5, 0.08, 0.5, 0.05, 0.3)  # steps by chance, and their size, of log parameters
QUEUE = 4  # so many that wait are no accident of one step
REDRAWN = 8  # times that others' requests are drawn again, where those drawn first make no breach
BLOCK_S = 4.0  # neighbours are not independent: they get one random weight

Vector = list[float]


@dataclass(frozen=True, slots=True)
class Prior:
    """What earlier sweeps found. It fades: after a day it is trusted to `spread` + `a_day` (log units), and so on."""

    parameters: Parameters
    front_s: float
    age_s: float
    spread: float = 0.1
    a_day: float = 0.3

    @property
    def deviation(self) -> float:
        """Of each log parameter."""
        return self.spread + self.a_day * self.age_s / 86_400


class Trouble(NamedTuple):
    """TTFTs above the threshold, and the most that waited in the engine."""

    breaches: int
    waiting: int


@dataclass(frozen=True, slots=True)
class Fit:
    """A fitted engine.

    front_s: what lies before it (network, gateway); repeats: engines that fit the same record under random weights
    error: median of |log(TTFT seen ÷ replayed)|; predicted, observed: what went wrong, by the replay and in truth
    slots_seen: the limit of sequences showed itself; background: what was put beside the sweep's requests; drawn: by chance, as
    nobody knows when each of them came
    """

    parameters: Parameters
    front_s: float
    repeats: tuple[tuple[Parameters, float], ...]
    error: float
    predicted: Trouble
    observed: Trouble
    slots_seen: bool
    background: Background
    drawn: bool = False

    @property
    def good(self) -> bool:
        """The replay shows what was seen, well enough to be believed about rates that were not tried.

        Two breaches or more of which the replay has none, or a queue, had a cause that the model does not know.
        """
        explained = self.observed.breaches < 2 or self.predicted.breaches > 0
        queued = self.observed.waiting < QUEUE or 4 * self.predicted.waiting >= self.observed.waiting
        many = (4 if self.drawn else 1) * (3 + 3 * sqrt(self.observed.breaches + 1))
        few = self.predicted.breaches - self.observed.breaches <= many
        return self.error < 0.2 and explained and queued and few


def fit(record: Record, rng: Random, prior: Prior | None = None, repeats: int = 8) -> Fit | None:
    """The engine of a record; None where there is too little to fit (fewer than 20 answers)."""
    answered = [each for each in record.asked if each.valid and each.first_s is not None and each.stage > 0]
    if len(answered) < 20:
        return None
    others = background(record, rng)
    late = _lately(record)
    return _Fitting(late, scene(late, others, rng), others, prior).fitted(rng, repeats)


def _lately(record: Record) -> Record:
    """Without what was long before the sweep: it tells of the load that was there, and takes time to replay."""
    from_s = record.asked[0].at_s - BEFORE_S
    others = None if record.others is None else tuple(each for each in record.others if each.arrival_s >= from_s)
    return replace(record, readings=tuple(each for each in record.readings if each[0] >= from_s), others=others)


class _Fitting:
    def __init__(self, record: Record, what: Scene, others: Background, prior: Prior | None) -> None:
        self.record, self.scene, self.others = record, what, others
        self.whole = self.seen, self.scene = observations(record), what
        self.groups: list[list[int]] = []
        self.kv_blocks = _kv_blocks(record)
        most = max(each.prompt_tokens + each.output_tokens for each in what.requests)
        self.kv_blocks = max(self.kv_blocks, blocks_of(Pair(most, 0), BLOCK_TOKENS))
        self.slots = UNSEEN
        self.center, self.spread = _start(record), list(SPREAD)
        if prior is not None:
            self.center = [log(getattr(prior.parameters, name)) for name in SMOOTH[:-1]] + [log(prior.front_s)]
            self.spread = [min(prior.deviation, wide) for wide in SPREAD]
        self.scale = dict.fromkeys(FLOOR, 0.2)
        ttfts = [each.threshold_s for each in record.slos if each.signal == "ttft" and each.threshold_s]
        self.threshold_s = min(ttfts, default=inf)

    def fitted(self, rng: Random, repeats: int) -> Fit:
        self._until(SHARES[0])
        at = self._begun()
        for share, factors in zip(SHARES, (COARSE, FINE, FINEST), strict=True):
            self._until(share)
            self.slots = self._slots(at)
            at = self._descend(self._scanned(at, factors), 3)
        at = self._polished(at, rng)
        residuals = self._residuals(at)
        jacobian = self._jacobian(at, residuals)
        found = [self._nudged(at, residuals, jacobian, rng) for _ in range(repeats)]
        ttfts = sorted(
            abs(r) * self.scale["ttft"] for r, each in zip(residuals, self.seen, strict=True) if each.kind == "ttft"
        )
        drawn = self.record.others is None and self.others.per_s > 0
        predicted, observed = self._replayed_trouble(at, self.scene), self._seen_trouble()
        if drawn and not all(predicted):
            # Others that came a little earlier or later may make the breaches and queues that these do not.
            more = [self._replayed_trouble(at, scene(self.record, self.others, rng)) for _ in range(REDRAWN)]
            predicted = Trouble(
                *(some or max(each) for some, each in zip(predicted, zip(*more, strict=True), strict=True))
            )
        parameters, front_s = self._engine(at)
        return Fit(
            parameters,
            front_s,
            tuple(self._engine(each) for each in found),
            ttfts[len(ttfts) // 2],
            predicted,
            observed,
            self.slots < UNSEEN,
            self.others,
            drawn,
        )

    def _until(self, share: float) -> None:
        """Look at so much of the record only, from its beginning.

        What a busy engine shows hangs on each step before: a little off, and the replay is out of step with what was seen, so that
        nothing leads to the truth from afar. While it is nearly idle, much can be read off it.
        """
        seen, whole = self.whole
        until_s = sorted(each.known_s for each in seen)[round(share * (len(seen) - 1))]
        self.seen = [each for each in seen if each.known_s <= until_s]
        self.scene = whole if share == 1 else until(whole, max(each.at_s for each in self.seen), until_s)
        self.groups = neighbours(self.seen, GROUP)
        self.seen += [FitObservation("group", -1, self.seen[each[0]].at_s, 0.0, 0.0) for each in self.groups]

    def _begun(self) -> Vector:
        """The better of two beginnings: the token budget has more than one valley. A prior has told which."""
        if self.spread[4] < SPREAD[4]:
            return self._descend(self.center, 2)
        ends = []
        for budget in (2_048, 512):
            self.scale = dict.fromkeys(FLOOR, 0.2)
            ends.append(self._descend([*self.center[:4], log(budget), self.center[5]], 2))
        self.scale = dict.fromkeys(FLOOR, 0.1)
        return min(ends, key=lambda at: self._cost(at, self._residuals(at)))

    def _engine(self, at: Vector) -> tuple[Parameters, float]:
        step, sequence, prefill, kv, budget, front = (exp(min(20.0, each)) for each in at)
        tokens = max(16, round(budget))
        slots = min(self.slots, max(tokens, 1))
        engine = Parameters(
            step_s=step,
            sequence_s=sequence,
            prefill_token_s=prefill,
            kv_token_s=kv,
            max_batched_tokens=tokens,
            max_sequences=slots,
            kv_blocks=self.kv_blocks,
            block_tokens=BLOCK_TOKENS,
        )
        return engine, front

    def _replayed(self, at: Vector) -> tuple[list[Shown], list[Look], float]:
        engine, front_s = self._engine(at)
        return (*replay(engine, self.scene), front_s)

    def _residuals(self, at: Vector) -> Vector:
        """(log seen - log replayed) ÷ spread of its kind, one an observation; 0 where the replay says nothing of it."""
        shown, looks, front_s = self._replayed(at)
        found = []
        for each in self.seen:
            if each.kind == "group":
                break  # they are last
            value = each.replayed(shown, looks, front_s)
            if value is None:
                # Not even begun when the record ends: far later than what was seen.
                found.append(0.0 if each.least or each.kind != "ttft" else -HUBER * 2)
                continue
            r = (each.value - value) / self.scale[each.kind]
            found.append(max(0.0, r) if each.least else r)
        return found + [
            sum(max(-2 * HUBER, min(2 * HUBER, found[n])) for n in group) / sqrt(len(group)) for group in self.groups
        ]

    def _cost(self, at: Vector, residuals: Vector) -> float:
        cost = sum(WEIGHT[each.kind] * _huber(r) for r, each in zip(residuals, self.seen, strict=True))
        return cost + sum(0.5 * ((a - c) / s) ** 2 for a, c, s in zip(at, self.center, self.spread, strict=True))

    def _rescale(self, residuals: Vector) -> None:
        for kind, floor in FLOOR.items():
            sizes = sorted(abs(r) for r, each in zip(residuals, self.seen, strict=True) if each.kind == kind)
            if sizes:
                self.scale[kind] = min(1.0, max(floor, 1.48 * sizes[len(sizes) // 2] * self.scale[kind]))

    def _jacobian(self, at: Vector, residuals: Vector) -> list[Vector]:
        """Of the replayed values, in units of spread: a list for each parameter."""
        columns = []
        for number, size in enumerate(STEP):
            there = list(at)
            there[number] += size
            columns.append([(b - a) / size for a, b in zip(self._residuals(there), residuals, strict=True)])
        return columns

    def _scanned(self, at: Vector, factors: Sequence[float]) -> Vector:
        """The best of so many token budgets, the rest moved along by one step with the slopes of here.

        How many pieces a prompt is computed in is a staircase: no slope leads from one step of it to the next.
        """
        residuals = self._residuals(at)
        self._rescale(residuals)
        residuals = self._residuals(at)
        jacobian = self._jacobian(at, residuals)
        jacobian[BUDGET] = [0.0] * len(residuals)
        best = self._cost(at, residuals), at
        for factor in factors:
            there = [*at]
            there[BUDGET] += log(factor)
            seen = self._residuals(there)
            moved = self._moved(there, seen, jacobian, 0.1, None)
            moved[BUDGET] = there[BUDGET]
            best = min(best, (self._cost(there, seen), there), (self._cost(moved, self._residuals(moved)), moved))
        return best[1]

    def _descend(self, at: Vector, rounds: int) -> Vector:
        residuals = self._residuals(at)
        damp = 0.1
        for _ in range(rounds):
            self._rescale(residuals)
            residuals = self._residuals(at)
            cost = self._cost(at, residuals)
            jacobian = self._jacobian(at, residuals)
            for _ in range(3):
                tried = self._moved(at, residuals, jacobian, damp, None)
                there = self._residuals(tried)
                if self._cost(tried, there) < cost:
                    at, residuals, damp = tried, there, damp / 5
                    break
                damp *= 6
            else:
                break
        return at

    def _moved(
        self, at: Vector, residuals: Vector, jacobian: list[Vector], damp: float, weights: Vector | None
    ) -> Vector:
        """One step of weighted, damped, regularised Gauss–Newton; at most a factor of e."""
        size = len(at)
        each_weight = [
            WEIGHT[seen.kind] * min(1.0, HUBER / max(1e-9, abs(r))) * (1.0 if weights is None else weights[n])
            for n, (r, seen) in enumerate(zip(residuals, self.seen, strict=True))
        ]
        weighted = [[w * j for w, j in zip(each_weight, column, strict=True)] for column in jacobian]
        normal = [[sum(map(float.__mul__, a, b)) for b in jacobian] for a in weighted]
        right = [sum(map(float.__mul__, column, residuals)) for column in weighted]
        for n in range(size):
            normal[n][n] += 1 / self.spread[n] ** 2
            right[n] += (self.center[n] - at[n]) / self.spread[n] ** 2
            normal[n][n] *= 1 + damp
        step = solved(normal, right)
        return [a + max(-1.0, min(1.0, s)) for a, s in zip(at, step, strict=True)]

    def _nudged(self, at: Vector, residuals: Vector, jacobian: list[Vector], rng: Random) -> Vector:
        """The fit under exponential weights, one a block of neighbours, as far as one step goes (weighted bootstrap)."""
        blocks: dict[int, float] = {}
        weights = [blocks.setdefault(int(each.at_s / BLOCK_S), rng.expovariate(1.0)) for each in self.seen]
        return self._moved(at, residuals, jacobian, 0.0, weights)

    def _polished(self, at: Vector, rng: Random) -> Vector:
        """By chance: steps of random direction and size, those kept that help; a fifth of them should (Rechenberg's rule)."""
        residuals = self._residuals(at)
        self._rescale(residuals)
        cost, size = self._cost(at, self._residuals(at)), 0.3
        for n in range(POLISH):
            if n % 40 == 39:
                self._rescale(self._residuals(at))
                cost = self._cost(at, self._residuals(at))
            step = size * exp(rng.gauss(0, 1))
            tried = [a + step * s * rng.gauss(0, 1) * (rng.random() < 0.5) for a, s in zip(at, WALK, strict=True)]
            there = self._cost(tried, self._residuals(tried))
            if there < cost:
                at, cost, size = tried, there, size * 1.5
            else:
                size *= 0.9
            size = max(0.02, size)
        return at

    def _slots(self, at: Vector) -> int:
        """The limit of sequences: what runs while others wait. Near the most that ran, or none that showed."""
        if (shown := self._shown_slots()) is not None:
            return shown
        before, best = self.slots, (inf, self.slots)
        peak = max((int(s.requests_running or 0) for _, s in self.record.readings), default=0) or self._own_peak()
        tries = sorted({*(round(peak * share) for share in PEAKS), peak + 1})
        for slots in (*(each for each in tries if each > 0), UNSEEN):
            self.slots = slots
            best = min(best, (self._cost(at, self._residuals(at)) - 2 * (slots == UNSEEN), slots))
        self.slots = before
        return best[1]

    def _shown_slots(self) -> int | None:
        """The limit, where the page shows it: some wait while as many run as ever, and not for want of cache."""
        full = [
            int(s.requests_running)
            for _, s in self.record.readings
            if s.requests_running and s.requests_waiting and (s.kv_cache_usage_ratio_max or 0.0) < FULL
        ]
        most = max((int(s.requests_running or 0) for _, s in self.record.readings), default=0)
        return most if full.count(most) >= SHOWN else None

    def _own_peak(self) -> int:
        """The most of the sweep's own that decoded at once."""
        steps = sorted(
            [(each.first_s, 1) for each in self.record.asked if each.first_s is not None]
            + [(each.end_s or each.known_s, -1) for each in self.record.asked if each.first_s is not None]
        )
        now = most = 0
        for _, step in steps:
            now += step
            most = max(most, now)
        return most

    def _seen_trouble(self) -> Trouble:
        breaches = sum(
            each.ttft_s is None or each.ttft_s > self.threshold_s for each in self.record.asked if self._judges(each)
        )
        return Trouble(breaches, max((int(s.requests_waiting or 0) for _, s in self.record.readings), default=0))

    def _replayed_trouble(self, at: Vector, what: Scene) -> Trouble:
        engine, front_s = self._engine(at)
        shown, looks = replay(engine, what)
        there = [each for each, own in zip(shown, self.record.asked, strict=True) if self._judges(own)]
        breaches = sum(each.ttft_s is None or each.ttft_s + front_s > self.threshold_s for each in there)
        return Trouble(breaches, max((each.waiting for each in looks), default=0))

    def _judges(self, each: RequestRecord) -> bool:
        """It is known whether its TTFT is above the threshold."""
        return each.valid and (each.first_s is not None or each.known_s - each.at_s > self.threshold_s)


def solved(matrix: Sequence[Sequence[float]], right: Sequence[float]) -> Vector:
    """The solution of a symmetric positive system (Gaussian elimination with pivots)."""
    size = len(right)
    rows = [[*row, r] for row, r in zip(matrix, right, strict=True)]
    for n in range(size):
        pivot = max(range(n, size), key=lambda row: abs(rows[row][n]))
        rows[n], rows[pivot] = rows[pivot], rows[n]
        for below in range(n + 1, size):
            factor = rows[below][n] / rows[n][n]
            rows[below] = [b - factor * a for a, b in zip(rows[n], rows[below], strict=True)]
    found = [0.0] * size
    for n in reversed(range(size)):
        found[n] = (rows[n][size] - sum(rows[n][k] * found[k] for k in range(n + 1, size))) / rows[n][n]
    return found


def _huber(r: float) -> float:
    size = abs(r)
    return 0.5 * size * size if size <= HUBER else HUBER * (size - 0.5 * HUBER)


def _start(record: Record) -> Vector:
    """A rough engine: its fastest gaps, and what a prompt token cost the fastest."""
    good = [each for each in record.asked if each.valid and each.ttft_s]
    gaps = sorted(each.gap_s for each in good if each.gap_s)
    step_s = gaps[len(gaps) // 10] * 0.9 if gaps else sorted(each.ttft_s or 0.0 for each in good)[0] / 2
    costs = sorted(
        max(0.02 * (each.ttft_s or 0.0), (each.ttft_s or 0.0) - 1.5 * step_s) / each.prompt_tokens for each in good
    )
    prefill_s = costs[len(costs) // 4]
    return [log(step_s), log(step_s * 0.004), log(prefill_s), log(step_s * 1e-5), log(2_048), log(step_s * 0.1)]


def _kv_blocks(record: Record) -> int:
    """As the page says; else room for anything."""
    told = [s.kv_cache_capacity_tokens for _, s in record.readings if s.kv_cache_capacity_tokens]
    return round(told[-1] / BLOCK_TOKENS) if told else 10_000_000
