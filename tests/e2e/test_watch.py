"""`prober watch` against mock engines: in a pseudo-terminal, as lines of JSON, and where there is no terminal."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import pytest

from prober.web.targets import Snapshot
from tests.processes import HANG_S, Mock, free_port, get, until
from tests.pseudo_terminal import CONTROL, NORMAL_SCREEN, Terminal

WATCH = (sys.executable, "-m", "prober", "watch")
FAST = ("--rate", "10/s", "--interval", "500ms")


@pytest.fixture(scope="module")
def mock(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mock]:
    with Mock(tmp_path_factory.mktemp("mock") / "log", "--ttft", "20ms", "--itl", "1ms") as serving:
        yield serving


def test_the_screen_follows_its_terminal_and_leaves_a_summary(mock: Mock, tmp_path: Path) -> None:
    """Percentiles appear; after a resize each frame has the new size; Ctrl-C restores the screen, sums up and exits with 130."""
    words = (*WATCH, mock.url, *FAST, "--slo", "ttft<500ms:99%")
    with Terminal(80, 24, *words, TMPDIR=str(tmp_path)) as terminal:
        until(lambda: re.search(r"TTFT, 10 min +\d+[.\d]* ms", "\n".join(terminal.frame())), "a percentile")
        frame = terminal.frame()
        assert (len(frame), {len(line) for line in frame}) == (24, {80})
        terminal.resize(60, 30)
        until(lambda: (len(frame := terminal.frame()), max(map(len, frame), default=0)) == (30, 60), "the new size")
        terminal.type(b"\x03")
        assert terminal.process.wait(HANG_S) == 130
    after = CONTROL.sub("", terminal.written.decode().partition(NORMAL_SCREEN)[2])
    assert re.search(r"prober watch until \d\d:\d\d:\d\d UTC: ", after)
    assert re.search(r"TTFT p50 \d+[.\d]* ms", after)
    assert "Traceback" not in after
    assert list(tmp_path.iterdir()) == []  # of the configuration


def test_a_plain_terminal_gets_plain_characters_and_no_colour(mock: Mock) -> None:
    """In an encoding without the signs they are question marks; with NO_COLOR nothing is coloured."""
    with Terminal(80, 24, *WATCH, mock.url, *FAST, PYTHONIOENCODING="ascii", NO_COLOR="1") as terminal:
        until(lambda: b"? no problem found" in terminal.written, "a sign")
        terminal.type(b"\x03")
        assert terminal.process.wait(HANG_S) == 130
    assert terminal.written.isascii()
    assert not re.search(rb"\x1b\[[0-9;]*3[0-9]m", terminal.written)


class Lines:
    """`prober watch --json`, whose lines are read as they come."""

    def __init__(self, *words: str) -> None:
        self.process = subprocess.Popen((*WATCH, "--json", *words), stdout=subprocess.PIPE, text=True)
        self.read: list[dict[str, Any]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate(timeout=HANG_S)

    def next(self) -> dict[str, Any]:
        """The next line, which the documented type reads."""
        assert self.process.stdout is not None
        line = json.loads(self.process.stdout.readline())
        Snapshot.model_validate(line)
        self.read.append(line)
        return dict(line)


def test_lines_have_what_the_api_of_the_same_process_has(mock: Mock) -> None:
    """Targets as of /api/v1/targets, every probe of /api/v1/probes once; 130 after Ctrl-C."""
    port = free_port()
    flags = ("--web.listen-address", f"127.0.0.1:{port}", "--interval", "500ms")
    with Lines(mock.url, "--rate", "2/s", "--slo", "ttft<500ms:99%", *flags) as lines:
        lines.next()

        def api(path: str) -> Any:
            return json.loads(get(f"http://127.0.0.1:{port}/api/v1/{path}"))["data"]

        until(
            lambda: lines.next()["targets"] == api("targets") and lines.read[-1]["targets"][0]["quantiles"], "equality"
        )
        remembered = {probe["request_id"]: probe for probe in api("probes")}
        written = [probe for line in lines.read for probe in line["probes"]]
        assert written
        for probe in written:
            assert probe == {name: remembered[probe["request_id"]][name] for name in probe}
        assert len({probe["request_id"] for probe in written}) == len(written)
        assert any(event["text"].startswith("ready") for line in lines.read for event in line["events"])
        lines.process.send_signal(signal.SIGINT)
        assert lines.process.wait(HANG_S) == 130


def test_the_prober_ends_with_its_reader(mock: Mock) -> None:
    """As behind `head -1`."""
    with Lines(mock.url, *FAST) as lines:
        lines.next()
        assert lines.process.stdout is not None
        lines.process.stdout.close()
        assert lines.process.wait(HANG_S) == 0
        lines.process.stdout = None


def test_without_a_terminal_lines_are_plain_and_of_all_targets(mock: Mock, tmp_path: Path) -> None:
    """A configuration with two targets, of which one fails, for a few seconds; then the summary, and 0."""
    config = tmp_path / "prober.yaml"
    targets = f"[{{name: good, url: '{mock.url}'}}, {{name: gone, url: 'http://127.0.0.1:{free_port()}'}}]"
    config.write_text(f"defaults: {{rate: 10/s, starting_timeout: 0s}}\ntargets: {targets}\n")
    words = (*WATCH, "--config.file", str(config), "--interval", "500ms")
    log = tmp_path / "log"
    with (
        log.open("w") as err,
        subprocess.Popen(
            words, stdout=subprocess.PIPE, stderr=err, text=True, env={**os.environ, "LC_ALL": "C.UTF-8"}
        ) as process,
    ):
        assert process.stdout is not None
        lines = ""
        for wanted in (
            r"^\d\d:\d\d:\d\d gone: connect_refused: .*refused",
            r"^\d\d:\d\d:\d\d good: no problem found; TTFT p50 [\d.]+ ms, p95 –, p99 – of \d+; ITL p50 [\d.]+ ms",
            r"^\d\d:\d\d:\d\d gone: failing",
        ):
            while not re.search(wanted, lines, re.MULTILINE):
                line = process.stdout.readline()
                assert line
                lines += line
        process.terminate()
        end = process.stdout.read().partition("prober watch until ")[2]
    assert process.returncode == 0
    assert "\x1b" not in lines + end
    assert re.search(r"^gone: failing", end, re.MULTILINE)
    assert end.index("gone: failing") < end.index("good: no problem found")
    assert log.read_text().startswith("no --storage.path: ")


def test_it_ends_after_its_duration(mock: Mock) -> None:
    """With 0, and at least the line of its end."""
    words = (*WATCH, mock.url, *FAST, "--json", "--duration", "1s")
    done = subprocess.run(words, capture_output=True, text=True, timeout=HANG_S, check=False)
    assert done.returncode == 0
    assert all(Snapshot.model_validate_json(line).version == 1 for line in done.stdout.splitlines())
    assert done.stdout
