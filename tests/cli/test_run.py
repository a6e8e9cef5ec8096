"""Log of a `prober run` process at its start and while its configuration changes."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NoReturn

import pytest

from prober import __version__
from prober.cli.run import patience_s
from prober.daemon.configuration_file import read_config
from prober.net.log_lines import never_wait
from tests.processes import HANG_S, until


def lines(log: Path) -> list[str]:
    return re.findall(r'level=\w+ msg="(.*)"', log.read_text())


def test_the_log_names_version_configuration_and_how_the_pages_are_guarded(tmp_path: Path) -> None:
    """And each mistake of a configuration that is not applied has a line of its own."""
    config, log = tmp_path / "prober.yaml", tmp_path / "log"
    config.write_text("targets: [{name: a, url: 'http://127.0.0.1:1'}]")
    flags = ["--web.listen-address", "127.0.0.1:0", "--shutdown.timeout", "1s", "--shard", "0/2"]
    flags += ["--web.external-url", "https://Prober.example:443/slo/"]
    with (
        log.open("w") as stream,
        subprocess.Popen(
            [sys.executable, "-m", "prober", "run", "--config.file", str(config), *flags], stderr=stream
        ) as process,
    ):
        try:
            until(lambda: any("probing 1 target, pages on" in line for line in lines(log)), "the start")
            config.write_text("baz: 1\ntargets: [{name: a}]")
            until(lambda: sum(str(config) in line for line in lines(log)) >= 3, "the reload")
        finally:
            process.terminate()
            process.wait(HANG_S)
    logged = lines(log)
    assert logged[0] == f"llm-slo-prober {__version__}, configuration {config}"
    assert (
        "probing 1 target, pages on 127.0.0.1:0, for users https://prober.example/slo (neither TLS nor users)" in logged
    )
    assert any(line.startswith("--shard 0/2 without --lease.name: sweeps") for line in logged)
    assert "configuration not applied, the old one stays in use" in logged
    assert any(line.startswith(f"{config}:2: targets[0].url: needed") for line in logged)
    assert not any("Scheduler" in line for line in logged)


def test_urls_replace_a_configuration_which_is_printed(tmp_path: Path) -> None:
    """With the defaults; what was printed is a configuration that `prober run` takes."""
    command = [
        sys.executable,
        "-m",
        "prober",
        "run",
        "http://127.0.0.1:1",
        "http://127.0.0.1:2",
        "http://127.0.0.1:2/b/v1",
    ]
    log, out = tmp_path / "log", tmp_path / "out"
    with (
        log.open("w") as stream,
        out.open("w") as printed,
        subprocess.Popen(
            [*command, "--web.listen-address", "127.0.0.1:0"],
            stdout=printed,
            stderr=stream,
            env={**os.environ, "TMPDIR": str(tmp_path)},
        ) as process,
    ):
        try:
            until(lambda: any("probing 3 targets, pages on" in line for line in lines(log)), "the start")
        finally:
            process.terminate()
            process.wait(HANG_S)
    assert (
        "the probes use 9,165,658 tokens a day; a lower `rate` or a `budget` uses less, `prober check` lists it"
    ) in lines(log)
    assert {path.name for path in tmp_path.iterdir()} == {"log", "out"}
    comment, *config = out.read_text().splitlines()
    assert comment.startswith("# Configuration in use.")
    (tmp_path / "saved.yaml").write_text("\n".join(config))
    specs = read_config(str(tmp_path / "saved.yaml"))
    assert [spec.url for spec in specs.targets] == [f"http://127.0.0.1:{path}/v1" for path in ("1", "2", "2/b")]
    assert [spec.name for spec in specs.targets] == ["127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:2/b/v1"]
    assert [spec.rate for spec in specs.targets] == [0.2] * 3


def test_a_hangup_during_the_start_does_not_end_the_prober(tmp_path: Path) -> None:
    """It is a request to reload, which is answered when the configuration of the start is applied."""
    config, log = tmp_path / "prober.yaml", tmp_path / "log"
    config.write_text("targets: [{name: a, url: 'http://127.0.0.1:1'}]")
    command = [
        sys.executable,
        "-m",
        "prober",
        "run",
        "--config.file",
        str(config),
        "--web.listen-address",
        "127.0.0.1:0",
    ]
    with log.open("w") as stream, subprocess.Popen([*command, "--shutdown.timeout", "1s"], stderr=stream) as process:
        try:
            until(lambda: handles_hangup(process.pid), "the command to begin")
            is_started = False
            while not is_started:
                is_started = any("probing 1 target" in line for line in lines(log))
                process.send_signal(signal.SIGHUP)
                assert process.poll() is None, log.read_text()
                time.sleep(0.02)
            until(lambda: any("configuration applied: 1 target" in line for line in lines(log)), "the reload")
        finally:
            process.terminate()
            process.wait(HANG_S)


def handles_hangup(pid: int) -> bool:
    """Whether the process blocks, ignores or catches SIGHUP: bit 0 of the masks in /proc."""
    masks = re.findall(r"Sig(?:Blk|Ign|Cgt):\t(\w+)", Path(f"/proc/{pid}/status").read_text())
    return any(int(mask, 16) & 1 for mask in masks)


@pytest.mark.parametrize(("text", "seconds"), [("20", 20), ("0", 0), ("1.5", 1.5), ("20s", 20), ("500ms", 0.5)])
def test_a_time_to_stop_in_may_have_a_unit(text: str, seconds: float) -> None:
    """Plain seconds are taken as they always were."""
    assert patience_s(text) == seconds


@pytest.mark.parametrize("text", ["x", "-1", "", "1.2.3", "inf"])
def test_a_time_to_stop_in_is_nothing_else(text: str) -> None:
    """And what to write is told."""
    with pytest.raises(ValueError, match="is not a duration; write a number and a unit"):
        patience_s(text)


def test_others_that_write_to_the_log_wait_as_they_are_used_to() -> None:
    """A pipe has one mode for all that inherited it; a command beside the prober would lose what it writes."""
    read, write = os.pipe()
    beside = os.dup(write)
    never_wait(write)
    assert (os.get_blocking(write), os.get_blocking(beside)) == (False, True)
    os.write(write, b"x")
    assert os.read(read, 2) == b"x"
    for end in (read, write, beside):
        os.close(end)


def test_a_pipe_of_another_user_is_not_waited_for_either(monkeypatch: pytest.MonkeyPatch) -> None:
    """It cannot be opened anew."""
    read, write = os.pipe()

    def refused(*_: object) -> NoReturn:
        raise PermissionError

    with monkeypatch.context() as patched:
        patched.setattr(os, "open", refused)
        never_wait(write)
    assert not os.get_blocking(write)
    for end in (read, write):
        os.close(end)
