"""Every command exits with the codes of one table."""

import ast
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import prober.cli as cli
from prober.cli.exit_codes import ExitCode, exit_on
from prober.cli.main import COMMANDS
from prober.config.problems import ConfigError
from tests.commands import prober
from tests.processes import HANG_S


@pytest.mark.parametrize("command", COMMANDS)
def test_an_unknown_option_of_any_command_exits_with_2(command: str) -> None:
    """Without a traceback and without output; wrong values are in test_calls.py."""
    done = prober(command, "--no-such-option")
    assert (done.returncode, done.stdout) == (ExitCode.WRONG_CALL, "")
    assert "--no-such-option" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_the_short_help_has_at_most_15_options_and_names_the_way_to_all(command: str) -> None:
    """The help of a command fits a screen; --help-all has every option, and the short help names it where it leaves some out."""
    shown, in_full = (prober(command, help_option).stdout for help_option in ("--help", "--help-all"))
    short, everything = (
        {line.split()[0] for line in text.splitlines() if line.startswith("  --")} for text in (shown, in_full)
    )
    assert len(short) <= 15
    assert short <= everything
    assert (f"{len(everything - short)} more options" in shown) == (short < everything)


def test_an_unknown_command_is_a_wrong_call() -> None:
    """The commands are listed; here of a process, which exits with the code that the table says."""
    done = subprocess.run([sys.executable, "-m", "prober", "no-such-command"], capture_output=True, text=True)
    assert done.returncode == ExitCode.WRONG_CALL
    assert [name for name in COMMANDS if f"  {name} " not in done.stdout] == []
    assert done.stderr == "\nprober: no command 'no-such-command'\n"


ENDS = ("sys.exit", "exit", "typer.Exit", "SystemExit", "fail")


def literal_exit_codes(source: str) -> list[int]:
    """Lines that exit, or assign an exit code, with a literal number."""
    values: list[ast.AST] = []
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Call(func=function, args=arguments) if ast.unparse(function) in ENDS:
                values += arguments
            case ast.keyword(arg="code" | "exit_code", value=value):
                values.append(value)
            case ast.Assign(targets=[name], value=value) | ast.AnnAssign(target=name, value=ast.expr() as value):
                if "EXIT" in ast.unparse(name):
                    values.append(value)
    parts = (part for value in values for part in ast.walk(value))
    return [part.lineno for part in parts if isinstance(part, ast.Constant) and type(part.value) is int]


def test_no_command_exits_with_a_literal_number() -> None:
    """All codes come from the table."""
    for path in Path(next(iter(cli.__path__))).glob("*.py"):
        assert literal_exit_codes(path.read_text(encoding="utf-8")) == [], path


@pytest.mark.parametrize("line", ["sys.exit(1)", "sys.exit(0 if x else 1)", "EXIT = {'a': 3}", "fail('no', code=2)"])
def test_a_literal_exit_code_is_noticed(line: str) -> None:
    """The check above can fail."""
    assert literal_exit_codes(line)


def test_an_error_ends_the_command_with_its_message(capsys: pytest.CaptureFixture[str]) -> None:
    """The command is named, unless the error names its source; other errors pass."""
    with pytest.raises(SystemExit) as ended, exit_on(ValueError, command="gate", code=ExitCode.NOT_JUDGED):
        raise ValueError("too few")
    assert (ended.value.code, capsys.readouterr().err) == (ExitCode.NOT_JUDGED, "prober gate: too few\n")
    with pytest.raises(SystemExit) as ended, exit_on(ConfigError, command="gate"):
        raise ConfigError("prober.yaml: wrong")
    assert (ended.value.code, capsys.readouterr().err) == (ExitCode.WRONG_CALL, "prober.yaml: wrong\n")
    with pytest.raises(KeyError), exit_on(ValueError, command="gate"):
        raise KeyError


def test_ctrl_c_is_not_taken_for_a_result() -> None:
    """A command that keeps nothing exits with 130, here while it waits for a server that never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(HANG_S)
        command = [sys.executable, "-m", "prober", "once", f"http://127.0.0.1:{server.getsockname()[1]}"]
        # A shell's background job ignores Ctrl-C, and so would its children.
        command = ["env", "--default-signal=INT", *command]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
            connection, _ = server.accept()
            with connection:
                process.send_signal(signal.SIGINT)
                _, log = process.communicate(timeout=HANG_S)
    assert process.returncode == ExitCode.INTERRUPTED, log


def test_the_documentation_lists_every_exit_code() -> None:
    """With its number, and no other one."""
    text = (Path(__file__).parents[2] / "docs/commands.md").read_text(encoding="utf-8").partition("## Exit codes")[2]
    assert [int(number) for number in re.findall(r"^\| (\d+) \|", text, re.MULTILINE)] == [
        int(code) for code in ExitCode
    ]
