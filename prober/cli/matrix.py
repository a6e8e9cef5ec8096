"""`prober matrix`: measures the rows of a workload matrix one after the other, each with a verdict."""

import asyncio
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from prober.cli.console import Terminal, on_interrupt
from prober.cli.context import ContextOptions
from prober.cli.exit_codes import OF_VERDICT
from prober.cli.experiment import ResultOptions, refusals, sending
from prober.cli.options import (
    DEFAULT_BURST,
    Burst,
    ConfigFile,
    EndpointOptions,
    ShedAllowed,
    Url,
    WarmUpOption,
    WorkerOptions,
    expand_options,
    quantity,
    warm_up_length,
)
from prober.cli.output import echo
from prober.cli.target import file_text, known_workloads, only_load, target
from prober.config.rows import MAX_CONCURRENCY, Row, load_rows
from prober.config.target import TargetSpec
from prober.config.units import duration
from prober.daemon.target_facts import read_facts, read_gpus
from prober.features.engines.page_reader import PageReader
from prober.features.experiments.matrix import RowVerdict, loop, overall, sentences, wrong_answers
from prober.features.experiments.matrix_run import run_rows
from prober.measure.target_state import WarmUpLength
from prober.probing.session import Session
from prober.results import facets
from prober.results.cost import stage_sentences
from prober.results.result import Result
from prober.results.result_file import to_json
from prober.results.stage_parts import quantile_text

PAGE_INTERVAL_S = 0.5
COLUMNS = (("ttft", 0.5), ("ttft", 0.99), ("tpot", 0.5))


@expand_options
def matrix(
    url: Url,
    endpoint: EndpointOptions,
    file: Annotated[Path, typer.Option("--file", help="YAML file with the rows.")],
    warm_up: WarmUpOption = "10",
    burst: Burst = DEFAULT_BURST,
    config_file: ConfigFile = "",
    *,
    shed_allowed: ShedAllowed = False,
    workers: WorkerOptions,
    context: ContextOptions,
    result_options: ResultOptions,
) -> None:
    """Send and judge each row; Ctrl-C keeps what was measured. Exit codes: 0 all accepted, 1 a row rejected, 4 not judged: not
    enough data, or too many requests refused, 2 wrong call."""
    with refusals("matrix"):
        result_options.check()
        text, warm, burst_s = file_text("--file", file), warm_up_length(warm_up), quantity("--burst", burst, duration)
        rows = load_rows(text, source=str(file), workloads=known_workloads(config_file), environ=os.environ)
        if shed_allowed:
            rows = tuple(row if row.beside is None else row.model_copy(update={"shed_allowed": True}) for row in rows)
        spec = target(
            "matrix",
            url,
            endpoint,
            max_in_flight=MAX_CONCURRENCY,
            warmup=0,  # the command warms up itself
            metrics={"interval": PAGE_INTERVAL_S},
            **context.fields("matrix"),
        )
        if context.gpu_price is None and (priced := [row.name for row in rows if row.max_cost is not None]):
            raise ValueError(f"rows {', '.join(priced)}: a cost target needs the price of a GPU; add --gpu-price")
        with only_load("matrix", spec.url):
            verdicts, result = asyncio.run(_measure(spec, rows, warm, burst_s, text, workers))
    result_options.end(
        "matrix",
        lambda: to_json(result, verdicts),
        OF_VERDICT[overall(verdicts)],
        lambda: _draw(rows, verdicts, result),
    )


async def _measure(
    spec: TargetSpec,
    rows: Sequence[Row],
    warm_up: WarmUpLength,
    burst_s: float,
    configuration: str,
    options: WorkerOptions,
) -> tuple[list[RowVerdict], Result]:
    """Send the rows until the end or Ctrl-C. configuration: text of the rows, for the result. Raises like `sending` and `run_rows`."""
    interrupted = asyncio.Event()
    on_interrupt(interrupted.set)
    async with sending(options) as (clock, workers, progress):
        async with Session(spec, clock, PageReader, read_facts, read_gpus, workers.launch) as session:
            verdicts, result = await run_rows(session, rows, warm_up, interrupted, progress, configuration, burst_s)
        return verdicts, replace(result, differs=(*result.differs, *workers.clocks(), *workers.losses))


def _draw(rows: Sequence[Row], verdicts: Sequence[RowVerdict], result: Result) -> None:
    """Print a table line per row, then the reasons of the verdicts."""
    console = Terminal(highlight=False, soft_wrap=True)
    width = max(len(text) for row in rows for text in (row.name, loop(row)))
    head = f"{'row':{width}}  {'sent as':{width}}  {'verdict':15}"
    echo(f"{head}{'ok':>7}{'sent':>7}{'TTFT p50':>11}{'p99':>11}{'TPOT p50':>11}")
    for place, (row, verdict) in enumerate(zip(rows, verdicts, strict=True)):
        stage = result.stages[place] if place < len(result.stages) else None
        counts = (stage.answered, stage.sent) if stage else ("–", "–")
        line = Text(f"{row.name:{width}}  {loop(row):{width}}  ")
        line.append(
            f"{verdict.state.replace('_', ' '):15}", "" if verdict.state == "load" else OF_VERDICT[verdict.state].colour
        )
        line.append("".join(f"{count:>7}" for count in counts))
        latencies = (stage.quantile(*column) if stage else None for column in COLUMNS)
        line.append("".join(f"{quantile_text(latency):>11}" for latency in latencies))
        console.print(line)
    echo("* of too few requests to judge by")
    for row, verdict in zip(rows, verdicts, strict=True):
        expected = f" Expected: {row.hypothesis}" if row.hypothesis else ""
        echo(f"{sentences([verdict])}.{expected}")
    if result.warm_up is not None:
        echo(f"Warm-up before the row with the least: {result.warm_up}, which do not count.")
    for stage in result.stages:
        if stage.prompt_lengths:
            echo(f"{stage.name}: prompts: {stage.prompt_lengths.text()}.")
        for wrong in wrong_answers(stage):
            echo(f"{stage.name}: {wrong}.")
        for sentence in (*facets.sentences(stage), *stage_sentences(result, stage)):
            echo(sentence)
    for text in result.differs:
        echo(f"{text}.")
