"""Paired comparison of two sides under the same requests: is one faster?

A plan has rounds. In a round each side gets the same requests (lengths, texts, times) once; the side that goes first alternates.
A round gives one figure per axis: the difference of B from A. The test's pairs are rounds, not requests, so that slow variations
(clocks, load, heat) count as noise and not as evidence. If successive requests are so alike that rounds are dependent,
the pairs are means of several rounds.
"""

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice, pairwise
from random import Random
from statistics import fmean, median
from typing import Literal

from prober.measure.objective import Slo
from prober.measure.outcome import ANSWERED, NEUTRAL, Outcome
from prober.measure.result import ProbeResult
from prober.results.comparison import Compared, ComparedAnswers, Risk, Side
from prober.results.cost import Gpus
from prober.results.refused_requests import NOT_COUNTED, RefusedRequests
from prober.results.result import MeasuredTarget, RequestRow, Result, Stage
from prober.results.stage import quantiles_of
from prober.statistics.paired_test import (
    Effect,
    autocorrelation_time,
    hodges_lehmann,
    holm_adjusted,
    mcnemar_p_value,
    student_effect,
    student_p_value,
    wilcoxon_p_value,
)
from prober.statistics.quantiles import Quantile, share_bounds
from prober.workload.arrivals import poisson

Requests = Sequence[RequestRow]
CONFIDENCE = 0.95
MAX_TOKENS_DIFFERENCE = 0.05  # of mean tokens, as a ratio: beyond it the work is not the same
BY_REQUEST = ("ttft", "tpot", "e2e")  # signals whose objective each request meets or misses
MORE_BAD = 0.01  # irrelevant growth of a share of bad requests
NO_GPUS = Gpus(None, None)
_MOVES: tuple[tuple[Literal["adopt", "go_back"], int], ...] = (("adopt", 1), ("go_back", -1))
MIN_BLOCK_REQUESTS = 10  # of a stored result, per round
# Autocorrelation times in a batch of requests; neighbouring batch means are then correlated by 0.07.
BATCH_TIMES = 4.0
MAX_LOG_RATIO = 700.0  # of a float; bounds from two batches extend far
SHAPE_ERROR = 0.001  # chance that lengths of one distribution appear to be from two


@dataclass(frozen=True, slots=True)
class PlannedRound:
    """A planned round: both sides get the same requests, one after the other.

    number: from 0, per rate
    sides: in order of their turns
    seed: seed of the random requests
    offsets_ns: due times of the requests, from the start of a turn
    """

    rate_per_s: float
    number: int
    sides: tuple[Side, Side]
    seed: int
    offsets_ns: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Round:
    """Requests of both sides in one round, in the order of generation.

    alike: both sides got the same requests, and failed ones are included
    workload: name of the workload if there are several, which are never pooled
    """

    rate_per_s: float
    a: Requests
    b: Requests
    alike: bool = True
    workload: str = ""


@dataclass(frozen=True, slots=True)
class Axis:
    """A quantity that is compared.

    of: figure of a round: ln(B ÷ A) if `ratio`, else B − A; None if not measured
    of_request: value of a request for the autocorrelation: ln of its latency; for shares 1 if the request is bad, else 0; None if it is
    not counted
    latency, q: the quantile that represents the quantity in tables
    """

    name: str
    ratio: bool
    lower_is_better: bool
    of: Callable[[Round], float | None]
    of_request: Callable[[RequestRow], float | None]
    latency: str | None = None
    q: float = 0.5


@dataclass(frozen=True, slots=True)
class _Row:
    """The figures of an axis at a rate.

    figures: independent values, one per round; or means of several rounds if `are_batches`
    """

    axis: Axis
    figures: Sequence[float]
    rounds: Sequence[Round]
    are_batches: bool

    def effect(self, confidence: float) -> Effect:
        """The difference over all rounds, with its confidence interval."""
        return (student_effect if self.are_batches else hodges_lehmann)(self.figures, confidence)


