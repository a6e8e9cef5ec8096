"""`prober watch`: a daemon that shows the content of its page in a terminal, or writes it as lines of JSON or text."""

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from prober.cli.daemon import OF_URLS, run_app, url_configuration
from prober.cli.exit_codes import ExitCode, exit_on, fail
from prober.cli.options import ConfigFile, EndpointOptions, expand_options, named_options, quantity, split_file
from prober.cli.output import echo
from prober.config.problems import ConfigError
from prober.config.units import duration, rate

if TYPE_CHECKING:
    from prober.cli.watch_words import Watched
    from prober.web.targets import Snapshot
    from prober.web.views import Snapshots

INTERVAL_S, PLAIN_INTERVAL_S, MIN_INTERVAL_S = 1.0, 10.0, 0.5
MAX_SHARE = 0.25  # of the time, for taking snapshots and showing them
DRAIN_S = 1.0  # for probes in flight at the end
LOG_LINES = 20  # of the daemon, that are shown after the screen
Times = Callable[[asyncio.Event], AsyncIterator[None]]


@expand_options
def watch(
    endpoint: EndpointOptions,
    urls_or_file: Annotated[
        list[str] | None,
        typer.Argument(metavar="[FILE or URL]...", help="YAML configuration, or targets to probe and to watch."),
    ] = None,
    config_file: ConfigFile = "",
    probe_rate: Annotated[str, typer.Option("--rate", help="Probes of each URL, such as 1/s; default: 0.2/s.")] = "",
    slo: Annotated[list[str] | None, typer.Option(help="Objective such as 'ttft<500ms:99%'; repeatable.")] = None,
    interval: Annotated[
        str,
        typer.Option(
            help="Time between two looks, at least 500ms; default: 1s, and 10s for lines where there is no terminal."
        ),
    ] = "",
    run_for: Annotated[str, typer.Option("--duration", help="Time until it ends by itself; default: never.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object a line.")] = False,
    listen_address: Annotated[
        str, typer.Option("--web.listen-address", help="host:port or :port of the pages; default: none are served.")
    ] = "",
    storage_path: Annotated[
        str | None,
        typer.Option("--storage.path", help="Directory for state that survives a restart; default: memory only."),
    ] = None,
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
        interval_s = quantity("--interval", interval, duration) if interval else default_s
        if interval_s < MIN_INTERVAL_S:
            raise ValueError(f"--interval {interval}: at least 500ms")
        duration_s = quantity("--duration", run_for, duration) if run_for else None
        if listen_address:
            from prober.web.site import host_and_port

            quantity("--web.listen-address", listen_address, host_and_port)
        text = _configuration(urls, endpoint, probe_rate, slo) if urls else None
    from prober.cli.watch_words import Watched, summary
    from prober.daemon.app import App, Options

    watched, log, times = Watched(), _Tail(), partial(_times, interval_s, duration_s)
    show = _write_line if as_json else partial(_print_lines, watched)
    app = App(
        Options(
            OF_URLS if text else config_file,
            listen_address,
            storage_path=storage_path,
            drain_s=DRAIN_S,
            config_text=text,
        ),
        watch=partial(_draw, watched, log, times) if is_screen else partial(_write, show, times),
    )
    run_app(app)
    with contextlib.suppress(OSError):  # the terminal is gone
        if not as_json:
            _echo(summary(watched))
        for line in log.lines:
            echo(line, err=True)
    if app.stopped_by is signal.SIGINT:
        sys.exit(ExitCode.INTERRUPTED)


def _configuration(urls: list[str], endpoint: EndpointOptions, probe_rate: str, slos: list[str] | None) -> str:
    """The configuration that the options describe. Raises ValueError, ConfigError."""
    from prober.cli.target import target
    from prober.config.slos import parse_objectives
    from prober.config.units import duration_text

    objectives = parse_objectives(slos or ())
    if probe_rate:
        quantity("--rate", probe_rate, rate)
    for url in urls:
        target("watch", url, endpoint)  # its errors name the options
    headers = (line.partition(":") for line in endpoint.header or ())
    fields: dict[str, Any] = {
        "model": endpoint.model,
        "api": endpoint.api,
        "engine": endpoint.engine,
        "auth": {"bearer_token_file": endpoint.bearer_token_file} if endpoint.bearer_token_file else None,
        "tls": {"ca_file": endpoint.ca_file} if endpoint.ca_file else None,
        "headers": {name.strip(): value.strip() for name, _, value in headers},
    }
    blocks: dict[str, Mapping[str, str]] = {}
    for slo in objectives:
        threshold = {"threshold": duration_text(slo.threshold_s)} if slo.threshold_s is not None else {}
        blocks[slo.name] = {"signal": slo.signal, **threshold, "objective": f"{slo.objective * 100}%"}
    return url_configuration("watch", urls, probe_rate, {key: value for key, value in fields.items() if value}, blocks)


async def _times(interval_s: float, duration_s: float | None, earlier: asyncio.Event) -> AsyncIterator[None]:
    """Yields when the next snapshot is due, until `duration_s` is over. earlier: set if one is due before its time"""
    now = asyncio.get_running_loop().time
    end_s = now() + duration_s if duration_s is not None else float("inf")
    is_last = False
    while not is_last:
        begin_s = now()
        is_last = begin_s >= end_s
        yield
        pause_s = max(interval_s - (now() - begin_s), (now() - begin_s) * (1 / MAX_SHARE - 1))
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(earlier.wait(), max(0.0, min(pause_s, end_s - now())))
        earlier.clear()


async def _write(show: "Callable[[Snapshot], None]", times: Times, snapshots: "Snapshots") -> None:
    """Show snapshots until the last is due or the reader is gone. A thread waits for a slow reader."""
    with contextlib.suppress(OSError):
        async for _ in times(asyncio.Event()):
            await asyncio.to_thread(show, await snapshots.take())


def _write_line(snapshot: "Snapshot") -> None:
    from prober.web.api_types import dumped

    view = memoryview(dumped(snapshot) + b"\n")
    while view:
        view = view[os.write(sys.stdout.fileno(), view) :]


def _print_lines(watched: "Watched", snapshot: "Snapshot") -> None:
    from prober.cli.watch_words import plain_lines

    watched.add(snapshot)
    _echo(plain_lines(watched, snapshot))


class _Tail(logging.Handler):
    """Keeps the last lines of the log, which would spoil the screen."""

    def __init__(self) -> None:
        super().__init__()
        self.lines = deque[str](maxlen=LOG_LINES)

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))


