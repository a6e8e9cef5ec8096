"""The phase matrix: a few probes of each shape, one at a time, that separate prefill, decode and prefix cache.

With one probe at a time, the prober itself causes no queue: a probe that waits, waits for other requests.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from prober.features.diagnosis.window import WARM, Failure, failures_of
from prober.measure.outcome import ANSWERED
from prober.measure.result import ProbeResult
from prober.measure.timeline import format_duration
from prober.workload.shapes import Fixed
from prober.workload.workloads import Prefix, Workload


@dataclass(frozen=True, slots=True)
class Phase:
    """A number of probes of one workload. purpose: text on what they measure"""

    workload: Workload
    probes: int
    purpose: str


SHORT = Phase(Workload("short", Fixed(256), Fixed(16)), 20, "minimum TTFT")
PREFILL = Phase(Workload("prefill", Fixed(2048), Fixed(16)), 22, "long prefill")
SHARED = Phase(
    Workload(f"prefill{WARM}", Fixed(2048), Fixed(16), Prefix(1536, 1.0)), 22, "long prefill with a warm prefix"
)
DECODE = Phase(Workload("decode", Fixed(256), Fixed(256)), 6, "long decode")
PHASES = (SHORT, PREFILL, SHARED, DECODE)
MAX_CONTEXT_RATIO = 0.9  # of the context that prompt and answer may take: a prompt has a few tokens more than asked


def fitted(workload: Workload, context_tokens: float | None) -> Workload:
    """The workload with its prompts shortened to the engine's context, if that is known and too short for them."""
    longest = int(MAX_CONTEXT_RATIO * (context_tokens or 0)) - workload.output_tokens.maximum
    if not 0 < longest < workload.prompt_tokens.maximum:
        return workload
    prefix = replace(workload.prefix, tokens=longest * 3 // 4) if workload.prefix is not None else None
    return replace(workload, prompt_tokens=Fixed(longest), prefix=prefix)


@dataclass(frozen=True, slots=True)
class Row:
    """Medians of one kind of probe, in seconds; None if there is no value. answered: number of answers to `sent` probes"""

    kind: str
    answered: int
    sent: int
    prompt_tokens: float | None
    ttft_s: float | None
    tpot_s: float | None


def failures(results: Iterable[ProbeResult]) -> list[Failure]:
    """The probes without an answer, the most frequent failure first."""
    return failures_of(probe for probe in results if probe.outcome not in ANSWERED)


def rows(results: Sequence[ProbeResult]) -> list[Row]:
    """Table: one row per kind of probe, in the order in which they were first sent."""
    table: list[Row] = []
    for kind in dict.fromkeys(probe.workload for probe in results):
        sent = [probe for probe in results if probe.workload == kind]
        good = [probe for probe in sent if probe.outcome in ANSWERED]
        table.append(
            Row(
                kind,
                len(good),
                len(sent),
                _median(probe.timeline.usage.prompt_tokens if probe.timeline.usage else None for probe in good),
                _median(probe.timeline.ttft_s for probe in good),
                _median(probe.timeline.tpot_s for probe in good),
            )
        )
    return table


def not_diagnosed(results: Sequence[ProbeResult], limits_s: Mapping[str, float]) -> str:
    """Text on why there is no diagnosis; "" if there is one. limits_s: seconds by signal, as given to `prober diagnose`"""
    answered = [probe.timeline for probe in results if probe.outcome in ANSWERED]
    if not answered:
        return "No probe was answered, so there is no latency to explain. Mend these failures first."
    if not limits_s:
        return "No limit was given, so nothing is called slow: --ttft and --tpot say what is too slow."
    if any((getattr(line, f"{name}_s") or 0.0) > limit_s for line in answered for name, limit_s in limits_s.items()):
        return ""
    limits = " or ".join(f"--{name} {format_duration(limit_s)}" for name, limit_s in limits_s.items())
    return f"Nothing was slow: no probe was above {limits}."


def _median(values: Iterable[float | None]) -> float | None:
    measured = [value for value in values if value is not None]
    return median(measured) if measured else None
