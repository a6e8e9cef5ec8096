"""`prober watch`: a daemon that shows its page's content in a terminal, or writes it as lines of JSON or text."""

import asyncio
import contextlib
import logging
import os
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from signal import SIGINT
from typing import Annotated

import typer
from rich.cells import cell_len
from rich.console import ConsoleOptions, RenderResult
from rich.live import Live
from rich.table import Table
from rich.text import Text

from prober.cli.console import Terminal
from prober.cli.daemon import OF_URLS, run_app, url_configuration
from prober.cli.exit_codes import ExitCode, exit_on, fail
from prober.cli.options import (
    ConfigFile,
    Duration,
    EndpointOptions,
    ListenAddress,
    Slos,
    expand_options,
    named_options,
    quantity,
    split_file,
)
from prober.cli.output import echo
from prober.cli.target import endpoint_fields
from prober.cli.target import target as target_of
from prober.config.problems import ConfigError
from prober.config.slos import parse_objectives
from prober.config.units import duration as parse_duration
from prober.config.units import duration_text, positive_duration, rate
from prober.measure.buffering import CONSEQUENCE
from prober.measure.outcome import NEUTRAL, Outcome
from prober.measure.printable import one_line
from prober.measure.result import ProbeResult
from prober.measure.timeline import format_duration
from prober.statistics.quantiles import MIN_SAMPLES_BY_QUANTILE, percentile_name
from prober.web.api_types import EndedProbe, dumped
from prober.web.site import host_and_port
from prober.web.targets import (
    NO_DRIFT_DATA,
    SIGNALS,
    SIGNS,
    ConcernAnswer,
    Kind,
    Snapshot,
    TargetAnswer,
    clock_time,
    signal_name,
    time_of_day,
)
from prober.web.views import Snapshots

INTERVAL_S, PLAIN_INTERVAL_S = 1.0, 10.0
MAX_SHARE = 0.25  # of the time, for taking and showing snapshots
DRAIN_S = 1.0  # for probes in flight at the end
LOG_LINES = 20  # of the daemon, shown after the screen
SHOWN = (0.5, 0.95, 0.99)  # percentiles
LATENCIES = ("ttft", "itl")
MAX_NAME = 28  # cells in the overview
MIN_DETAIL_LINES = 9  # per target
TOO_FEW = "–: too few samples; " + ", ".join(
    f"{percentile_name(q)} needs {MIN_SAMPLES_BY_QUANTILE[q]:,}" for q in SHOWN
)
STYLES: dict[Kind, str] = {"good": "green", "bad": "bold red", "few": "yellow", "past": "magenta", "unknown": "cyan"}