async def _draw(watched: "Watched", log: _Tail, times: Times, snapshots: "Snapshots") -> None:
    """Draw the screen for each snapshot, and when its size changes; restore it at the end. A thread waits for a slow terminal."""
    from rich.live import Live

    from prober.cli.console import Terminal
    from prober.cli.watch_screen import Frame

    for name in ("COLUMNS", "LINES"):  # what a shell exported is the size that the window had
        os.environ.pop(name, None)
    resized = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGWINCH, resized.set)
    root = logging.getLogger()
    handlers, root.handlers = root.handlers, [log]
    frame = Frame(watched, is_utf8=shows_utf8(_environment()))
    try:
        with contextlib.suppress(OSError), Live(frame, console=Terminal(), screen=True, auto_refresh=False) as live:
            async for _ in times(resized):
                watched.add(await snapshots.take())
                await asyncio.to_thread(live.refresh)
    finally:
        root.handlers = handlers


def _echo(lines: Iterable[str]) -> None:
    """Print the lines, in ASCII if the terminal shows only that."""
    from prober.cli.watch_words import as_ascii

    is_utf8 = shows_utf8(_environment())
    for line in lines:
        echo(line if is_utf8 else as_ascii(line))
    sys.stdout.flush()


def shows_utf8(environment: Mapping[str, str]) -> bool:
    """True if the locale that these variables name has UTF-8."""
    locale = next((environment[name] for name in ("LC_ALL", "LC_CTYPE", "LANG") if environment.get(name)), "")
    return "utf8" in locale.lower().replace("-", "")


def _environment() -> Mapping[str, str]:
    """The environment with which this process was started, as Python sets another locale if there is none, or C."""
    try:
        block = Path("/proc/self/environ").read_bytes().decode(errors="replace")
    except OSError:
        return os.environ
    return dict(entry.split("=", 1) for entry in block.split("\0") if "=" in entry)
