"""Several probers as processes: one sweeps, targets are shared out, and who is stopped, killed or cut off is followed."""

import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kubernetes.apiserver import threaded_api_server
from tests.processes import Daemon, Mock, fetch, get, until

LEASE_S = 3
CONFIG = """
defaults: {{rate: 5/s, warmup: 0}}
slos: {{quick: {{signal: ttft, threshold: 2s, objective: 90%}}}}
workloads: {{tiny: {{prompt_tokens: 20, output_tokens: 40}}, swept: {{prompt_tokens: 60, output_tokens: 40}}}}
targets: [{{name: one, url: '{url}', metrics: {{url: none}}, probes: [{{workload: tiny}}],
  sweep: {{workload: swept, min_rate: 20/s, max_rate: 30/s, mode: grid}}}}]
"""


@pytest.fixture
def mock(tmp_path: Path) -> Iterator[Mock]:
    truth = ("--truth", tmp_path / "truth")
    with Mock(tmp_path / "mock.log", "--ttft", "50ms", "--itl", "10ms", *truth) as started:
        yield started


def swept(truth: Path) -> list[int]:
    """Times at which the mock received the requests of sweeps, in ns of the monotonic clock; sample prompts are longer."""
    rows = [json.loads(line) for line in truth.read_text().rpartition("\n")[0].splitlines()]
    return [row["received_ns"] for row in rows if 40 < row["prompt_tokens"] < 100]


@pytest.fixture
def api_server() -> Iterator[str]:
    """URL of a stand-in."""
    with threaded_api_server() as server:
        yield server.url("test")


def replica(folder: Path, config: str, api_server: str, name: str, shard: str = "0/1") -> Daemon:
    folder.mkdir()
    flags = [f"--lease.name={name}", "--lease.namespace=default", f"--lease.api-server={api_server}"]
    flags += [f"--lease.duration={LEASE_S}s", "--web.enable-admin-api", "--shutdown.timeout=1", f"--shard={shard}"]
    return Daemon(folder, config, *flags)


def test_a_leader_that_is_stopped_in_mid_sweep_and_one_that_says_goodbye(
    tmp_path: Path, mock: Mock, api_server: str
) -> None:
    """SIGSTOP: the other one takes over, and whoever wakes up sends nothing more of its sweep. SIGTERM: it is followed at once."""
    name, config = f"test-{time.time_ns()}", CONFIG.format(url=mock.url)
    with replica(tmp_path / "a", config, api_server, name) as first:
        until(lambda: first.value("llmslo_lease_held") == 1, "the first to hold it")
        with replica(tmp_path / "b", config, api_server, name) as second:
            until(lambda: first.value("llmslo_target_state", state="ready"), "the target to be ready")
            status, text = fetch(f"{second.url}/api/v1/sweeps?target=one", "POST")
            assert status == 409
            assert "only its holder sweeps" in text
            status, text = fetch(f"{first.url}/api/v1/sweeps?target=one", "POST")
            assert status == 202, text
            identity = json.loads(text)["data"]["id"]
            until(lambda: first.value("llmslo_sweep_rate_per_second", target="one"), "the sweep to send")
            until(lambda: len(swept(tmp_path / "truth")) > 60, "requests beyond the warm-up, which no row is kept of")
            first.process.send_signal(signal.SIGSTOP)
            until(lambda: second.value("llmslo_lease_held") == 1, "the second to take over")
            woken = time.monotonic_ns()  # the mock itself may stand still, but not for as long as the lease lasts
            first.process.send_signal(signal.SIGCONT)
            until(lambda: first.value("llmslo_sweep_stops_total", reason="lease_lost"), "the sweep to end")
            assert first.value("llmslo_lease_held") == 0
            sweep = json.loads(get(f"{first.url}/api/v1/sweeps/{identity}"))
            result = sweep["llm_slo_prober"]["result"]
            assert result["stop"] == "lease_lost"
            configuration = json.loads(result["configuration"])
            assert (configuration["lease"], configuration["lease_transitions"]) == (f"default/{name}-0", 0)
            assert sweep["num_prompts"] > 20
            sent = swept(tmp_path / "truth")
            assert len(sent) > 20
            assert max(sent) < woken
            transitions = second.value("llmslo_lease_transitions_total")
            assert transitions >= 1
            assert second.stop() == 0
            until(lambda: first.value("llmslo_lease_held") == 1, "the first to follow")
            assert first.value("llmslo_lease_transitions_total") > transitions


def test_without_an_api_server_it_probes_and_says_what_waits(tmp_path: Path, mock: Mock) -> None:
    """From the first moment on; SIGTERM ends it as always."""
    with replica(tmp_path / "a", CONFIG.format(url=mock.url), "http://127.0.0.1:1", "test") as daemon:
        until(lambda: daemon.value("llmslo_probes_total") >= 3, "probes")
        until(lambda: daemon.value("llmslo_lease_failures_total") >= 1, "a failure to be counted")
        assert daemon.value("llmslo_lease_held") == 0
        assert fetch(f"{daemon.url}/api/v1/sweeps?target=one", "POST")[0] == 409
        assert daemon.stop() == 0
        assert "sweeps and Grafana wait for it" in daemon.log.read_text()


def test_shards_share_the_targets_out_and_each_has_its_own_lease(tmp_path: Path, mock: Mock, api_server: str) -> None:
    """Every target is probed by one of them, and both hold a lease at the same time."""
    name = f"test-{time.time_ns()}"
    names = {f"t{number}" for number in range(8)}
    config = "targets:\n" + "".join(f"- {{name: {name}, url: '{mock.url}', rate: 1/s}}\n" for name in sorted(names))
    shared = []
    with (
        replica(tmp_path / "a", config, api_server, name, "0/2") as first,
        replica(tmp_path / "b", config, api_server, name, "1/2") as second,
    ):
        until(lambda: first.value("llmslo_lease_held") == second.value("llmslo_lease_held") == 1, "both leases")
        for index, daemon in enumerate((first, second)):
            assert daemon.value("llmslo_shard_info", shard=str(index), shards="2") == 1
            shared.append({target["name"] for target in json.loads(get(f"{daemon.url}/api/v1/targets"))["data"]})
    assert shared[0] | shared[1] == names
    assert not shared[0] & shared[1]
    assert all(shared)
