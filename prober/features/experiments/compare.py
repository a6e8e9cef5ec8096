"""Paired comparison of two sides under the same requests: is one faster?

A plan has rounds. In a round each side gets the same requests (lengths, texts, times) once, and the side that goes first alternates.
A round gives one figure per axis: the difference of B from A. The pairs of the test are rounds, not requests: slow variations
(clocks, load, heat) then count as noise and not as evidence.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from random import Random
from statistics import fmean, median
from typing import Literal

from prober.measure.objective import Slo
from prober.measure.outcome import ANSWERED, NEUTRAL
from prober.results.comparison import Compared, Risk, Side
from prober.results.cost import Gpus
from prober.results.refused_requests import NOT_COUNTED, RefusedRequests
from prober.results.result import NO_REQUESTS, Load, Request, Result, Stage, Target
from prober.results.stage import quantiles_of
from prober.statistics.binomial import share_bounds
from prober.statistics.paired_test import hodges_lehmann, holm_adjusted, wilcoxon_p_value
from prober.statistics.quantiles import Quantile
from prober.workload.arrivals import poisson

Requests = Sequence[Request]
CONFIDENCE = 0.95
MAX_TOKENS_DIFFERENCE = 0.05  # of mean tokens, as a ratio: above, it is not the same work
BY_REQUEST = ("ttft", "tpot", "e2e")  # signals that decide an objective request by request
MORE_BAD = 0.01  # growth of a share of bad requests that does not matter
NO_GPUS = Gpus(None, None)
_MOVES: tuple[tuple[Literal["adopt", "go_back"], int], ...] = (("adopt", 1), ("go_back", -1))
MIN_BLOCK_REQUESTS = 10  # requests of a stored result that make a round
_ANSWERED = frozenset(outcome.value for outcome in ANSWERED)
_NEUTRAL = frozenset(outcome.value for outcome in NEUTRAL)


@dataclass(frozen=True, slots=True)
class Half:
    """Turn of a side in a round. The other side's turn has the same rate, seed and offsets.

    seed: of the requests
    offsets_ns: due times of the requests, from the start of the turn
    """

    side: Side
    rate_per_s: float
    round: int
    seed: int
    offsets_ns: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Round:
    """Requests of both sides, in the order of their draws.

    alike: both sides have the same draws, failed requests included
    workload: name if there are several; these are never pooled
    """

    rate_per_s: float
    a: Requests
    b: Requests
    alike: bool = True
    workload: str = ""


@dataclass(frozen=True, slots=True)
class Axis:
    """A quantity that is compared.

    of: figure of a round: ln(B ÷ A) if `ratio`, else B − A; None if it was not measured
    latency, q: the quantile that represents the quantity in tables
    is_bad: whether a request counts in the share, of an axis that is the share of bad ones; None for one that does not count
    """

    name: str
    ratio: bool
    lower_is_better: bool
    of: Callable[[Round], float | None]
    latency: str | None = None
    q: float = 0.5
    is_bad: Callable[[Request], bool | None] | None = None


def plan(rates_per_s: Sequence[float], rounds: int, requests: int, rng: Random) -> tuple[Half, ...]:
    """All turns in order. Arrivals are Poisson and differ between rounds."""
    halves: list[Half] = []
    for number in range(rounds):
        for rate_per_s in rates_per_s:
            offsets_ns = tuple(islice(poisson(rate_per_s, rng, 0), requests))
            seed = rng.getrandbits(64)
            sides: tuple[Side, Side] = ("a", "b") if number % 2 == 0 else ("b", "a")
            halves += [Half(side, rate_per_s, number, seed, offsets_ns) for side in sides]
    return tuple(halves)


def rounds_of(halves: Mapping[Half, Requests]) -> list[Round]:
    """Rounds of which both turns are present."""
    by_round: dict[tuple[float, int], dict[Side, Requests]] = {}
    for half, requests in halves.items():
        by_round.setdefault((half.rate_per_s, half.round), {})[half.side] = requests
    return [Round(rate, sides["a"], sides["b"]) for (rate, _), sides in by_round.items() if len(sides) == 2]


def stored_rounds(a: Result, b: Result, rounds: int) -> list[Round]:
    """Rounds of two stored results, at each rate that both have: `rounds` blocks of either in time order, paired by position.

    The sides did not alternate, so changes between the two runs are part of the difference. Raises ValueError if no rate has enough
    requests.
    """
    for side, result in (("A", a), ("B", b)):
        if not result.requests:
            raise ValueError(f"{side} {NO_REQUESTS}")
    requests_of_a, requests_of_b = _by_rate(a), _by_rate(b)
    stored: list[Round] = []
    for workload, rate_per_s in sorted(set(requests_of_a) & set(requests_of_b)):
        blocks_of_a, blocks_of_b = (
            _blocks(requests[workload, rate_per_s], rounds) for requests in (requests_of_a, requests_of_b)
        )
        if blocks_of_a and blocks_of_b:
            pairs = zip(blocks_of_a, blocks_of_b, strict=True)
            stored += [Round(rate_per_s, *pair, alike=False, workload=workload) for pair in pairs]
    if not stored:
        raise ValueError(
            f"there is no rate at which both have {rounds * MIN_BLOCK_REQUESTS} requests ({rounds} rounds of "
            f"{MIN_BLOCK_REQUESTS}); A has {_counts(a)}, B {_counts(b)}"
        )
    return stored


def stored_refused(a: Result, b: Result) -> dict[str, RefusedRequests]:
    """Refused requests of two stored results at the rates that both have, by side and stage."""
    rates = [{(_workload(stage), stage.rate_per_s) for stage in result.stages} for result in (a, b)]
    return {
        f"{side}, {stage.name}": stage.refused
        for side, result in (("A", a), ("B", b))
        for stage in result.stages
        if stage.refused.refused and (_workload(stage), stage.rate_per_s) in rates[0] & rates[1]
    }


def compare(rounds: Sequence[Round], error: float = 0.05, slos: Sequence[Slo] = ()) -> list[Compared]:
    """Every axis at every rate. The probability of any wrong claim of a difference is at most `error` (Holm)."""
    rows = _figures(rounds, axes(slos))
    ps = [wilcoxon_p_value(figures) for _, figures, _ in rows]
    adjusted = holm_adjusted(ps)
    return [_compared(*row, p, p_adjusted, error) for row, p, p_adjusted in zip(rows, ps, adjusted, strict=True)]


def risks(
    rounds: Sequence[Round],
    margin: float,
    error: float = 0.05,
    slos: Sequence[Slo] = (),
    a: Gpus = NO_GPUS,
    b: Gpus = NO_GPUS,
) -> list[Risk]:
    """Worsening of each axis by each move, and of the cost of output tokens if the dollars per hour of both sides are known.

    margin: of ratios; MORE_BAD for shares. Bounds of ratios are those of Hodges and Lehmann over the rounds. Those of a share are
    the exact binomial ones of both sides, for requests that are bad independently of each other. Each bound errs with `error` ÷
    their number, so all of them together with `error`.
    """
    rows = _figures(rounds, axes(slos))
    dollars = (a.dollars_per_hour, b.dollars_per_hour)
    if all(dollars):
        relative = math.log((dollars[1] or 0.0) / (dollars[0] or 1.0))
        rows += [
            (
                replace(axis, name="dollars_per_output_token", lower_is_better=True),
                [relative - f for f in figures],
                group,
            )
            for axis, figures, group in rows
            if axis.name == "output_tokens_per_s"
        ]
    return [risk for row in rows for risk in _risks(*row, margin, error / (2 * len(rows)))]


def _risks(
    axis: Axis, figures: Sequence[float], rounds: Sequence[Round], margin: float, error: float
) -> Iterator[Risk]:
    """Both moves of an axis; each bound errs with `error`."""
    bounds = _growth(axis, figures, rounds, error)
    for move, sign in _MOVES:
        least, most = None, None
        if bounds is not None:
            grown = sorted(math.expm1(sign * bound) if axis.ratio else sign * bound for bound in bounds)
            least, most = grown if axis.lower_is_better else (-grown[1], -grown[0])
        of_axis = (axis.name, rounds[0].rate_per_s, rounds[0].workload, axis.ratio)
        yield Risk(move, *of_axis, margin if axis.ratio else MORE_BAD, least, most)


def _growth(axis: Axis, figures: Sequence[float], rounds: Sequence[Round], error: float) -> tuple[float, float] | None:
    """Bounds of the figure of an axis over all rounds; None with too few rounds."""
    if axis.is_bad is None:
        effect = hodges_lehmann(figures, 1 - 2 * error)
        return None if effect.lower is None or effect.upper is None else (effect.lower, effect.upper)
    sides = ([request for row in rounds for request in row.a], [request for row in rounds for request in row.b])
    (low_a, high_a), (low_b, high_b) = (
        share_bounds(sum(bad), len(bad), error / 2) for bad in (_judged(axis.is_bad, side) for side in sides)
    )
    return low_b - high_a, high_b - low_a


def _figures(rounds: Sequence[Round], compared: Sequence[Axis]) -> list[tuple[Axis, list[float], list[Round]]]:
    """(axis, its figures, rounds) of each workload and rate at which at least half of the rounds have a figure."""
    rows: list[tuple[Axis, list[float], list[Round]]] = []
    for group in dict.fromkeys((row.workload, row.rate_per_s) for row in rounds):
        of_group = [row for row in rounds if (row.workload, row.rate_per_s) == group]
        for axis in compared:
            figures = [figure for row in of_group if (figure := axis.of(row)) is not None]
            if figures and 2 * len(figures) >= len(of_group):
                rows.append((axis, figures, of_group))
    return rows


def incomparable(a: Load, b: Load) -> list[str]:
    """Reasons why latencies of two loads cannot be compared; empty if they can."""
    return [
        f"A was asked for {name} {of_a}, B for {of_b}: requests of another shape have other latencies"
        for name in ("workload", "prompt_tokens", "output_tokens")
        if (of_a := getattr(a, name)) != (of_b := getattr(b, name))
    ]


def reservations(a: Target, b: Target, rounds: Sequence[Round], results: Sequence[Compared]) -> list[str]:
    """Sentences on the limits of the figures: other models, tokens that are not the same work, failures beside latencies."""
    sentences: list[str] = []
    if a.model and b.model and a.model != b.model:
        sentences.append(
            f"A serves model {a.model!r}, B {b.model!r}: a difference is the models' as well as what serves them; per-token "
            "figures do not compare if their tokenizers differ, and nothing here says which answers better"
        )
    requests_of_a = [request for row in rounds for request in row.a]
    requests_of_b = [request for row in rounds for request in row.b]
    for tokens, affected in (("prompt_tokens", "TTFT"), ("output_tokens", "E2E and throughput")):
        mean_of_a, mean_of_b = _mean(tokens, requests_of_a), _mean(tokens, requests_of_b)
        if mean_of_a and mean_of_b and abs(mean_of_b / mean_of_a - 1) > MAX_TOKENS_DIFFERENCE:
            sentences.append(
                f"A counts {mean_of_a:.4g} {tokens} a request, B {mean_of_b:.4g}: {affected} are not of the same work"
            )
    for name, requests in (("A", requests_of_a), ("B", requests_of_b)):
        if not_counted := sum(request.outcome in NOT_COUNTED for request in requests):
            sentences.append(
                f"{not_counted} of {len(requests)} requests to {name} were late by the prober itself, or cut, and do not count"
            )
    for result in results:
        if result.axis == "failures" and result.better is not None:
            worse = "B" if result.better == "a" else "A"
            sentences.append(
                f"{worse} fails more often at {result.rate_per_s:g}/s: its latencies are those of what it answered, and a target "
                "that drops requests is not fast"
            )
    return sentences


def differences(a: Target, b: Target) -> list[tuple[str, str, str]]:
    """(name, A's value, B's value) of all properties of engine and model that differ; "" for a value that is not known."""
    values_of_a, values_of_b = _properties(a), _properties(b)
    rows = ((name, values_of_a.get(name, ""), values_of_b.get(name, "")) for name in values_of_a | values_of_b)
    return [row for row in rows if row[1] != row[2]]


def _properties(target: Target) -> dict[str, str]:
    values = {
        "engine": target.engine,
        "version": target.engine_version,
        "model": target.model,
        "api": target.api,
    }
    return {name: value for name, value in values.items() if value} | dict(target.flags)


def _compared(
    axis: Axis, figures: list[float], rounds: list[Round], p: float, p_adjusted: float, error: float
) -> Compared:
    effect = hodges_lehmann(figures, CONFIDENCE)
    scale = math.expm1 if axis.ratio else float
    better: Side | None = None
    if p_adjusted <= error:
        better = "a" if (effect.estimate > 0) == axis.lower_is_better else "b"
    return Compared(
        axis.name,
        rounds[0].rate_per_s,
        axis.ratio,
        len(figures),
        scale(effect.estimate),
        None if effect.lower is None else scale(effect.lower),
        None if effect.upper is None else scale(effect.upper),
        p,
        p_adjusted,
        better,
        _pooled(axis, [request for row in rounds for request in row.a]),
        _pooled(axis, [request for row in rounds for request in row.b]),
        rounds[0].workload,
    )


def _pooled(axis: Axis, requests: Requests) -> Quantile | None:
    """Quantile of the requests that represents the axis in tables."""
    return None if axis.latency is None else next(iter(quantiles_of(axis.latency, requests, (axis.q,))), None)


def _quantile(latency: str, q: float) -> Callable[[Round], float | None]:
    """Axis figure: ln of the ratio of the quantiles."""

    def log_ratio(row: Round) -> float | None:
        of_a, of_b = (next(iter(quantiles_of(latency, side, (q,))), None) for side in (row.a, row.b))
        if of_a is None or of_b is None or of_a.estimate <= 0 or of_b.estimate <= 0:
            return None
        return math.log(of_b.estimate / of_a.estimate)

    return log_ratio


def _typical(latency: str) -> Callable[[Round], float | None]:
    """Axis figure: median of ln(B ÷ A) by request, so that lengths are not noise; of the medians if the draws differ."""
    log_ratio_of_medians = _quantile(latency, 0.5)

    def log_ratio(row: Round) -> float | None:
        if not row.alike:
            return log_ratio_of_medians(row)
        pairs = [(_latency(a, latency), _latency(b, latency)) for a, b in zip(row.a, row.b, strict=False)]
        ratios = [math.log(of_b / of_a) for of_a, of_b in pairs if of_a and of_b]
        return median(ratios) if ratios else None

    return log_ratio


def _latency(request: Request, latency: str) -> float | None:
    if request.outcome not in _ANSWERED or request.warm_up or request.cached:
        return None
    value: float | None = getattr(request, f"{latency}_s")
    return value


def _throughput(row: Round) -> float | None:
    """Axis figure: ln of the ratio of output tokens per second."""
    of_a, of_b = _tokens_per_s(row.a), _tokens_per_s(row.b)
    return None if of_a is None or of_b is None else math.log(of_b / of_a)


def _tokens_per_s(requests: Requests) -> float | None:
    """Output tokens per second from the first due time to the last end; None if a token count or a time is missing."""
    answered = [request for request in requests if request.outcome in _ANSWERED and request.e2e_s is not None]
    tokens = [request.output_tokens for request in answered if request.output_tokens is not None]
    if not tokens or len(tokens) != len(answered):
        return None
    starts_s = [request.start_s for request in requests if request.start_s is not None]
    ends_s = [request.start_s + request.e2e_s for request in answered if request.start_s is not None and request.e2e_s]
    if len(starts_s) != len(requests) or not ends_s or max(ends_s) <= min(starts_s):
        return None
    return sum(tokens) / (max(ends_s) - min(starts_s))


def _share(name: str, is_bad: Callable[[Request], bool | None]) -> Axis:
    """Axis of a share of bad requests; its figure is the difference of the shares."""

    def difference(row: Round) -> float | None:
        of_a, of_b = _judged(is_bad, row.a), _judged(is_bad, row.b)
        return fmean(of_b) - fmean(of_a) if of_a and of_b else None

    return Axis(name, False, True, difference, is_bad=is_bad)


def _judged(is_bad: Callable[[Request], bool | None], requests: Requests) -> list[bool]:
    return [bad for request in requests if (bad := is_bad(request)) is not None]


def _is_failed(request: Request) -> bool | None:
    """Whether it failed; None for one that is late, cut or refused."""
    return None if request.outcome in _NEUTRAL else request.outcome not in _ANSWERED


def _breaches(slo: Slo) -> Callable[[Request], bool | None]:
    """Judge of requests by an objective of TTFT, TPOT or E2E."""

    def is_bad(request: Request) -> bool | None:
        if not (failed := _is_failed(request)):
            latency_s = _latency(request, slo.signal)
            return None if failed is None or latency_s is None else latency_s > (slo.threshold_s or 0.0)
        return None if slo.signal == "tpot" else True

    return is_bad


def axes(slos: Sequence[Slo] = ()) -> tuple[Axis, ...]:
    """The quantities that are compared: AXES, and the share of requests that miss each objective of `slos`."""
    return (*AXES, *(_share(f"missed {slo.name}", _breaches(slo)) for slo in slos))


def per_gpu_and_dollar(compared: Sequence[Compared], a: Gpus, b: Gpus) -> Iterator[str]:
    """Sentences on output tokens/s of B against A, per GPU and per dollar; none of what is not known.

    The effect and its interval are divided by the ratio of GPUs, or of dollars per hour, which is no measurement and adds no error.
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
    Axis("ttft_p50", True, True, _typical("ttft"), "ttft"),
    Axis("ttft_p99", True, True, _quantile("ttft", 0.99), "ttft", 0.99),
    Axis("tpot_p50", True, True, _typical("tpot"), "tpot"),
    Axis("itl_p99", True, True, _quantile("itl", 0.99), "itl", 0.99),
    Axis("e2e_p50", True, True, _typical("e2e"), "e2e"),
    Axis("output_tokens_per_s", True, False, _throughput),
    _share("failures", _is_failed),
)


