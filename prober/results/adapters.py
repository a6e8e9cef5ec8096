"""Compares the latency of first uses of LoRA adapters with that of requests to loaded adapters, as far as a stage shows them.

An engine that keeps the most recently used adapters has unloaded an adapter at its *first use*: the first request to the
adapter in the stage, or one before which all other adapters of the stage were used after its own last requests had ended. A request to
the last used adapter, due after a first token from it, finds it *loaded*. All other requests are unclear. An engine with room
for all adapters loads each one only once, so its later first uses cost nothing.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from prober.measure.outcome import ANSWERED, BAD, NEUTRAL
from prober.measure.result import ProbeResult
from prober.measure.timeline import format_duration
from prober.results.disturbance import BLOCK_S, QS, Ratio, ratios_text, ttft_blocks, ttft_ratios
from prober.results.stage_parts import most_often
from prober.statistics.quantiles import MIN_SAMPLES_BY_QUANTILE, Quantile, percentile_name, quantiles


@dataclass(frozen=True, slots=True)
class AdapterUse:
    """TTFT of first uses of LoRA adapters, compared with that of requests to loaded adapters.

    adapters: number of adapters
    first_uses, loaded, unclear: numbers of requests of these kinds
    failed_first_uses, failed_loaded: how many of these failed; a failure counts as slower than all others
    first_ttft, loaded_ttft: quantiles in seconds with enough samples
    ratios: first uses ÷ loaded, for quantiles with enough samples on both sides
    unanswered: (adapter, requests sent, requests not answered, most frequent reason) for adapters with unanswered requests
    """

    adapters: int
    first_uses: int
    loaded: int
    unclear: int
    failed_first_uses: int
    failed_loaded: int
    first_ttft: tuple[Quantile, ...]
    loaded_ttft: tuple[Quantile, ...]
    ratios: tuple[Ratio, ...]
    unanswered: tuple[tuple[str, int, int, str], ...] = ()

    def text(self) -> str:
        """The comparison as a sentence without its full stop."""
        first = _phrase(self.first_uses, "first uses", self.failed_first_uses, self.first_ttft)
        loaded = "no request to a loaded adapter"
        if self.loaded:
            loaded = _phrase(self.loaded, "requests to loaded adapters", self.failed_loaded, self.loaded_ttft)
            ratios = f"first uses relative to loaded: {ratios_text(self.ratios)}"
            few = f"no ratio: too few requests, too few blocks of {BLOCK_S:g} s, or too many failed"
            loaded += f"; {ratios if self.ratios else few}"
        why = "due before the adapter had answered, or after some other adapters"
        unclear = f"; {self.unclear:,} are neither ({why})" if self.unclear else ""
        failures = (
            f"; {adapter}: {count:,} of {sent:,} not answered, most often {reason}"
            for adapter, sent, count, reason in self.unanswered
        )
        return f"{self.adapters} adapters: TTFT of {first}, of {loaded}{unclear}{''.join(failures)}"


def kinds_of_use(probes: Iterable[ProbeResult]) -> tuple[list[ProbeResult], list[ProbeResult], list[ProbeResult]]:
    """Sort requests to adapters into (first uses, to loaded adapters, unclear), each by due time."""
    counted = [probe for probe in probes if probe.adapter and not (probe.outcome in NEUTRAL or probe.warm_up)]
    ordered = sorted(counted, key=lambda probe: probe.timeline.intended_ns)
    first, loaded, neither = list[ProbeResult](), list[ProbeResult](), list[ProbeResult]()
    other_adapters = len({probe.adapter for probe in ordered}) - 1
    recent: list[str] = []  # most recently used adapter last
    ready_ns: dict[str, float] = {}  # first token since the last first use
    ended_ns: dict[str, float] = {}  # end of all requests so far
    for probe in ordered:
        adapter, timeline = probe.adapter, probe.timeline
        since = len(recent) - 1 - recent.index(adapter) if adapter in recent else None
        if since is None or (since == other_adapters and other_adapters and ended_ns[adapter] <= timeline.intended_ns):
            first.append(probe)
            ready_ns[adapter] = math.inf
        elif since == 0 and ready_ns[adapter] <= timeline.intended_ns:
            loaded.append(probe)
        else:
            neither.append(probe)
        if timeline.first_ns is not None:
            ready_ns[adapter] = min(ready_ns[adapter], timeline.first_ns)
        end_ns = timeline.end_ns if timeline.end_ns is not None else timeline.intended_ns
        ended_ns[adapter] = max(ended_ns.get(adapter, 0.0), end_ns)
        recent = [name for name in recent if name != adapter] + [adapter]
    return first, loaded, neither


def adapter_use_of(probes: Iterable[ProbeResult]) -> AdapterUse | None:
    """Compare first uses with uses of loaded adapters in a stage; None if its requests use fewer than two adapters."""
    sent = [probe for probe in probes if probe.adapter and not probe.warm_up]
    counts = Counter(probe.adapter for probe in sent)
    if len(counts) < 2:
        return None
    first, loaded, neither = kinds_of_use(sent)
    unanswered = [probe for probe in sent if probe.outcome not in ANSWERED]
    return AdapterUse(
        len(counts),
        len(first),
        len(loaded),
        len(neither),
        sum(probe.outcome in BAD for probe in first),
        sum(probe.outcome in BAD for probe in loaded),
        _quantiles(first),
        _quantiles(loaded),
        ttft_ratios(loaded, first),
        tuple(
            (adapter, counts[adapter], *most_often(probe for probe in unanswered if probe.adapter == adapter))
            for adapter in sorted({probe.adapter for probe in unanswered})
        ),
    )


def _quantiles(probes: Sequence[ProbeResult]) -> tuple[Quantile, ...]:
    """Quantiles of TTFT with enough samples, without those that depend on the unknown TTFT of failed requests."""
    ttfts_s = [ttft_s for block in ttft_blocks(probes) for ttft_s in block]
    known = (quantile for quantile in quantiles(ttfts_s, QS) if quantile.has_enough_samples)
    return tuple(quantile for quantile in known if math.isfinite(max(quantile.estimate, quantile.upper or 0.0)))


def _phrase(count: int, kind: str, failed: int, ttft: Sequence[Quantile]) -> str:
    text = f"{count:,} {kind}" + (f" ({failed:,} failed)" if failed else "")
    if ttft:
        return f"{text} {', '.join(f'{percentile_name(q.q)} {format_duration(q.estimate)}' for q in ttft)}"
    needed = MIN_SAMPLES_BY_QUANTILE[QS[0]]
    return f"{text} (no quantile: p50 takes {needed})" if count < needed else f"{text} (no quantile)"
