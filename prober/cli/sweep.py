"""`prober sweep`: estimates once the request rate up to which each SLO holds."""

import asyncio
import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean, pstdev
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from prober.cli.console import Terminal, on_interrupt
from prober.cli.context import ContextOptions
from prober.cli.exit_codes import OF_VERDICT, ExitCode, exit_on, saved
from prober.cli.options import (
    AsJson,
    EndpointOptions,
    MetricsUrl,
    RareOption,
    ShedAllowed,
    Url,
    WarmUpOption,
    WorkerOptions,
    WorkloadOptions,
    expand_options,
    named_options,
    quantity,
    warm_up_length,
)
from prober.cli.output import echo
from prober.cli.target import check_writable, only_load, target
from prober.cli.target import workload as workload_of
from prober.config.problems import ConfigError
from prober.config.slos import parse_objectives
from prober.config.target import TargetSpec
from prober.config.units import duration, positive_duration, rate
from prober.daemon.target_facts import read_facts, read_gpus
from prober.features.capacity.actions import Action, Estimate, Finished, Run
from prober.features.capacity.sweep_result import result_of
from prober.features.capacity.sweep_runner import SweepRunner
from prober.features.engines.page_reader import PageReader
from prober.measure.outcome import BAD
from prober.measure.target_state import WarmUpLength
from prober.net.clock import Clock
from prober.net.endpoint import BadEndpoint
from prober.probing.session import Session, UnidentifiedTarget
from prober.probing.workers import WorkersUnavailable, open_workers
from prober.results import cost, facets
from prober.results.capacity import binding
from prober.results.context import sentences as context_sentences
from prober.results.result import CONTENT_AT_ONCE, Delivered, Result
from prober.results.stage_parts import pooled, quantile_text
from prober.results.stop_reason import ending

if TYPE_CHECKING:
    from prober.features.experiments.users_run import UserSweep

WORST_FIRST = (ExitCode.FAILED, ExitCode.NO_ESTIMATE, ExitCode.NOT_JUDGED, ExitCode.OK)  # of several sweeps
DEFAULT_SLO = "ttft<500ms:99%"
OF_RATES = ("min_rate", "max_rate")
OF_USERS = ("think", "max_users")
USERS_IGNORE = ("mode", *OF_RATES, "rates", "max_in_flight", "step", "repeat")
OF_SWEEPS = ("mode", "shed_allowed", *OF_RATES, "rates", "max_in_flight", "max_requests", "max_time", "repeat")


