"""`prober matrix`: measures the rows of a workload matrix one after the other, with a verdict for each."""

import asyncio
import json
import os
import signal
import sys
import time
import uuid
from collections.abc import Coroutine, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Annotated, Any, NoReturn

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from prober import __version__
from prober.cli.console import Terminal
from prober.cli.context import ContextOptions, random_seed
from prober.cli.exit_codes import ExitCode, exit_on
from prober.cli.options import AsJson, EndpointOptions, Url, WarmUpOption, WorkerOptions, expand_options, warm_up_length
from prober.cli.output import echo
from prober.cli.sending import Load, Sending, Watched
from prober.cli.target import check_writable, known_workloads, only_load, target
from prober.config.problems import ConfigError
from prober.config.rows import MAX_CONCURRENCY, Row, load_rows
from prober.config.target import TargetSpec
from prober.daemon.target_facts import read_facts
from prober.features.experiments.matrix import (
    State,
    Verdict,
    amount,
    decision,
    fails_error,
    judge,
    limits_of,
    load_of,
    loop,
    not_begun,
    other_models,
    overall,
    reservations,
    sentences,
    shape_of,
    stage_name,
    with_cost,
    wrong_answers,
)
from prober.measure.gpu_reading import without_parts
from prober.measure.timeline_text import format_duration
from prober.measure.warmup import WarmUpLength
from prober.net.clock import Clock
from prober.net.endpoint import BadEndpoint
from prober.probing.probe import Launch
from prober.probing.result_context import completed
from prober.probing.workers import WorkersUnavailable, open_workers
from prober.results.cost import judge_cost, stage_sentences
from prober.results.disturbance import Disturbance, contrast_of
from prober.results.facts import Fact
from prober.results.result import Request, Result, Stage, WarmUp
from prober.results.result import Target as Described
from prober.results.result_file import to_json
from prober.results.stage import stage_of
from prober.storage.watched_file import read_text

EXIT: dict[State, ExitCode] = {
    "accepted": ExitCode.OK,
    "rejected": ExitCode.FAILED,
    "not_enough_data": ExitCode.NOT_JUDGED,
    "not_judged": ExitCode.NOT_JUDGED,
}
PAGE_INTERVAL_S = 0.5
# Fields of a stage that --json prints of its row.
OF_STAGE = {
    *("sent", "answered", "outcomes", "refused", "prompt_lengths", "quality", "reasoning", "tool_calls"),
    *("series", "disturbance", "adapters", "contrast", "latencies"),
}


class UnidentifiedTarget(Exception):
    """The target cannot be identified; the message says why."""


@expand_options
def matrix(
    url: Url,
    endpoint: EndpointOptions,
    file: Annotated[Path, typer.Option("--file", help="YAML file with the rows.")],
    warm_up: WarmUpOption = "10",
    config_file: Annotated[
        str, typer.Option("--config.file", help="Configuration file whose workloads rows can name.")
    ] = "",
    output: Annotated[Path | None, typer.Option(help="File for the result, for `prober report`.")] = None,
    *,
    workers: WorkerOptions,
    context: ContextOptions,
    as_json: AsJson = False,
) -> None:
    """Send and judge each row; Ctrl-C keeps what was measured. Exit codes: 0 all accepted, 1 a row rejected, 4 not judged: not
    enough data, or too many requests refused, 2 wrong call."""
    with exit_on(ConfigError, ValueError, command="matrix"):
        text, warm = _read(file), warm_up_length(warm_up)
        rows = load_rows(text, source=str(file), workloads=known_workloads(config_file), environ=os.environ)
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
    run_rows("matrix", spec, rows, warm, text, workers, output=output, as_json=as_json)


