"""Two sides, the same requests, turn and turn about: is one faster?

A plan has rounds; in a round each side gets the same requests (lengths, texts, times) once, and who goes first alternates. Of a
round remains one figure an axis: how much B's differs from A's. Rounds are the pairs of the test, not requests: what wanders
for minutes (clocks, load, heat) is then in the noise, where it belongs, and not taken for evidence.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from random import Random
from statistics import fmean, median

from prober.measure.outcome import ANSWERED, NEUTRAL, Outcome
from prober.results.comparison import Compared, Side
from prober.results.result import NO_REQUESTS, Load, Request, Result, Target
from prober.results.stage import quantiles_of
from prober.statistics.paired_test import hodges_lehmann, holm_adjusted, wilcoxon_p_value
from prober.statistics.quantiles import Quantile
from prober.workload.arrivals import poisson

Requests = Sequence[Request]
CONFIDENCE = 0.95
SHAPE_APART = 0.05  # ratio of mean tokens above which it is not the same work
LEAST_BLOCK = 10  # requests of a stored result that make a round
_ANSWERED = frozenset(each.value for each in ANSWERED)
_NOT_COUNTED = frozenset(each.value for each in NEUTRAL - {Outcome.REJECTED})
_FAILED = frozenset(each.value for each in Outcome) - _ANSWERED - _NOT_COUNTED


@dataclass(frozen=True, slots=True)
class Half:
    """One side's turn in a round. seed: of its requests, offsets_ns: of their due times from its start; both the other half's too."""

    side: Side
    rate_per_s: float
    round: int
    seed: int
    offsets_ns: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Round:
    """What both sides came to. Requests are in the order of their draws; alike: the same draws on both sides, failed ones too.

    workload: where there are several, which are never pooled
    """

    rate_per_s: float
    a: Requests
    b: Requests
    alike: bool = True
    workload: str = ""


@dataclass(frozen=True, slots=True)
class Axis:
    """One way of looking. of: a round's figure, ln(B ÷ A) or, where not `ratio`, B − A; None where it was not measured.

    lower_is_better: of the quantity; latency, q: which quantile stands for it in tables
    """

    name: str
    ratio: bool
    lower_is_better: bool
    of: Callable[[Round], float | None]
    latency: str | None = None
    q: float = 0.5


def plan(rates_per_s: Sequence[float], rounds: int, requests: int, rng: Random) -> tuple[Half, ...]:
    """All halves in the order of their turns. Poisson arrivals; each round its own."""
    halves: list[Half] = []
    for number in range(rounds):
        for rate in rates_per_s:
            offsets = tuple(islice(poisson(rate, rng, 0), requests))
            seed = rng.getrandbits(64)
            sides: tuple[Side, Side] = ("a", "b") if number % 2 == 0 else ("b", "a")
            halves += [Half(side, rate, number, seed, offsets) for side in sides]
    return tuple(halves)


def rounds_of(halves: Mapping[Half, Requests]) -> list[Round]:
    """The rounds whose both halves are there."""
    found: dict[tuple[float, int], dict[Side, Requests]] = {}
    for half, requests in halves.items():
        found.setdefault((half.rate_per_s, half.round), {})[half.side] = requests
    return [Round(rate, both["a"], both["b"]) for (rate, _), both in found.items() if len(both) == 2]


def stored_rounds(a: Result, b: Result, rounds: int) -> list[Round]:
    """Of two stored results, at each rate both have: as many blocks of either, in the order of time, paired by their place.

    They were not taken in turn, so what changed between the two is in the difference. Raises ValueError if no rate has enough.
    """
    found: list[Round] = []
    for side, result in (("A", a), ("B", b)):
        if not result.requests:
            raise ValueError(f"{side} {NO_REQUESTS}")
    one, other = _by_rate(a), _by_rate(b)
    for workload, rate in sorted(set(one) & set(other)):
        sides = [_blocks(each[workload, rate], rounds) for each in (one, other)]
        if all(sides):
            found += [Round(rate, x, y, False, workload) for x, y in zip(*sides, strict=True)]
    if not found:
        raise ValueError(
            f"there is no rate at which both have {rounds * LEAST_BLOCK} requests ({rounds} rounds of {LEAST_BLOCK}); A has "
            f"{_counts(a)}, B {_counts(b)}"
        )
    return found


def compare(rounds: Sequence[Round], error: float = 0.05) -> list[Compared]:
    """Every axis at every rate. Differences claimed err, in any of them, with a chance of at most `error` (Holm)."""
    rows: list[tuple[Axis, list[float], list[Round]]] = []
    for kind in dict.fromkeys((each.workload, each.rate_per_s) for each in rounds):
        same = [each for each in rounds if (each.workload, each.rate_per_s) == kind]
        for axis in AXES:
            figures = [figure for each in same if (figure := axis.of(each)) is not None]
            if figures and 2 * len(figures) >= len(same):
                rows.append((axis, figures, same))
    ps = [wilcoxon_p_value(figures) for _, figures, _ in rows]
    adjusted = holm_adjusted(ps)
    return [_compared(*row, p, p_adjusted, error) for row, p, p_adjusted in zip(rows, ps, adjusted, strict=True)]


def incomparable(a: Load, b: Load) -> list[str]:
    """Why latencies of two loads do not compare at all; empty if they do."""
    return [
        f"A was asked for {what} {one}, B for {other}: requests of another shape have other latencies"
        for what in ("workload", "prompt_tokens", "output_tokens")
        if (one := getattr(a, what)) != (other := getattr(b, what))
    ]


def reservations(a: Target, b: Target, rounds: Sequence[Round], found: Sequence[Compared]) -> list[str]:
    """What a figure does not say, in sentences: other models, tokens that are not the same work, failures beside latencies."""
    said: list[str] = []
    if a.model and b.model and a.model != b.model:
        said.append(
            f"A serves model {a.model!r}, B {b.model!r}: a difference is the models' as well as what serves them; per-token "
            "figures do not compare if their tokenizers differ, and nothing here says which answers better"
        )
    for what, spoilt in (("prompt_tokens", "TTFT"), ("output_tokens", "E2E and throughput")):
        one, other = (_mean(what, [row for each in rounds for row in side(each)]) for side in _SIDES)
        if one and other and abs(other / one - 1) > SHAPE_APART:
            said.append(f"A counts {one:.4g} {what} a request, B {other:.4g}: {spoilt} are not of the same work")
    for name, side in zip("AB", _SIDES, strict=True):
        rows = [row for each in rounds for row in side(each)]
        if late := sum(row.outcome in _NOT_COUNTED for row in rows):
            said.append(
                f"{late} of {len(rows)} requests to {name} were late by the prober itself, or cut, and do not count"
            )
    for each in found:
        if each.axis == "failures" and each.better is not None:
            worse = "B" if each.better == "a" else "A"
            said.append(
                f"{worse} fails more often at {each.rate_per_s:g}/s: its latencies are those of what it answered, and a target "
                "that drops requests is not fast"
            )
    return said


def differences(a: Target, b: Target) -> list[tuple[str, str, str]]:
    """(what, A's, B's) of all that engine and model say of themselves and that is not the same; "" where it is not said."""
    sides: list[dict[str, str]] = []
    for each in (a, b):
        said = {"engine": each.engine, "version": each.engine_version, "model": each.model, "api": each.api}
        sides.append({what: text for what, text in said.items() if text} | dict(each.flags))
    keys = dict.fromkeys([*sides[0], *sides[1]])
    pairs = ((key, sides[0].get(key, ""), sides[1].get(key, "")) for key in keys)
    return [(key, one, other) for key, one, other in pairs if one != other]


def _compared(
    axis: Axis, figures: list[float], rounds: list[Round], p: float, p_adjusted: float, error: float
) -> Compared:
    effect = hodges_lehmann(figures, CONFIDENCE)
    scale = math.expm1 if axis.ratio else float
    better: Side | None = None
    if p_adjusted <= error:
        better = "a" if (effect.estimate > 0) == axis.lower_is_better else "b"
    pooled: list[Quantile | None] = [None, None]
    if axis.latency is not None:
        for place, sides in enumerate(([each.a for each in rounds], [each.b for each in rounds])):
            requests = [request for side in sides for request in side]
            pooled[place] = next(iter(quantiles_of(axis.latency, requests, (axis.q,))), None)
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
        pooled[0],
        pooled[1],
        rounds[0].workload,
    )


def _quantile(latency: str, q: float) -> Callable[[Round], float | None]:
    """ln of the quantiles' ratio."""

    def of(each: Round) -> float | None:
        pair = [quantiles_of(latency, side, (q,)) for side in (each.a, each.b)]
        if not pair[0] or not pair[1] or pair[0][0].estimate <= 0 or pair[1][0].estimate <= 0:
            return None
        return math.log(pair[1][0].estimate / pair[0][0].estimate)

    return of


