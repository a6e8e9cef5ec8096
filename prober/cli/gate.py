"""`prober gate`: decides for a rollout or a pipeline whether a target is ready, in as few requests as possible."""

import asyncio
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import Annotated

import typer

from prober.cli.console import Terminal
from prober.cli.context import ContextOptions
from prober.cli.exit_codes import OF_VERDICT
from prober.cli.experiment import ResultOptions, refusals
from prober.cli.options import (
    DEFAULT_BURST,
    Burst,
    EndpointOptions,
    Margin,
    MaxRequests,
    RareOption,
    Slos,
    Url,
    WarmUpOption,
    WorkloadOptions,
    expand_options,
    quantity,
    share,
    warm_up_length,
)
from prober.cli.output import echo
from prober.cli.report import result_of
from prober.cli.target import target, workload
from prober.config.slos import parse_objectives
from prober.config.target import ProbeSpec, TargetSpec
from prober.config.units import counted, duration
from prober.config.units import rate as parse_rate
from prober.daemon.target_facts import read_facts
from prober.features.engines.page_reader import PageReader
from prober.features.experiments.gate import COMPARED, Gate, GateVerdict, Reference, decision, reference, with_cost
from prober.features.experiments.gate_run import ask
from prober.measure.objective import Slo
from prober.measure.target_state import WarmUpLength
from prober.net.clock import Clock
from prober.probing.session import Session
from prober.results import facets
from prober.results.cost import judge_cost, stage_sentences
from prober.results.result import Load, Result
from prober.results.result_file import to_json
from prober.workload.workloads import Mix

PAGE_INTERVAL_S = 10.0
MAX_IN_FLIGHT = 256  # far more than needed, so that a slow target appears slow instead of requests being shed


@expand_options
def gate(
    url: Url,
    workload_options: WorkloadOptions,
    endpoint: EndpointOptions,
    slo: Slos = None,
    rate: Annotated[str, typer.Option(help="Mean rate of the requests.")] = "2/s",
    burst: Burst = DEFAULT_BURST,
    warm_up: WarmUpOption = "10",
    max_requests: MaxRequests = 0,
    baseline: Annotated[str, typer.Option(help="Result file to compare latencies with.")] = "",
    margin: Margin = "20%",
    max_cost: Annotated[
        float | None, RareOption(min=0, help="Most dollars per million output tokens; needs --gpu-price.")
    ] = None,
    *,
    context: ContextOptions,
    result_options: ResultOptions,
) -> None:
    """Decide: ready (exit code 0), not_ready (1), degraded (3), not_enough_data or not_judged, as
    too many requests were refused (4). Exit code 2: wrong call."""
    with refusals("gate"):
        result_options.check()
        objectives, sent = parse_objectives(slo or []), workload(workload_options)
        warm = warm_up_length(warm_up)
        spec = target(
            "gate",
            url,
            endpoint,
            probes=[{"workload": sent, "rate": quantity("--rate", rate, parse_rate), "slos": objectives}],
            max_in_flight=MAX_IN_FLIGHT,
            warmup=0,  # the command warms up itself
            metrics={"interval": PAGE_INTERVAL_S},
            **context.fields("gate"),
        )
        if max_cost is not None and context.gpu_price is None:
            raise ValueError("--max-cost: needs the price of a GPU; add --gpu-price")
        probe, before = spec.probes[0], result_of(Path(baseline)) if baseline else None
        references, remarks = _references(before, probe, share("--margin", margin), baseline)
        judge = Gate(
            tuple(spec.uses()),
            rate_per_s=probe.rate,
            burst_s=quantity("--burst", burst, duration),
            most=max_requests or None,
            baseline=references,
        )
        least_s, most_s = (f"{count / probe.rate:,.0f} s" for count in (judge.least, judge.most))
        least = f"{judge.least:,} requests (about {least_s})"
        if judge.block_s:
            least = f"{judge.least_blocks:,} blocks of {judge.block_s:g} s ({least_s}, about {judge.least:,} requests)"
        echo(f"to be ready takes {least} at least; it ends after at most {judge.most:,} requests ({most_s})", err=True)
        if judge.block_s:
            echo(
                "a target with as many bad results as allowed, in bursts, may be ready: no gate is both short and safe from it",
                err=True,
            )
        verdict, result = asyncio.run(_measure(spec, judge, warm))
        if max_cost is not None:
            verdict = with_cost(verdict, judge_cost(result.stages[0], result.prices, max_cost))
        if verdict.state != "not_judged":
            remarks.append(_judged(verdict, objectives, references))
        decided = decision(verdict, spec.context.rollback)
        result = replace(result, decision=decided, stop_detail=verdict.why, refused=verdict.refused)
        if before is not None and before.target.model != result.target.model:
            remarks.append(f"the baseline is of model {before.target.model!r}, this is {result.target.model!r}")
        if result_options.output is not None:
            remarks += _as_baseline(result, result_options.output)
    if result_options.as_json:
        echo("\n".join(remarks), err=True)
    result_options.end(
        "gate",
        lambda: to_json(result, [verdict]),
        OF_VERDICT[verdict.state],
        lambda: _draw(verdict, result, remarks),
    )


