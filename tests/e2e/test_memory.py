"""Baselines that outlive the process: in the store, and in what a real Prometheus holds."""

import json
import math
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from random import Random

import pytest

from prober.exposition.buckets import bounds
from tests.conftest import absent
from tests.processes import HANG_S, Daemon, Mock, Prometheus, until

HOUR = 3600
CONFIG = """
defaults: {{rate: 20/s, warmup: 0, max_in_flight: 100}}
workloads: {{short: {{prompt_tokens: 20, output_tokens: 3}}}}
{prometheus}
targets: [{{name: one, url: 'http://127.0.0.1:{port}', probes: [{{workload: short}}]}}]
"""


@pytest.fixture
def mock_port(tmp_path: Path) -> Iterator[int]:
    with Mock(tmp_path / "mock.log", "--ttft", "lognormal:10ms:0.2", "--itl", "0.5ms") as mock:
        yield mock.port


@pytest.fixture
def daemon(tmp_path: Path, mock_port: int) -> Iterator[Callable[..., Daemon]]:
    """Starts daemons in one folder, one after another; whatever happens none outlives the test."""
    with ExitStack() as running:

        def start(prometheus: str = "") -> Daemon:
            block = f"prometheus: {{url: '{prometheus}'}}" if prometheus else ""
            config = CONFIG.format(port=mock_port, prometheus=block)
            return running.enter_context(Daemon(tmp_path, config, "--storage.path", tmp_path / "store"))

        yield start


def history(path: Path, end: float, hours: int) -> None:
    """`hours` of TTFTs, lognormal (10 ms, 0.2), 720 an hour, as OpenMetrics for promtool's `create-blocks-from`."""
    rng = Random(1)
    edges = [*bounds("request"), math.inf]
    counts = [0] * len(edges)
    lines = {edge: [] for edge in edges}  # type: dict[float, list[str]]
    for minute in range(hours * 60):
        for _ in range(12):
            ttft = 0.010 * math.exp(rng.gauss(0.0, 0.2))
            counts[next(i for i, edge in enumerate(edges) if ttft <= edge)] += 1
        at, total = end - hours * HOUR + minute * 60, 0
        for edge, count in zip(edges, counts, strict=True):
            total += count
            le = "+Inf" if math.isinf(edge) else repr(edge)
            labels = f'instance="old",job="llm-slo-prober",target="one",workload="short",le="{le}"'
            lines[edge].append(f"llmslo_ttft_seconds_bucket{{{labels}}} {total} {at:.0f}")
    text = "\n".join(line for edge in edges for line in lines[edge])
    path.write_text(f"# TYPE llmslo_ttft_seconds_bucket gauge\n{text}\n# EOF\n")


@pytest.fixture
def past(tmp_path: Path, prometheus_binary: Path, promtool: Path) -> Iterator[str]:
    """A real Prometheus that holds three days of another prober's histograms, up to an hour ago."""
    end = time.time() // HOUR * HOUR
    history(tmp_path / "past.om", end, 75)
    made = subprocess.run(
        [promtool, "tsdb", "create-blocks-from", "openmetrics", tmp_path / "past.om", tmp_path / "tsdb"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert made.returncode == 0, made.stderr
    with Prometheus(prometheus_binary, tmp_path, {}, "--storage.tsdb.retention.time=15d") as prometheus:
        yield prometheus.url


@pytest.mark.slow
def test_a_new_pod_compares_with_what_was_before_it(daemon: Callable[..., Daemon], mock_port: int, past: str) -> None:
    """Without a store the baseline comes from Prometheus, and a slower engine after a rollout is found.

    It is read again after a minute if that fails at first; own samples make one after four. Three days of the past make a baseline
    that raises alarms; the slowdown must have lasted three minutes.
    """
    first = daemon(past)
    signal_of = {"target": "one", "workload": "short", "signal": "ttft"}
    until(lambda: first.value("llmslo_drift_baseline_state", **signal_of, state="provisional") == 1, "the baseline")
    assert first.value("llmslo_drift_baseline_state", **(signal_of | {"signal": "itl"}), state="learning") == 1
    assert first.value("llmslo_ttft_seconds_count", target="one") < 4_000, "not from its own samples"
    request = urllib.request.Request(
        f"http://127.0.0.1:{mock_port}/mock/fault", json.dumps({"faults": ["latency:5"]}).encode(), method="POST"
    )
    urllib.request.urlopen(request, timeout=HANG_S).close()
    until(lambda: first.value("llmslo_drift_active", **signal_of) == 1, "the drift", seconds=540)
    assert first.stop() == 0
    again = daemon()
    until(lambda: again.value("llmslo_drift_active", **signal_of) == 1, "the drift to be known again")
    assert again.value("llmslo_ttft_seconds_count", target="one") < 4_000
    assert again.stop() == 0


RUN = (sys.executable, "-m", "prober", "run", "--web.listen-address", "127.0.0.1:0")


def test_a_store_that_cannot_be_used_stops_the_start(tmp_path: Path) -> None:
    """With the path and what to do; a damaged one is set aside and does not."""
    (tmp_path / "prober.yaml").write_text("targets: [{name: a, url: 'http://127.0.0.1:1'}]")
    (tmp_path / "file").write_text("")
    words = (*RUN, "--config.file", tmp_path / "prober.yaml", "--storage.path", tmp_path / "file")
    done = subprocess.run(words, capture_output=True, text=True, timeout=HANG_S, check=False)
    assert done.returncode == 1
    assert f"--storage.path {tmp_path / 'file'}: cannot be used" in done.stderr
    assert "mount a writable volume" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_read_only_disk_is_told(tmp_path: Path) -> None:
    """Root may write where permissions forbid it, so the disk itself is read-only here."""
    if os.geteuid() != 0:
        absent("a read-only file system can only be made as root")
    (tmp_path / "prober.yaml").write_text("targets: [{name: a, url: 'http://127.0.0.1:1'}]")
    disk = tmp_path / "disk"
    disk.mkdir()
    run = f"{' '.join(RUN)} --config.file {tmp_path}/prober.yaml --storage.path {disk}"
    command = ["unshare", "-m", "sh", "-c", f"mount -t tmpfs -o ro none {disk} && exec {run}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_S, check=False)
    if "unshare" in done.stderr or "mount:" in done.stderr:
        absent(f"no mount namespace here: {done.stderr.strip()}")
    assert done.returncode == 1
    assert f"--storage.path {disk}: cannot be used" in done.stderr
