"""`prober once`: sends one probe to a URL and draws its timeline. Modules for output are imported after the probe."""

import asyncio
import json
import sys
from contextlib import closing
from random import Random

from prober.cli.exit_codes import ExitCode, exit_on, fail
from prober.cli.options import AsJson, EndpointOptions, Url, WorkloadOptions, expand_options
from prober.cli.output import echo
from prober.cli.target import target
from prober.cli.target import workload as workload_of
from prober.config.problems import ConfigError
from prober.config.target import TargetSpec
from prober.measure.outcome import ANSWERED, NEUTRAL, Outcome
from prober.measure.result import ProbeResult
from prober.measure.timeline import format_duration, render_timeline
from prober.net.clock import Clock
from prober.net.endpoint import BadEndpoint
from prober.probing.probe import run_probe
from prober.probing.target import Target
from prober.workload.workloads import RequestGenerator, unchecked_formats

EXIT = dict.fromkeys(Outcome, ExitCode.FAILED) | dict.fromkeys(NEUTRAL, ExitCode.NOT_JUDGED) | {Outcome.OK: ExitCode.OK}


@expand_options
def once(
    url: Url,
    workload_options: WorkloadOptions,
    endpoint: EndpointOptions,
    as_json: AsJson = False,
) -> None:
    """Send one probe and draw its timeline. Exit codes: 0 the outcome is ok, 1 the target fails, 2 wrong call, 4 not judged: it says
    nothing of the target, such as a request that is refused."""
    with exit_on(ConfigError, BadEndpoint, ValueError, command="once"):
        spec = target("once", url, endpoint, probes=[{"workload": workload_of(workload_options)}])
        result = asyncio.run(_send(spec))
    if result is None:
        fail("prober once: the engine is loading its model or shutting down; try again later", ExitCode.FAILED)
    for text in unchecked_formats(spec.probes[0].workload):
        echo(text, err=as_json)
    if as_json:
        from prober.web.api_types import ProbeAnswer  # here, as the probe does not need it

        echo(json.dumps(ProbeAnswer.model_validate(result).model_dump()))
    else:
        draw(result)
    sys.exit(EXIT[result.outcome])


async def _send(spec: TargetSpec) -> ProbeResult | None:
    with closing(Clock()) as clock:
        target = Target(spec, clock)
        await target.identify()  # so that the look-up is not part of the probe
        due = clock.now_ns() + 200_000_000
        result = await run_probe(target, RequestGenerator(spec.probes[0].workload, Random()), due)
        await asyncio.sleep(0)
        return result


def draw(result: ProbeResult) -> None:
    """Print the outcome, the phases, a table of the measures and the gaps between chunks."""
    from rich.table import Table  # here, as the probe does not need it

    from prober.cli.console import Terminal
    from prober.measure.buffering import Buffering

    console, timeline = Terminal(highlight=False, soft_wrap=True), result.timeline
    good = result.outcome is Outcome.OK
    model = result.adapter or result.model
    who = f"  {model}" if model else ""
    who += f"  ({result.engine})" if result.engine else ""
    console.print(f"[bold {'green' if good else 'red'}]{result.outcome.value}[/]", end="")
    echo(who)
    is_other = timeline.answered_model not in ("", model)
    named = f"the answer names the model {timeline.answered_model}, and {model} was asked" if is_other else ""
    buffering = Buffering().after(timeline)
    is_buffered = result.outcome in ANSWERED and any(buffering.held_back)
    buffered = f"buffered: {buffering.sentence}" if is_buffered else ""
    for line in filter(None, (named, result.detail, buffered, *render_timeline(timeline))):
        echo(line)
    table = Table(box=None, show_header=False, pad_edge=False)
    connection, usage = timeline.connection, timeline.usage
    phases = [(p, getattr(connection, f"{p}_s")) for p in ("dns", "tcp", "proxy", "tls")] if connection else []
    connect = ", ".join(f"{phase} {format_duration(seconds)}" for phase, seconds in phases if seconds is not None)
    rows = [("connect", connect)] if connect else []
    rows += [("network", timeline.network_text)] if timeline.network_text else []
    rows += [("service tier", timeline.service_tier)] if timeline.service_tier else []
    rows += [("trace id", result.trace_id)] if result.is_traced else []
    rows += [("time", timeline.parts_text)] if timeline.parts_text else []
    rows += [("server's id", result.server_request_id)] if result.server_request_id else []
    if timeline.first_ns is not None:
        rows.append(("TTFT", timeline.why_no_ttft or format_duration(timeline.ttft_s)))
    if timeline.first_answer_ns != timeline.first_ns:
        rows.append(("TTFT answer", timeline.why_no_ttft_answer or format_duration(timeline.ttft_answer_s)))
    if timeline.calls:
        times = f"first after {format_duration(timeline.ttft_call_s)}, its arguments after {format_duration(timeline.arguments_s)}"
        rows.append(("tool calls", f"{timeline.calls}: {times}"))
    if any(result.retries.values()):
        rows.append(("gateway", ", ".join(f"{kind}: {count}" for kind, count in result.retries.items())))
    gaps = sorted(timeline.chunk_gaps_s)
    rows += [("TPOT", timeline.why_no_tpot or format_duration(timeline.tpot_s))] if timeline.content_ns else []
    rows += [("E2E", format_duration(timeline.e2e_s))] if timeline.e2e_s is not None else []
    if gaps:
        low, median, high = map(format_duration, (gaps[0], gaps[len(gaps) // 2], gaps[-1]))
        rows.append(("gaps", f"{len(gaps)}: min {low}, median {median}, max {high}"))
    if usage:
        asked = f" ({result.requested_prompt_tokens} words sent)" if result.has_asked_length else ""
        prompt, completion = ("unknown" if count is None else count for count in usage[:2])
        is_reasoned = usage.reasoning_tokens and usage.completion_tokens
        reasoned = f", {usage.reasoning_tokens} of reasoning among them" if is_reasoned else ""
        rows.append(("tokens", f"{prompt} prompt{asked}, {completion} completion{reasoned}"))
    elif timeline.content_ns:
        rows.append(("tokens", timeline.unusable_usage or "the server sent no usage"))
    for name, value in rows:
        table.add_row(name, value)
    if rows:
        console.print(table)
    for index, gap in enumerate(timeline.chunk_gaps_s[:200], len(timeline.content_ns) - len(gaps) + 1):
        width = round(gap / gaps[-1] * 40) if gaps[-1] else 0
        echo(f"  chunk {index:4} +{format_duration(gap):>9} {'▇' * width}")
