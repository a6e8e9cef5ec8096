"""Tool calls of a stage: how many answers have some, and the times of the first one."""

from collections.abc import Iterable
from dataclasses import dataclass

from prober.measure.outcome import ANSWERED
from prober.measure.result import ProbeResult
from prober.results.reasoning import median_and_p99_text
from prober.statistics.quantiles import MIN_SAMPLES_BY_QUANTILE, Quantile, quantiles


@dataclass(frozen=True, slots=True)
class ToolCalls:
    """Answered requests to a workload with tools, without warm-ups and cold prompts that were cached.

    answers: number of them; calling: those with a call
    calls: number of calls
    ttft_call, arguments: quantiles in seconds up to the first piece of the first call, and up to its complete arguments, of those
    that are a JSON object
    """

    answers: int
    calling: int
    calls: int
    ttft_call: tuple[Quantile, ...] = ()
    arguments: tuple[Quantile, ...] = ()

    def text(self) -> str:
        """Answers with calls, and the times of the first one, as a sentence."""
        parts = [f"{self.calling:,} of {self.answers:,} answers call tools ({self.calls:,} calls)"]
        for name, values in (("first call", self.ttft_call), ("its complete arguments", self.arguments)):
            if times := median_and_p99_text(values):
                parts.append(f"{name} after {times}")
        incomplete = self.calling - (self.arguments[0].count if self.arguments else 0)
        if self.ttft_call and incomplete:  # of answers that are not streamed there are no times
            parts.append(f"{incomplete:,} of them without complete arguments")
        return "; ".join(parts)


def tool_calls_of(probes: Iterable[ProbeResult]) -> ToolCalls | None:
    """Tool calls of these probes; None if no answer has one and none was to be checked for one."""
    timelines = [
        probe.timeline
        for probe in probes
        if probe.outcome in ANSWERED
        and not (probe.warm_up or probe.cached)
        and (probe.check == "tool_call" or probe.timeline.calls > 0)
    ]
    if not timelines:
        return None
    qs = (*MIN_SAMPLES_BY_QUANTILE, 1.0)
    return ToolCalls(
        len(timelines),
        sum(timeline.calls > 0 for timeline in timelines),
        sum(timeline.calls for timeline in timelines),
        tuple(quantiles([s for timeline in timelines if (s := timeline.ttft_call_s) is not None], qs)),
        tuple(quantiles([s for timeline in timelines if (s := timeline.arguments_s) is not None], qs)),
    )