@expand_options
def sweep(
    url: Url,
    workload_options: WorkloadOptions,
    endpoint: EndpointOptions,
    slo: Annotated[list[str] | None, typer.Option(help="Objective such as 'ttft<500ms:99%'; repeatable.")] = None,
    mode: Annotated[
        str, typer.Option(help="adaptive, grid, or gentle (ends before an SLO is breached); default: adaptive.")
    ] = "",
    min_rate: Annotated[str, RareOption(help="First rate.")] = "1/s",
    max_rate: Annotated[str, typer.Option(help="Highest rate.")] = "50/s",
    rates: Annotated[
        str, RareOption(help="Rates of a grid, rising, such as 1,2,5,8,10 per second; implies --mode grid.")
    ] = "",
    concurrency: Annotated[
        str,
        RareOption(
            help="Instead of rates: requests kept in flight, such as 1,4,16. A closed loop, which hides queueing."
        ),
    ] = "",
    over: Annotated[
        str, typer.Option(help="users: find how many users at once fit, each of whom waits, thinks and sends again.")
    ] = "rates",
    think: Annotated[
        str, typer.Option(help="Mean time that a user thinks after an answer, such as 10s; with --over users.")
    ] = "",
    max_users: Annotated[
        int, RareOption(min=1, max=2_000, help="Most users to send at once; with --over users.")
    ] = 256,
    step: Annotated[str, RareOption(help="Length of a stage; default: 4s, in a grid 60s.")] = "",
    warm_up: WarmUpOption = "20s",
    max_in_flight: Annotated[int, RareOption(min=1, help="Requests in flight that count as saturation.")] = 2_000,
    max_requests: Annotated[int, typer.Option(min=0, help="Most requests of one sweep; 0: no limit.")] = 0,
    max_time: Annotated[str, RareOption(help="Longest time that one sweep sends.")] = "1h",
    repeat: Annotated[int, RareOption(min=1, help="Number of sweeps, for the variance between runs.")] = 1,
    output: Annotated[str, typer.Option(help="File for the result, for `prober report`.")] = "",
    metrics_url: MetricsUrl = "auto",
    *,
    shed_allowed: ShedAllowed = False,
    workers: WorkerOptions,
    context: ContextOptions,
    as_json: AsJson = False,
    call: typer.Context,
) -> None:
    """Sweep, report, and keep what was measured on Ctrl-C. Exit codes: 0 a knee was estimated or a rate was shown to hold,
    1 an SLO fails and no rate is shown to hold, 2 wrong call, 4 not judged: not enough data, or too many requests refused,
    6 the process of the estimate failed."""
    with (
        exit_on(ConfigError, BadEndpoint, ValueError, command="sweep"),
        exit_on(UnidentifiedTarget, WorkersUnavailable, command="sweep", code=ExitCode.NOT_JUDGED),
    ):
        _check_combination(call, concurrency, rates, over)
        if output:
            check_writable("--output", Path(output))
        slos = parse_objectives(slo or [DEFAULT_SLO])
        warm = warm_up_length(warm_up)
        sent = workload_of(workload_options, of_users=over == "users")
        most_requests, most_s = max_requests or None, quantity("--max-time", max_time, duration)
        ended: list[tuple[ExitCode, Result]] = []
        measure: Callable[[], Coroutine[Any, Any, None]]
        if concurrency or over == "users":
            from prober.cli.matrix import PAGE_INTERVAL_S, closed_rows, measure_rows  # here, as rates send no rows
            from prober.config.rows import MAX_CONCURRENCY
            from prober.features.experiments.users_run import user_sweep
            from prober.results.judgement import BURST_S

            spec = target(
                "sweep",
                url,
                endpoint,
                max_in_flight=MAX_CONCURRENCY,
                warmup=0,  # the command sends its own
                metrics_url=metrics_url,
                metrics={"interval": PAGE_INTERVAL_S},
                **context.fields("sweep"),
            )
            if concurrency:
                rows, file = closed_rows(concurrency, sent, step, slos), Path(output) if output else None
                measure_rows("sweep", spec, rows, warm, BURST_S, "", workers, output=file, as_json=as_json)
            pause_s = quantity("--think", think, duration) if think else None
            over_users = user_sweep(sent, slos, pause_s, max_users, most_requests, most_s, shed_allowed=shed_allowed)
            measure = partial(_over_users, spec, over_users, warm, workers, ended, quiet=as_json)
        else:
            block = {
                "mode": mode or ("grid" if rates else "adaptive"),
                "workload": sent,
                "slos": slos,
                "min_rate": quantity("--min-rate", min_rate, rate),
                "max_rate": quantity("--max-rate", max_rate, rate),
                "rates": _rates(rates) if rates else (),
                "step": quantity("--step", step, positive_duration) if step else None,
                "max_in_flight": max_in_flight,
                "workers": workers.count(),
                "limits": {"time": most_s, "requests": most_requests},
            }
            probe = {"workload": sent, "slos": tuple(slo for slo in slos if slo.signal != "quality")}
            spec = target(
                "sweep",
                url,
                endpoint,
                metrics_url=metrics_url,
                probes=[probe],
                sweep=block,
                **context.fields("sweep"),
            )
            measure = partial(
                _repeated, spec, warm, repeat, workers.ray, ended, shed_allowed=shed_allowed, quiet=as_json
            )
        try:
            with only_load("sweep", spec.url):
                asyncio.run(measure())
        finally:  # a later run that cannot begin loses none before it
            files = ExitStack()
            for number, (_, result) in enumerate(ended, 1):
                text, path = "", Path(output) if output else None
                if output or as_json:
                    from prober.results.result_file import to_json  # here, as most sweeps are only shown

                    text = to_json(result)
                if path is not None and len(ended) > 1:
                    path = path.with_stem(f"{path.stem}-{number}")
                files.enter_context(saved(text, path, "prober sweep: --output"))
                if as_json:
                    echo(text)
                else:
                    _draw(result)
            files.close()
    bindings = [binding(result.capacities) for _, result in ended]
    knees = [least.estimate for least in bindings if least is not None and least.estimate is not None]
    if len(knees) > 1 and not as_json:
        mean, runs = fmean(knees), f"{len(knees)} of {len(ended)} runs"
        echo(f"{runs} estimated a knee: mean {mean:.3g}/s, spread {pstdev(knees) / mean:.1%} of it")
    sys.exit(min((code for code, _ in ended), key=WORST_FIRST.index))


