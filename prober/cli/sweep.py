"""`prober sweep`: estimates once up to which request rate each SLO holds, or how many users fit."""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Annotated

import typer

from prober.cli.console import on_interrupt
from prober.cli.context import ContextOptions
from prober.cli.exit_codes import OF_VERDICT, ExitCode
from prober.cli.experiment import ResultOptions, refusals, sending
from prober.cli.options import (
    EndpointOptions,
    MaxRequests,
    MetricsUrl,
    RareOption,
    ShedAllowed,
    Slos,
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
from prober.cli.target import only_load, target
from prober.cli.target import workload as workload_of
from prober.config.rows import MAX_CONCURRENCY, Row
from prober.config.slos import parse_objectives
from prober.config.target import TargetSpec
from prober.config.units import duration, positive_duration, rate
from prober.daemon.target_facts import read_facts, read_gpus
from prober.features.capacity.actions import Action, Estimate, Finished, Run
from prober.features.capacity.sweep_result import result_of
from prober.features.capacity.sweep_runner import SweepRunner
from prober.features.engines.page_reader import PageReader
from prober.features.experiments.users_run import UserSweepRun, users_row
from prober.measure.outcome import BAD
from prober.measure.target_state import WarmUpLength
from prober.probing.session import Session
from prober.probing.stop_conditions import VOID
from prober.probing.workers import Workers
from prober.results import cost, facets
from prober.results.context import sentences as context_sentences
from prober.results.result import CONTENT_AT_ONCE, Delivered, Result
from prober.results.result_file import to_json
from prober.results.stage_parts import pooled, quantile_text
from prober.results.stop_reason import ending

DEFAULT_SLO = "ttft<500ms:99%"
MAX_USERS = 256
PAGE_INTERVAL_S = 0.5  # with users; over rates the sweep decides
WORST_FIRST = (ExitCode.FAILED, ExitCode.NO_ESTIMATE, ExitCode.NOT_JUDGED, ExitCode.OK)  # of several SLOs
OF_RATES = ("min_rate", "max_rate")


@expand_options
def sweep(
    url: Url,
    workload_options: WorkloadOptions,
    endpoint: EndpointOptions,
    slo: Slos = None,
    mode: Annotated[
        str, typer.Option(help="adaptive, grid, or gentle (ends before an SLO is breached); default: adaptive.")
    ] = "",
    min_rate: Annotated[str, RareOption(help="First rate.")] = "1/s",
    max_rate: Annotated[str, typer.Option(help="Highest rate; default: none, in a grid 50/s.")] = "",
    rates: Annotated[
        str, RareOption(help="Rates of a grid, rising, such as 1,2,5,8,10 per second; implies --mode grid.")
    ] = "",
    over: Annotated[
        str, typer.Option(help="users: find how many users at once fit, each of whom waits, thinks and sends again.")
    ] = "rates",
    think: Annotated[
        str, typer.Option(help="Mean time that a user thinks after an answer, such as 10s; with --over users.")
    ] = "",
    step: Annotated[str, RareOption(help="Length of a stage; default: 4s, in a grid 60s.")] = "",
    warm_up: WarmUpOption = "20s",
    max_requests: MaxRequests = 0,
    max_time: Annotated[str, RareOption(help="Longest time of sending.")] = "1h",
    metrics_url: MetricsUrl = "auto",
    *,
    shed_allowed: ShedAllowed = False,
    workers: WorkerOptions,
    context: ContextOptions,
    result: ResultOptions,
    call: typer.Context,
) -> None:
    """Sweep, report, and keep what was measured on Ctrl-C. Exit codes: 0 a knee was estimated or a rate was shown to hold,
    1 an SLO fails and no rate is shown to hold, 2 wrong call, 4 not judged: not enough data, too many refusals, or a rate limit,
    6 the process of the estimate failed."""
    with refusals("sweep"):
        _check_combination(call, rates, over)
        result.check()
        slos, warm = parse_objectives(slo or [DEFAULT_SLO]), warm_up_length(warm_up)
        sent = workload_of(workload_options, of_users=over == "users")
        most, most_s = max_requests or None, quantity("--max-time", max_time, duration)
        fields, users = context.fields("sweep"), None
        if over == "users":
            think_s = quantity("--think", think, duration) if think else None
            users = users_row(sent, slos, think_s, MAX_USERS, most_s, shed_allowed=shed_allowed)
            fields |= {"max_in_flight": MAX_CONCURRENCY, "warmup": 0, "metrics": {"interval": PAGE_INTERVAL_S}}
        else:
            fields["probes"] = [{"workload": sent, "slos": tuple(slo for slo in slos if slo.signal != "quality")}]
            fields["sweep"] = {
                "mode": mode or ("grid" if rates else "adaptive"),
                "workload": sent,
                "slos": slos,
                "min_rate": quantity("--min-rate", min_rate, rate),
                "max_rate": quantity("--max-rate", max_rate, rate) if max_rate else None,
                "rates": _rates(rates) if rates else (),
                "step": quantity("--step", step, positive_duration) if step else None,
                "limits": {"time": most_s, "requests": most},
            }
        spec = target("sweep", url, endpoint, metrics_url=metrics_url, **fields)
        with only_load("sweep", spec.url):
            measuring = _measure(spec, users, most, warm, workers, shed_allowed=shed_allowed, quiet=result.as_json)
            measured = asyncio.run(measuring)
    result.end("sweep", lambda: to_json(measured), _exit_code(measured), lambda: _draw(measured))


def _rates(text: str) -> tuple[float, ...]:
    """Parse the value of `--rates`, whose bare numbers are per second. Raises ValueError."""
    try:
        return tuple(rate(part.strip() if "/" in part else f"{part.strip()}/s") for part in text.split(","))
    except ValueError:
        raise ValueError(
            f"--rates {text!r}: write rates from 1/1000d to 100000/s, such as 1,2,4 or 30/min,1/s"
        ) from None


def _check_combination(call: typer.Context, rates: str, over: str) -> None:
    """Check `over`, and that all given options have an effect with it and with `rates`. Raises ValueError."""
    if over not in ("rates", "users"):
        raise ValueError(f"--over {over!r}: write rates or users")
    unused_by = {
        "--rates names all rates": OF_RATES if rates else (),
        "--over users sends no rates": ("mode", *OF_RATES, "rates", "step") if over == "users" else (),
        "--over rates has no users": ("think",) if over == "rates" else (),
    }
    for why, names in unused_by.items():
        if unused := named_options(call, names):
            raise ValueError(f"{why}, so {', '.join(unused)} would not be used; leave one or the other out")


async def _measure(
    spec: TargetSpec,
    users: Row | None,
    most: int | None,
    warm_up: WarmUpLength,
    options: WorkerOptions,
    *,
    shed_allowed: bool,
    quiet: bool,
) -> Result:
    """Sweep over rates, or over `users`. most: limit of requests. Raises UnidentifiedTarget, WorkersUnavailable."""
    async with sending(options, quiet=quiet) as (clock, workers, progress):
        task = progress.add_task("looking at the target", total=None)

        def say(text: str) -> None:
            progress.update(task, description=text)

        reader = None if users is None else PageReader  # over rates the runner reads the page
        async with Session(spec, clock, reader, read_facts, read_gpus, workers.launch) as session:
            if users is not None:
                search = UserSweepRun(session, users, most, say)
                _end_by(search.stop, workers)
                result = await search.run(warm_up)
            else:
                assert spec.sweep is not None
                runner = SweepRunner(
                    session,
                    spec.sweep,
                    PageReader,
                    lambda action: say(_description(action)),
                    warm_up,
                    shed_allowed=shed_allowed,
                )
                _end_by(runner.stop, workers)
                additions = {
                    "warm_up": str(warm_up) if warm_up.until_steady or warm_up.requests is None else warm_up.requests,
                    "stage_s": spec.sweep.stage_s,
                    "workers": workers.count or 1,
                }
                run = await runner.run()
                result = result_of(run, session, spec.sweep, f"sweep-{int(session.started_unix_s)}", additions)
        return replace(result, differs=(*result.differs, *workers.clocks()))


def _end_by(stop: Callable[[str], None], workers: Workers) -> None:
    """Call `stop` with the reason at Ctrl-C, and when a worker is lost."""
    workers.on_loss = stop
    on_interrupt(lambda: stop("interrupted"))


def _exit_code(result: Result) -> ExitCode:
    """NO_ESTIMATE if the estimate failed; otherwise the code of the worst SLO, or NOT_JUDGED without a judged one."""
    if result.stop == "no_estimate":
        return ExitCode.NO_ESTIMATE
    is_judged = result.stop not in VOID and not result.refused.is_too_many
    codes = [OF_VERDICT[capacity.verdict] for capacity in result.capacities if is_judged]
    return min(codes or [ExitCode.NOT_JUDGED], key=WORST_FIRST.index)


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
    """Sentences about the sweep, printed below its stages."""
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
    may_go_on = result.stop in ("retry_after", "rate_limited") and result.shedding
    consent = " With --shed-allowed it goes on." if may_go_on else ""
    yield f"It ended: {ending(result.stop, result.stop_detail).rstrip('.')}.{consent}"
