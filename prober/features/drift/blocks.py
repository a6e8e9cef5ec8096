"""Samples for a baseline: blocks of consecutive samples, and means of all samples between them and in each half hour of the week."""

import math
from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

# 5,000 samples, 50 of them above the 99th percentile. 100 blocks of 50 cover several times of day, and the spread between
# blocks shows the variance that the model does not explain.
BLOCK_SAMPLES = 50
BLOCK_COUNT = 100
DAY_S = 86_400.0
SPREAD_S = 3 * DAY_S
SPREAD_EVERY_S = SPREAD_S / (BLOCK_COUNT - 1) + 1.0  # the last block begins three days after the first
WEEK_EVERY_S = 7 * DAY_S / (BLOCK_COUNT - 1) + 1.0  # or a week later
# Without loads, the level of a day is known by half hours, its slots: lunch and ramps are not straight over an hour.
SLOT_S = 1_800.0
DAY_SLOTS = 48
WEEK_SLOTS = 7 * DAY_SLOTS
MONDAY_S = 4 * DAY_S  # 1970-01-05, a Monday


def week_slots(unix_s: float) -> float:
    """Half hours since Monday 00:00 UTC, in [0, 336)."""
    return (unix_s - MONDAY_S) / SLOT_S % WEEK_SLOTS


class Span(NamedTuple):
    """A block of samples, with the interval from its start to the next block's start.

    begun_s, lasted_s: start and duration of the block
    first_load, last_load: smoothed load at the first and last sample of the block; NaN if unknown
    samples: number of samples in the interval, including the block's
    mean_log: mean log of the samples in the interval
    moments: first three moments of load − first_load in the interval
    """

    begun_s: float
    lasted_s: float
    first_load: float
    last_load: float
    samples: float
    mean_log: float
    moments: tuple[float, ...]


SPAN_VALUES = 8  # of a span, without begun_s