def _typical(latency: str) -> Callable[[Round], float | None]:
    """Median of ln(B ÷ A) request by request, so that their lengths are not noise; of medians where the draws differ."""
    medians = _quantile(latency, 0.5)

    def of(each: Round) -> float | None:
        if not each.alike:
            return medians(each)
        pairs = [(_latency(x, latency), _latency(y, latency)) for x, y in zip(each.a, each.b, strict=False)]
        ratios = [math.log(y / x) for x, y in pairs if x and y]
        return median(ratios) if ratios else None

    return of


def _latency(request: Request, latency: str) -> float | None:
    if request.outcome not in _ANSWERED or request.warm_up or request.cached:
        return None
    value: float | None = getattr(request, f"{latency}_s")
    return value


def _throughput(each: Round) -> float | None:
    """ln of the ratio of output tokens per second, from the first due time to the last end."""
    rates = []
    for side in (each.a, each.b):
        answered = [request for request in side if request.outcome in _ANSWERED and request.e2e_s is not None]
        tokens = [request.output_tokens for request in answered if request.output_tokens is not None]
        if not tokens or len(tokens) != len(answered):
            return None
        starts = [request.start_s for request in side if request.start_s is not None]
        ends = [
            request.start_s + request.e2e_s for request in answered if request.start_s is not None and request.e2e_s
        ]
        if len(starts) != len(side) or not ends or max(ends) <= min(starts):
            return None
        rates.append(sum(tokens) / (max(ends) - min(starts)))
    return math.log(rates[1] / rates[0])


