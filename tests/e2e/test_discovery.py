"""The daemon with targets that it finds: in a file, and in a cluster by a stand-in API server."""

import asyncio
import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kubernetes.apiserver import ApiServer
from tests.kubernetes.pods import pod
from tests.processes import Daemon, Mock, get, until

TEMPLATE = "target: {rate: 20/s, warmup: 0, max_send_lag: 5s}, hosts: [127.0.0.0/8]"


@pytest.fixture(scope="module")
def mock_port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with Mock(tmp_path_factory.mktemp("mock") / "log", "--ttft", "10ms", "--itl", "1ms") as mock:
        yield mock.port


def test_targets_of_a_file_come_and_go(tmp_path: Path, mock_port: int) -> None:
    """Without any configured target; series begin and end with them, and a bad file changes nothing."""
    listed = tmp_path / "targets.json"

    def write(*names: str) -> None:
        next_ = tmp_path / "next"
        at = f"127.0.0.1:{mock_port}"
        next_.write_text(
            json.dumps(
                [{"targets": [at], "labels": {"name": n, "__path__": f"/v1{'/' * i}"}} for i, n in enumerate(names)]
            )
        )
        next_.rename(listed)

    write("one")
    config = f"discovery: [{{file: {{files: ['{listed}'], interval: 1s}}, {TEMPLATE}}}]\n"
    with Daemon(tmp_path, config) as daemon:
        until(lambda: daemon.value("llmslo_probes_total", target="one") >= 3, "the first target")
        assert daemon.value("llmslo_discovery_targets", discovery="file") == 1
        assert daemon.value("llmslo_discovery_up", discovery="file") == 1
        listed.write_text("{")
        until(lambda: daemon.value("llmslo_discovery_failures_total", discovery="file") >= 1, "the failure to be told")
        before = daemon.value("llmslo_probes_total", target="one")
        until(lambda: daemon.value("llmslo_probes_total", target="one") > before, "it to go on")
        write("two")
        until(lambda: daemon.value("llmslo_probes_total", target="two") >= 3, "the second target")
        until(lambda: 'target="one"' not in get(daemon.url + "/metrics"), "the first to be gone")
        daemon.process.send_signal(signal.SIGTERM)
        assert daemon.process.wait(25) == 0


async def test_pods_come_and_go(tmp_path: Path, mock_port: int) -> None:
    """By label, named by namespace and pod; a pod that is not ready any more stays a target until it is ended."""
    async with ApiServer() as server:
        server.put("pods", pod("one", address="127.0.0.1", port=mock_port))
        config = (
            f"discovery: [{{kubernetes: {{api_server: '{server.url('p')}', namespaces: [default], "
            f"label_selector: app=llm, port: http}}, "
            f"{TEMPLATE}}}]\n"
        )

        def follow() -> None:
            with Daemon(tmp_path, config) as daemon:
                until(lambda: daemon.value("llmslo_probes_total", target="default/one") >= 3, "the pod")
                unready = pod("one", address="127.0.0.1", port=mock_port, ready=False)
                loop.call_soon_threadsafe(server.put, "pods", unready)
                before = daemon.value("llmslo_probes_total", target="default/one")
                until(lambda: daemon.value("llmslo_probes_total", target="default/one") >= before + 3, "more probes")
                unready["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
                loop.call_soon_threadsafe(server.put, "pods", unready)
                until(lambda: "default/one" not in get(daemon.url + "/metrics"), "the pod to be gone")
                assert daemon.value("llmslo_discovery_up", discovery="kubernetes") == 1

        loop = asyncio.get_running_loop()
        await asyncio.to_thread(follow)
