"""`prober compare`: compares two endpoints with the same requests in alternating rounds, or two stored results."""

import asyncio
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Annotated

import typer
from rich.table import Table

from prober import __version__
from prober.cli.console import Terminal
from prober.cli.context import GpuCount, GpuPrice
from prober.cli.exit_codes import ExitCode, exit_on
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
from prober.cli.sending import Watched
from prober.cli.session import Session
from prober.cli.target import check_writable, target, with_sampling, workload
from prober.config.problems import ConfigError
from prober.config.slos import parse_objectives
from prober.config.target import TargetSpec
from prober.config.units import duration
from prober.config.units import rate as parse_rate
from prober.features.experiments.compare import (
    BY_REQUEST,
    NO_GPUS,
    Half,
    Round,
    axes,
    differences,
    incomparable,
    per_gpu_and_dollar,
    plan,
    reservations,
    risks,
    rounds_of,
    stored_refused,
    stored_rounds,
)
from prober.features.experiments.compare import compare as judge
from prober.features.experiments.report.comparison_report import HEAD, P_NOTE, by_rate, cells
from prober.measure.engine_signals import EngineSignals
from prober.measure.gpu_reading import GpuReading
from prober.measure.objective import Slo
from prober.measure.outcome import ANSWERED
from prober.measure.result import ProbeResult
from prober.measure.warmup import WarmUpLength
from prober.net.clock import Clock
from prober.net.endpoint import BadEndpoint
from prober.probing.workers import WorkersUnavailable, open_workers
from prober.results.comparison import Comparison, Side, risk_sentences, to_json, with_refused
from prober.results.cost import Gpus, gpus_of
from prober.results.load_description import describe_load
from prober.results.refused_requests import refused_requests
from prober.results.result import Request
from prober.results.result import Target as Described
from prober.results.stage import quality_of, request_of, use_of
from prober.results.stage_parts import tool_calls_of
from prober.statistics.paired_test import min_pairs
from prober.workload.workloads import Mix, RequestGenerator, Workload

MAX_WARMER_C, MAX_SLOWER_RATIO = 5.0, 0.02  # GPU states closer than this count as alike
MAX_IN_FLIGHT = 256
MIN_WIDTH_COLUMNS = 110  # in a narrower terminal lines wrap, so that no figure is cut


class UnansweredSide(Exception):
    """A side does not answer. The message names the side and the reason."""


class RefusingSide(Exception):
    """A side refuses the requests of its warm-up. The message names the side and the reason."""


