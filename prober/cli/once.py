"""`prober once`: sends one probe to a URL and draws its timeline."""

import asyncio
import json
import sys
from random import Random

import uvloop
from rich.table import Table

from prober.cli.console import Terminal
from prober.cli.exit_codes import ExitCode, exit_on, fail
from prober.cli.options import AsJson, EndpointOptions, Url, WorkloadOptions, expand_options
from prober.cli.output import echo
from prober.cli.target import target
from prober.cli.target import workload as workload_of
from prober.config.load import ConfigError
from prober.config.target import TargetSpec
from prober.measure.outcome import Outcome
from prober.measure.result import ProbeResult
from prober.measure.timeline_text import format_duration, render_timeline
from prober.net.clock import Clock
from prober.net.endpoint import BadEndpoint
from prober.probing.probe import run_probe
from prober.probing.target import Target
from prober.web.api_types import ProbeAnswer
from prober.workload.workloads import RequestGenerator


@expand_options
def once(
    url: Url,
    workload_options: WorkloadOptions,
    endpoint: EndpointOptions,
    as_json: AsJson = False,
) -> None:
    """Send one probe and draw its timeline. Exit code: 0 if the outcome is ok."""
    with exit_on(ConfigError, BadEndpoint, ValueError, command="once"):
        spec = target("once", url, endpoint, probes=[{"workload": workload_of(workload_options)}])
        result = uvloop.run(_send(spec))
    if result is None:
        fail("prober once: the engine is loading its model or shutting down; try again later", ExitCode.FAILED)
    if as_json:
        echo(json.dumps(ProbeAnswer.model_validate(result).model_dump()))
    else:
        _draw(result)
    sys.exit(ExitCode.OK if result.outcome is Outcome.OK else ExitCode.FAILED)


async def _send(spec: TargetSpec) -> ProbeResult | None:
    clock = Clock()
    try:
        target = Target(spec, clock)
        await target.identify()  # so that finding out the model is not in the probe's time
        due = clock.now_ns() + 200_000_000
        result = await run_probe(target, RequestGenerator(spec.probes[0].workload, Random()), due)
        await asyncio.sleep(0)
        return result
    finally:
        clock.close()


def _draw(result: ProbeResult) -> None:
    console, timeline = Terminal(highlight=False, soft_wrap=True), result.timeline
    good = result.outcome is Outcome.OK
    who = f"  {result.model}" if result.model else ""
    who += f"  ({result.engine})" if result.engine else ""
    console.print(f"[bold {'green' if good else 'red'}]{result.outcome.value}[/]", end="")
    console.print(who, markup=False)
    if timeline.answered_model not in ("", result.model):
        console.print(f"the answer names the model {timeline.answered_model}", markup=False)
    if result.detail:
        console.print(result.detail, markup=False)
    for line in render_timeline(timeline):
        console.print(line, markup=False)
    table = Table(box=None, show_header=False, pad_edge=False)
    connection, usage = timeline.connection, timeline.usage
    phases = [(p, getattr(connection, f"{p}_s")) for p in ("dns", "tcp", "proxy", "tls")] if connection else []
    connect = ", ".join(f"{phase} {format_duration(seconds)}" for phase, seconds in phases if seconds is not None)
    rows = [("connect", connect)] if connect else []
    rows += [("TTFT", format_duration(timeline.ttft_s))] if timeline.ttft_s is not None else []
    if timeline.first_answer_ns != timeline.first_ns:
        rows.append(("TTFT answer", format_duration(timeline.ttft_answer_s)))
    gaps = sorted(timeline.chunk_gaps_s)
    rows += [("TPOT", timeline.why_no_tpot or format_duration(timeline.tpot_s))] if timeline.content_ns else []
    rows += [("E2E", format_duration(timeline.e2e_s))] if timeline.e2e_s is not None else []
    if gaps:
        low, median, high = map(format_duration, (gaps[0], gaps[len(gaps) // 2], gaps[-1]))
        rows.append(("gaps", f"{len(gaps)}: min {low}, median {median}, max {high}"))
    if usage:
        asked = f" ({result.requested_prompt_tokens} words sent)" if result.has_asked_length else ""
        rows.append(("tokens", f"{usage.prompt_tokens} prompt{asked}, {usage.completion_tokens} completion"))
    elif timeline.content_ns:
        rows.append(("tokens", "the server sent no usage"))
    for name, value in rows:
        table.add_row(name, value)
    if rows:
        console.print(table)
    for index, gap in enumerate(timeline.chunk_gaps_s[:200], 2):
        width = round(gap / gaps[-1] * 40) if gaps[-1] else 0
        console.print(f"  chunk {index:4} +{format_duration(gap):>9} {'▇' * width}", markup=False)