def _rates(text: str) -> tuple[float, ...]:
    """The value of `--rates`, whose bare numbers are per second. Raises ValueError."""
    try:
        return tuple(rate(part.strip() if "/" in part else f"{part.strip()}/s") for part in text.split(","))
    except ValueError:
        raise ValueError(
            f"--rates {text!r}: write rates from 1/1000d to 100000/s, such as 1,2,4 or 30/min,1/s"
        ) from None


def _check_combination(call: typer.Context, concurrency: str, rates: str, over: str) -> None:
    """Check `over`, and that no option is given that has no effect with it, `concurrency` or `rates`. Raises ValueError."""
    if over not in ("rates", "users"):
        raise ValueError(f"--over {over!r}: write rates or users")
    unused_by = {
        "--concurrency sends no rates": (*OF_SWEEPS, "over", *OF_USERS) if concurrency else (),
        "--rates names all rates": OF_RATES if rates else (),
        "--over users sends no rates": USERS_IGNORE if over == "users" else (),
        "--over rates has no users": OF_USERS if over == "rates" else (),
    }
    for why, names in unused_by.items():
        if unused := named_options(call, names):
            raise ValueError(f"{why}, so {', '.join(unused)} would not be used; leave one or the other out")


async def _repeated(
    spec: TargetSpec,
    warm_up: WarmUpLength,
    times: int,
    ray: str,
    ended: list[tuple[ExitCode, Result]],
    *,
    shed_allowed: bool,
    quiet: bool,
) -> None:
    """Run `times` sweeps one after the other, and add each to `ended`. An interruption or a lost worker ends the series.

    Raises WorkersUnavailable.
    """
    assert spec.sweep is not None
    interrupted = asyncio.Event()
    columns = TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()
    with closing(Clock()) as clock, Progress(*columns, console=Terminal(stderr=True), disable=quiet) as progress:
        async with open_workers(spec.sweep.workers, ray=ray) as workers:
            for number in range(times):
                task = progress.add_task("measuring the load of others", total=None)

                def on_action(action: Action, task: Any = task) -> None:
                    progress.update(task, description=_description(action))

                # Without a reader of the page: the runner reads it, as often as its state needs.
                async with Session(spec, clock, None, read_facts, read_gpus, workers.launch) as session:
                    runner = SweepRunner(session, spec.sweep, PageReader, on_action, warm_up, shed_allowed=shed_allowed)
                    workers.on_loss = runner.stop

                    def interrupt(runner: SweepRunner = runner) -> None:
                        interrupted.set()
                        runner.stop("interrupted")

                    on_interrupt(interrupt)
                    run = await runner.run()
                progress.stop_task(task)
                additions = {
                    "run": number + 1,
                    "of": times,
                    "warm_up": str(warm_up) if warm_up.until_steady or warm_up.requests is None else warm_up.requests,
                    "stage_s": spec.sweep.stage_s,
                    "workers": workers.count or 1,
                }
                result = result_of(run, session, spec.sweep, f"sweep-{int(session.started_unix_s)}", additions)
                result = replace(result, differs=(*result.differs, *workers.clocks()))
                ended.append((OF_VERDICT[run.finished.verdict], result))
                if interrupted.is_set() or run.quiet_s or workers.losses:
                    break  # on request, or the target asked to be left alone


async def _over_users(
    spec: TargetSpec,
    sweep: "UserSweep",
    warm_up: WarmUpLength,
    worker_options: WorkerOptions,
    ended: list[tuple[ExitCode, Result]],
    *,
    quiet: bool,
) -> None:
    """Find how many users fit, and add the result to `ended`. Raises WorkersUnavailable."""
    from prober.features.experiments.users_run import UserSweepRun

    columns = TextColumn("{task.description}"), TimeElapsedColumn()
    with closing(Clock()) as clock, Progress(*columns, console=Terminal(stderr=True), disable=quiet) as progress:
        task = progress.add_task("looking at the target", total=None)
        async with (
            open_workers(worker_options.count(), ray=worker_options.ray) as workers,
            Session(spec, clock, PageReader, read_facts, read_gpus, workers.launch) as session,
        ):
            run = UserSweepRun(session, sweep, lambda text: progress.update(task, description=text))
            workers.on_loss = run.stop
            on_interrupt(lambda: run.stop("interrupted"))
            result = await run.run(warm_up)
    verdicts = {capacity.verdict for capacity in result.capacities} or {"not_enough_data"}
    code = min((OF_VERDICT[verdict] for verdict in verdicts), key=WORST_FIRST.index)
    ended.append((code, replace(result, differs=(*result.differs, *workers.clocks()))))


