"""`prober watch`: a daemon that shows the content of its page in a terminal, or writes it as lines of JSON or text."""

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

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
from prober.config.problems import ConfigError
from prober.config.units import duration as parse_duration
from prober.config.units import positive_duration, rate

if TYPE_CHECKING:
    from prober.cli.watch_screen import Screen
    from prober.web.views import Snapshots

INTERVAL_S, PLAIN_INTERVAL_S = 1.0, 10.0
MAX_SHARE = 0.25  # of the time, for taking snapshots and showing them
DRAIN_S = 1.0  # for probes in flight at the end
LOG_LINES = 20  # of the daemon, that are shown after the screen


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
            from prober.web.site import host_and_port

            quantity("--web.listen-address", listen_address, host_and_port)
        text = _configuration(urls, endpoint, probe_rate, slo) if urls else None
    from prober.cli.watch_screen import Screen, summary
    from prober.daemon.app import App, Options

    screen, log = Screen(), _Tail()

    async def show_snapshots(snapshots: "Snapshots") -> None:
        write = _write_line if as_json else _print_lines
        drawing = _drawing(screen, log) if is_screen else contextlib.nullcontext(partial(write, screen))
        with contextlib.suppress(OSError), drawing as show:  # the reader is gone
            await _show_each(screen, show, interval_s, duration_s, snapshots)

    options = Options(OF_URLS if text else config_file, listen_address, drain_s=DRAIN_S, config_text=text)
    app = App(options, watch=show_snapshots)
    run_app(app)
    with contextlib.suppress(OSError):  # the terminal is gone
        for line in () if as_json else summary(screen.snapshot):
            echo(line)
        for line in log.lines:
            echo(line, err=True)
    if app.stopped_by is signal.SIGINT:
        sys.exit(ExitCode.INTERRUPTED)


def _configuration(urls: list[str], endpoint: EndpointOptions, probe_rate: str, slos: list[str] | None) -> str:
    """The configuration that the options describe. Raises ValueError, ConfigError."""
    from prober.cli.target import endpoint_fields, target
    from prober.config.slos import parse_objectives
    from prober.config.units import duration_text

    objectives = parse_objectives(slos or ())
    if probe_rate:
        quantity("--rate", probe_rate, rate)
    for url in urls:
        target("watch", url, endpoint)  # its errors name the options
    blocks: dict[str, Mapping[str, str]] = {}
    for slo in objectives:
        threshold = {"threshold": duration_text(slo.threshold_s)} if slo.threshold_s is not None else {}
        blocks[slo.name] = {"signal": slo.signal, **threshold, "objective": f"{slo.objective * 100}%"}
    return url_configuration("watch", urls, probe_rate, endpoint_fields(endpoint), blocks)


async def _show_each(
    screen: "Screen", show: Callable[[], None], interval_s: float, duration_s: float, snapshots: "Snapshots"
) -> None:
    """Show snapshots until `duration_s` is over. A thread waits for a slow reader. Raises OSError."""
    now = asyncio.get_running_loop().time
    end_s = now() + duration_s
    is_last = False
    while not is_last:
        begin_s = now()
        is_last = begin_s >= end_s
        screen.snapshot = await snapshots.take()
        await asyncio.to_thread(show)
        pause_s = max(interval_s - (now() - begin_s), (now() - begin_s) * (1 / MAX_SHARE - 1))
        await asyncio.sleep(max(0.0, min(pause_s, end_s - now())))


def _write_line(screen: "Screen") -> None:
    from prober.web.api_types import dumped

    assert screen.snapshot is not None
    view = memoryview(dumped(screen.snapshot) + b"\n")
    while view:
        view = view[os.write(sys.stdout.fileno(), view) :]


def _print_lines(screen: "Screen") -> None:
    from prober.cli.watch_screen import plain_lines

    assert screen.snapshot is not None
    echo("\n".join(plain_lines(screen.snapshot)), flush=True)


class _Tail(logging.Handler):
    """Keeps the last lines of the log, which would spoil the screen."""

    def __init__(self) -> None:
        super().__init__()
        self.lines = deque[str](maxlen=LOG_LINES)

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))


@contextlib.contextmanager
def _drawing(screen: "Screen", log: _Tail) -> Iterator[Callable[[], None]]:
    """Give the whole terminal to the screen, and restore it at the end. Yields what draws; it adapts to the terminal's size."""
    from rich.live import Live

    from prober.cli.console import Terminal

    for name in ("COLUMNS", "LINES"):  # what a shell exported is the size that the window had
        os.environ.pop(name, None)
    root = logging.getLogger()
    handlers, root.handlers = root.handlers, [log]
    try:
        with Live(screen, console=Terminal(), screen=True, auto_refresh=False) as live:
            yield live.refresh
    finally:
        root.handlers = handlers
