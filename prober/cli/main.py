"""`prober`: finds the command and runs it. Each command is imported when it is called, so that the daemon starts light."""

import sys
from importlib import import_module

COMMANDS = {
    "run": "probe for ever and export what users would feel to Prometheus",
    "check": "is a configuration right, and what does its probing cost a day?",
    "rules": "recording rules and alerts from the SLOs, for Prometheus or its operator",
    "once": "one probe against a URL, its timeline drawn",
    "diagnose": "why is it slow? a few probes of each shape, and the reasoning",
    "mock": "an OpenAI server with the latencies and faults you ask for",
    "demo": "a mock engine, the prober, and Prometheus where there is one",
}


def main() -> None:
    """Entry point. Exit codes: 0 well, 1 it failed, 2 it was called wrongly."""
    name = sys.argv[1] if len(sys.argv) > 1 else "--help"
    if name == "--version":
        from prober import __version__

        print(f"prober, version {__version__}")
        return
    if name not in COMMANDS:
        print("Usage: prober COMMAND [OPTIONS]\n\nCommands (prober COMMAND --help says more):")
        for command, text in COMMANDS.items():
            print(f"  {command:10}{text}")
        if name not in ("--help", "-h", "help"):
            print(f"\nprober: no command {name!r}", file=sys.stderr)
            sys.exit(2)
        return
    import typer

    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    app.command()(getattr(import_module(f"prober.cli.{name}"), name))
    app(args=sys.argv[2:], prog_name=f"prober {name}")