@expand_options
def watch(
    endpoint: EndpointOptions,
    urls_or_file: Annotated[
        list[str] | None,
        typer.Argument(metavar="[FILE or URL]...", help="YAML configuration, or targets to probe and to watch."),
    ] = None,
    config_file: ConfigFile = "",
    probe_rate: Annotated[str, typer.Option("--rate", help="Probes of each URL, such as 1/s; default: 0.2/s.")] = "",
    slo: Slos = None,
    interval: Annotated[
        str,
        typer.Option(help="Time between two looks; default: 1s, and 10s for lines where there is no terminal."),
    ] = "",
    duration: Duration = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object a line.")] = False,
    listen_address: ListenAddress = "",
    *,
    call: typer.Context,
) -> None:
    """Probe targets and show their state, latencies, failures, SLOs, drift and headroom in the terminal, until Ctrl-C."""
    of_urls = named_options(call, ("probe_rate", "slo", *asdict(endpoint)))
    urls, config_file = split_file("watch", urls_or_file or (), config_file)
    if not urls and not config_file:
        fail("prober watch: give a configuration file, or a URL", ExitCode.WRONG_CALL)
    if config_file and of_urls:
        fail(f"prober watch: {', '.join(of_urls)}: of URLs; write them into {config_file}", ExitCode.WRONG_CALL)
    is_screen = not as_json and sys.stdout.isatty() and os.environ.get("TERM", "dumb") not in ("", "dumb")
    with exit_on(ConfigError, ValueError, command="watch"):
        default_s = INTERVAL_S if as_json or is_screen else PLAIN_INTERVAL_S
        interval_s = quantity("--interval", interval, positive_duration) if interval else default_s
        duration_s = quantity("--duration", duration, parse_duration) if duration else float("inf")
        if listen_address:
            quantity("--web.listen-address", listen_address, host_and_port)
        text = _configuration(urls, endpoint, probe_rate, slo) if urls else None
    from prober.daemon.app import App, Options  # here, as a wrong call needs no daemon

    screen, log = Screen(), _Tail()

    async def show_snapshots(snapshots: Snapshots) -> None:
        """Show snapshots until the duration is over. A thread waits for slow readers."""
        now = asyncio.get_running_loop().time
        end_s, is_last = now() + duration_s, False
        lines = contextlib.nullcontext(_write_line if as_json else _print_lines)
        with contextlib.suppress(OSError), _drawing(screen, log) if is_screen else lines as show:
            while not is_last:
                begin_s = now()
                is_last = begin_s >= end_s
                screen.snapshot = await snapshots.take()
                await asyncio.to_thread(show, screen.snapshot)
                pause_s = max(interval_s - (now() - begin_s), (now() - begin_s) * (1 / MAX_SHARE - 1))
                await asyncio.sleep(max(0.0, min(pause_s, end_s - now())))

    options = Options(OF_URLS if text else config_file, listen_address, drain_s=DRAIN_S, config_text=text)
    app = App(options, watch=show_snapshots)
    run_app("watch", app)
    with contextlib.suppress(OSError):  # the terminal has gone
        for line in () if as_json else summary(screen.snapshot):
            echo(line)
        for line in log.lines:
            echo(line, err=True)
    if app.stopped_by is SIGINT:
        sys.exit(ExitCode.INTERRUPTED)


def _configuration(urls: list[str], endpoint: EndpointOptions, probe_rate: str, slos: list[str] | None) -> str:
    """Build the configuration from the options. Raises ValueError, ConfigError."""
    objectives = parse_objectives(slos or ())
    if probe_rate:
        quantity("--rate", probe_rate, rate)
    for url in urls:
        target_of("watch", url, endpoint)  # its errors name the options
    blocks: dict[str, Mapping[str, str]] = {}
    for slo in objectives:
        threshold = {"threshold": duration_text(slo.threshold_s)} if slo.threshold_s is not None else {}
        blocks[slo.name] = {"signal": slo.signal, **threshold, "objective": f"{slo.objective * 100}%"}
    return url_configuration("watch", urls, probe_rate, endpoint_fields(endpoint), blocks)


def _write_line(snapshot: Snapshot) -> None:
    view = memoryview(dumped(snapshot) + b"\n")
    while view:
        view = view[os.write(sys.stdout.fileno(), view) :]


def _print_lines(snapshot: Snapshot) -> None:
    echo("\n".join(plain_lines(snapshot)), flush=True)


class _Tail(logging.Handler):
    """Stores the last lines of the log, which would spoil the screen."""

    def __init__(self) -> None:
        super().__init__()
        self.lines = deque[str](maxlen=LOG_LINES)

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))


