"""The phase matrix: a few probes of each shape, one at a time, that tell prefill, decode and prefix cache apart.

One at a time means that nothing of what is seen is the prober's own load; whatever waits, waits for others.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from prober.features.diagnosis.clues import Evidence
from prober.features.diagnosis.window import WARM, Hardware, Reading, seen
from prober.measure.outcome import ANSWERED
from prober.measure.result import ProbeResult
from prober.workload.shapes import Fixed
from prober.workload.workloads import Prefix, Workload


@dataclass(frozen=True, slots=True)
class Phase:
    """So many probes of a workload; tells: what they are for."""

    workload: Workload
    probes: int
    tells: str


SHORT = Phase(Workload("short", Fixed(256), Fixed(16)), 20, "the least a first token costs")
PREFILL = Phase(Workload("prefill", Fixed(2048), Fixed(16)), 22, "long prefill")
SHARED = Phase(Workload(f"prefill{WARM}", Fixed(2048), Fixed(16), Prefix(1536, 1.0)), 22, "the same, prefix warm")
DECODE = Phase(Workload("decode", Fixed(256), Fixed(256)), 6, "long decode")
PHASES = (SHORT, PREFILL, SHARED, DECODE)


@dataclass(frozen=True, slots=True)
class Row:
    """What one kind of probe came to: medians in seconds; None where there is none. answered: of so many sent."""

    kind: str
    answered: int
    sent: int
    prompt_tokens: float | None
    ttft_s: float | None
    tpot_s: float | None


def rows(results: Sequence[ProbeResult]) -> list[Row]:
    """By kind of probe, in the order they were first sent."""
    found: list[Row] = []
    for kind in dict.fromkeys(each.workload for each in results):
        sent = [each for each in results if each.workload == kind]
        good = [each for each in sent if each.outcome in ANSWERED]
        found.append(
            Row(
                kind,
                len(good),
                len(sent),
                _median(each.timeline.usage.prompt_tokens if each.timeline.usage else None for each in good),
                _median(each.timeline.ttft_s for each in good),
                _median(each.timeline.tpot_s for each in good),
            )
        )
    return found


def evidence(
    results: Sequence[ProbeResult],
    readings: Sequence[Reading],
    hardware: Hardware | None,
    breached: Mapping[str, float],
    engine: str | None,
) -> Evidence:
    """What the matrix shows: TTFT of long prompts, what a prompt token costs, decode of long answers, the page all the time.

    breached: signal to threshold in s of what is suffered from; without a baseline it is what parts are measured by.
    """

    def of(*phases: Phase) -> list[ProbeResult]:
        names = [phase.workload.name for phase in phases]
        return [each for each in results if each.workload in names]

    answers = seen(of(DECODE), readings, hardware=hardware)
    now = replace(
        seen(of(PREFILL, SHARED), readings),
        ttft_per_prompt_token_s=seen(of(SHORT, PREFILL)).ttft_per_prompt_token_s,
        itl_s=answers.itl_s,
        tpot_s=answers.tpot_s,
        step_s=answers.step_s,
        over_bound=answers.over_bound,
    )
    return Evidence(now, breached=breached, engine=engine)


def _median(values: Iterable[float | None]) -> float | None:
    known = [each for each in values if each is not None]
    return median(known) if known else None
