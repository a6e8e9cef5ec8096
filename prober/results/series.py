"""The parts of a stage that differ in shape: turns of sessions, warm and cold prefixes, workloads of a mix."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from prober.measure.outcome import ANSWERED
from prober.measure.result import ProbeResult
from prober.measure.timeline_text import format_duration
from prober.statistics.quantiles import MIN_SAMPLES_BY_QUANTILE, Quantile, quantiles


@dataclass(frozen=True, slots=True)
class Series:
    """Requests of one series (`chat_turn2`, `rag_warm`) without warm-ups and cold prompts that were cached.

    requests: with an answer
    ttft: quantiles in seconds
    prompt_tokens, cached_tokens: totals over the answers for which the server tells both
    unanswered: requests that failed, were refused or were not sent
    reason: most frequent outcome of these, and why
    """

    name: str
    requests: int
    ttft: tuple[Quantile, ...]
    prompt_tokens: int
    cached_tokens: int
    unanswered: int = 0
    reason: str = ""

    def text(self) -> str:
        """TTFT and share of the cached prompt, as a phrase."""
        shown = [quantile for quantile in self.ttft if quantile.q in (0.5, 0.99)]
        times = (
            f"p{100 * quantile.q:.4g} {format_duration(quantile.estimate)}{'' if quantile.has_enough_samples else '*'}"
            for quantile in shown
        )
        ttft = f"TTFT {', '.join(times)}" if shown else "no TTFT"
        cached = f", {self.cached_tokens / self.prompt_tokens:.0%} of the prompt cached" if self.prompt_tokens else ""
        failed = f", {self.unanswered:,} not answered, most often {self.reason}" if self.unanswered else ""
        return f"{self.name} {ttft} of {self.requests:,}{cached}{failed}"


def series_of(probes: Iterable[ProbeResult]) -> tuple[Series, ...]:
    """The series of these probes by name; empty if there is one only."""
    by_name: dict[str, list[ProbeResult]] = {}
    for probe in probes:
        if probe.workload and not probe.warm_up and not probe.cached:
            by_name.setdefault(probe.workload, []).append(probe)
    return tuple(_series(name, by_name[name]) for name in sorted(by_name)) if len(by_name) > 1 else ()


def most_often(probes: Iterable[ProbeResult]) -> tuple[int, str]:
    """Number of these probes, and the most frequent outcome with its detail; 0 and "" without any."""
    reasons = Counter(": ".join(filter(None, (probe.outcome.value, probe.detail))) for probe in probes)
    return reasons.total(), next((reason for reason, _ in reasons.most_common(1)), "")


def _series(name: str, sent: list[ProbeResult]) -> Series:
    probes = [probe for probe in sent if probe.outcome in ANSWERED]
    usages = [usage for probe in probes if (usage := probe.timeline.usage) is not None]
    counts = [(u.prompt_tokens, u.cached_tokens) for u in usages]
    known = [(prompt, cached) for prompt, cached in counts if prompt is not None and cached is not None]
    ttfts_s = [ttft_s for probe in probes if (ttft_s := probe.timeline.ttft_s) is not None]
    return Series(
        name,
        len(probes),
        tuple(quantiles(ttfts_s, (*MIN_SAMPLES_BY_QUANTILE, 1.0))),
        sum(prompt for prompt, _ in known),
        sum(cached for _, cached in known),
        *most_often(probe for probe in sent if probe.outcome not in ANSWERED),
    )
