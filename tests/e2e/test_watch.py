"""`prober watch` against mock engines: in a pseudo-terminal, as lines of JSON, and where there is no terminal."""

import contextlib
import fcntl
import json
import os
import re
import signal
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import pytest

from prober.cli.watch import shows_utf8
from prober.web.api_types import Snapshot
from tests.processes import Mock, free_port, get, until

WATCH = (sys.executable, "-m", "prober", "watch")
FAST = ("--rate", "10/s", "--max-send-lag", "10s", "--interval", "500ms")
CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
HOME, NORMAL_SCREEN = "\x1b[H", "\x1b[?1049l"


@pytest.fixture(scope="module")
def mock(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mock]:
    with Mock(tmp_path_factory.mktemp("mock") / "log", "--ttft", "20ms", "--itl", "1ms") as serving:
        yield serving


class Terminal:
    """A command in a pseudo-terminal of its own, and all that it has written there."""

    def __init__(self, width: int, height: int, *words: str, **environment: str) -> None:
        self._master, slave = os.openpty()
        self.resize(width, height)
        self.written = b""
        self.process = subprocess.Popen(
            words,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
            env={**os.environ, "TERM": "xterm", "LC_ALL": "C.UTF-8", **environment},
        )
        os.close(slave)
        self._reading = threading.Thread(target=self._read)
        self._reading.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(10)
        self._reading.join()
        os.close(self._master)

    def resize(self, width: int, height: int) -> None:
        """As a window that is dragged: the kernel signals it."""
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))

    def type(self, keys: bytes) -> None:
        """Keys of the keyboard."""
        os.write(self._master, keys)

    def frame(self) -> list[str]:
        """The lines of the last frame that is whole: what was drawn between two times from the first line on."""
        frames = self.written.decode(errors="replace").split(HOME)
        return [CONTROL.sub("", line).rstrip("\r") for line in frames[-2].split("\n")] if len(frames) > 2 else []

    def _read(self) -> None:
        with contextlib.suppress(OSError):  # of the end
            while data := os.read(self._master, 65_536):
                self.written += data


def test_the_screen_follows_its_terminal_and_leaves_a_summary(mock: Mock, tmp_path: Path) -> None:
    """Percentiles appear; after a resize each frame has the new size; Ctrl-C restores the screen, sums up and exits with 130."""
    words = (*WATCH, mock.url, *FAST, "--slo", "ttft<500ms:99%")
    with Terminal(80, 24, *words, TMPDIR=str(tmp_path)) as terminal:
        until(lambda: re.search(r"TTFT +\d+[.\d]* ms", "\n".join(terminal.frame())), "a percentile")
        frame = terminal.frame()
        assert (len(frame), {len(line) for line in frame}) == (24, {80})
        assert any(line.startswith("TTFT of each probe: •") for line in frame)
        terminal.resize(60, 30)
        until(lambda: {len(line) for line in terminal.frame()} == {60}, "the new width")
        assert len(terminal.frame()) == 30
        terminal.type(b"\x03")
        assert terminal.process.wait(30) == 130
    after = CONTROL.sub("", terminal.written.decode().partition(NORMAL_SCREEN)[2])
    assert re.search(r"prober watch, \w+ until \d\d:\d\d:\d\d UTC: ", after)
    assert re.search(r"probes: \d+ ended: \d+ ok", after)
    assert "Traceback" not in after
    assert list(tmp_path.iterdir()) == []  # of the configuration


def test_a_plain_terminal_gets_plain_characters_and_no_colour(mock: Mock) -> None:
    """Without UTF-8 in the locale everything is ASCII; with NO_COLOR nothing is coloured."""
    with Terminal(80, 24, *WATCH, mock.url, *FAST, "--duration", "1s", LC_ALL="C", NO_COLOR="1") as terminal:
        assert terminal.process.wait(60) == 0
    assert b"TTFT" in terminal.written
    assert terminal.written.isascii()
    assert not re.search(rb"\x1b\[[0-9;]*3[0-9]m", terminal.written)


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"LANG": "en_US.UTF-8"}, True),
        ({"LC_CTYPE": "C.utf8"}, True),
        ({"LC_ALL": "C", "LANG": "en_US.UTF-8"}, False),
        ({"LANG": "de_DE.ISO-8859-1"}, False),
        ({"LC_ALL": "", "LANG": "de_DE.UTF-8"}, True),
        ({}, False),
    ],
)
def test_the_locale_decides_about_utf8(environment: dict[str, str], expected: bool) -> None:
    """The first of LC_ALL, LC_CTYPE and LANG that is set, as POSIX says."""
    assert shows_utf8(environment) == expected


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
        self.process.communicate(timeout=10)

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
    flags = ("--web.listen-address", f"127.0.0.1:{port}", "--interval", "500ms", "--max-send-lag", "10s")
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
        assert lines.process.wait(30) == 130


def test_the_prober_ends_with_its_reader(mock: Mock) -> None:
    """As behind `head -1`."""
    with Lines(mock.url, *FAST) as lines:
        lines.next()
        assert lines.process.stdout is not None
        lines.process.stdout.close()
        assert lines.process.wait(30) == 0
        lines.process.stdout = None


def test_without_a_terminal_lines_are_plain_and_of_all_targets(mock: Mock, tmp_path: Path) -> None:
    """A configuration with two targets, of which one fails, for a few seconds; then the summary, and 0."""
    config = tmp_path / "prober.yaml"
    targets = f"[{{name: good, url: '{mock.url}'}}, {{name: gone, url: 'http://127.0.0.1:{free_port()}'}}]"
    config.write_text(f"defaults: {{rate: 10/s, max_send_lag: 10s, starting_timeout: 0s}}\ntargets: {targets}\n")
    words = (*WATCH, "--config.file", str(config), "--interval", "500ms", "--duration", "3s")
    environment = {**os.environ, "LC_ALL": "C.UTF-8"}
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False, env=environment)
    assert (done.returncode, done.stderr.count("\n")) == (0, 1)
    assert done.stderr.startswith("no --storage.path: ")
    assert "\x1b" not in done.stdout
    lines, _, end = done.stdout.partition("prober watch, ")
    assert re.search(
        r"^\d\d:\d\d:\d\d good: no problem found; TTFT p50 [\d.]+ ms, p95 –, p99 – of \d+; ITL p50 ", lines, re.M
    )
    assert re.search(r"^\d\d:\d\d:\d\d gone: connect_refused: .*refused", lines, re.M)
    assert re.search(r"^gone: failing \(connect_refused", end, re.M)
    assert end.index("gone: failing") < end.index("good: no problem found")