@dataclass(slots=True)
class Cards:
    """GPU states of this machine during the turns.

    readings: mean temperature (°C) and clock (Hz) of each reading, by side
    """

    readings: dict[Side, list[tuple[float, float]]] = field(default_factory=lambda: {"a": [], "b": []})

    def read(self, side: Side, devices: Sequence[GpuReading]) -> None:
        """The GPUs were read during a turn of `side`."""
        known = [
            (device.temperature_celsius, device.sm_clock_hertz)
            for device in devices
            if device.temperature_celsius is not None and device.sm_clock_hertz is not None
        ]
        if known:
            self.readings[side].append((fmean(warmth for warmth, _ in known), fmean(clock for _, clock in known)))

    def text(self) -> str:
        """A sentence on whether the GPUs were in the same state for both sides."""
        if not self.readings["a"] or not self.readings["b"]:
            return (
                "GPU temperature and clocks are unknown: the engine's GPUs are not on this machine, or report neither, or the turns "
                "are shorter than a second"
            )
        (warm_a, clock_a), (warm_b, clock_b) = (
            (fmean(warmth for warmth, _ in self.readings[side]), fmean(clock for _, clock in self.readings[side]))
            for side in ("a", "b")
        )
        apart = abs(warm_a - warm_b) > MAX_WARMER_C or abs(clock_a / clock_b - 1) > MAX_SLOWER_RATIO
        judged = "so the difference may be theirs: take a longer --cool-down" if apart else "alike"
        return (
            f"GPUs of this machine: A at {warm_a:.0f} °C and {clock_a / 1e6:.0f} MHz, B at {warm_b:.0f} °C and "
            f"{clock_b / 1e6:.0f} MHz, {judged}"
        )


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
        exit_on(RefusingSide, command="compare", code=ExitCode.NOT_JUDGED),
        exit_on(ConfigError, BadEndpoint, OSError, ValueError, command="compare"),
    ):
        level = share("--error", error)
        rates = [quantity("--rate", text, parse_rate) for text in rate or ["2/s"]]
        slos, material = _objectives(slo or []), share("--margin", margin)
        _check_rounds(rounds, len(axes(slos)), len(rates), error, level)
        files, of_files = _files(a, b), (NO_GPUS, NO_GPUS)
        if save:
            check_writable("--save", Path(save))
        if files:
            comparison, measured, of_files = _stored(*files, rounds, level, slos)
        else:
            chosen = workload(workload_options)
            if b_sampling:
                chosen = _with_own_lengths(chosen)
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
            halves = plan(rates, rounds, requests, Random())
            pause_s, warm = quantity("--cool-down", cool_down, duration), warm_up_length(warm_up)
            if warm.is_over(0, 0.0):
                raise ValueError(
                    "--warm-up 0: a turn needs a request before it, which shows that the side answers; give 1 or more"
                )
            worker_processes = workers.count()
            lasts_s = sum(half.offsets_ns[-1] / 1e9 + pause_s + 1 for half in halves)
            minutes = max(1, round(lasts_s / 60))
            echo(f"{len(halves)} turns, about {minutes} minute{'' if minutes == 1 else 's'}", err=True)
            comparison, measured = asyncio.run(
                _measured(specs, halves, pause_s, warm, level, slos, worker_processes, workers.ray)
            )
            settings = {
                "rates_per_s": rates,
                "rounds": rounds,
                "requests": requests,
                "cool_down_s": pause_s,
                "warm_up": str(warm),
            }
            load = describe_load(chosen, arrivals="poisson")
            comparison = replace(comparison, load=load, configuration=json.dumps(settings))
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
        if save:
            Path(save).write_text(to_json(comparison), encoding="utf-8")
    if as_json:
        states = [{**asdict(risk), "state": risk.state} for risk in comparison.risks]
        echo(json.dumps({**asdict(comparison), "risks": states}))
    else:
        _draw(comparison)
    if comparison.not_judged:
        sys.exit(ExitCode.NOT_JUDGED)
    sys.exit(ExitCode.OK if comparison.compared else ExitCode.FAILED)


def _objectives(texts: Sequence[str]) -> tuple[Slo, ...]:
    """The objectives of `--slo`. Raises ValueError for one that a request alone does not decide."""
    slos = parse_objectives(texts)
    for slo in slos:
        if slo.signal not in BY_REQUEST:
            raise ValueError(
                f"--slo: {slo.signal} is not compared by objective; name one of {', '.join(BY_REQUEST)}, failures are always compared"
            )
    return slos


def _check_rounds(rounds: int, axes: int, rates: int, error: str, level: float) -> None:
    """Raises ValueError if so few rounds can never show a difference."""
    needed = min_pairs(axes * rates, level)
    if rounds < needed:
        raise ValueError(
            f"--rounds {rounds}: no difference, however large, can be told in fewer than {needed}, as {axes} axes at each of "
            f"{rates} rate(s) share an error of {error}"
        )


def _files(a: str, b: str) -> tuple[Path, Path] | None:
    """The two result files; None if both arguments are URLs. Raises ValueError."""
    paths = [text for text in (a, b) if "://" not in text]
    for path in paths:
        if not Path(path).exists():
            raise ValueError(f"{path}: is neither a file that is there nor an address, such as http://localhost:8000")
    if len(paths) == 1:
        raise ValueError(f"{a} and {b}: give two addresses, or two files that are there")
    return (Path(a), Path(b)) if paths else None