class Screen:
    """Rich renderable of the latest snapshot: a line per target, worst first, then details of as many as fit."""

    snapshot: Snapshot | None = None

    def __rich_console__(self, console: object, options: ConsoleOptions) -> RenderResult:
        snapshot, height = self.snapshot, options.size.height
        if snapshot is None:  # before the first snapshot
            return
        worst: Kind = min((concern.kind for concern in snapshot.concerns), key=list(SIGNS).index, default="unknown")
        title = f"prober watch  {time_of_day(snapshot.time)} UTC  "
        yield Text(title, no_wrap=True, overflow="ellipsis") + _mark(worst, snapshot.headline)
        yield from (_mark("bad", problem) for problem in problems(snapshot))
        ranked, most = by_trouble(snapshot), max(2, height // 3)
        width = min(MAX_NAME, max((cell_len(one_line(target.name)) for target, _ in ranked), default=0))
        for target, concern in ranked[:most] if len(ranked) > 1 else ():
            name = Text(one_line(target.name), "bold")
            name.truncate(width, overflow="ellipsis", pad=True)
            line = Text.assemble(_mark(concern.kind, ""), name, f" {status(target, concern, snapshot.time)}")
            line.truncate(options.size.width, overflow="ellipsis")
            yield line
        if len(ranked) > most:
            yield Text(f"  {most} of {len(ranked)} targets, those in most trouble first", "dim")
        for target, concern in ranked[: 1 + height // MIN_DETAIL_LINES]:
            yield from _details(target, concern, snapshot.time)


@contextlib.contextmanager
def _drawing(screen: Screen, log: _Tail) -> Iterator[Callable[[Snapshot], None]]:
    """Give the terminal to the screen, and restore it at the end. Yields a function that draws in the terminal's present size."""
    for name in ("COLUMNS", "LINES"):  # a shell exports the window's former size
        os.environ.pop(name, None)
    root = logging.getLogger()
    handlers, root.handlers = root.handlers, [log]
    try:
        with Live(screen, console=Terminal(), screen=True, auto_refresh=False) as live:
            yield lambda _: live.refresh()
    finally:
        root.handlers = handlers


def _details(target: TargetAnswer, concern: ConcernAnswer, now_unix_s: float) -> Iterator[Text | Table]:
    others = (target.model or "model not known yet", target.engine, f"state {target.state}")
    yield Text()
    yield Text(one_line(target.name), "bold").append("".join(f" · {one_line(it)}" for it in others if it), "not bold")
    yield _mark(concern.kind, concern_words(concern, now_unix_s))
    if target.busiest_latencies:
        more = f" and {target.other_workloads} more" if target.other_workloads else ""
        of_workload = f"of {one_line(target.busiest_latencies[0].workload)}{more}"
        table = Table("", *map(percentile_name, SHOWN), "samples", of_workload, box=None, pad_edge=False)
        for column in table.columns[1:-1]:
            column.justify = "right"
        for signal in LATENCIES:
            count, known = percentiles(target, signal)
            values = (format_duration(known.get(q)) for q in SHOWN)
            table.add_row(f"{signal_name(signal)}, 10 min", *values, f"{count:,}")
        yield table
        yield Text(TOO_FEW, "dim")
    else:
        yield Text(target.no_latency)
    grid = Table.grid(padding=(0, 1))
    for name, kind, text in facts(target, now_unix_s):
        grid.add_row(name, _mark(kind, text) if kind else Text(text))
    for line in not_ok(target.probes, now_unix_s):
        grid.add_row("not ok", Text(line))
    yield grid


def not_ok(probes: Iterable[ProbeResult | EndedProbe], now_unix_s: float, prefix: str = "") -> list[str]:
    """Lines about probes that were not ok, by outcome: time of the last one, number, text."""
    times: dict[str, list[float]] = {}
    for probe in probes:
        if probe.outcome != Outcome.OK:
            note = " (not counted as a failure)" if probe.outcome in NEUTRAL else ""
            detail = f": {probe.detail}" if probe.detail else ""
            at_unix_s = probe.time if isinstance(probe, EndedProbe) else probe.unix_s
            times.setdefault(one_line(f"{prefix}{probe.outcome}{detail}{note}"), []).append(at_unix_s)
    return [
        f"{clock_time(max(ended), now_unix_s)} {text}{f', {len(ended):,} times' if len(ended) > 1 else ''}"
        for text, ended in times.items()
    ]


def plain_lines(snapshot: Snapshot) -> list[str]:
    """Lines about a snapshot: events, probes that were not ok, ineffective settings, and each target."""
    lines = [
        f"{time_of_day(event.unix_s)} {one_line(': '.join(filter(None, (event.target, event.text))))}"
        for event in snapshot.events
    ]
    for name in dict.fromkeys(probe.target for probe in snapshot.probes):
        lines += not_ok((probe for probe in snapshot.probes if probe.target == name), snapshot.time, f"{name}: ")
    return lines + [f"{time_of_day(snapshot.time)} {text}" for text in statuses(snapshot)]


def statuses(snapshot: Snapshot) -> list[str]:
    """Lines about ineffective settings and each target."""
    of_targets = (
        f"{one_line(target.name)}: {status(target, it, snapshot.time)}" for target, it in by_trouble(snapshot)
    )
    return [*problems(snapshot), *of_targets]


def summary(snapshot: Snapshot | None) -> list[str]:
    """Lines left on the terminal at the end."""
    if snapshot is None:
        return ["prober watch ended before its prober had started; nothing was measured"]
    return [f"prober watch until {time_of_day(snapshot.time)} UTC: {snapshot.headline}", *statuses(snapshot)]


def problems(snapshot: Snapshot) -> list[str]:
    """Parts of the configuration that are not in effect."""
    return [one_line(f"{problem.headline}: {'; '.join(problem.mistakes)}") for problem in snapshot.problems]


def by_trouble(snapshot: Snapshot) -> list[tuple[TargetAnswer, ConcernAnswer]]:
    """The targets with their concerns, worst first; equal ones in the configuration's order."""
    return sorted(zip(snapshot.targets, snapshot.concerns, strict=True), key=lambda pair: pair[1].order)


def concern_words(concern: ConcernAnswer, now_unix_s: float) -> str:
    """The concern as text, with its detail, if any, in parentheses."""
    words = concern.words(now_unix_s)
    return one_line(f"{words} ({concern.detail})" if concern.detail else words)


def status(target: TargetAnswer, concern: ConcernAnswer, now_unix_s: float) -> str:
    """A target in one line: its concern, and its percentiles with their sample counts."""
    words = concern_words(concern, now_unix_s)
    if concern.kind == "good" and not target.quantiles:
        words += f". {target.no_latency}"
    for signal in LATENCIES if target.quantiles else ():
        count, known = percentiles(target, signal)
        values = ", ".join(f"{percentile_name(q)} {format_duration(known.get(q))}" for q in SHOWN)
        words += f"; {SIGNALS[signal]} {values} of {count:,}"
    return words


def facts(target: TargetAnswer, now_unix_s: float) -> list[tuple[str, Kind | None, str]]:
    """(subject, kind, text) about probes since the target appeared, each SLO, warnings, drift and headroom."""
    total = sum(target.outcomes.values())
    listed = ", ".join(f"{count:,} {name}" for name, count in target.outcomes.items())
    warnings = [*(workload.detail for workload in target.no_data), *target.warnings]
    warnings += [f"buffered: {CONSEQUENCE}"] if target.buffered else []
    drifts = dict[tuple[Kind, str], list[str]]()  # {verdict: names of latencies}
    for drift in target.drift:
        kind, text = target.drift_words(drift, now_unix_s)
        text += f", {', '.join(drift.sizes)}; {drift.why}" if drift.active else ""
        drifts.setdefault((kind, text), []).append(signal_name(drift.signal))
    if not drifts:
        drifts["unknown", f"unknown, {NO_DRIFT_DATA}"] = []
    lines: list[tuple[str, Kind | None, str]] = [
        ("probes", None, f"{total:,} probes: {listed}" if total else "none has ended yet"),
        *(("SLO", slo.kind, slo.words(now_unix_s)) for slo in target.slos),
        *([] if target.slos else [("SLO", None, "none is configured")]),
        *(("warning", "few", text) for text in warnings),
        *(
            ("drift", kind, ": ".join(filter(None, (", ".join(dict.fromkeys(names)), text))))
            for (kind, text), names in drifts.items()
        ),
        ("headroom", *target.headroom_words),
    ]
    return [(subject, kind, one_line(text)) for subject, kind, text in lines]


def percentiles(target: TargetAnswer, signal: str) -> tuple[int, dict[float, float]]:
    """Sample count, and percentiles with enough samples, of the busiest workload's latency in the last ten minutes."""
    quantiles = next((row.recent for row in target.busiest_latencies if row.signal == signal), {})
    known = {q: quantile.estimate for q, quantile in quantiles.items() if quantile.enough}
    return quantiles[0.5].count if quantiles else 0, known


def _mark(kind: Kind, words: str) -> Text:
    """A sign for the kind, then the text: colour alone must carry no meaning."""
    return Text(f"{SIGNS[kind]} {words}", STYLES[kind])
