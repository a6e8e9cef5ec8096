"""A row of a matrix compared with an earlier one that was sent in the same way.

Throughput is answers per second while both ends of a row are left out: from the end of the first answer to the last due time. A
block of `BLOCK_S` counts as one observation, and the interval is that of a ratio of two means (delta method, Student's t).
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, variance

from prober.measure.outcome import ANSWERED
from prober.measure.result import ProbeResult
from prober.results.disturbance import BLOCK_S, Ratio, ratios_text, ttft_blocks, ttft_ratios
from prober.statistics.clustered_quantiles import student_t_975

MIN_BLOCKS = 10


@dataclass(frozen=True, slots=True)
class ThroughputRatio:
    """Answers per second of the row ÷ those of the other one, with a 95% interval."""

    estimate: float
    lower: float
    upper: float


@dataclass(frozen=True, slots=True)
class Contrast:
    """The effect of what differs between two rows.

    name: of the other row, which was sent before; the machine may have changed in between
    ttft: ratios of the quantiles with enough samples of both
    samples: requests of (this row, the other one) with a TTFT, or failed; blocks: full ones of their throughput
    """

    name: str
    ttft: tuple[Ratio, ...]
    throughput: ThroughputRatio | None
    samples: tuple[int, int]
    blocks: tuple[int, int]

    def text(self) -> str:
        """The ratios as a sentence without a full stop at the end."""
        row, other = self.samples
        ttft = f"TTFT {ratios_text(self.ttft)}" if self.ttft else f"no ratio of TTFT ({row:,} and {other:,} requests)"
        if self.throughput is not None:
            ratio = self.throughput
            answers = f"answers per second {ratio.estimate:.3g} times ({ratio.lower:.3g} to {ratio.upper:.3g})"
        else:
            row, other = self.blocks
            counts = f"{row} and {other} blocks of {BLOCK_S:g} s, {MIN_BLOCKS} of both are needed"
            answers = f"none of answers per second ({counts})"
        return f"Relative to {self.name}, sent before it: {ttft}, {answers}"


def contrast_of(probes: Sequence[ProbeResult], reference: Sequence[ProbeResult], *, name: str) -> Contrast:
    """The row of `probes` compared with that of `reference`, whose name is `name`."""
    row, other = _answers(probes), _answers(reference)
    return Contrast(
        name,
        ttft_ratios(reference, probes),
        _throughput(row, other),
        (sum(map(len, ttft_blocks(probes))), sum(map(len, ttft_blocks(reference)))),
        (len(row), len(other)),
    )


def _answers(probes: Sequence[ProbeResult]) -> list[int]:
    """Answers in each full block of time."""
    ends_ns = [
        probe.timeline.end_ns
        for probe in probes
        if probe.outcome in ANSWERED and not probe.warm_up and probe.timeline.end_ns is not None
    ]
    if not ends_ns:
        return []
    begin_ns, last_ns = min(ends_ns), max(probe.timeline.intended_ns for probe in probes)
    counts = Counter(int((end_ns - begin_ns) / 1e9 // BLOCK_S) for end_ns in ends_ns)
    return [counts[block] for block in range(max(0, int((last_ns - begin_ns) / 1e9 // BLOCK_S)))]


def _throughput(row: Sequence[int], other: Sequence[int]) -> ThroughputRatio | None:
    if min(len(row), len(other)) < MIN_BLOCKS or not (any(row) and any(other)):
        return None
    relative = sum(variance(counts) / len(counts) / fmean(counts) ** 2 for counts in (row, other))
    estimate = fmean(row) / fmean(other)
    factor = math.exp(student_t_975(min(len(row), len(other)) - 1) * math.sqrt(relative))
    return ThroughputRatio(estimate, estimate / factor, estimate * factor)