def plan(rates_per_s: Sequence[float], rounds: int, requests: int, rng: Random) -> list[PlannedRound]:
    """Plan all rounds in order, with different Poisson arrivals in each."""
    planned: list[PlannedRound] = []
    for number in range(rounds):
        sides: tuple[Side, Side] = ("a", "b") if number % 2 == 0 else ("b", "a")
        for rate_per_s in rates_per_s:
            offsets_ns = tuple(islice(poisson(rate_per_s, rng, 0), requests))
            planned.append(PlannedRound(rate_per_s, number, sides, rng.getrandbits(64), offsets_ns))
    return planned


def stored_rounds(a: Result, b: Result, rounds: int) -> list[Round]:
    """Make rounds of two stored results at each common rate: `rounds` blocks of either in time order, paired by position.

    The sides did not alternate, so the difference includes changes between the two runs. Raises ValueError if no rate has enough
    requests.
    """
    for side, result in (("A", a), ("B", b)):
        if not result.requests:
            raise ValueError(f"{side} {result.why_no_requests}")
    requests_of_a, requests_of_b = _by_rate(a), _by_rate(b)
    stored: list[Round] = []
    for workload, rate_per_s in sorted(set(requests_of_a) & set(requests_of_b)):
        sides = [
            sorted(requests[workload, rate_per_s], key=lambda request: request.start_s or 0.0)
            for requests in (requests_of_a, requests_of_b)
        ]
        sizes = [len(requests) // rounds for requests in sides]
        if min(sizes) >= MIN_BLOCK_REQUESTS:
            for number in range(rounds):
                block_a, block_b = (
                    requests[number * size : (number + 1) * size] for requests, size in zip(sides, sizes, strict=True)
                )
                stored.append(Round(rate_per_s, block_a, block_b, alike=False, workload=workload))
    if not stored:
        raise ValueError(
            f"there is no rate at which both have {rounds * MIN_BLOCK_REQUESTS} requests ({rounds} rounds of "
            f"{MIN_BLOCK_REQUESTS}); A has {_counts(a)}, B {_counts(b)}"
        )
    return stored


def stored_refused(a: Result, b: Result) -> dict[str, RefusedRequests]:
    """{side and stage: refused requests} of two stored results at their common rates."""
    rates = [{(_workload(stage), stage.rate_per_s) for stage in result.stages} for result in (a, b)]
    return {
        f"{side}, {stage.name}": stage.refused
        for side, result in (("A", a), ("B", b))
        for stage in result.stages
        if stage.refused.refused and (_workload(stage), stage.rate_per_s) in rates[0] & rates[1]
    }


def compare(rounds: Sequence[Round], error: float = 0.05, slos: Sequence[Slo] = ()) -> list[Compared]:
    """Compare the sides on every axis at every rate. The probability of any wrong claimed difference is at most `error` (Holm)."""
    rows = _rows(rounds, axes(slos))
    ps = [(student_p_value if row.are_batches else wilcoxon_p_value)(row.figures) for row in rows]
    compared: list[Compared] = []
    for row, p, p_adjusted in zip(rows, ps, holm_adjusted(ps), strict=True):
        axis, of_row, effect = row.axis, row.rounds, row.effect(CONFIDENCE)
        b_is_better = (effect.estimate > 0) != axis.lower_is_better
        compared.append(
            Compared(
                axis=axis.name,
                rate_per_s=of_row[0].rate_per_s,
                ratio=axis.ratio,
                rounds=len(row.figures),
                effect=_scaled(axis, effect.estimate),
                lower=None if effect.lower is None else _scaled(axis, effect.lower),
                upper=None if effect.upper is None else _scaled(axis, effect.upper),
                p=p,
                p_adjusted=p_adjusted,
                better=None if p_adjusted > error else "b" if b_is_better else "a",
                a=_pooled(axis, [request for of_round in of_row for request in of_round.a]),
                b=_pooled(axis, [request for of_round in of_row for request in of_round.b]),
                workload=of_row[0].workload,
            )
        )
    return compared


def compare_answers(
    a: Sequence[ProbeResult | None], b: Sequence[ProbeResult | None], error: float
) -> list[ComparedAnswers]:
    """Compare by every check of every workload, on requests answered by both sides. Any claim is wrong with at most `error`.

    a, b: results of the same requests in the same order; None for unsent ones
    """
    counts: dict[tuple[str, str], Counter[tuple[bool, bool]]] = {}
    for of_a, of_b in zip(a, b, strict=True):
        if of_a and of_b and of_a.check and of_a.check == of_b.check and {of_a.outcome, of_b.outcome} <= ANSWERED:
            wrong = of_a.outcome is Outcome.WRONG_ANSWER, of_b.outcome is Outcome.WRONG_ANSWER
            counts.setdefault((of_a.workload, of_a.check), Counter())[wrong] += 1
    ps = holm_adjusted([mcnemar_p_value(of[True, False], of[False, True]) for of in counts.values()])
    compared: list[ComparedAnswers] = []
    for (key, of), p in zip(counts.items(), ps, strict=True):
        only_a, only_b = of[True, False], of[False, True]
        better: Side | None = None if p > error else "a" if only_b > only_a else "b"
        compared.append(ComparedAnswers(*key, of.total(), only_a, only_b, of[True, True], p, better))
    return compared


def risks(
    rounds: Sequence[Round],
    margin: float,
    error: float = 0.05,
    slos: Sequence[Slo] = (),
    a: Gpus = NO_GPUS,
    b: Gpus = NO_GPUS,
) -> list[Risk]:
    """The worsening of each axis to expect from a move to B and from one back to A, also for the cost of output tokens if the dollars
    per hour of both sides are known.

    margin: tolerated worsening of ratios; shares use MORE_BAD. Bounds of ratios are those of the effect over the rounds; those of a
    share are exact binomial ones of both sides, for the effective number of independent requests. Each bound is wrong with probability
    `error` ÷ number of bounds, so any of them with at most `error`.
    """
    rows = _rows(rounds, axes(slos))
    dollars = (a.dollars_per_hour, b.dollars_per_hour)
    if all(dollars):
        relative = math.log((dollars[1] or 0.0) / (dollars[0] or 1.0))
        rows += [
            replace(
                row,
                axis=replace(row.axis, name="dollars_per_output_token", lower_is_better=True),
                figures=[relative - figure for figure in row.figures],
            )
            for row in rows
            if row.axis.name == "output_tokens_per_s"
        ]
    return [risk for row in rows for risk in _risks(row, margin, error / (2 * len(rows)))]


def _risks(row: _Row, margin: float, error: float) -> Iterator[Risk]:
    """The worsening of an axis by a move to B, and by one back to A. error: probability that a bound is wrong"""
    axis, rounds, bounds = row.axis, row.rounds, _growth(row, error)
    for move, sign in _MOVES:
        least, most = None, None
        if bounds is not None:
            grown = sorted(_scaled(axis, sign * bound) for bound in bounds)
            least, most = grown if axis.lower_is_better else (-grown[1], -grown[0])
        of_axis = (axis.name, rounds[0].rate_per_s, rounds[0].workload, axis.ratio)
        yield Risk(move, *of_axis, margin if axis.ratio else MORE_BAD, least, most)


def _growth(row: _Row, error: float) -> tuple[float, float] | None:
    """(lower, upper) bound of B's difference from A on an axis, over all rounds; None with too few rounds."""
    if row.axis.ratio:
        effect = row.effect(1 - 2 * error)
        return None if effect.lower is None or effect.upper is None else (effect.lower, effect.upper)
    bounds: list[tuple[float, float]] = []
    for bad in _values(row.axis, row.rounds):
        time = autocorrelation_time(bad)
        bounds.append(share_bounds(round(sum(bad) / time), max(1, round(len(bad) / time)), error / 2))
    (low_a, high_a), (low_b, high_b) = bounds
    return low_b - high_a, high_b - low_a


def _scaled(axis: Axis, figure: float) -> float:
    """B's difference from A for reports: B ÷ A − 1 for a ratio, else B − A, within the limits of a share."""
    return math.expm1(min(figure, MAX_LOG_RATIO)) if axis.ratio else max(-1.0, min(1.0, figure))


def _rows(rounds: Sequence[Round], compared: Sequence[Axis]) -> list[_Row]:
    """Figures of each axis per workload and rate, if at least half of the rounds have one."""
    rows: list[_Row] = []
    for group in dict.fromkeys((row.workload, row.rate_per_s) for row in rounds):
        of_group = [row for row in rounds if (row.workload, row.rate_per_s) == group]
        for axis in compared:
            figures = [figure for row in of_group if (figure := axis.of(row)) is not None]
            if figures and 2 * len(figures) >= len(of_group):
                means = _batch_means(axis, figures, of_group)
                rows.append(_Row(axis, means, of_group, are_batches=len(means) < len(figures)))
    return rows


def _batch_means(axis: Axis, figures: Sequence[float], rounds: Sequence[Round]) -> list[float]:
    """Means of successive figures in at least two batches, if possible as long as BATCH_TIMES autocorrelation times of both sides.

    A round in which the sides take turns lasts as long as both sides' requests.
    """
    turns = 2 if rounds[0].alike else 1
    lengths = (turns * len(values) / autocorrelation_time(values) for values in _values(axis, rounds))
    batches = min(len(figures), max(2, int(min(lengths) / BATCH_TIMES)))
    edges = [number * len(figures) // batches for number in range(batches + 1)]
    return [fmean(figures[begin:end]) for begin, end in pairwise(edges)]


def _values(axis: Axis, rounds: Sequence[Round]) -> list[list[float]]:
    """[A's values, B's values] of the requests on an axis, in order of time."""
    return [
        [value for row in rounds for request in getattr(row, side) if (value := axis.of_request(request)) is not None]
        for side in ("a", "b")
    ]


def incomparable(a: Result, b: Result) -> list[str]:
    """Why latencies of two results cannot be compared; empty if they can.

    Lengths with different settings are compared as distributions, if both results have their requests' lengths.
    """
    reasons: list[str] = []
    for name in ("workload", "prompt_tokens", "output_tokens"):
        of_a, of_b = getattr(a.load, name), getattr(b.load, name)
        lengths_a, lengths_b = ([] if name == "workload" else _known(name, result.requests) for result in (a, b))
        if of_a == of_b or (lengths_a and lengths_b and not _are_apart(lengths_a, lengths_b)):
            continue
        difference = f"A was asked for {name} {of_a}, B for {of_b}"
        if lengths_a and lengths_b:
            text_a, text_b = (
                f"{min(lengths):,} to {max(lengths):,} (mean {fmean(lengths):.4g})"
                for lengths in (lengths_a, lengths_b)
            )
            difference = f"requests of A have {name} of {text_a}, those of B of {text_b}"
        reasons.append(f"{difference}: requests of another shape have other latencies")
    return reasons


def _are_apart(a: Sequence[int], b: Sequence[int]) -> bool:
    """True if two samples of lengths differ: by the Kolmogorov–Smirnov test, and by more than MAX_TOKENS_DIFFERENCE.

    The difference is the mean distance between equal quantiles ÷ the mean length.
    """
    a, b = sorted(a), sorted(b)
    limit = math.sqrt(math.log(2 / SHAPE_ERROR) / 2 * (1 / len(a) + 1 / len(b)))
    distance = max(abs(bisect_right(a, value) / len(a) - bisect_right(b, value) / len(b)) for value in {*a, *b})
    apart = fmean(abs(a[percent * len(a) // 100] - b[percent * len(b) // 100]) for percent in range(100))
    return distance > limit and apart > MAX_TOKENS_DIFFERENCE * fmean((*a, *b))


def reservations(
    a: MeasuredTarget, b: MeasuredTarget, rounds: Sequence[Round], results: Sequence[Compared]
) -> list[str]:
    """Sentences about limits of a comparison: different models, different work per token, failures that distort latencies."""
    sentences: list[str] = []
    if a.model and b.model and a.model != b.model:
        sentences.append(
            f"A serves model {a.model!r}, B {b.model!r}: a difference is the models' as well as what serves them; per-token "
            "figures do not compare if their tokenizers differ, and nothing here says which answers better"
        )
    requests_of_a = [request for row in rounds for request in row.a]
    requests_of_b = [request for row in rounds for request in row.b]
    for tokens, affected in (("prompt_tokens", "TTFT"), ("output_tokens", "E2E and throughput")):
        mean_of_a, mean_of_b = (fmean(_known(tokens, side) or [0]) for side in (requests_of_a, requests_of_b))
        if mean_of_a and mean_of_b and abs(mean_of_b / mean_of_a - 1) > MAX_TOKENS_DIFFERENCE:
            sentences.append(
                f"A counts {mean_of_a:.4g} {tokens} a request, B {mean_of_b:.4g}: {affected} are not of the same work"
            )
    for name, requests in (("A", requests_of_a), ("B", requests_of_b)):
        if not_counted := sum(request.outcome in NOT_COUNTED for request in requests):
            sentences.append(
                f"{not_counted} of {len(requests)} requests to {name} were not sent by the prober, or cut, and do not count"
            )
    groups = Counter((row.workload, row.rate_per_s) for row in rounds)
    merged = [axis for axis in results if 2 * axis.rounds <= groups[axis.workload, axis.rate_per_s]]
    if merged:
        counts = (f"{axis.place}: {axis.rounds}" for axis in merged)
        sentences.append(
            "successive requests are so alike that rounds are not independent, and count as fewer "
            f"({', '.join(counts)}): it takes more requests, or more rounds, to show a difference there"
        )
    for result in results:
        if result.axis == "failures" and result.better is not None:
            worse = "B" if result.better == "a" else "A"
            sentences.append(
                f"{worse} fails more often at {result.rate_per_s:g}/s: its latencies are those of what it answered, and a target "
                "that drops requests is not fast"
            )
    return sentences


def differences(a: MeasuredTarget, b: MeasuredTarget) -> list[tuple[str, str, str]]:
    """(name, A's value, B's value) of engine and model properties that differ; "" for an unknown value."""
    names = {"engine": "engine", "version": "engine_version", "model": "model", "api": "api"}
    of_a, of_b = (
        {name: value for name, field in names.items() if (value := getattr(target, field))} | dict(target.flags)
        for target in (a, b)
    )
    rows = ((name, of_a.get(name, ""), of_b.get(name, "")) for name in of_a | of_b)
    return [row for row in rows if row[1] != row[2]]


def _pooled(axis: Axis, requests: Requests) -> Quantile | None:
    """Latency quantile that represents the axis in tables; None without one, or without samples."""
    return None if axis.latency is None else next(iter(quantiles_of(axis.latency, requests, (axis.q,))), None)


def _quantile(latency: str, q: float, row: Round) -> float | None:
    """ln(quantile of B ÷ quantile of A) of a round."""
    of_a, of_b = (next(iter(quantiles_of(latency, side, (q,))), None) for side in (row.a, row.b))
    if of_a is None or of_b is None or of_a.estimate <= 0 or of_b.estimate <= 0:
        return None
    return math.log(of_b.estimate / of_a.estimate)


def _typical(latency: str, row: Round) -> float | None:
    """Median of ln(B ÷ A) over equal requests of a round, or ln of the ratio of medians if the requests differ."""
    if not row.alike:
        return _quantile(latency, 0.5, row)
    pairs = [(a.latency(latency), b.latency(latency)) for a, b in zip(row.a, row.b, strict=False)]
    ratios = [math.log(of_b / of_a) for of_a, of_b in pairs if of_a and of_b]
    return median(ratios) if ratios else None


def _log(latency: str, request: RequestRow) -> float | None:
    """ln of a latency of a request."""
    return math.log(value) if (value := request.latency(latency)) else None


def _throughput(row: Round) -> float | None:
    """ln(output tokens per second of B ÷ those of A) in a round."""
    of_a, of_b = map(_tokens_per_s, (row.a, row.b))
    return None if of_a is None or of_b is None else math.log(of_b / of_a)


def _tokens_per_s(requests: Requests) -> float | None:
    """Output tokens per second from the first due time to the last end; None if a token count or a time is missing."""
    answered = [request for request in requests if request.is_answered and request.e2e_s is not None]
    tokens = [request.output_tokens for request in answered if request.output_tokens is not None]
    if not tokens or len(tokens) != len(answered):
        return None
    starts_s = [request.start_s for request in requests if request.start_s is not None]
    ends_s = [request.start_s + request.e2e_s for request in answered if request.start_s is not None and request.e2e_s]
    if len(starts_s) != len(requests) or not ends_s or max(ends_s) <= min(starts_s):
        return None
    return sum(tokens) / (max(ends_s) - min(starts_s))


def _share(name: str, is_bad: Callable[[RequestRow], bool | None]) -> Axis:
    """Axis of a share of bad requests; its figure is the difference of the shares."""

    def difference(row: Round) -> float | None:
        of_a, of_b = ([bad for request in side if (bad := is_bad(request)) is not None] for side in (row.a, row.b))
        return fmean(of_b) - fmean(of_a) if of_a and of_b else None

    return Axis(name, False, True, difference, is_bad)


def _is_failed(request: RequestRow) -> bool | None:
    """True if a request failed; None if it was not sent, or was cut or refused."""
    return None if request.outcome in NEUTRAL else not request.is_answered


def _is_breach(slo: Slo, request: RequestRow) -> bool | None:
    """True if a request breaches an objective of TTFT, TPOT or E2E; None if it is not counted."""
    if not (failed := _is_failed(request)):
        latency_s = request.latency(slo.signal)
        return None if failed is None or latency_s is None else latency_s > (slo.threshold_s or 0.0)
    return None if slo.signal == "tpot" else True


def axes(slos: Sequence[Slo] = ()) -> tuple[Axis, ...]:
    """Axes of a comparison: AXES, and per SLO the share of requests that miss it."""
    return (*AXES, *(_share(f"missed {slo.name}", partial(_is_breach, slo)) for slo in slos))


def per_gpu_and_dollar(compared: Sequence[Compared], a: Gpus, b: Gpus) -> Iterator[str]:
    """Sentences that compare output tokens/s per GPU and per dollar, if both sides' GPUs or prices are known.

    Effect and confidence interval are divided by the exact ratio of GPUs or dollars per hour.
    """
    shares = (("GPU", a.count, b.count), ("dollar", a.dollars_per_hour, b.dollars_per_hour))
    for axis in (axis for axis in compared if axis.axis == "output_tokens_per_s"):
        workload = f"{axis.workload} " if axis.workload else ""
        for unit, of_a, of_b in shares:
            if of_a and of_b:
                values = [
                    None if value is None else (1 + value) * of_a / of_b - 1
                    for value in (axis.effect, axis.lower, axis.upper)
                ]
                effect, lower, upper = ("?" if value is None else f"{value * 100:+.1f}%" for value in values)
                yield (
                    f"output tokens/s per {unit}, {workload}at {axis.rate_per_s:g}/s: B against A {effect} (95% interval {lower} to "
                    f"{upper}), for one axis alone; both sides got the same rate, so this is not what they can deliver at most"
                )


AXES = (
    Axis("ttft_p50", True, True, partial(_typical, "ttft"), partial(_log, "ttft"), "ttft"),
    Axis("ttft_p99", True, True, partial(_quantile, "ttft", 0.99), partial(_log, "ttft"), "ttft", 0.99),
    Axis("tpot_p50", True, True, partial(_typical, "tpot"), partial(_log, "tpot"), "tpot"),
    Axis("itl_p99", True, True, partial(_quantile, "itl", 0.99), partial(_log, "tpot"), "itl", 0.99),
    Axis("e2e_p50", True, True, partial(_typical, "e2e"), partial(_log, "e2e"), "e2e"),
    Axis("output_tokens_per_s", True, False, _throughput, partial(_log, "e2e")),
    _share("failures", _is_failed),
)


def _known(tokens: str, requests: Requests) -> list[int]:
    """Known token counts of the answered requests. tokens: attribute of `RequestRow`"""
    counts = [getattr(request, tokens) for request in requests if request.is_answered]
    return [count for count in counts if count is not None]


def _by_rate(result: Result) -> dict[tuple[str, float], list[RequestRow]]:
    """Requests by workload ("" if there is only one) and rate."""
    by_rate: dict[tuple[str, float], list[RequestRow]] = {}
    for stage in result.stages:
        if stage.rate_per_s is not None:
            by_rate.setdefault((_workload(stage), stage.rate_per_s), []).extend(stage.requests)
    return by_rate


def _workload(stage: Stage) -> str:
    """Name of the stage's own workload; "" if it has the result's."""
    return (stage.load.workload or stage.name) if stage.load is not None else ""


def _counts(result: Result) -> str:
    counts = [
        f"{len(requests)} {f'of {workload} ' if workload else ''}at {rate_per_s:g}/s"
        for (workload, rate_per_s), requests in sorted(_by_rate(result).items())
    ]
    return " and ".join(counts) or "none"
