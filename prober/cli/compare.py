"""`prober compare`: compares two endpoints with the same requests in alternating rounds, or two stored results."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Annotated

import typer

from prober.cli.console import Terminal, on_interrupt
from prober.cli.exit_codes import ExitCode, exit_on
from prober.cli.experiment import ResultOptions, refusals, sending
from prober.cli.options import (
    EndpointOptions,
    Margin,
    RareOption,
    Slos,
    WarmUpOption,
    WorkerOptions,
    WorkloadOptions,
    expand_options,
    one_each,
    quantity,
    share,
    warm_up_length,
)
from prober.cli.output import echo
from prober.cli.report import result_of
from prober.cli.target import target, with_sampling, workload
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
from prober.features.experiments.compare_run import NotJudged, UnansweredSide, compare_stored, compare_targets
from prober.features.experiments.report.comparison_report import HEAD, P_NOTE, by_rate, cells
from prober.measure.objective import Slo
from prober.measure.target_state import WarmUpLength
from prober.probing.session import Session
from prober.results.comparison import Comparison, risk_sentences, to_json
from prober.results.cost import Gpus, gpus_of
from prober.results.result import Load
from prober.statistics.paired_test import min_pairs
from prober.statistics.sequential_test import ERROR

MAX_IN_FLIGHT = 256
MIN_WIDTH_COLUMNS = 110  # narrower terminals wrap lines, so that no figure is cut


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
    slo: Slos = None,
    margin: Margin = "10%",
    rollback: Annotated[str, RareOption(help="Needs and losses of going back to A, for the report.")] = "",
    b_model: Annotated[str, typer.Option(help="Model of B, if its name differs.")] = "",
    b_sampling: Annotated[
        str,
        RareOption(
            help="Request fields of B beside those of A, such as response_format or tools: a JSON object, or @FILE of one. Lengths are "
            "not forced then."
        ),
    ] = "",
    b_bearer_token_file: Annotated[str, RareOption(help="Bearer token file of B, if it differs.")] = "",
    gpus: Annotated[
        list[int] | None, RareOption(min=1, help="Number of GPUs of a side; given twice: of A, then of B.")
    ] = None,
    gpu_price: Annotated[
        list[float] | None, RareOption(min=0, help="Dollars per GPU and hour; given twice: of A, then of B.")
    ] = None,
    *,
    workers: WorkerOptions,
    result: ResultOptions,
) -> None:
    """Compare two endpoints or two results. Exit codes: 0 compared, 1 cannot be compared, 2 wrong call, 4 not judged, as too many
    requests were refused."""
    with (
        refusals("compare"),
        exit_on(UnansweredSide, command="compare", code=ExitCode.FAILED),
        exit_on(NotJudged, command="compare", code=ExitCode.NOT_JUDGED),
    ):
        result.check()
        rates = [quantity("--rate", text, parse_rate) for text in rate or ["2/s"]]
        slos, material = parse_objectives(slo or []), share("--margin", margin)
        counts, prices = one_each("--gpus", gpus, 2, "sides"), one_each("--gpu-price", gpu_price, 2, "sides")
        if others := [one.signal for one in slos if one.signal not in BY_REQUEST]:
            raise ValueError(
                f"--slo: {others[0]} is not compared by objective; name one of {', '.join(BY_REQUEST)}, failures are always compared"
            )
        if rounds < (needed := min_pairs(len(axes(slos)) * len(rates), ERROR)):
            raise ValueError(
                f"--rounds {rounds}: no difference, however large, can be told in fewer than {needed}, as {len(axes(slos))} axes at "
                f"each of {len(rates)} rate(s) share an error of {ERROR:.0%}"
            )
        files, of_files = _files(a, b), (NO_GPUS, NO_GPUS)
        if files:
            result_a, result_b = map(result_of, files)
            of_files = gpus_of(result_a), gpus_of(result_b)
            comparison, measured = compare_stored(result_a, result_b, rounds, ERROR, slos)
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
                    warmup=0,  # the command warms up itself
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
            lasts_s = 2 * sum(turns.offsets_ns[-1] / 1e9 + pause_s + 1 for turns in planned)
            minutes = max(1, round(lasts_s / 60))
            echo(f"{2 * len(planned)} turns, about {minutes} minute{'' if minutes == 1 else 's'}", err=True)
            comparison, measured = asyncio.run(_measure(specs, planned, pause_s, warm, slos, workers))
            settings_sent = {
                "rates_per_s": rates,
                "rounds": rounds,
                "requests": requests,
                "cool_down_s": pause_s,
                "warm_up": str(warm),
            }
            load = Load.of(chosen, arrivals="poisson")
            comparison = replace(comparison, load=load, configuration=json.dumps(settings_sent))
        gpus_a, gpus_b = (
            Gpus(count or known.count, price or known.price_per_hour)
            for count, price, known in zip(counts, prices, of_files, strict=True)
        )
        comparison = replace(
            comparison,
            shares=tuple(per_gpu_and_dollar(comparison.compared, gpus_a, gpus_b)),
            risks=tuple(risks(measured, material, ERROR, slos, gpus_a, gpus_b)),
            rollback=rollback or None,
        )
    compared = ExitCode.OK if comparison.compared else ExitCode.FAILED
    code = ExitCode.NOT_JUDGED if comparison.not_judged else compared
    result.end("compare", lambda: to_json(comparison), code, lambda: _draw(comparison))


async def _measure(
    specs: Sequence[TargetSpec],
    planned: Sequence[PlannedRound],
    pause_s: float,
    warm_up: WarmUpLength,
    slos: Sequence[Slo],
    options: WorkerOptions,
) -> tuple[Comparison, list[Round]]:
    """Compare two targets. Raises the errors of `sending` and `compare_targets`."""
    async with sending(options, quiet=True) as (clock, workers, _):
        a, b = (Session(spec, clock, PageReader, read_gpus=read_gpus, launch=workers.launch) for spec in specs)
        async with a:
            # B gets A's texts, even if its server counts different tokens.
            b.target.prompt_calibration = a.target.prompt_calibration
            async with b:
                interrupted = asyncio.Event()
                on_interrupt(interrupted.set)
                comparison, rounds = await compare_targets(
                    {"a": a, "b": b}, planned, pause_s, warm_up, ERROR, slos, interrupted
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