def run_rows(
    command: str,
    spec: TargetSpec,
    rows: Sequence[Row],
    warm: WarmUpLength,
    configuration: str,
    workers: WorkerOptions,
    *,
    output: Path | None,
    as_json: bool,
) -> NoReturn:
    """Send and judge each row, write and print the result, and exit.

    configuration: of the rows, for the result
    """
    with exit_on(ValueError, command=command):
        worker_processes = workers.count()
    with (
        exit_on(BadEndpoint, command=command),
        exit_on(UnidentifiedTarget, WorkersUnavailable, command=command, code=ExitCode.NOT_JUDGED),
        only_load(command, spec.url),
    ):
        measured = asyncio.run(_measure(spec, rows, warm, worker_processes, workers.ray))
    result = completed(_result(spec, rows, measured, configuration), spec, measured.facts, seed=measured.seed)
    judged = [*(sent.verdict for sent in measured.rows), *(not_begun(row) for row in rows[len(measured.rows) :])]
    verdicts = _with_costs(rows, judged, result)
    if (decided := decision(verdicts)) is not None:
        result = replace(result, decision=replace(decided, rollback_risk=spec.context.rollback))
    else:
        result = replace(result, stop_detail=sentences(verdicts))
    if output is not None:
        output.write_text(to_json(result), encoding="utf-8")
    if as_json:
        echo(json.dumps(_object(rows, verdicts, result)))
    else:
        _draw(rows, verdicts, result)
    sys.exit(EXIT[overall(verdicts)])


@dataclass(frozen=True, slots=True)
class SentRow:
    """A row that was started. ended: "complete", or why it ended before; disturbance: effect of the load beside it, if any."""

    row: Row
    sending: Sending
    verdict: Verdict
    ended: str
    disturbance: Disturbance | None = None

    @property
    def is_complete(self) -> bool:
        """It ran to its end."""
        return self.ended == "complete"


@dataclass(frozen=True, slots=True)
class Measured:
    """The rows that were started, in their order.

    origin_ns: start on the clock of the timelines
    facts: about the target; seed: of all random draws
    workers: sentences on their clocks, and on those that ended
    """

    rows: list[SentRow]
    described: Described
    origin_ns: int
    started_unix_s: float
    ended_unix_s: float
    facts: list[Fact]
    seed: int
    workers: tuple[str, ...] = ()

    @property
    def warmed(self) -> WarmUp:
        """The shortest warm-up before a row."""
        return min((sent.sending.warmed for sent in self.rows), key=lambda warm_up: warm_up.requests, default=WarmUp(0))


async def _measure(
    spec: TargetSpec, rows: Sequence[Row], warm_up: WarmUpLength, worker_processes: int | None, ray: str
) -> Measured:
    """Send with so many workers; see `open_workers` and `_send_rows`, which say what is raised."""
    async with open_workers(worker_processes, ray=ray) as workers:
        measured = await _send_rows(spec, rows, warm_up, workers.launch)
        return replace(measured, workers=(*workers.clocks(), *workers.losses))


async def _send_rows(spec: TargetSpec, rows: Sequence[Row], warm_up: WarmUpLength, launch: Launch) -> Measured:
    """Send row after row; the first interrupted row is the last. Raises UnidentifiedTarget, BadEndpoint."""
    clock, seed, started_s = Clock(), random_seed(), time.time()
    rng = Random(seed)
    origin_ns = clock.now_ns()
    session = Watched(spec, clock, launch)
    interrupted = _interruption()
    sent: list[SentRow] = []
    try:
        await session.start()
        if (problem := await session.target.identify()) is not None:
            raise UnidentifiedTarget(f"{spec.url}: {problem.detail}")
        facts = await read_facts(session.target, None)
        columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
        with Progress(*columns, console=Terminal(stderr=True, highlight=False, soft_wrap=True)) as progress:
            say = progress.console.print
            for text in (text for row in rows for text in reservations(row)):
                say(text, markup=False)
            loads = {row.beside: row for row in rows if row.beside is not None}
            for number, row in enumerate(rows, 1):
                if interrupted.is_set():
                    break
                if row.beside is not None:
                    continue  # sent with the row before it
                say(f"{number}/{len(rows)} {_line(row)}", markup=False)
                bar = progress.add_task(row.name, total=row.requests)
                sending = Sending(session, row, rng, warm_up, partial(progress.advance, bar))
                load, load_row = None, loads.get(row.name)
                if load_row is not None:
                    say(f"beside it after {load_row.start:g} s: {_line(load_row)}", markup=False)
                    load = Load(session, sending, row, Sending(session, load_row, rng, warm_up, lambda: None), load_row)
                is_complete = await _unless(interrupted, sending.run() if load is None else load.run())
                progress.remove_task(bar)
                if sending.begin_ns is not None:
                    verdict = judge(
                        row,
                        sending.results,
                        error=fails_error(rows),
                        loading=sending.loading,
                        interrupted=not is_complete,
                    )
                    disturbance = load.disturbance() if load is not None and is_complete else None
                    ended = "complete" if is_complete else "interrupted"
                    sent.append(SentRow(row, sending, verdict, ended, disturbance))
                    say(sentences([verdict]), markup=False)
                if load is not None and load_row is not None and load.sending.begin_ns is not None:
                    verdict = judge(load_row, load.sending.results, error=1.0)
                    sent.append(SentRow(load_row, load.sending, verdict, load.harm or ended))
        described = replace(session.described(), url=spec.url)
        return Measured(sent, described, origin_ns, started_s, time.time(), facts, seed)
    finally:
        await session.stop()
        clock.close()


