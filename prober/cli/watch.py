"""`prober watch`: shows the content of the prober's page in a terminal.

With `--json` this process is the daemon and writes one snapshot per line. Otherwise it starts a second process with `--json` and shows
its lines, so that drawing delays no request, and the screen shows nothing that the lines lack.
"""

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Iterable, Mapping
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
    from prober.web.views import Snapshots

INTERVAL_S, PLAIN_INTERVAL_S, MIN_INTERVAL_S = 1.0, 10.0, 0.5
MAX_SHARE = 0.05  # of the time, for taking snapshots
MIN_FRAME_GAP_S, MAX_FRAME_GAP_S = 0.5, 1.5
DRAIN_S = 1.0  # for probes in flight at the end
END_S = 10.0  # for the daemon's process to end
MAX_LINE_BYTES = 64 << 20
LOG_LINES = 20  # of the daemon, that are shown at the end


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
    if as_json:
        from prober.daemon.app import App, Options

        options = Options(
            OF_URLS if text else config_file,
            listen_address,
            storage_path=storage_path,
            drain_s=DRAIN_S,
            config_text=text,
        )
        app = App(options, watch=partial(_write_lines, interval_s, duration_s))
        run_app(app)
        if app.stopped_by is signal.SIGINT:
            sys.exit(ExitCode.INTERRUPTED)
    else:
        _show(interval_s, is_screen=is_screen)


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


async def _write_lines(interval_s: float, duration_s: float | None, snapshots: "Snapshots") -> None:
    """Write a snapshot every `interval_s` until `duration_s` is over or the reader is gone.

    A thread waits for a slow reader; the next snapshot is taken once the previous one is written.
    """
    loop = asyncio.get_running_loop()
    begin_s = loop.time()
    end_s = begin_s + duration_s if duration_s is not None else float("inf")
    is_last = False
    while not is_last:
        started_s = loop.time()
        is_last = started_s >= end_s
        line = await snapshots.take()
        took_s = loop.time() - started_s
        try:
            await asyncio.to_thread(_write_all, line)
        except OSError:
            return  # the reader is gone
        pause_s = max(interval_s - (loop.time() - started_s), took_s / MAX_SHARE)
        await asyncio.sleep(max(0.0, min(pause_s, end_s - loop.time())))


def _write_all(data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(sys.stdout.fileno(), view) :]


def _show(interval_s: float, *, is_screen: bool) -> None:
    """Start the daemon in another process and show its snapshots. Exits with its exit code, or with INTERRUPTED."""
    command = [sys.executable, "-P", "-m", "prober", "watch", "--json", "--interval", f"{interval_s}s", *sys.argv[2:]]
    code, log = asyncio.run(_shown(command, is_screen=is_screen))
    for line in log:
        echo(line, err=True)
    sys.exit(code)


async def _shown(command: list[str], *, is_screen: bool) -> tuple[int, list[str]]:
    """Show the snapshots that the command writes, until it ends or a signal arrives. Returns (exit code, lines of its log)."""
    from prober.cli.watch_words import Watched, summary

    stopped: asyncio.Future[signal.Signals] = asyncio.get_running_loop().create_future()

    def stop(number: signal.Signals) -> None:
        if not stopped.done():
            stopped.set_result(number)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, stop, number)
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        limit=MAX_LINE_BYTES,
        start_new_session=True,  # a Ctrl-C in the terminal is for this process, which ends the other one
    )
    assert process.stdout is not None
    assert process.stderr is not None
    watched, changed, log = Watched(), asyncio.Event(), deque[str](maxlen=LOG_LINES)
    logging = asyncio.create_task(_keep(process.stderr, log))
    reading = asyncio.create_task(_read(process.stdout, watched, changed, is_plain=not is_screen))
    drawing = asyncio.create_task(_draw(watched, changed)) if is_screen else None
    ends: tuple[asyncio.Future[Any], ...] = reading, stopped, *([drawing] if drawing else [])
    try:
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in filter(None, (reading, drawing)):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, OSError):  # the terminal is gone
                await task
        _signal(process, signal.SIGTERM)
    if watched.snapshot is not None or stopped.done():
        with contextlib.suppress(OSError):  # the terminal is gone
            _echo(summary(watched))
    code = await _ended(process)
    await asyncio.wait([logging], timeout=1)
    if stopped.done():
        return (ExitCode.INTERRUPTED if stopped.result() is signal.SIGINT else ExitCode.OK), list(log)
    return code, list(log)


async def _ended(process: asyncio.subprocess.Process) -> int:
    """The exit code of the process, which is killed if it does not end in time."""
    try:
        return await asyncio.wait_for(process.wait(), END_S)
    except TimeoutError:
        _signal(process, signal.SIGKILL)
        return await process.wait()


def _signal(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    """Send the process a signal unless it has ended. Methods of `process` could hide the exit code from asyncio (it reports 255)."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, number)


async def _keep(stream: asyncio.StreamReader, log: deque[str]) -> None:
    async for line in stream:
        log.append(line.decode(errors="replace").rstrip("\n"))


async def _read(stream: asyncio.StreamReader, watched: "Watched", changed: asyncio.Event, *, is_plain: bool) -> None:
    """Read snapshots until the stream ends. is_plain: print the lines of each snapshot"""
    from prober.cli.watch_words import plain_lines
    from prober.web.targets import Snapshot

    async for line in stream:
        snapshot = Snapshot.model_validate_json(line)
        watched.add(snapshot)
        changed.set()
        if is_plain:
            _echo(plain_lines(watched, snapshot))


async def _draw(watched: "Watched", changed: asyncio.Event) -> None:
    """Draw the screen after each change of data or size, and periodically, as it shows the age of the data; restore it at the end."""
    from rich.live import Live

    from prober.cli.console import Terminal
    from prober.cli.watch_screen import Frame

    for name in ("COLUMNS", "LINES"):  # what a shell exported is the size that the window had
        os.environ.pop(name, None)
    asyncio.get_running_loop().add_signal_handler(signal.SIGWINCH, changed.set)
    frame = Frame(watched, time.time, is_utf8=shows_utf8(_environment()))
    with Live(frame, console=Terminal(), screen=True, auto_refresh=False) as live:
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(changed.wait(), MAX_FRAME_GAP_S)
            changed.clear()
            live.refresh()
            await asyncio.sleep(MIN_FRAME_GAP_S)


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