def _judged(verdict: GateVerdict, slos: Sequence[Slo], references: Sequence[Reference]) -> str:
    """Sentence with the SLOs and baseline latencies that the verdict judges."""
    if not verdict.findings:
        return "Judged: that it answers. Latency was not judged, as nothing listens."
    names = ["that it answers", *(slo.text for slo in slos), *(reference.name for reference in references)]
    if references or any(slo.threshold_s is not None for slo in slos):
        return f"Judged: {', '.join(names)}."
    return (
        f"Judged: {', '.join(names)}. Latency was not judged: add --slo, such as --slo 'ttft<500ms:90%', or --baseline."
    )


def _as_baseline(result: Result, path: Path) -> list[str]:
    """Reasons why the saved result cannot be a baseline; empty if it can."""
    try:
        reference(result.requests, "ttft", max(q for _, q in COMPARED), 0.2)
    except ValueError as problem:
        return [f"{path} will not do as a baseline: {problem}, for instance with --slo 'success:99%'"]
    return []


def _references(
    before: Result | None, probe: ProbeSpec, material: float, source: str
) -> tuple[list[Reference], list[str]]:
    """(references from the baseline, sentences on latencies that it cannot be compared with). Raises ValueError."""
    if before is None:
        return [], []
    if not before.requests:
        raise ValueError(f"--baseline {source} {before.why_no_requests}")
    sent = Load.of(probe.workload, arrivals="poisson")
    rates = {place: before.stages[place].rate_per_s for place in _comparable(before, sent, source)}
    if probe.rate not in rates.values():
        known = ", ".join(f"{rate:g}/s" for rate in rates.values() if rate is not None) or "no rate that is known"
        raise ValueError(f"--baseline {source} is of {known}, not of {probe.rate:g}/s: say --rate accordingly")
    for place, rate in rates.items():
        if rate == probe.rate and (refused := before.stages[place].refused).is_too_many:
            raise ValueError(f"--baseline {source}: {refused}: its latencies are those of the others; keep another one")
    rows = [row for place, rate in rates.items() if rate == probe.rate for row in before.stages[place].requests]
    references: list[Reference] = []
    remarks: list[str] = []
    if isinstance(probe.workload, Mix):
        remarks.append(
            f"the baseline is compared with the whole mix {probe.workload.name!r}, not with each of its workloads"
        )
    for latency, q in COMPARED:
        if latency == "tpot" and all(row.tpot_s is None for row in rows):
            remarks.append(
                "the baseline has no TPOT (no usage, or content that arrived at once), so it is not compared"
            )
            continue
        references.append(reference(rows, latency, q, material))
    return references, remarks


def _comparable(before: Result, load: Load, source: str) -> list[int]:
    """Indices of the baseline's stages with the same workload and lengths. Raises ValueError."""
    loads = [stage.load or before.load for stage in before.stages]
    shape = attrgetter("workload", "prompt_tokens", "output_tokens")
    if indices := [index for index, stage_load in enumerate(loads) if shape(stage_load) == shape(load)]:
        return indices
    named = sorted({stage_load.workload or "unknown" for stage_load in loads})
    if load.workload in named:
        raise ValueError(
            f"--baseline {source}: its workload {load.workload!r} has other lengths than this one: latencies of other shapes do "
            "not compare; keep a baseline of this one"
        )
    raise ValueError(
        f"--baseline {source} is of workload {', '.join(map(repr, named)) or 'unknown'}, not of {load.workload!r}: latencies of "
        "other shapes do not compare; say --workload, or keep a baseline of this one"
    )


async def _measure(spec: TargetSpec, judge: Gate, length: WarmUpLength) -> tuple[GateVerdict, Result]:
    with closing(Clock()) as clock:
        async with Session(spec, clock, PageReader, read_facts) as session:
            return await ask(session, judge, length)


def _draw(verdict: GateVerdict, result: Result, remarks: Sequence[str]) -> None:
    console, stage = Terminal(highlight=False, soft_wrap=True), result.stages[0]
    requests = f"{counted(verdict.requests, 'request')} of workload {result.load.workload}"
    console.print(f"[bold {OF_VERDICT[verdict.state].colour}]{verdict.state}[/]  {requests}")
    echo(verdict.why)
    if verdict.findings:
        columns = ("question", "evidence", "bad", "of", "share", "allowed", "error at most")
        rows = [
            (
                finding.name,
                finding.evidence,
                str(finding.bad),
                str(finding.events),
                f"{100 * finding.lower:.3g}% to {100 * finding.upper:.3g}%",
                f"{100 * finding.budget:.3g}%",
                "–" if finding.error is None else f"{finding.error:.2g}",
            )
            for finding in verdict.findings
        ]
        console.table(columns, rows, left=2)
    if verdict.error is not None:
        echo(f"The verdict is wrong with a chance of at most {verdict.error:.2g}.")
    if result.warm_up is not None:
        echo(f"Warm-up: {result.warm_up}; only its failures count.")
    lengths = [f"Prompts: {stage.prompt_lengths.text()}."] if stage.prompt_lengths else []
    for sentence in (*remarks, *facets.sentences(stage), *lengths, *stage_sentences(result, stage)):
        echo(sentence)