def _line(row: Row) -> str:
    expected = f"; expected: {row.hypothesis}" if row.hypothesis else ""
    return f"{row.name}: {amount(row)}, {loop(row)}{expected}"


def _interruption() -> asyncio.Event:
    """Event that Ctrl-C sets. A second Ctrl-C ends the program at once."""
    interrupted, loop_ = asyncio.Event(), asyncio.get_running_loop()

    def interrupt() -> None:
        interrupted.set()
        loop_.remove_signal_handler(signal.SIGINT)

    loop_.add_signal_handler(signal.SIGINT, interrupt)
    return interrupted


async def _unless(interrupted: asyncio.Event, work: Coroutine[Any, Any, None]) -> bool:
    """Run the work until it ends or is interrupted; whether it ended by itself."""
    working, waiting = asyncio.create_task(work), asyncio.create_task(interrupted.wait())
    try:
        await asyncio.wait((working, waiting), return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            working.result()
            return True
        return False
    finally:
        for task in (working, waiting):
            task.cancel()
        await asyncio.gather(working, waiting, return_exceptions=True)


def _with_costs(rows: Sequence[Row], verdicts: Sequence[Verdict], result: Result) -> list[Verdict]:
    """The verdicts with the cost targets of their rows."""
    judged = []
    for place, (row, verdict) in enumerate(zip(rows, verdicts, strict=True)):
        if row.max_cost is not None:
            stage = result.stages[place] if place < len(result.stages) else None
            requests = [request for request in result.requests if request.stage == place]
            verdict = with_cost(verdict, judge_cost(stage, requests, result.prices, row.max_cost))
        judged.append(verdict)
    return judged


def _result(spec: TargetSpec, rows: Sequence[Row], measured: Measured, configuration: str) -> Result:
    """The result for the file, with a stage for each row that was started."""
    stages: list[Stage] = []
    requests: list[Request] = []
    by_name = {sent.row.name: sent for sent in measured.rows}
    for index, sent in enumerate(measured.rows):
        sending = sent.sending
        assert sending.begin_ns is not None
        stage, stage_requests = stage_of(
            stage_name(sent.row),
            sent.row.rate,
            sending.results,
            index=index,
            origin_ns=measured.origin_ns,
            begin_ns=sending.begin_ns,
            sending_s=sending.sending_s(is_complete=sent.is_complete),
            slos=sent.row.accept,
            readings=sending.readings,
            devices=sending.gpus,
            gpus=len(without_parts(sending.gpus[-1])) if sending.gpus else None,
            ended=sent.ended,
        )
        load, other = shape_of(sent.row, spec.max_in_flight), by_name.get(sent.row.against or "")
        contrast = None
        if (
            other is not None
            and sent.is_complete
            and other.is_complete
            and "not_judged" not in (sent.verdict.state, other.verdict.state)
        ):
            contrast = contrast_of(sending.results, other.sending.results, name=other.row.name)
        stages.append(replace(stage, load=load, disturbance=sent.disturbance, contrast=contrast))
        requests += stage_requests
    is_complete = len(stages) == len(rows) and all(sent.ended != "interrupted" for sent in measured.rows)
    return Result(
        id=uuid.uuid4().hex[:12],
        kind="run",
        started_unix_s=measured.started_unix_s,
        ended_unix_s=measured.ended_unix_s,
        tool=f"llm-slo-prober {__version__}",
        target=measured.described,
        load=load_of(rows, spec.max_in_flight),
        stages=tuple(stages),
        configuration=configuration,
        slos=tuple({slo.name: slo for row in rows for slo in row.accept}.values()),
        warm_up=measured.warmed,
        stop="complete" if is_complete else "interrupted",
        differs=(
            *(f"{stage_name(row)}: {text}" for row in rows for text in limits_of(row)),
            *(
                f"{stage_name(sent.row)}: {text}"
                for sent in measured.rows
                for text in other_models(sent.sending.results)
            ),
            *measured.workers,
        ),
        requests=tuple(requests),
    )


def _object(rows: Sequence[Row], verdicts: Sequence[Verdict], result: Result) -> dict[str, Any]:
    """The object that --json prints."""
    state = overall(verdicts)
    not_begun_stage = Stage("", None, None, None, None, sent=0, answered=0)
    stages = [*result.stages, *[not_begun_stage] * (len(rows) - len(result.stages))]
    return {
        "state": state,
        "exit_code": EXIT[state],
        "target": asdict(result.target),
        "rows": [
            {
                **asdict(verdict),
                "name": row.name,
                "hypothesis": row.hypothesis,
                "loop": "closed" if row.closed else "open",
                "rate_per_s": row.rate,
                "concurrency": row.concurrency,
                **{name: value for name, value in asdict(stage).items() if name in OF_STAGE},
            }
            for row, verdict, stage in zip(rows, verdicts, stages, strict=True)
        ],
        "reservations": [*result.differs, *(text for row in rows for text in reservations(row))],
    }


def _draw(rows: Sequence[Row], verdicts: Sequence[Verdict], result: Result) -> None:
    """Print a line for each row, then the reason of each verdict."""
    console = Terminal(highlight=False, soft_wrap=True)
    width = max(len(text) for row in rows for text in (row.name, loop(row)))
    head = f"{'row':{width}}  {'sent as':{width}}  {'verdict':15}"
    console.print(f"{head}{'ok':>7}{'sent':>7}{'TTFT p50':>11}{'p99':>11}{'TPOT p50':>11}", markup=False)
    for place, (row, verdict) in enumerate(zip(rows, verdicts, strict=True)):
        stage = result.stages[place] if place < len(result.stages) else None
        counts = (stage.answered, stage.sent) if stage else ("–", "–")
        line = Text(f"{row.name:{width}}  {loop(row):{width}}  ")
        line.append(
            f"{verdict.state.replace('_', ' '):15}", "" if verdict.state == "load" else EXIT[verdict.state].colour
        )
        line.append("".join(f"{count:>7}" for count in counts))
        line.append("".join(f"{latency:>11}" for latency in _latencies(stage)))
        console.print(line)
    console.print("* of too few requests to judge by", markup=False)
    for row, verdict in zip(rows, verdicts, strict=True):
        expected = f" Expected: {row.hypothesis}" if row.hypothesis else ""
        console.print(f"{sentences([verdict])}.{expected}", markup=False)
    if result.warm_up is not None:
        console.print(f"Warm-up before a row: {result.warm_up} or more, which do not count.", markup=False)
    for place, stage in enumerate(result.stages):
        if stage.prompt_lengths:
            console.print(f"{stage.name}: prompts: {stage.prompt_lengths.text()}.", markup=False)
        if stage.quality:
            sent = (request for request in result.requests if request.stage == place)
            console.print(f"{stage.name}: {wrong_answers(stage.quality, sent)}.", markup=False)
        for sentence in (*stage.sentences(), *stage_sentences(result, stage)):
            console.print(sentence, markup=False)
    for text in result.differs:
        console.print(f"{text}.", markup=False)


def _latencies(stage: Stage | None) -> list[str]:
    """TTFT p50 and p99, and TPOT p50, as text."""
    columns = (("ttft", 0.5), ("ttft", 0.99), ("tpot", 0.5))
    quantiles = [stage.quantile(latency, q) if stage else None for latency, q in columns]
    return [
        "–" if quantile is None else f"{format_duration(quantile.estimate)}{'' if quantile.has_enough_samples else '*'}"
        for quantile in quantiles
    ]


def _read(file: Path) -> str:
    """Raises ValueError."""
    try:
        return read_text(file)
    except OSError as problem:
        raise ValueError(f"--file {file}: cannot be read: {problem.strerror}; name an existing file") from None
    except UnicodeDecodeError:
        raise ValueError(f"--file {file}: is not text; name a YAML file of rows") from None