def _description(action: Action) -> str:
    match action:
        case Run(phase=phase, rate_per_s=per_s):
            return f"{phase.replace('_', ' ')} at {per_s:.3g}/s"
        case Estimate(reason=reason, detail=detail):
            return f"{ending(reason, detail)}; estimating the knee"
        case Finished(reason=reason, detail=detail):
            return ending(reason, detail)


def _draw(result: Result) -> None:
    """Print the workload, the stages and the capacities."""
    load = result.load
    lengths = f": prompts {load.prompt_tokens} tokens, answers {load.output_tokens}" if load.prompt_tokens else ""
    echo(f"workload {load.workload}{lengths}")
    width = 8 if any(stage.quality for stage in result.stages) else 0
    heads = (("failed", 7), ("done/s", 8), ("TTFT p50", 10), ("p99", 10), ("TPOT p50", 10), ("tok/s", 8))
    if result.stages:
        titles = "".join(f"{text:>{columns}}" for text, columns in (*heads, ("wrong" if width else "", width)))
        echo(f"{'stage':16}{'sent':>6}{titles}")
    for stage in result.stages:
        received = stage.delivered or Delivered(0.0, 0, None, None)
        latencies = (stage.quantile(*column) for column in (("ttft", 0.5), ("ttft", 0.99), ("tpot", 0.5)))
        cells = [
            str(sum(count for outcome, count in stage.outcomes.items() if outcome in BAD)),
            f"{received.answers / received.span_s:.3g}" if received.span_s else "–",
            *(quantile_text(quantile, marks_median=False) for quantile in latencies),
            "–" if received.output_tokens_per_s is None else f"{received.output_tokens_per_s:.0f}",
        ]
        figures = "".join(f"{cell:>{columns}}" for cell, (_, columns) in zip(cells, heads, strict=True))
        quality = f"{stage.quality[1]}/{stage.quality[0]}" if stage.quality else ""
        echo(f"{stage.name:16}{stage.sent:>6}{figures}{quality:>{width}}")
    if result.stages:
        echo("* of too few requests to judge by")
    for sentence in _sentences(result):
        echo(sentence)


def _sentences(result: Result) -> Iterator[str]:
    """Sentences on the sweep, which are printed below its stages."""
    if result.warm_up is not None and result.warm_up.requests:
        yield f"Warm-up: {result.warm_up}, which do not count."
    is_over_users = any(stage.users for stage in result.stages)
    if result.stages and not is_over_users:
        yield "done/s and tok/s: received during the stage; while the rate rises, less than it asks for."
    if result.content_came_at_once:
        yield f"{CONTENT_AT_ONCE}."
    for interference in result.interference or ():
        yield f"There was {interference}."
    if result.interference is None and not is_over_users:
        yield "Nobody tells what else the target served: rates are those of the sweep alone."
    for stage in result.stages:
        yield from facets.sentences(stage)
    if prompts := pooled(stage.prompt_lengths for stage in result.stages):
        yield f"Prompts: {prompts.text()}."
    advice, ends = "", {capacity.verdict for capacity in result.capacities} if result.stop == "highest_rate" else set()
    if ends == {"not_reached"}:
        lowest = min(result.capacities, key=lambda capacity: capacity.lower or 0.0)
        advice = f" The knee is above {lowest.text(lowest.lower)}: raise --max-rate."
    elif ends and ends <= {"not_reached", "not_enough_data"}:
        advice = " A higher --max-rate may reach the knee."
    yield f"{result.capacity_words()}.{advice}"
    for stage in () if result.refused.is_too_many else result.stages:
        if stage.refused.is_too_many:
            yield f"{stage.name} is not judged: {stage.refused}."
    yield from cost.sentences(result)
    yield from context_sentences(result)
    consent = " With --shed-allowed it goes on." if result.stop == "retry_after" and result.shedding else ""
    yield f"It ended: {ending(result.stop, result.stop_detail).rstrip('.')}.{consent}"
