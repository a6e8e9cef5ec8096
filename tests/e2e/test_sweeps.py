"""Sweeps as people run them: `prober sweep`, and a daemon that is asked for one and dies in the middle of it."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from prober.features.capacity.sweep_store import MAX_RESULTS, SWEEP
from prober.net.prometheus import QueryFailed, instant
from prober.results.result_file import to_json
from prober.storage.store import Store
from tests.processes import Daemon, Mock, Prometheus, fetch, get, until
from tests.results.samples import sweep

CONFIG = """
defaults: {{rate: 5/s, warmup: 0}}
slos: {{quick: {{signal: ttft, threshold: 500ms, objective: 90%}}}}
workloads: {{tiny: {{prompt_tokens: 20, output_tokens: 4}}}}
targets: [{{name: one, url: 'http://127.0.0.1:{port}', probes: [{{workload: tiny}}],
  sweep: {{workload: tiny, min_rate: 2/s, max_rate: 50/s}}}}]
"""


@pytest.fixture
def mock(tmp_path: Path) -> Iterator[Mock]:
    with Mock(tmp_path / "mock.log", "--ttft", "50ms", "--itl", "1ms", "--slots", "4") as started:
        yield started


@pytest.fixture
def daemon(tmp_path: Path, mock: Mock) -> Iterator[Callable[[], Daemon]]:
    """Starts daemons with one store and the API to ask for sweeps, each with its target ready."""
    with ExitStack() as running:

        def start() -> Daemon:
            flags = ("--storage.path", tmp_path / "store", "--web.enable-admin-api")
            started = running.enter_context(Daemon(tmp_path, CONFIG.format(port=mock.port), *flags))
            until(lambda: started.value("llmslo_target_state", state="ready"), "the target to be ready")
            return started

        yield start


def begin(daemon: Daemon) -> str:
    """A sweep that sends; its id."""
    status, text = fetch(daemon.url + "/api/v1/sweeps?target=one", "POST")
    assert status == 202, text
    until(lambda: values(daemon, "llmslo_sweep_rate_per_second").get("one", 0) > 0, "the sweep to send")
    return str(json.loads(text)["data"]["id"])


def values(daemon: Daemon, name: str) -> dict[str, float]:
    """Last label to value."""
    return {
        line.rpartition('"')[0].rpartition('"')[2]: float(line.rpartition(" ")[2])
        for line in get(daemon.url + "/metrics").splitlines()
        if line.startswith(name + "{")
    }


def test_a_killed_daemon_leaves_no_capacity_and_no_lock(daemon: Callable[[], Daemon]) -> None:
    """In the middle of a sweep: the next one begins with nothing found, may sweep at once, and its result has the id it told."""
    first = daemon()
    begin(first)
    first.kill()
    again = daemon()
    assert values(again, "llmslo_capacity_requests_per_second") == {}
    assert json.loads(fetch(again.url + "/api/v1/sweeps")[1])["data"] == []
    identity = begin(again)
    assert fetch(again.url + "/api/v1/sweeps?target=one", "DELETE")[0] == 200
    result = f"{again.url}/api/v1/sweeps/{identity}"
    until(lambda: fetch(result)[0] == 200, "the result")
    assert "stopped on request" in fetch(result)[1]


def test_a_killed_engine_leaves_no_capacity(daemon: Callable[[], Daemon], mock: Mock) -> None:
    """The sweep ends by what failed, and finds nothing."""
    running = daemon()
    begin(running)
    mock.kill()
    until(lambda: sum(values(running, "llmslo_sweeps_total").values()), "the sweep to end")
    ended = {reason for reason, count in values(running, "llmslo_sweep_stops_total").items() if count}
    assert ended <= {"failed", "smoke_failed", "guard", "page_lost", "breaching", "knee_passed", "slow"}, ended
    assert values(running, "llmslo_sweeps_total")["found"] == 0
    assert values(running, "llmslo_headroom_ratio") == {}


@pytest.fixture
def prometheus(tmp_path: Path, prometheus_binary: Path) -> Iterator[str]:
    """A real one, that scrapes nobody."""
    with Prometheus(prometheus_binary, tmp_path, {}) as running:
        yield running.url


async def test_a_demand_is_one_number_that_is_known(prometheus: str) -> None:
    """Of a series or a scalar; no data, NaN, several series and bad PromQL are not known, and each says why."""
    assert await instant(prometheus, "vector(4.5)") == 4.5
    assert await instant(prometheus, "scalar(vector(2))") == 2.0
    for query, message in (
        ("sum(rate(nobody_total[5m]))", "gives no data"),
        ("vector(0) / 0", "gives nan"),
        ('vector(1) or label_replace(vector(2), "a", "b", "", "")', "gives 2 series; aggregate them, such as with sum"),
        ("vector(1)[5m:1m]", "does not give a number"),
        ("sum(", "parse error"),
        ('"words"', "does not give a number"),
    ):
        with pytest.raises(QueryFailed, match=message):
            await instant(prometheus, query)


COMPUTING = """
import os, subprocess, sys, time
process = subprocess.Popen((sys.executable, "-m", "prober.features.capacity.estimate_process", str(os.getpid())))
print(process.pid, flush=True)
time.sleep(60)
"""


def test_an_estimate_ends_with_a_prober_that_was_killed() -> None:
    """Its standard input, which stays open here, does not tell it."""
    command = [sys.executable, "-c", COMPUTING]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as prober:
        assert prober.stdout is not None
        computing = Path(f"/proc/{int(prober.stdout.readline())}")
        prober.kill()
        until(lambda: not computing.exists() or ") Z " in (computing / "stat").read_text(), "it to end")


def full_store(folder: Path, url: str, targets: int) -> Store:
    """As many results as are kept, and one row that is broken."""
    found = sweep().without_requests()
    target = replace(found.target, url=f"{url}/v1")
    text = to_json(replace(found, id="IDENTITY", target=target, started_unix_s=1e9, ended_unix_s=2e9))
    store, now = Store(str(folder)), time.time()

    def rows(hour: int) -> Iterator[tuple[str, bytes]]:
        at = now - 3600.0 * hour
        times = (('"started_unix_s":1000000000.0', at), ('"ended_unix_s":2000000000.0', at + 60))
        for target in range(targets):
            row = text.replace("IDENTITY", f"{target}-{hour}")
            for key, unix_s in times:
                assert key in row
                row = row.replace(key, f"{key.split(':')[0]}:{unix_s!r}")
            yield json.dumps([f"t{target}", f"{target}-{hour}"]), row.encode()

    for hour in reversed(range(1, MAX_RESULTS)):
        store.save(SWEEP, rows(hour), now - 3600.0 * hour)
    store.save(SWEEP, [(json.dumps(["t0", "broken"]), b"{")], now)
    return store


def test_a_full_store_holds_no_start_up(tmp_path: Path, mock: Mock) -> None:
    """Little is computed before it answers, headroom and results are there, and a broken row stops nothing."""
    full_store(tmp_path / "store", mock.url, targets := 10).close()
    text = "slos: {ttft: {signal: ttft, threshold: 500ms, objective: 99%}}\ntargets:\n" + "".join(
        f"- {{name: t{n}, url: '{mock.url}', rate: 1/min, sweep: {{}}}}\n" for n in range(targets)
    )
    with Daemon(tmp_path, text, "--storage.path", tmp_path / "store", "--web.enable-admin-api") as daemon:
        assert daemon.cpu_s() < 15, "a generous bound: it takes as long without a store"

        def has_all() -> bool:
            page = get(daemon.url + "/metrics")
            return all(f'llmslo_capacity_requests_per_second{{target="t{n}"' in page for n in range(targets))

        until(has_all, "the capacities")
        begin_s = daemon.cpu_s()
        listed = json.loads(get(daemon.url + "/api/v1/sweeps?target=t0"))["data"]
        assert [sweep_["id"] for sweep_ in listed[:2]] == ["0-1", "0-2"]
        assert len(listed) == 19, "twenty, of which one is broken"
        assert listed[0]["requests"] > 0
        result = json.loads(get(f"{daemon.url}/api/v1/sweeps/{listed[-1]['id']}"))
        assert result["llm_slo_prober"]["result"]["stages"]
        assert "Last sweeps" in get(daemon.url + "/?target=t0")
        assert daemon.cpu_s() - begin_s < 5
        assert "set aside in the store" in daemon.log.read_text()
        assert daemon.stop() == 0
