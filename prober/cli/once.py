"""`prober once`: one probe against a URL, its timeline drawn."""

import asyncio
import json
import sys
from random import Random
from typing import Annotated

import typer
import uvloop
from rich.console import Console
from rich.table import Table

from prober.cli.target import Api, BearerTokenFile, BuiltIn, CaFile, Engine, Header, Model, Url, target
from prober.config.load import ConfigError
from prober.config.specs import TargetSpec
from prober.measure.outcome import Outcome
from prober.measure.result import ProbeResult
from prober.measure.timeline_text import in_text, ms
from prober.net.clock import Clock
from prober.net.endpoint import BadEndpoint
from prober.probing.probe import run_probe
from prober.probing.target import Target
from prober.web.api_types import of_probe
from prober.workload.workloads import Drawer


def once(
    url: Url,
    model: Model = "auto",
    api: Api = "chat",
    engine: Engine = "auto",
    workload: BuiltIn = "probe",
    bearer_token_file: BearerTokenFile = "",
    ca_file: CaFile = "",
    header: Header = None,
    as_json_: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Send one probe and show what happened when. Exit code 0 if it ended well."""
    try:
        spec = target(
            "once",
            url,
            model=model,
            api=api,
            engine=engine,
            bearer_token_file=bearer_token_file,
            ca_file=ca_file,
            header=header,
            probes=[{"workload": workload}],
        )
        result = uvloop.run(_send(spec))
    except (ConfigError, BadEndpoint) as problem:
        print(problem, file=sys.stderr)
        sys.exit(2)
    if result is None:
        print("the engine says that it is loading its model or shutting down; try again later", file=sys.stderr)
        sys.exit(1)
    if as_json_:
        print(json.dumps(of_probe(result)))
    else:
        _draw(result)
    sys.exit(0 if result.outcome is Outcome.OK else 1)


async def _send(spec: TargetSpec) -> ProbeResult | None:
    clock = Clock()
    try:
        target = Target(spec, clock)
        await target.identify()  # so that finding out the model is not in the probe's time
        due = clock.now_ns() + 200_000_000
        result = await run_probe(target, Drawer(spec.probes[0].workload, Random()), due)
        await asyncio.sleep(0)
        return result
    finally:
        clock.close()


def _draw(result: ProbeResult) -> None:
    console, timeline = Console(highlight=False), result.timeline
    good = result.outcome is Outcome.OK
    who = f"  {result.model}" if result.model else ""
    who += f"  ({result.engine})" if result.engine else ""
    console.print(f"[bold {'green' if good else 'red'}]{result.outcome.value}[/]", end="")
    console.print(who, markup=False)
    if result.detail:
        console.print(result.detail, markup=False)
    for line in in_text(timeline):
        console.print(line, markup=False)
    table = Table(box=None, show_header=False, pad_edge=False)
    connection, usage = timeline.connection, timeline.usage
    phases = [(p, getattr(connection, f"{p}_s")) for p in ("dns", "tcp", "proxy", "tls")] if connection else []
    connect = ", ".join(f"{phase} {ms(seconds)}" for phase, seconds in phases if seconds is not None)
    rows = [("connect", connect)] if connect else []
    rows += [("TTFT", ms(timeline.ttft_s))] if timeline.ttft_s is not None else []
    if timeline.first_answer_ns != timeline.first_ns:
        rows.append(("TTFT answer", ms(timeline.ttft_answer_s)))
    gaps = sorted(timeline.chunk_gaps_s)
    rows += [("TPOT", ms(timeline.tpot_s))] if timeline.content_ns else []
    rows += [("E2E", ms(timeline.e2e_s))] if timeline.e2e_s is not None else []
    if gaps:
        rows.append(("gaps", f"{len(gaps)}: min {ms(gaps[0])}, median {ms(gaps[len(gaps) // 2])}, max {ms(gaps[-1])}"))
    if usage:
        rows.append(("tokens", f"{usage.prompt_tokens} prompt, {usage.completion_tokens} completion"))
    elif timeline.content_ns:
        rows.append(("tokens", "the server sent no usage"))
    for name, value in rows:
        table.add_row(name, value)
    if rows:
        console.print(table)
    for index, gap in enumerate(timeline.chunk_gaps_s[:200], 2):
        width = round(gap / gaps[-1] * 40) if gaps[-1] else 0
        console.print(f"  chunk {index:4} +{ms(gap):>9} {'▇' * width}", markup=False)
