"""What a record shows, as single observations that a replay can be held against."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf, log, sqrt
from typing import Literal

from prober.features.capacity.replay import Look, Shown
from prober.features.capacity.sweep_record import Record

PAGE_S = 0.4  # looks at the page that are nearer to each other count as one
Kind = Literal["ttft", "tpot", "gap", "gap_most", "running", "waiting", "group"]


@dataclass(frozen=True, slots=True)
class Seen:
    """One observation; times since the record's beginning. group: of neighbours, whose values are not its own.

    number: of the request or of the look; at_s: when it was due or taken; known_s: when its value was known
    value: log seconds, or the root of a count, so that its spread is about the same everywhere
    least: it is at least this, and was not waited for; prompt: tokens
    """

    kind: Kind
    number: int
    at_s: float
    known_s: float
    value: float
    least: bool = False
    prompt: int = 0

    def replayed(self, shown: Sequence[Shown], looks: Sequence[Look], front_s: float) -> float | None:
        """The same of a replay; None where it does not come so far. front_s: what lies before the engine."""
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


def observations(record: Record) -> list[Seen]:
    """All that a fit uses: of requests after the warm-up that are valid and did not fail, and of the engine's page."""
    return [*_of_requests(record), *_of_pages(record)]


def _of_requests(record: Record) -> Iterator[Seen]:
    origin_s = record.from_s
    for number, each in enumerate(record.asked):
        if not each.valid or each.failed or (record.stages and record.stages[each.stage].phase == "warm_up"):
            continue
        at_s, known_s = each.at_s - origin_s, each.known_s - origin_s
        if each.ttft_s is not None and each.ttft_s > 0:
            yield Seen("ttft", number, at_s, at_s + each.ttft_s, log(each.ttft_s), prompt=each.prompt_tokens)
        elif known_s > at_s:
            yield Seen("ttft", number, at_s, known_s, log(known_s - at_s), least=True)
        if each.end_s is None or each.output_tokens <= 2:
            continue
        values: tuple[tuple[Kind, float | None], ...] = (
            ("tpot", each.tpot_s),
            ("gap", each.gap_s),
            ("gap_most", each.gap_most_s),
        )
        yield from (Seen(kind, number, at_s, each.end_s - origin_s, log(v)) for kind, v in values if v)


def _of_pages(record: Record) -> Iterator[Seen]:
    before_s = -inf
    for number, (when_s, signals) in enumerate(record.readings):
        if when_s - before_s < PAGE_S:
            continue
        before_s, at_s = when_s, when_s - record.from_s
        if signals.requests_running is not None:
            yield Seen("running", number, at_s, at_s, _root(signals.requests_running))
        if signals.requests_waiting is not None:
            yield Seen("waiting", number, at_s, at_s, _root(signals.requests_waiting))


def neighbours(seen: Sequence[Seen], size: int) -> list[list[int]]:
    """Places of TTFTs that stand together, by time and by length of prompt, so many at a time."""
    by_time = [n for n, each in enumerate(seen) if each.kind == "ttft" and not each.least]
    by_length = sorted(by_time, key=lambda n: seen[n].prompt)
    return [order[at : at + size] for order in (by_time, by_length) for at in range(0, len(order) - size // 2, size)]


def _root(count: float) -> float:
    return sqrt(count + 0.5)