def _mean(tokens: str, requests: Requests) -> float | None:
    counts = [getattr(request, tokens) for request in requests if request.outcome in _ANSWERED]
    known = [count for count in counts if count is not None]
    return fmean(known) if known else None


def _by_rate(result: Result) -> dict[tuple[str, float], list[Request]]:
    """Requests by workload ("" if there is only one) and rate."""
    by_rate: dict[tuple[str, float], list[Request]] = {}
    for number, stage in enumerate(result.stages):
        if stage.rate_per_s is not None:
            requests = [request for request in result.requests if request.stage == number]
            by_rate.setdefault((_workload(stage), stage.rate_per_s), []).extend(requests)
    return by_rate


def _workload(stage: Stage) -> str:
    """Name of the stage's own workload; "" if it is that of the result."""
    return (stage.load.workload or stage.name) if stage.load is not None else ""


def _counts(result: Result) -> str:
    counts = [
        f"{len(requests)} {f'of {workload} ' if workload else ''}at {rate_per_s:g}/s"
        for (workload, rate_per_s), requests in sorted(_by_rate(result).items())
    ]
    return " and ".join(counts) or "none"


def _blocks(requests: list[Request], blocks: int) -> list[list[Request]]:
    """`blocks` blocks of equal size, in time order; none if they would be shorter than MIN_BLOCK_REQUESTS."""
    size = len(requests) // blocks
    if size < MIN_BLOCK_REQUESTS:
        return []
    ordered = sorted(requests, key=lambda request: request.start_s or 0.0)
    return [ordered[number * size : (number + 1) * size] for number in range(blocks)]
