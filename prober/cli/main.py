"""`prober`: finds the command and runs it. Each command is imported when it is called, so that the daemon starts light."""

import sys
from collections.abc import Callable
from functools import wraps
from importlib import import_module

from prober.cli.exit_codes import ExitCode, fail

COMMANDS = {
    "run": "probe for ever and export what users would feel to Prometheus",
    "check": "is a configuration right, and what does its probing cost a day?",
    "rules": "recording rules and alerts from the SLOs, for Prometheus or its operator",
    "dashboards": "Grafana's dashboards, written as files or checked",
    "once": "one probe against a URL, its timeline drawn",
    "sweep": "up to which rate do the SLOs hold? once, with a result to keep",
    "diagnose": "why is it slow? a few probes of each shape, and the reasoning",
    "gate": "ready or not: a verdict for a rollout or pipeline, in as few requests as it takes",
    "compare": "is B faster than A? the same requests for both, turn and turn about",
    "matrix": "named rows of shapes and rates from a file, one verdict each",
    "report": "results side by side, with charts; of vLLM's, SGLang's, llmperf's and NVIDIA's clients too",
    "plan": "how many instances a peak takes, and what they cost",
    "mock": "an OpenAI server with the latencies and faults you ask for",
    "demo": "four mock engines, three of them in trouble, the prober, and Prometheus where there is one",
}


def main() -> None:
    """Entry point of all commands; `exit_codes` lists what they exit with."""
    name = sys.argv[1] if len(sys.argv) > 1 else "--help"
    if name == "--version":
        from prober import __version__

        print(f"prober, version {__version__}")
        return
    if name not in COMMANDS:
        print("Usage: prober COMMAND [OPTIONS]\n\nCommands (prober COMMAND --help says more):")
        for command, text in COMMANDS.items():
            print(f"  {command:12}{text}")
        if name not in ("--help", "-h", "help"):
            fail(f"\nprober: no command {name!r}", ExitCode.WRONG_CALL)
        return
    import typer

    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    app.command()(_interruptible(getattr(import_module(f"prober.cli.{name}"), name)))
    app(args=sys.argv[2:], prog_name=f"prober {name}")


def _interruptible(command: Callable[..., None]) -> Callable[..., None]:
    """The command, which exits with INTERRUPTED on a Ctrl-C that it does not handle."""

    @wraps(command)
    def run(**options: object) -> None:
        try:
            command(**options)
        except KeyboardInterrupt:
            sys.exit(ExitCode.INTERRUPTED)

    return run
