"""`prober compare`: compares two endpoints with the same requests in alternating rounds, or two stored results."""

import asyncio
import json
import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from random import Random
from typing import Annotated

import typer

from prober.cli.console import Terminal, on_interrupt
from prober.cli.context import GpuCount, GpuPrice
from prober.cli.exit_codes import ExitCode, exit_on, saved
from prober.cli.options import (
    AsJson,
    EndpointOptions,
    RareOption,
    WarmUpOption,
    WorkerOptions,
    WorkloadOptions,
    expand_options,
    quantity,
    share,
    warm_up_length,
)
from prober.cli.output import echo
from prober.cli.report import result_of
from prober.cli.target import check_writable, target, with_sampling, workload
from prober.config.problems import ConfigError
from prober.config.slos import parse_objectives
from prober.config.target import TargetSpec
from prober.config.units import duration
from prober.config.units import rate as parse_rate
from prober.daemon.target_facts import read_gpus
from prober.features.engines.page_reader import PageReader
from prober.features.experiments.compare import (
    BY_REQUEST,
    NO_GPUS,
    PlannedRound,
    Round,
    axes,
    per_gpu_and_dollar,
    plan,
    risks,
)
from prober.features.experiments.compare_run import (
    NoRound,
    RefusingSide,
    UnansweredSide,
    compare_stored,
    compare_targets,
)
from prober.features.experiments.report.comparison_report import HEAD, P_NOTE, by_rate, cells
from prober.measure.objective import Slo
from prober.measure.target_state import WarmUpLength
from prober.net.clock import Clock
from prober.net.endpoint import BadEndpoint
from prober.probing.session import Session
from prober.probing.workers import WorkersUnavailable, open_workers
from prober.results.comparison import Comparison, risk_sentences, to_json
from prober.results.cost import Gpus, gpus_of
from prober.results.result import Load
from prober.statistics.paired_test import min_pairs

MAX_IN_FLIGHT = 256
MIN_WIDTH_COLUMNS = 110  # in a narrower terminal lines wrap, so that no figure is cut


@expand_options
def compare(
    a: Annotated[str, typer.Argument(help="Base URL of side A, or a result file.")],
    b: Annotated[str, typer.Argument(help="Base URL of side B, or a result file.")],
    workload_options: WorkloadOptions,
    endpoint: EndpointOptions,
    rate: Annotated[list[str] | None, typer.Option(help="Mean rate of the requests, such as 2/s; repeatable.")] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds at each rate; each side has one turn in a round.")] = 12,
    requests: Annotated[int, typer.Option(min=2, help="Requests in a turn.")] = 20,
    cool_down: Annotated[str, RareOption(help="Pause between turns.")] = "3s",
    warm_up: WarmUpOption = "2",
    error: Annotated[str, RareOption(help="Largest chance of claiming a difference of equals.")] = "5%",
    slo: Annotated[
        list[str] | None,
        typer.Option(help="Objective such as 'ttft<500ms:99%'; the share that misses it is compared too; repeatable."),
    ] = None,
    margin: Annotated[
        str, typer.Option(help="Worsening that does not matter, for the risk of adopting B or going back.")
    ] = "10%",
    rollback: Annotated[str, RareOption(help="Needs and losses of going back to A, for the report.")] = "",
    save: Annotated[str, typer.Option(help="File for the comparison, for `prober report`.")] = "",
    b_model: Annotated[str, typer.Option(help="Model of B, if its name differs.")] = "",
    b_sampling: Annotated[
        str,
        RareOption(
            help="Request fields of B beside those of A, such as response_format or tools: a JSON object, or @FILE of one. Lengths are "
            "not forced then."
        ),
    ] = "",
    b_bearer_token_file: Annotated[str, RareOption(help="Bearer token file of B, if it differs.")] = "",
    gpus: GpuCount = 0,
    gpu_price: GpuPrice = None,
    b_gpus: Annotated[int, RareOption(min=0, help="Number of GPUs of B, if it differs.")] = 0,
    b_gpu_price: Annotated[float | None, RareOption(min=0, help="Dollars per GPU and hour of B.")] = None,
    *,
    workers: WorkerOptions,
    as_json: AsJson = False,
) -> None:
    """Compare two endpoints or two results. Exit codes: 0 compared, 1 cannot be compared, 2 wrong call, 4 not judged, as too many
    requests were refused."""
    with (
        exit_on(UnansweredSide, WorkersUnavailable, command="compare", code=ExitCode.FAILED),
        exit_on(RefusingSide, NoRound, command="compare", code=ExitCode.NOT_JUDGED),
        exit_on(ConfigError, BadEndpoint, OSError, ValueError, command="compare"),
    ):
        level = share("--error", error)
        rates = [quantity("--rate", text, parse_rate) for text in rate or ["2/s"]]
        slos, material = parse_objectives(slo or []), share("--margin", margin)
        if others := [one.signal for one in slos if one.signal not in BY_REQUEST]:
            raise ValueError(
                f"--slo: {others[0]} is not compared by objective; name one of {', '.join(BY_REQUEST)}, failures are always compared"
            )
        if rounds < (needed := min_pairs(len(axes(slos)) * len(rates), level)):
            raise ValueError(
                f"--rounds {rounds}: no difference, however large, can be told in fewer than {needed}, as {len(axes(slos))} axes at "
                f"each of {len(rates)} rate(s) share an error of {error}"
            )
        files, of_files = _files(a, b), (NO_GPUS, NO_GPUS)
        if save:
            check_writable("--save", Path(save))
        if files:
            result_a, result_b = map(result_of, files)
            of_files = gpus_of(result_a), gpus_of(result_b)
            comparison, measured = compare_stored(result_a, result_b, rounds, level, slos)
            if measured:
                settings = {"a": str(files[0]), "b": str(files[1]), "rounds": rounds}
                comparison = replace(comparison, configuration=json.dumps(settings))
        else:
            chosen = workload(workload_options)
            if b_sampling:
                chosen = chosen.with_parts(lambda part: replace(part, is_length_forced=False))
            of_b = with_sampling(chosen, "--b-sampling", b_sampling) if b_sampling else chosen
            endpoint_b = replace(
                endpoint,
                model=b_model or endpoint.model,
                bearer_token_file=b_bearer_token_file or endpoint.bearer_token_file,
            )
            specs = [
                target(
                    f"compare {side}",
                    url,
                    options,
                    probes=[{"workload": sent}],
                    max_in_flight=MAX_IN_FLIGHT,
                    connect_lead=0.2,
                    warmup=0,  # the command sends its own
                    metrics={"interval": 1.0},
                )
                for side, url, options, sent in (("A", a, endpoint, chosen), ("B", b, endpoint_b, of_b))
            ]
            planned = plan(rates, rounds, requests, Random())
            pause_s, warm = quantity("--cool-down", cool_down, duration), warm_up_length(warm_up)
            if warm.is_over(0, 0.0):
                raise ValueError(
                    "--warm-up 0: a turn needs a request before it, which shows that the side answers; give 1 or more"
                )
            worker_processes = workers.count()
            lasts_s = 2 * sum(turns.offsets_ns[-1] / 1e9 + pause_s + 1 for turns in planned)
            minutes = max(1, round(lasts_s / 60))
            echo(f"{2 * len(planned)} turns, about {minutes} minute{'' if minutes == 1 else 's'}", err=True)
            comparison, measured = asyncio.run(
                _measure(specs, planned, pause_s, warm, level, slos, worker_processes, workers.ray)
            )
            settings_sent = {
                "rates_per_s": rates,
                "rounds": rounds,
                "requests": requests,
                "cool_down_s": pause_s,
                "warm_up": str(warm),
            }
            load = Load.of(chosen, arrivals="poisson")
            comparison = replace(comparison, load=load, configuration=json.dumps(settings_sent))
        count_a, price_a = gpus or of_files[0].count, of_files[0].price_per_hour if gpu_price is None else gpu_price
        count_b, price_b = b_gpus or of_files[1].count or gpus, b_gpu_price
        if price_b is None:
            price_b = of_files[1].price_per_hour if of_files[1].price_per_hour is not None else gpu_price
        gpus_a, gpus_b = Gpus(count_a, price_a), Gpus(count_b or None, price_b)
        comparison = replace(
            comparison,
            shares=tuple(per_gpu_and_dollar(comparison.compared, gpus_a, gpus_b)),
            risks=tuple(risks(measured, material, level, slos, gpus_a, gpus_b)),
            rollback=rollback or None,
        )
    with saved(to_json(comparison), Path(save) if save else None, "prober compare: --save"):
        if as_json:
            judged = [{**asdict(risk), "state": risk.evidence} for risk in comparison.risks]
            echo(json.dumps({**asdict(comparison), "risks": judged}))
        else:
            _draw(comparison)
    if comparison.not_judged:
        sys.exit(ExitCode.NOT_JUDGED)
    sys.exit(ExitCode.OK if comparison.compared else ExitCode.FAILED)