def _stored(
    a: Path, b: Path, rounds: int, error: float, slos: Sequence[Slo]
) -> tuple[Comparison, list[Round], tuple[Gpus, Gpus]]:
    """Comparison of two files, its rounds, and the GPUs of both. Raises ValueError if one cannot be read or has too few requests."""
    result_a, result_b = result_of(a), result_of(b)
    gpus = gpus_of(result_a), gpus_of(result_b)
    comparison = _comparison(result_a.target, result_b.target, error, time.time())
    if reasons := incomparable(result_a, result_b):
        return replace(comparison, said=tuple(reasons)), [], gpus
    refused = stored_refused(result_a, result_b)
    if (unjudged := with_refused(replace(comparison, load=result_a.load), refused)).not_judged:
        return unjudged, [], gpus
    pairs = stored_rounds(result_a, result_b, rounds)
    compared = judge(pairs, error, slos)
    starts = (result_a.started_unix_s, result_b.started_unix_s)
    times = [datetime.fromtimestamp(start_s, UTC).isoformat(" ", "minutes") for start_s in starts]
    remarks = [
        f"A was measured at {times[0]}, B at {times[1]}, and not in turn: whatever else changed between is in the difference",
        *reservations(result_a.target, result_b.target, pairs, compared),
    ]
    configuration = json.dumps({"a": str(a), "b": str(b), "rounds": rounds})
    comparison = replace(
        comparison, load=result_a.load, compared=tuple(compared), said=tuple(remarks), configuration=configuration
    )
    return with_refused(comparison, refused), pairs, gpus


def _comparison(a: Described, b: Described, error: float, started_s: float) -> Comparison:
    """A comparison without figures."""
    return Comparison(
        id=f"compare-{int(started_s)}",
        started_unix_s=started_s,
        ended_unix_s=time.time(),
        tool=f"llm-slo-prober {__version__}",
        a=a,
        b=b,
        load=None,
        error=error,
        compared=(),
        differs=tuple(differences(a, b)),
        said=(),
    )


async def _measured(
    specs: Sequence[TargetSpec],
    halves: Sequence[Half],
    pause_s: float,
    warm_up: WarmUpLength,
    error: float,
    slos: Sequence[Slo],
    worker_processes: int | None,
    ray: str,
) -> tuple[Comparison, list[Round]]:
    """The comparison, and its rounds, sent in turns with so many workers. Raises WorkersUnavailable, UnansweredSide, RefusingSide."""
    async with open_workers(worker_processes, ray=ray) as workers:
        clock, started_s = Clock(), time.time()
        cards = Cards()
        sessions: dict[Side, Watched] = {
            "a": Watched(specs[0], clock, workers.launch),
            "b": Watched(specs[1], clock, workers.launch),
        }
        pages: dict[Side, list[EngineSignals]] = {"a": [], "b": []}
        try:
            for session in sessions.values():
                # B gets the texts of A, even if its server counts other tokens for them.
                session.target.prompt_calibration = sessions["a"].target.prompt_calibration
                await session.start()
            measured: dict[Half, Sequence[Request]] = {}
            answers: dict[Side, list[ProbeResult]] = {"a": [], "b": []}
            by_rate: dict[str, list[ProbeResult]] = {}
            warm_ups: list[int] = []
            for number, half in enumerate(halves):
                if number:
                    await asyncio.sleep(pause_s)
                session, begin_ns = sessions[half.side], clock.now_ns()
                measured[half], answered, warmed = await _turn(session, half, warm_up)
                answers[half.side] += answered
                by_rate.setdefault(f"{half.side.upper()} at {half.rate_per_s:g}/s", []).extend(answered)
                warm_ups.append(warmed)
                pages[half.side] += [signals for at_ns, signals in session.readings if at_ns >= begin_ns]
                local = session if session.gpus else sessions["b" if half.side == "a" else "a"]
                for devices in (devices for at_ns, devices in local.gpus if at_ns >= begin_ns):
                    cards.read(half.side, devices)
            a, b = sessions["a"].described(), sessions["b"].described()
            rounds = rounds_of(measured)
            compared = judge(rounds, error, slos)
            remarks = [*reservations(a, b, rounds, compared), cards.text(), *_engine_texts(pages)]
            sent = " to ".join(str(count) for count in sorted({min(warm_ups), max(warm_ups)}))
            remarks.append(f"warm-up before each turn: {sent} request{'' if sent == '1' else 's'}, which do not count")
            remarks += _checked_texts(answers)
            if isinstance(mix := specs[0].probes[0].workload, Mix):
                remarks.append(f"quantiles are those of the whole mix {mix.name!r}, not of each of its workloads")
            remarks += [
                f"{side.upper()} {text} meanwhile" for side, session in sessions.items() for text in session.changes
            ]
            remarks += [*workers.clocks(), *workers.losses]
            comparison = _comparison(a, b, error, started_s)
            fields = [json.dumps(describe_load(spec.probes[0].workload, arrivals="").sampling) for spec in specs]
            apart = (("request fields", *fields),) if fields[0] != fields[1] else ()
            differs = (*comparison.differs, *apart)
            comparison = replace(comparison, compared=tuple(compared), differs=differs, said=tuple(remarks))
            refused = {place: part for place, results in by_rate.items() if (part := refused_requests(results)).refused}
            comparison = with_refused(comparison, refused)
            return comparison, rounds if comparison.compared else []
        finally:
            for session in sessions.values():
                await session.stop()
            clock.close()