def _failures(each: Round) -> float | None:
    """Difference of the shares that failed; rejected is failed, as nobody is served by it."""
    shares = []
    for side in (each.a, each.b):
        counted = [request.outcome in _FAILED for request in side if request.outcome not in _NOT_COUNTED]
        if not counted:
            return None
        shares.append(fmean(counted))
    return shares[1] - shares[0]


AXES = (
    Axis("ttft_p50", True, True, _typical("ttft"), "ttft"),
    Axis("ttft_p99", True, True, _quantile("ttft", 0.99), "ttft", 0.99),
    Axis("tpot_p50", True, True, _typical("tpot"), "tpot"),
    Axis("itl_p99", True, True, _quantile("itl", 0.99), "itl", 0.99),
    Axis("e2e_p50", True, True, _typical("e2e"), "e2e"),
    Axis("output_tokens_per_s", True, False, _throughput),
    Axis("failures", False, True, _failures),
)


_SIDES: tuple[Callable[[Round], Requests], ...] = (lambda each: each.a, lambda each: each.b)


def _mean(what: str, requests: Requests) -> float | None:
    told = [getattr(each, what) for each in requests if each.outcome in _ANSWERED]
    known = [each for each in told if each is not None]
    return fmean(known) if known else None


def _by_rate(result: Result) -> dict[tuple[str, float], list[Request]]:
    """Of each workload, "" if there is one only, and rate."""
    found: dict[tuple[str, float], list[Request]] = {}
    for number, stage in enumerate(result.stages):
        if stage.rate_per_s is not None:
            rows = [each for each in result.requests if each.stage == number]
            workload = (stage.load.workload or stage.name) if stage.load is not None else ""
            found.setdefault((workload, stage.rate_per_s), []).extend(rows)
    return found


def _counts(result: Result) -> str:
    counts = [
        f"{len(rows)} {f'of {workload} ' if workload else ''}at {rate:g}/s"
        for (workload, rate), rows in sorted(_by_rate(result).items())
    ]
    return " and ".join(counts) or "none"


def _blocks(requests: list[Request], blocks: int) -> list[list[Request]]:
    """`blocks` of them alike in length, in the order of time; none if they would be shorter than LEAST_BLOCK."""
    size = len(requests) // blocks
    if size < LEAST_BLOCK:
        return []
    ordered = sorted(requests, key=lambda each: each.start_s or 0.0)
    return [ordered[number * size : (number + 1) * size] for number in range(blocks)]
