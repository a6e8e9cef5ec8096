"""Nothing is imported before it is needed."""

import subprocess
import sys

import pytest

from tests.processes import HANG_S

# What a command sends with: so that the list of modules is not empty for another reason.
CONNECTION = "prober.net.connection"
HEAVY = (
    *("aiohttp", "bcrypt", "jinja2", "jsonschema", "numpy", "prometheus_client", "yaml"),
    *(
        "prober.config.configuration",
        "prober.config.discovery",
        "prober.results.result",
        "prober.simulation",
        "prober.web",
    ),
)


def modules_of(*arguments: str) -> set[str]:
    """Modules that a command has imported when it ends."""
    code = "import atexit, sys; atexit.register(lambda: print(*sys.modules, file=sys.stderr)); from prober.cli.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=HANG_S, check=False
    )
    return set(done.stderr.split())


def test_the_help_loads_neither_the_daemon_nor_what_draws() -> None:
    """No library of the daemon, no block that only a configuration file has, no results, no tables."""
    modules = modules_of("once", "--help")
    assert CONNECTION in modules
    assert sorted(name for name in modules if name.startswith((*HEAVY, "rich.table"))) == []


def test_a_probe_loads_only_what_sends_and_draws_it() -> None:
    """The same for a probe that is sent and ends; tables are loaded to draw it."""
    modules = modules_of("once", "http://127.0.0.1:1")
    assert "rich.table" in modules
    assert sorted(name for name in modules if name.startswith(HEAVY)) == []


def test_a_list_of_commands_loads_no_command() -> None:
    """`prober --help` needs neither typer nor pydantic."""
    modules = modules_of("--help")
    assert "prober.cli.main" in modules
    assert not modules & {"typer", "pydantic", "asyncio"}


@pytest.mark.parametrize("command", ["sweep", "matrix", "gate", "compare", "diagnose"])
def test_a_command_that_reads_pages_loads_no_second_http_client(command: str) -> None:
    """Pages are read by the probes' own."""
    modules = modules_of(command, "--help")
    assert {CONNECTION, "prober.net.scrape"} <= modules
    assert sorted(name for name in modules if name.startswith(("aiohttp", "numpy"))) == []


def test_the_collector_is_on_when_a_command_runs() -> None:
    """It is off during the imports only."""
    code = (
        "import gc\nfrom prober.cli import main as cli, once\nonce.once = lambda: print(gc.isenabled())\ncli.main()\n"
    )
    command = [sys.executable, "-c", code, "once"]
    assert subprocess.run(command, capture_output=True, text=True, timeout=HANG_S, check=True).stdout == "True\n"