def _engine_texts(pages: Mapping[Side, Sequence[EngineSignals]]) -> Iterator[str]:
    """A sentence for each side whose page was read during its turns."""
    for side, readings in pages.items():
        use = use_of(readings, ())
        values = [
            f"{text} {value:.3g}"
            for text, value in (
                ("mean running requests", use.running_mean),
                ("mean waiting requests", use.waiting_mean),
                ("most waiting", use.waiting_peak),
                ("highest KV cache usage", use.kv_usage_peak_ratio),
            )
            if value is not None
        ]
        if values:
            yield f"the engine of {side.upper()} during its turns, by its page: {', '.join(values)}"


def _with_own_lengths(sent: Workload | Mix) -> Workload | Mix:
    """The workload with answers that end by themselves, at its lengths at the latest: those of checked answers do, too."""
    return sent.with_parts(lambda part: replace(part, is_length_forced=False))


def _checked_texts(answers: Mapping[Side, Sequence[ProbeResult]]) -> Iterator[str]:
    """Sentences on the checked answers and the tool calls of each side."""
    for side, results in answers.items():
        if quality := quality_of(results):
            yield f"{quality[1]:,} of {quality[0]:,} checked answers of {side.upper()} are wrong"
        if calls := tool_calls_of(results):
            yield f"{side.upper()}: {calls.text()}"


async def _turn(session: Session, half: Half, warm_up: WarmUpLength) -> tuple[list[Request], list[ProbeResult], int]:
    """A turn of one side: warm-up, then the requests of the round in an open loop.

    Returns them, the results that they have, and the number of warm-ups.
    """
    workload = session.spec.probes[0].workload
    async with aclosing(session.warm_up(RequestGenerator(workload, Random()), warm_up)) as first:
        warm = [result async for result in first]
    is_answered = any(result is not None and result.outcome in ANSWERED for result in warm)
    if warm and not is_answered and half.round == 0:
        last = warm[-1]
        if (refused := refused_requests(result for result in warm if result is not None)).is_too_many:
            raise RefusingSide(f"{half.side.upper()} ({session.spec.url}): {refused}")
        why = f"{last.outcome.value}: {last.detail}" if last is not None else "it says it is loading or shutting down"
        raise UnansweredSide(f"{half.side.upper()} ({session.spec.url}) answers nothing: {why}")
    start_ns = session.clock.now_ns() + round(session.spec.connect_lead * 1e9)
    drawer = RequestGenerator(workload, Random(half.seed))
    async with aclosing(session.ordered(drawer, (start_ns + offset for offset in half.offsets_ns))) as results:
        ended = [result async for result in results]
    loading = Request(stage=0, start_s=0.0, outcome="http_5xx", error="it says it is loading or shutting down")
    rows = [request_of(result, 0, start_ns) if result is not None else loading for result in ended]
    return rows, [result for result in ended if result is not None], sum(result is not None for result in warm)


def _draw(comparison: Comparison) -> None:
    console = Terminal(highlight=False, soft_wrap=True, width=max(MIN_WIDTH_COLUMNS, Terminal().width))
    for heading, rows in by_rate(comparison.compared):
        table = Table(box=None, pad_edge=False)
        for column in (heading, *HEAD):
            table.add_column(column, justify="left" if column == heading else "right")
        for row in rows:
            table.add_row(*cells(row))
        console.print(table)
    if comparison.compared:
        console.print(P_NOTE)
    for sentence in (*comparison.shares, *risk_sentences(comparison)):
        console.print(sentence, markup=False)
    for name, value_a, value_b in comparison.differs:
        console.print(f"{name}: A {value_a or '–'}, B {value_b or '–'}", markup=False)
    for sentence in comparison.said:
        console.print(sentence, markup=False)
