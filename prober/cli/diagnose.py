"""`prober diagnose`: sends probes to a URL and explains, like the daemon, why it is slow."""

import asyncio
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from itertools import pairwise
from random import Random
from statistics import median
from typing import Annotated

import typer

from prober.cli.console import Terminal
from prober.cli.exit_codes import ExitCode, exit_on, fail
from prober.cli.options import AddedWorkloadOptions, AsJson, EndpointOptions, MetricsUrl, Url, expand_options, quantity
from prober.cli.output import echo
from prober.cli.target import target, workload
from prober.config.problems import ConfigError
from prober.config.target import TargetSpec
from prober.config.units import duration
from prober.features.diagnosis.clues import Symptoms
from prober.features.diagnosis.diagnosis import diagnose as judge
from prober.features.diagnosis.window import Reading, failures_of, window_features
from prober.features.engines.page_reader import PageReader
from prober.measure.outcome import ANSWERED
from prober.measure.result import ProbeResult
from prober.measure.timeline import format_duration
from prober.net.clock import Clock
from prober.net.endpoint import BadEndpoint
from prober.probing.probe import run_probe
from prober.probing.session import Session
from prober.workload.shapes import Fixed, Uniform
from prober.workload.workloads import Mix, RequestGenerator, Workload

PROBES = 60
MIN_ANSWERED = 20  # without an answer so far, the others would fail too
# Long and short prompts show the cost of a prompt token, answers of this length the time per step. They fit a context of 2,048 tokens.
VARIED = Workload("varied", Uniform(128, 1_800), Fixed(64))


@dataclass(frozen=True, slots=True)
class Row:
    """Medians of answers to prompts of similar length, in seconds; None if unknown."""

    kind: str
    answered: int
    sent: int
    prompt_tokens: float | None
    ttft_s: float | None
    tpot_s: float | None


@expand_options
def diagnose(
    url: Url,
    workload_options: AddedWorkloadOptions,
    endpoint: EndpointOptions,
    ttft: Annotated[str, typer.Option(help="TTFT objective that is missed, such as 500ms.")] = "",
    tpot: Annotated[str, typer.Option(help="TPOT objective that is missed, such as 30ms.")] = "",
    metrics_url: MetricsUrl = "auto",
    as_json: AsJson = False,
) -> None:
    """Send 60 probes, one at a time, and print the diagnosis, or the failures. Exit code: 0 if any was answered."""
    with exit_on(ConfigError, BadEndpoint, ValueError, command="diagnose"):
        asked = {"ttft": ttft, "tpot": tpot}
        breached = {signal: quantity(f"--{signal}", text, duration) for signal, text in asked.items() if text}
        sent = workload(workload_options) if workload_options != AddedWorkloadOptions() else VARIED
        spec = target("diagnose", url, endpoint, metrics_url=metrics_url, metrics={"interval": 1.0})
        results, readings = asyncio.run(_measure(spec, sent))
    if not results:
        fail("prober diagnose: the engine is loading its model or shutting down; try again later", ExitCode.FAILED)
    table, failures = list(rows(results)), failures_of(probe for probe in results if probe.outcome not in ANSWERED)
    reason, diagnosis = not_diagnosed(results, breached), None
    if not reason:
        engine = readings[-1][1].info.engine if readings else results[-1].engine or None
        # One probe at a time causes no queue: if it waits, other requests are the cause.
        diagnosis = judge(Symptoms(window_features(results, readings), breached=breached, engine=engine))
    if as_json:
        found = {"rows": [asdict(row) for row in table], "failures": [failure._asdict() for failure in failures]}
        echo(json.dumps({**found, "diagnosis": diagnosis and asdict(diagnosis), "not_diagnosed": reason}))
    else:
        lines = ["Failed:", *(f"  {failure.text()}" for failure in failures)] if failures else []
        if not readings and any(row.answered for row in table):
            lines.append("The engine's own page was not read, so queueing, prefill and cache cannot be told apart.")
        _draw(table, [*lines, diagnosis.text() if diagnosis else reason])
    sys.exit(ExitCode.OK if any(row.answered for row in table) else ExitCode.FAILED)


async def _measure(spec: TargetSpec, sent: Workload | Mix) -> tuple[list[ProbeResult], list[Reading]]:
    """Send a warm-up probe, then the probes one after the other. Returns (results, readings of the engine's page)."""
    drawer, results = RequestGenerator(sent, Random()), list[ProbeResult]()
    with closing(Clock()) as clock:
        async with Session(spec, clock, PageReader) as session:
            await run_probe(session.target, drawer, clock.now_ns() + 200_000_000)
            for number in range(PROBES):
                if number == MIN_ANSWERED and not any(result.outcome in ANSWERED for result in results):
                    break
                result = await run_probe(session.target, drawer, clock.now_ns() + 50_000_000)
                results += [result] if result is not None else []
            for text in session.changes:
                echo(f"the engine {text} meanwhile", err=True)
            return results, [(at_ns / 1e9, signals) for at_ns, signals in session.readings]


def rows(results: Sequence[ProbeResult]) -> Iterator[Row]:
    """Yield a row per kind of probe, and per third of its prompts by length if lengths differ."""
    for kind in dict.fromkeys(probe.workload for probe in results):
        sent = sorted(
            (probe for probe in results if probe.workload == kind), key=lambda probe: probe.requested_prompt_tokens
        )
        is_varied = len(sent) >= 3 and sent[0].requested_prompt_tokens < sent[-1].requested_prompt_tokens
        bounds = [len(sent) * part // 3 for part in range(4)] if is_varied else [0, len(sent)]
        for begin, end in pairwise(bounds):
            lines = [probe.timeline for probe in sent[begin:end] if probe.outcome in ANSWERED]
            yield Row(
                kind,
                len(lines),
                end - begin,
                _median([line.usage.prompt_tokens for line in lines if line.usage]),
                _median([line.ttft_s for line in lines]),
                _median([line.tpot_s for line in lines]),
            )


def not_diagnosed(results: Sequence[ProbeResult], limits_s: Mapping[str, float]) -> str:
    """Explain why there is no diagnosis; "" if there is one. limits_s: {signal: seconds} from the command line"""
    answered = [probe.timeline for probe in results if probe.outcome in ANSWERED]
    if not answered:
        return "No probe was answered, so there is no latency to explain. Mend these failures first."
    if not limits_s:
        return "No limit was given, so nothing is called slow: --ttft and --tpot say what is too slow."
    if any((getattr(line, f"{name}_s") or 0.0) > limit_s for line in answered for name, limit_s in limits_s.items()):
        return ""
    limits = " or ".join(f"--{name} {format_duration(limit_s)}" for name, limit_s in limits_s.items())
    return f"Nothing was slow: no probe was above {limits}."


def _median(values: Sequence[float | None]) -> float | None:
    measured = [value for value in values if value is not None]
    return median(measured) if measured else None


def _draw(table: Sequence[Row], lines: Sequence[str]) -> None:
    cells = (
        (
            row.kind,
            f"{row.answered}/{row.sent}",
            "–" if row.prompt_tokens is None else f"{row.prompt_tokens:g}",
            format_duration(row.ttft_s),
            format_duration(row.tpot_s),
        )
        for row in table
    )
    columns = ("probes", "answered", "prompt tokens", "TTFT p50", "TPOT p50")
    Terminal(highlight=False, soft_wrap=True).table(columns, cells)
    for line in lines:
        echo(line)
