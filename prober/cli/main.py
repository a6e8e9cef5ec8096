"""`prober`: finds and runs the command. A command's module is imported only when called, which keeps the daemon small."""

import gc
import signal
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from importlib import import_module
from typing import Any

from prober.cli.exit_codes import ExitCode, fail
from prober.cli.output import discard_outputs, echo, log_to_stderr, open_outputs

COMMANDS = {
    "run": "probe the configured targets and export what users experience to Prometheus",
    "watch": "probe targets and show in the terminal what users experience, without Prometheus",
    "check": "check a configuration, its daily cost and its alerts",
    "rules": "write recording rules and alerts for the SLOs, for Prometheus or its operator",
    "dashboards": "write, check or push the Grafana dashboards",
    "once": "send one probe to a URL and draw its timeline",
    "diagnose": "find out why a target is slow, with a few probes of each shape",
    "sweep": "estimate once at which request rate each SLO gives way",
    "gate": "decide whether a target is ready, for a rollout or pipeline, in as few requests as possible",
    "compare": "compare two endpoints with the same requests, in alternating rounds, or two results",
    "matrix": "measure the rows of a workload matrix, with a verdict for each",
    "report": "report results side by side, with charts; reads files of vLLM's client too",
    "plan": "compute how many instances a peak needs and what they cost",
    "drain": "tell the prober of this container that its pod is being ended, as a preStop hook",
    "mock": "serve a mock OpenAI API with configurable latencies and faults",
    "demo": "run mock engines, some of them with problems, the prober, and Prometheus if installed",
}
HEADINGS = {
    "run": "Every day",
    "sweep": "Experiments",
    "drain": "Kubernetes",
    "mock": "Testing",
}  # by the first command


def hold_signals() -> None:
    """Block signals until a daemon handles them, also across exec: by default they end a process, and process 1 ignores them."""
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1))
    for number in (signal.SIGALRM, signal.SIGVTALRM, signal.SIGUSR2, signal.SIGIO, signal.SIGPWR):
        signal.signal(number, signal.SIG_IGN)  # meaningless here, and by default they end a process before it saves


def main() -> None:
    """Entry point of all commands; `exit_codes` lists the exit codes."""
    open_outputs()
    try:
        try:
            _run()
        finally:
            sys.stdout.flush()  # here, because Python would only mention a failure and exit with 120
    except BrokenPipeError as problem:
        ended = problem.__context__
        discard_outputs()
        sys.exit(ended.code if isinstance(ended, SystemExit) else ExitCode.NO_READER)
    except OSError as problem:
        with suppress(OSError):
            place = problem.filename or "its output cannot be written"  # other errors without file are handled
            echo(f"prober: {place}: {problem.strerror or problem}", err=True, flush=True)
        discard_outputs()
        sys.exit(ExitCode.OWN_FAULT)
    except Exception:
        traceback.print_exc()
        sys.exit(ExitCode.OWN_FAULT)


def _run() -> None:
    name = sys.argv[1] if len(sys.argv) > 1 else "--help"
    if name == "--version":
        from prober import __version__

        echo(f"prober, version {__version__}")
        return
    if name not in COMMANDS:
        echo("Usage: prober COMMAND [OPTIONS]    (prober COMMAND --help lists the usual options, --help-all all)")
        for command, text in COMMANDS.items():
            heading = f"\n{HEADINGS[command]}:\n" if command in HEADINGS else ""
            echo(f"{heading}  {command:12}{text}")
        if name not in ("--help", "-h", "help"):
            fail(f"\nprober: no command {name!r}", ExitCode.WRONG_CALL)
        return
    gc.disable()  # takes a seventh of the imports' time, while nearly all their objects stay
    if name == "run":
        hold_signals()
    else:
        log_to_stderr()
    import typer

    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    app.command()(_interruptible(getattr(import_module(f"prober.cli.{name}"), name)))
    gc.enable()
    parser, arguments = typer.main.get_command(app), sys.argv[2:]
    rare: list[Any] = [option for option in parser.params if getattr(option, "hidden", False)]
    if "--help-all" in arguments:
        arguments = ["--help"]
        for option in rare:
            option.hidden = False
    elif rare:
        parser.epilog = f"{len(rare)} more options: prober {name} --help-all"
    parser(args=arguments, prog_name=f"prober {name}")


def _interruptible(command: Callable[..., None]) -> Callable[..., None]:
    """Wrap a command so that a Ctrl-C that it does not handle exits with INTERRUPTED."""

    @wraps(command)
    def run(**options: object) -> None:
        try:
            command(**options)
        except KeyboardInterrupt:
            sys.exit(ExitCode.INTERRUPTED)
        except BrokenPipeError:  # before Click handles it, with exit code 1
            sys.exit(ExitCode.NO_READER)

    return run
