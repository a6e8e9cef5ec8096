"""`prober diagnose`: sends probes of several shapes to a URL and explains why it is slow."""

import asyncio
import json
import os
import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict
from random import Random
from typing import Annotated

import typer

from prober.cli.console import Terminal
from prober.cli.exit_codes import ExitCode, exit_on, fail
from prober.cli.options import (
    AddedWorkloadOptions,
    AsJson,
    EndpointOptions,
    MetricsUrl,
    RareOption,
    Url,
    expand_options,
)
from prober.cli.output import echo
from prober.cli.target import target, validated, workload
from prober.config.fields import Document
from prober.config.problems import ConfigError
from prober.config.serving import DecodeBoundSpec
from prober.config.target import TargetSpec
from prober.config.units import duration
from prober.features.diagnosis.clues import Symptoms
from prober.features.diagnosis.diagnosis import diagnose as judge
from prober.features.diagnosis.phases import PHASES, failures, fitted, not_diagnosed, rows
from prober.features.diagnosis.window import Reading, hardware_of, window_features
from prober.features.engines.page_reader import PageReader
from prober.measure.outcome import ANSWERED
from prober.measure.result import ProbeResult
from prober.measure.timeline import format_duration
from prober.net.clock import Clock
from prober.net.endpoint import BadEndpoint
from prober.probing.probe import run_probe
from prober.probing.session import Session
from prober.storage.watched_file import read_text
from prober.workload.workloads import Mix, RequestGenerator, Workload

OWN_PROBES = 20


@expand_options
def diagnose(
    url: Url,
    workload_options: AddedWorkloadOptions,
    endpoint: EndpointOptions,
    ttft: Annotated[str, typer.Option(help="TTFT objective that is missed, such as 500ms.")] = "",
    tpot: Annotated[str, typer.Option(help="TPOT objective that is missed, such as 30ms.")] = "",
    metrics_url: MetricsUrl = "auto",
    model_config: Annotated[str, RareOption(help="The model's config.json, for the bound of decode.")] = "",
    gpu: Annotated[str, RareOption(help="NVML name of the GPU, such as 'NVIDIA L4'.")] = "",
    gpus: Annotated[int, RareOption(min=1, help="Number of GPUs that share the weights.")] = 1,
    as_json: AsJson = False,
) -> None:
    """Send about 70 small probes, one at a time, and print the diagnosis, or the failures. Exit code: 0 if any was answered."""
    bound = {"config_file": model_config, "gpu": gpu, "gpus": gpus}
    with exit_on(ConfigError, BadEndpoint, ValueError, command="diagnose"):
        breached = {signal: duration(text) for signal, text in (("ttft", ttft), ("tpot", tpot)) if text}
        decode = (
            validated("diagnose", DecodeBoundSpec, bound, Document((), os.environ, read_text))
            if model_config and gpu
            else None
        )
        own = workload(workload_options) if workload_options != AddedWorkloadOptions() else None
        spec = target("diagnose", url, endpoint, metrics_url=metrics_url, metrics={"interval": 1.0})
        results, readings = asyncio.run(_measure(spec, own, quiet=as_json))
    if not results:
        fail("prober diagnose: the engine is loading its model or shutting down; try again later", ExitCode.FAILED)
    engine = readings[-1][1].info.engine if readings else results[-1].engine or None
    reason = not_diagnosed(results, breached)
    # As there is no usual window, parts of a latency are compared with the objective that is missed.
    now = window_features(results, readings, hardware=hardware_of(decode))
    verdict = None if reason else judge(Symptoms(now, breached=breached, engine=engine))
    if as_json:
        phases = [asdict(row) for row in rows(results)]
        failed = [failure._asdict() for failure in failures(results)]
        diagnosis = {"diagnosis": verdict and asdict(verdict), "not_diagnosed": reason}
        echo(json.dumps({"phases": phases, "failures": failed, **diagnosis}))
    else:
        _draw(results, readings, verdict.text() if verdict else reason)
    sys.exit(ExitCode.OK if any(row.answered for row in rows(results)) else ExitCode.FAILED)


async def _measure(
    spec: TargetSpec, own: Workload | Mix | None, *, quiet: bool
) -> tuple[list[ProbeResult], list[Reading]]:
    """Send the probes of all phases and of the user's own workload, one after the other. The very first probe is warm-up."""
    rng, results = Random(), list[ProbeResult]()
    with closing(Clock()) as clock:
        async with Session(spec, clock, PageReader) as session:
            await run_probe(session.target, RequestGenerator(PHASES[0].workload, rng), clock.now_ns() + 200_000_000)
            sent = [(phase.workload, phase.probes, phase.purpose) for phase in PHASES]
            for workload_, probes, purpose in [*sent, *([(own, OWN_PROBES, "the named workload")] if own else [])]:
                if isinstance(workload_, Workload) and workload_ is not own and session.readings:
                    workload_ = fitted(workload_, session.readings[-1][1].context_tokens)
                if not quiet:
                    echo(f"{probes} × {workload_.name}: {purpose}", err=True)
                drawer = RequestGenerator(workload_, rng)
                for _ in range(probes):
                    result = await run_probe(session.target, drawer, clock.now_ns() + 50_000_000)
                    results += [result] if result is not None else []
                if not any(result.outcome in ANSWERED for result in results):
                    break  # the other shapes would fail as well
            for text in session.changes:
                echo(f"the engine {text} meanwhile", err=True)
            return results, [(at_ns / 1e9, signals) for at_ns, signals in session.readings]


def _draw(results: Sequence[ProbeResult], readings: list[Reading], diagnosis: str) -> None:
    console = Terminal(highlight=False, soft_wrap=True)
    cells = (
        (
            row.kind,
            f"{row.answered}/{row.sent}",
            "–" if row.prompt_tokens is None else f"{row.prompt_tokens:g}",
            format_duration(row.ttft_s),
            format_duration(row.tpot_s),
        )
        for row in rows(results)
    )
    console.table(("probes", "answered", "prompt tokens", "TTFT p50", "TPOT p50"), cells)
    if failed := failures(results):
        echo("Failed:")
    for failure in failed:
        echo(f"  {failure.text()}")
    if not readings and any(row.answered for row in rows(results)):
        echo("The engine's own page was not read, so queueing, prefill and cache cannot be told apart.")
    echo(diagnosis)
