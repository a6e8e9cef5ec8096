"""The commands that send load, on the two nodes of a real Ray cluster."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray", reason="make test-ray has an environment with Ray")

from prober.cli.exit_codes import ExitCode
from tests.processes import Mock, until
from tests.ray.conftest import node_arguments

pytestmark = [pytest.mark.timeout(280), pytest.mark.filterwarnings("default")]
CLOCK = re.compile(
    r"worker (\d) ran on node \S+: its clock is ([+-][\d.]+) ms from the prober's, .* off by ([\d.]+) ms at most"
)
LOAD = ("--workers", 2, "--prompt-tokens", 20)


def command(name: str, cluster: Any, *words: object) -> "subprocess.Popen[str]":
    """A command of the prober on the cluster, as a process."""
    line = (sys.executable, "-m", "prober", name, *words, *LOAD, "--ray", cluster.address)
    return subprocess.Popen(list(map(str, line)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def requests(truth: Path) -> int:
    """How many requests the mock has received."""
    return len(truth.read_text().splitlines()) if truth.exists() else 0


def assert_clocks(text: str) -> None:
    """Both nodes sent; they share one clock here, so that the stated offset must be zero within its stated error."""
    clocks = {number: (float(offset), float(error)) for number, offset, error in CLOCK.findall(text)}
    assert set(clocks) == {"1", "2"}
    assert all(abs(offset) <= error for offset, error in clocks.values()), clocks


def test_a_sweep_on_two_nodes(cluster: Any, tmp_path: Path) -> None:
    """It sends what it reports, by both nodes, ends as its plan says, and states their clocks."""
    cluster.add_node(**node_arguments())
    truth, output = tmp_path / "truth", tmp_path / "sweep.json"
    with Mock(tmp_path / "mock", "--ttft=20ms", "--itl=2ms", "--truth", truth) as mock:
        plan = ("--mode", "grid", "--rates", "5,10", "--step", "4s", "--warm-up", 3)
        words = (*plan, "--slo", "ttft<5s:50%", "--output-tokens", 16, "--output", output)
        process = command("sweep", cluster, mock.url, *words)
        text, _ = process.communicate(timeout=200)
        assert process.returncode in (ExitCode.OK, ExitCode.NOT_JUDGED), text  # few requests show little of the SLO
        document = json.loads(output.read_text())
        result = document["llm_slo_prober"]["result"]
        sent = document["num_prompts"]
        assert sent > 20
        assert sent - document["completed"] <= 2, "cut at the end"
        warm_up = result["warm_up"]["requests"]  # at least the three, and those sent until they were answered
        assert 0 <= requests(truth) - sent - warm_up <= 4, "beside the warm-up only sample prompts were received"
    assert result["stop"] == "highest_rate", text
    assert_clocks("\n".join(result["differs"]))


def test_a_comparison_on_two_nodes(cluster: Any, tmp_path: Path) -> None:
    """Two names of one server do not differ, and both sides were sent as many requests as the comparison says."""
    cluster.add_node(**node_arguments())
    truth = tmp_path / "truth"
    with Mock(tmp_path / "mock", "--ttft=20ms", "--itl=2ms", "--truth", truth) as mock:
        turns = ("--rounds", 9, "--requests", 3, "--rate", "30/s", "--cool-down", "0s", "--output-tokens", 8, "--json")
        process = command("compare", cluster, mock.url, f"{mock.url}/v1", *turns)
        text, _ = process.communicate(timeout=200)
        assert process.returncode == 0, text
        result = json.loads(text[text.index("{") :])["llm_slo_prober"]["comparison"]
        assert requests(truth) >= 2 * 9 * 3
    compared = result["compared"]
    assert compared
    assert {axis["better"] for axis in compared} == {None}
    assert {side[name]["count"] for side in compared for name in ("a", "b") if side["axis"] == "ttft_p50"} == {27}
    assert_clocks("\n".join(result["remarks"]))


def test_a_sweep_tells_of_a_node_that_is_lost(cluster: Any, tmp_path: Path) -> None:
    """It ends with what it has measured; the requests of the node are counted and are no failures of the target."""
    other = cluster.add_node(**node_arguments())
    truth, output = tmp_path / "truth", tmp_path / "sweep.json"
    with Mock(tmp_path / "mock", "--ttft=20ms", "--itl=100ms", "--truth", truth) as mock:
        plan = ("--mode", "grid", "--rates", "4,5", "--step", "30s", "--warm-up", 0)
        words = (*plan, "--slo", "ttft<5s:50%", "--output-tokens", 20, "--output", output)
        process = command("sweep", cluster, mock.url, *words)
        until(lambda: requests(truth) >= 20, "twenty requests", 120)
        cluster.remove_node(other, allow_graceful=False)
        text, _ = process.communicate(timeout=120)
        document = json.loads(output.read_text())
    result = document["llm_slo_prober"]["result"]
    lost = re.search(r"worker \d of 2 ended \(.*\): (\d+) requests? lost, which do not count", f"{result}")
    assert lost, text
    assert int(lost[1]) >= 1
    outcomes = [outcome for stage in result["stages"] for outcome in stage["outcomes"]] if "stages" in result else []
    assert not set(outcomes) - {"ok", "invalid", "cancelled"}
    assert document["completed"] >= 10