@dataclass(slots=True)
class Blocks:
    """`block_count` blocks of `block_samples` consecutive samples, begun at least `every_s` seconds apart.

    Time and smoothed load are stored only for a block's first and last sample and interpolated linearly: both change little in a
    block, and a value per sample would double the state. Samples between blocks, ten times as many, are stored as means: they
    make the model more stable, and show the wander of the level far better than the blocks alone.

    rest: values of each span without begun_s, span after span
    slot_counts, slot_logs: number and mean log of all samples in each half hour of the week; empty if the load is known
    """

    every_s: float
    logs: "array[float]" = field(default_factory=lambda: array("f"))
    begun: "array[float]" = field(default_factory=lambda: array("d"))
    rest: "array[float]" = field(default_factory=lambda: array("f"))
    slot_counts: "array[float]" = field(default_factory=lambda: array("f"))
    slot_logs: "array[float]" = field(default_factory=lambda: array("f"))
    block_samples: int = BLOCK_SAMPLES
    block_count: int = BLOCK_COUNT

    @property
    def needed(self) -> int:
        """Number of samples of all blocks."""
        return self.block_samples * self.block_count

    @property
    def full(self) -> bool:
        """True if all blocks are complete."""
        return len(self.logs) == self.needed

    def block(self, index: int) -> "array[float]":
        """Logs of the samples of a block, shape (block_samples,)."""
        return self.logs[index * self.block_samples : (index + 1) * self.block_samples]

    def span(self, index: int) -> Span:
        """The block with this index, with its interval."""
        lasted, first, last, samples, mean_log, *moments = self.rest[SPAN_VALUES * index : SPAN_VALUES * (index + 1)]
        return Span(self.begun[index], lasted, first, last, samples, mean_log, tuple(moments))

    def add(self, unix_s: float, log: float, load: float | None, *, linked: bool) -> None:
        """Add a sample. Unless it directly follows the last one (`linked`), an incomplete block is dropped."""
        load = self._comparable(unix_s, load)
        if load is None:
            if self.begun and not math.isnan(self.rest[1]):
                return
            self._add_to_slot(unix_s, log)
        if self.full:
            return
        if not linked:
            self.cut()
        rest, known = self.rest, math.nan if load is None else load
        if len(self.logs) % self.block_samples:
            rest[-8], rest[-6] = unix_s - self.begun[-1], known
            self.logs.append(log)
        elif not self.begun or unix_s >= self.begun[-1] + self.every_s:
            self.begun.append(unix_s)
            rest.extend((0.0, known, known, 0.0, 0.0, 0.0, 0.0, 0.0))
            self.logs.append(log)
        if self.full:
            self.logs, self.rest = self.logs[:], self.rest[:]  # frees reserved memory
            rest = self.rest
        rest[-5] += 1
        more = known - rest[-7]
        for place, value in zip(range(-4, 0), (log, more, more**2, more**3), strict=True):
            rest[place] += (value - rest[place]) / rest[-5]

    def _comparable(self, unix_s: float, load: float | None) -> float | None:
        """The load to store with a sample: either all blocks have loads, or none.

        If the load is unknown for less than a day, the samples are left out; if longer, or if it becomes known early, the blocks
        start again. A load that becomes known late is ignored.
        """
        if not self.begun or self.full:
            return load
        if math.isnan(self.rest[1]):
            if load is None or len(self.begun) > self.block_count // 10:
                return None
        elif load is not None:
            return load
        else:
            self.cut()
            if self.begun and unix_s - self.begun[-1] < DAY_S:
                return None
        for values in (self.logs, self.begun, self.rest, self.slot_counts, self.slot_logs):
            del values[:]
        return load

    def cut(self) -> None:
        """Drop the incomplete block."""
        if partial := len(self.logs) % self.block_samples:
            del self.logs[-partial:]
            del self.rest[-SPAN_VALUES:]
            self.begun.pop()

    def _add_to_slot(self, unix_s: float, log: float) -> None:
        slot = int(week_slots(unix_s))
        if not self.slot_counts:
            self.slot_counts, self.slot_logs = array("f", [0.0]) * WEEK_SLOTS, array("f", [0.0]) * WEEK_SLOTS
        self.slot_counts[slot] += 1
        self.slot_logs[slot] += (log - self.slot_logs[slot]) / self.slot_counts[slot]


def blocks_of_samples(samples: Iterable[tuple[float, float, float | None]]) -> Blocks:
    """Build blocks from past samples (Unix seconds, log, load), thinned evenly to the size of a baseline. Their order within an hour
    may be arbitrary.

    Raises ValueError for too few samples.
    """
    ordered = sorted(samples, key=lambda sample: sample[0])
    needed = BLOCK_SAMPLES * BLOCK_COUNT
    if len(ordered) < needed:
        raise ValueError(f"a baseline needs {needed} samples, not {len(ordered)}")
    thinned = [ordered[i * len(ordered) // needed] for i in range(needed)]
    blocks = Blocks(0.0)
    for b in range(BLOCK_COUNT):
        chosen = thinned[b * BLOCK_SAMPLES : (b + 1) * BLOCK_SAMPLES]
        begun, lasted = chosen[0][0], chosen[-1][0] - chosen[0][0]
        # 50 and 21 are coprime, so that neighbouring samples are separated whatever their order
        chosen = [chosen[j * 21 % BLOCK_SAMPLES] for j in range(BLOCK_SAMPLES)]
        loads = [math.nan if load is None else load for _, _, load in chosen]
        load, log = sum(loads) / BLOCK_SAMPLES, sum(log for _, log, _ in chosen) / BLOCK_SAMPLES
        blocks.begun.append(begun)
        blocks.rest.extend((lasted, load, load, BLOCK_SAMPLES, log, load - load, 0.0, 0.0))
        blocks.logs.extend(log for _, log, _ in chosen)
        for j, (unix_s, sample, known) in enumerate(chosen):
            if known is None:  # samples of an hour count for both halves
                blocks._add_to_slot(unix_s - unix_s % 3_600 + j % 2 * SLOT_S, sample)
    return blocks