async def _measure(
    specs: Sequence[TargetSpec],
    planned: Sequence[PlannedRound],
    pause_s: float,
    warm_up: WarmUpLength,
    error: float,
    slos: Sequence[Slo],
    worker_processes: int | None,
    ray: str,
) -> tuple[Comparison, list[Round]]:
    """Compare two targets, sending with worker processes. Raises as `open_workers` and `compare_targets`."""
    async with open_workers(worker_processes, ray=ray) as workers:
        with closing(Clock()) as clock:
            a, b = (Session(spec, clock, PageReader, read_gpus=read_gpus, launch=workers.launch) for spec in specs)
            async with a:
                # B gets the texts of A, even if its server counts other tokens for them.
                b.target.prompt_calibration = a.target.prompt_calibration
                async with b:
                    interrupted = asyncio.Event()
                    on_interrupt(interrupted.set)
                    comparison, rounds = await compare_targets(
                        {"a": a, "b": b}, planned, pause_s, warm_up, error, slos, interrupted
                    )
        return replace(comparison, remarks=(*comparison.remarks, *workers.clocks(), *workers.losses)), rounds


def _files(a: str, b: str) -> tuple[Path, Path] | None:
    """The two result files; None if both arguments are URLs. Raises ValueError."""
    paths = [text for text in (a, b) if "://" not in text]
    for path in paths:
        if not Path(path).exists():
            raise ValueError(f"{path}: is neither a file that is there nor an address, such as http://localhost:8000")
    if len(paths) == 1:
        raise ValueError(f"{a} and {b}: give two addresses, or two files that are there")
    return (Path(a), Path(b)) if paths else None


def _draw(comparison: Comparison) -> None:
    console = Terminal(highlight=False, soft_wrap=True, width=max(MIN_WIDTH_COLUMNS, Terminal().width))
    for heading, rows in by_rate(comparison.compared):
        console.table((heading, *HEAD), map(cells, rows))
    if comparison.compared:
        echo(P_NOTE)
    for sentence in (*(row.text() for row in comparison.answers), *comparison.shares, *risk_sentences(comparison)):
        echo(sentence)
    for name, value_a, value_b in comparison.differs:
        echo(f"{name}: A {value_a or '–'}, B {value_b or '–'}")
    for sentence in comparison.remarks:
        echo(sentence)
