"""`prober matrix`: measures the rows of a workload matrix one after the other, with a verdict for each."""

import asyncio
import json
import os
import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from prober.cli.console import Terminal, on_interrupt
from prober.cli.context import ContextOptions
from prober.cli.exit_codes import OF_VERDICT, ExitCode, exit_on, saved
from prober.cli.options import (
    DEFAULT_BURST,
    AsJson,
    Burst,
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
from prober.cli.target import check_writable, file_text, known_workloads, only_load, target, validated
from prober.config.problems import ConfigError
from prober.config.rows import MAX_CONCURRENCY, Row, load_rows
from prober.config.target import TargetSpec
from prober.config.units import duration, positive_duration
from prober.daemon.target_facts import read_facts, read_gpus
from prober.features.engines.page_reader import PageReader
from prober.features.experiments.matrix import RowVerdict, fails_error, loop, needs, overall, sentences, wrong_answers
from prober.features.experiments.matrix_run import run_rows
from prober.measure.objective import Slo
from prober.measure.target_state import WarmUpLength
from prober.net.clock import Clock
from prober.net.endpoint import BadEndpoint
from prober.probing.session import Session, UnidentifiedTarget
from prober.probing.workers import WorkersUnavailable, open_workers
from prober.results import facets
from prober.results.cost import stage_sentences
from prober.results.result import Result, Stage
from prober.results.result_file import to_json
from prober.results.stage_parts import quantile_text
from prober.workload.workloads import Mix, Workload

PAGE_INTERVAL_S = 0.5
COLUMNS = (("ttft", 0.5), ("ttft", 0.99), ("tpot", 0.5))
# Fields of a stage that --json prints of its row.
OF_STAGE = {
    *("sent", "answered", "outcomes", "refused", "prompt_lengths", "quality", "latencies"),
    *(facet.name for facet in facets.FACETS),
}


@expand_options
def matrix(
    url: Url,
    endpoint: EndpointOptions,
    file: Annotated[Path, typer.Option("--file", help="YAML file with the rows.")],
    warm_up: WarmUpOption = "10",
    burst: Burst = DEFAULT_BURST,
    config_file: Annotated[
        str, typer.Option("--config.file", help="Configuration file whose workloads rows can name.")
    ] = "",
    output: Annotated[Path | None, typer.Option(help="File for the result, for `prober report`.")] = None,
    *,
    shed_allowed: ShedAllowed = False,
    workers: WorkerOptions,
    context: ContextOptions,
    as_json: AsJson = False,
) -> None:
    """Send and judge each row; Ctrl-C keeps what was measured. Exit codes: 0 all accepted, 1 a row rejected, 4 not judged: not
    enough data, or too many requests refused, 2 wrong call."""
    with exit_on(ConfigError, ValueError, command="matrix"):
        text, warm, burst_s = file_text("--file", file), warm_up_length(warm_up), quantity("--burst", burst, duration)
        rows = load_rows(text, source=str(file), workloads=known_workloads(config_file), environ=os.environ)
        if shed_allowed:
            rows = tuple(row if row.beside is None else row.model_copy(update={"shed_allowed": True}) for row in rows)
        if output is not None:
            check_writable("--output", output)
        spec = target(
            "matrix",
            url,
            endpoint,
            max_in_flight=MAX_CONCURRENCY,
            warmup=0,  # the command sends its own
            metrics={"interval": PAGE_INTERVAL_S},
            **context.fields("matrix"),
        )
        if context.gpu_price is None and (priced := [row.name for row in rows if row.max_cost is not None]):
            raise ValueError(f"rows {', '.join(priced)}: a cost target needs the price of a GPU; add --gpu-price")
    measure_rows("matrix", spec, rows, warm, burst_s, text, workers, output=output, as_json=as_json)


def closed_rows(concurrency: str, workload: Workload | Mix, step: str, slos: Sequence[Slo]) -> list[Row]:
    """Rows in a closed loop, one for each number of requests in flight in `concurrency`. Raises ValueError, ConfigError."""
    step_s = quantity("--step", step or "30s", positive_duration)
    counts = [count.strip() for count in concurrency.split(",")]
    if not all(count.isdecimal() and 1 <= int(count) <= MAX_CONCURRENCY for count in counts):
        raise ValueError(f"--concurrency {concurrency!r}: write numbers from 1 to {MAX_CONCURRENCY:,}, such as 1,4,16")
    rows = [
        {"name": f"{workload.name}-{count}", "workload": workload, "concurrency": int(count), "duration": step_s}
        for count in dict.fromkeys(counts)
    ]
    return [validated("sweep", Row, {**row, "accept": tuple(slos)}) for row in rows]


def measure_rows(
    command: str,
    spec: TargetSpec,
    rows: Sequence[Row],
    warm: WarmUpLength,
    burst_s: float,
    configuration: str,
    workers: WorkerOptions,
    *,
    output: Path | None,
    as_json: bool,
) -> NoReturn:
    """Send and judge each row, write and print the result, and exit.

    burst_s: longest burst of bad results to expect; configuration: text of the rows, for the result
    """
    with exit_on(ValueError, command=command):
        worker_processes = workers.count()
    with (
        exit_on(BadEndpoint, command=command),
        exit_on(UnidentifiedTarget, WorkersUnavailable, command=command, code=ExitCode.NOT_JUDGED),
        only_load(command, spec.url),
    ):
        verdicts, result = asyncio.run(
            _measure(spec, rows, warm, burst_s, configuration, worker_processes, workers.ray)
        )
    with saved(to_json(result), output, f"prober {command}: --output"):
        if as_json:
            echo(json.dumps(_object(rows, verdicts, result, burst_s)))
        else:
            _draw(rows, verdicts, result)
    sys.exit(OF_VERDICT[overall(verdicts)])


async def _measure(
    spec: TargetSpec,
    rows: Sequence[Row],
    warm_up: WarmUpLength,
    burst_s: float,
    configuration: str,
    worker_processes: int | None,
    ray: str,
) -> tuple[list[RowVerdict], Result]:
    """Send the rows with worker processes, until the end or Ctrl-C. Raises as `open_workers` and `run_rows`."""
    interrupted = asyncio.Event()
    on_interrupt(interrupted.set)
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    async with open_workers(worker_processes, ray=ray) as workers:
        with (
            closing(Clock()) as clock,
            Progress(*columns, console=Terminal(stderr=True, highlight=False, soft_wrap=True)) as progress,
        ):
            async with Session(spec, clock, PageReader, read_facts, read_gpus, workers.launch) as session:
                verdicts, result = await run_rows(session, rows, warm_up, interrupted, progress, configuration, burst_s)
        return verdicts, replace(result, differs=(*result.differs, *workers.clocks(), *workers.losses))


def _object(rows: Sequence[Row], verdicts: Sequence[RowVerdict], result: Result, burst_s: float) -> dict[str, Any]:
    """The object that --json prints."""
    state = overall(verdicts)
    not_begun_stage = Stage("", None, None, None, None, sent=0, answered=0)
    row_needs = [list(needs(row, fails_error(rows), burst_s)) for row in rows]
    stages = [*result.without_requests().stages, *[not_begun_stage] * (len(rows) - len(result.stages))]
    return {
        "state": state,
        "exit_code": OF_VERDICT[state],
        "target": asdict(result.target),
        "rows": [
            {
                **asdict(verdict),
                "name": row.name,
                "hypothesis": row.hypothesis,
                "loop": "closed" if row.closed else "open",
                "rate_per_s": row.rate,
                "concurrency": row.concurrency,
                "needs": [text for text, _ in of_row],
                **{name: value for name, value in asdict(stage).items() if name in OF_STAGE},
            }
            for row, verdict, stage, of_row in zip(rows, verdicts, stages, row_needs, strict=True)
        ],
        "reservations": [
            *result.differs,
            *(text for of_row in row_needs for text, is_too_little in of_row if is_too_little),
        ],
    }


def _draw(rows: Sequence[Row], verdicts: Sequence[RowVerdict], result: Result) -> None:
    """Print a table line for each row, then the reason of each verdict."""
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
