"""Observations of a sweep's record that a replay is compared with."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf, log, sqrt
from typing import Literal

from prober.features.capacity.replay import Look, Shown
from prober.features.capacity.sweep_record import Record

MIN_READING_GAP_S = 0.4  # closer readings of the page count as one
Kind = Literal["ttft", "tpot", "gap", "gap_most", "running", "waiting", "group"]


@dataclass(frozen=True, slots=True)
class FitObservation:
    """One observation; times are seconds since the start of the record.

    kind: group stands for several neighbours.
    number: index of the request or reading.
    at_s: due time of the request, or time of the reading. known_s: when the value was known.
    value: log seconds, or the root of a count, so that the spread is about the same everywhere.
    least: the value is a lower bound (the request had not finished).
    prompt: prompt tokens.
    """

    kind: Kind
    number: int
    at_s: float
    known_s: float
    value: float
    least: bool = False
    prompt: int = 0

    def replayed(self, shown: Sequence[Shown], looks: Sequence[Look], front_s: float) -> float | None:
        """The same observation in a replay; None if the replay ends before it. front_s: latency in front of the engine."""
        match self.kind:
            case "running" | "waiting":
                place = 0 if self.kind == "running" else 1
                return _root(looks[self.number][place]) if self.number < len(looks) else None
            case "ttft":
                ttft_s = shown[self.number].ttft_s
                return None if ttft_s is None else log(ttft_s + front_s)
            case "tpot":
                value = shown[self.number].tpot_s
            case "gap":
                value = shown[self.number].gap_s
            case _:
                value = shown[self.number].gap_most_s
        return log(value) if value else None


def observations(record: Record) -> list[FitObservation]:
    """Observations for a fit: of valid, successful requests after the warm-up, and of the engine's page."""
    return [*_of_requests(record), *_of_pages(record)]


def _of_requests(record: Record) -> Iterator[FitObservation]:
    origin_s = record.from_s
    for number, each in enumerate(record.asked):
        if not each.valid or each.failed or (record.stages and record.stages[each.stage].phase == "warm_up"):
            continue
        at_s, known_s = each.at_s - origin_s, each.known_s - origin_s
        if each.ttft_s is not None and each.ttft_s > 0:
            yield FitObservation("ttft", number, at_s, at_s + each.ttft_s, log(each.ttft_s), prompt=each.prompt_tokens)
        elif known_s > at_s:
            yield FitObservation("ttft", number, at_s, known_s, log(known_s - at_s), least=True)
        if each.end_s is None or each.output_tokens <= 2:
            continue
        values: tuple[tuple[Kind, float | None], ...] = (
            ("tpot", each.tpot_s),
            ("gap", each.gap_s),
            ("gap_most", each.gap_most_s),
        )
        yield from (FitObservation(kind, number, at_s, each.end_s - origin_s, log(v)) for kind, v in values if v)


def _of_pages(record: Record) -> Iterator[FitObservation]:
    before_s = -inf
    for number, (when_s, signals) in enumerate(record.readings):
        if when_s - before_s < MIN_READING_GAP_S:
            continue
        before_s, at_s = when_s, when_s - record.from_s
        if signals.requests_running is not None:
            yield FitObservation("running", number, at_s, at_s, _root(signals.requests_running))
        if signals.requests_waiting is not None:
            yield FitObservation("waiting", number, at_s, at_s, _root(signals.requests_waiting))


def neighbours(items: Sequence[FitObservation], size: int) -> list[list[int]]:
    """Indices of TTFTs in groups of `size` neighbours, by time and by prompt length."""
    by_time = [n for n, each in enumerate(items) if each.kind == "ttft" and not each.least]
    by_length = sorted(by_time, key=lambda n: items[n].prompt)
    return [order[at : at + size] for order in (by_time, by_length) for at in range(0, len(order) - size // 2, size)]


def _root(count: float) -> float:
    return sqrt(count + 0.5)
