"""Real engines on the CPU, probed through the prober's own command line; each test prints what it saw as JSON.

`make test-engines` runs this, `make test` does not.
"""

import json
import os
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.engines.servers import Page, Server, free_port, post, start, status, until

ENGINES = Path(os.environ["ENGINES_DIR"])
PROBER = Path(sys.executable).with_name("prober")
OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
ON_LOOPBACK = {"VLLM_HOST_IP": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo"}
ONE_THREAD = {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}

MAX_BATCHED_TOKENS = 512
LENGTHS = ("--workload", "phase_256_128")
LONG_ANSWER = ("--workload", "phase_256_1024")  # seconds of streaming: time enough to kill the engine in the middle
OVERHEAD_S = 0.03  # what connection, parsing and scheduling on two busy cores may add to the engine's own TTFT

Saw = Callable[..., None]
Json = dict[str, Any]


@pytest.fixture
def saw(request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]) -> Saw:
    """Prints facts as one line of JSON, under the test's name."""

    def show(**facts: object) -> None:
        with capsys.disabled():
            print("\n" + json.dumps({"test": request.node.name, **facts}))

    return show


def start_vllm(log: Path) -> Server:
    port = free_port()
    model: list[str | Path] = [
        "serve",
        ENGINES / "tiny",
        "--served-model-name",
        "tiny",
        "--dtype",
        "float32",
        "--max-model-len",
        "2048",
    ]
    small = ["--enforce-eager", "--block-size", "32", "--kv-cache-memory-bytes", "2M", "--max-num-seqs", "8"]
    batch = ["--max-num-batched-tokens", str(MAX_BATCHED_TOKENS)]
    return start(
        [ENGINES / "vllm/bin/vllm", *model, *small, *batch, "--host", "127.0.0.1", "--port", str(port)],
        port=port,
        ready="/health",
        log=log,
        within_s=400,
        environment=OFFLINE | ON_LOOPBACK | ONE_THREAD,
    )


@pytest.fixture(scope="module")
def vllm_of_module(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], Server]]:
    """One engine for all tests, as it takes minutes to start; another one after a test that ended it."""
    servers: list[Server] = []

    def living() -> Server:
        if not servers or status(servers[-1].url + "/health") != 200:
            for server in servers[-1:]:
                server.stop()
            servers.append(start_vllm(tmp_path_factory.mktemp("vllm") / "log"))
        return servers[-1]

    yield living
    for server in servers[-1:]:
        server.stop()


@pytest.fixture
def vllm(vllm_of_module: Callable[[], Server]) -> Server:
    return vllm_of_module()


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    binary = ENGINES / "llama/llama-server"
    if not binary.exists():
        pytest.skip(
            "llama.cpp was not built: install cmake, ninja and a C++ compiler, then run make test-engines again"
        )
    port = free_port()
    model: list[str | Path] = ["-m", ENGINES / "tiny.gguf", "--alias", "tiny", "--jinja"]
    size = ["-c", "8192", "-np", "4", "-t", "1", "-tb", "1"]
    server = start(
        [binary, *model, *size, "--metrics", "--host", "127.0.0.1", "--port", str(port)],
        port=port,
        ready="/health",
        log=tmp_path_factory.mktemp("llama") / "log",
        within_s=60,
        environment={},
    )
    yield server
    server.stop()


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Callable[[Server, str], Server]]:
    """Starts `prober run` on an engine, with more keys of its one target; no probe is too late to count."""
    started: list[Server] = []

    def run(engine: Server, keys: str) -> Server:
        config = tmp_path / "prober.yaml"
        config.write_text(f"targets:\n  - {{name: tiny, url: '{engine.url}', {keys}}}\n")
        port = free_port()
        command: list[str | Path] = [
            PROBER,
            "run",
            "--config.file",
            config,
            "--web.listen-address",
            f"127.0.0.1:{port}",
        ]
        log = tmp_path / "prober.log"
        server = start(command, port=port, ready="/-/ready", log=log, within_s=30, environment={})
        started.append(server)
        return server

    yield run
    for server in started:
        server.stop()


def begin_once(engine: Server, *options: str) -> subprocess.Popen[str]:
    command: list[str | Path] = [PROBER, "once", engine.url, "--json", *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def result_of(process: subprocess.Popen[str]) -> Json:
    output, errors = process.communicate(timeout=150)
    assert output, f"prober once printed nothing (exit {process.returncode}): {errors}"
    result: Json = json.loads(output)
    return result


def once(engine: Server, *options: str) -> Json:
    return result_of(begin_once(engine, *options))


def in_short(result: Json) -> Json:
    """A result without what grows with its length."""
    return {key: value for key, value in result.items() if key not in {"itl_s", "chunk_gaps_s", "stamps_ns", "text"}}


def begin_long_answer(engine: Server) -> subprocess.Popen[str]:
    """A probe in the middle of its stream."""
    process = begin_once(engine, *LONG_ANSWER)
    until(lambda: Page.of(engine).sum("vllm:num_requests_running") >= 1, 30, "a stream to be under way")
    return process


def check_unforced_answer(result: Json) -> None:
    """An answer of an API without a field that forces the length: the same outcome, usage and timestamps as of the chat API."""
    assert result["outcome"] == "ok"
    assert 0 < result["usage"]["completion_tokens"] <= result["asked"]["output_tokens"] == 128
    assert result["usage"]["prompt_tokens"] >= 256
    assert result["finish_reason"] in {"max_output_tokens", "max_tokens", "completed", "end_turn"}
    assert 0 < result["ttft_s"] < result["e2e_s"]


@pytest.mark.parametrize("api", ["responses", "messages"])
def test_vllm_serves_the_other_apis(vllm: Server, saw: Saw, api: str) -> None:
    """OpenAI's Responses API and Anthropic's Messages API."""
    result = once(vllm, "--api", api, *LENGTHS)
    saw(**in_short(result))
    check_unforced_answer(result)


@pytest.mark.parametrize("api", ["responses", "messages"])
def test_llama_cpp_serves_the_other_apis(llama: Server, saw: Saw, api: str) -> None:
    """OpenAI's Responses API and Anthropic's Messages API."""
    result = once(llama, "--api", api, *LENGTHS)
    saw(**in_short(result))
    check_unforced_answer(result)


@pytest.mark.parametrize("api", ["chat", "completions"])
def test_vllm_gives_the_length_asked_for_and_usage_tells_it(vllm: Server, saw: Saw, api: str) -> None:
    """A probe of a healthy vLLM is ok, has the forced length, and never more chunks than tokens."""
    result = once(vllm, "--api", api, *LENGTHS)
    saw(**in_short(result))
    assert result["outcome"] == "ok"
    assert result["engine"] == "vllm"
    assert result["usage"]["completion_tokens"] == result["asked"]["output_tokens"] == 128
    assert result["usage"]["prompt_tokens"] >= 256
    assert result["finish_reason"] == "length"
    assert result["content_chunks"] <= 128
    assert 0 < len(result["itl_s"]) <= len(result["chunk_gaps_s"]) == result["content_chunks"] - 1
    assert 0 < result["ttft_s"] < result["e2e_s"]


def test_our_ttft_is_the_engines_own_and_the_way_to_it(vllm: Server, saw: Saw) -> None:
    """TTFT is never below the engine's own over the same requests, and its median at most 30 ms above."""
    once(vllm)
    before = Page.of(vllm)
    results = [once(vllm) for _ in range(15)]
    engine_mean_s, engine_count = mean_ttft(before, Page.of(vllm))
    ttfts_s = [result["ttft_s"] for result in results]
    client_p50_s, client_mean_s = statistics.median(ttfts_s), statistics.mean(ttfts_s)
    saw(
        requests=len(results),
        client_ttft_p50_s=client_p50_s,
        client_ttft_mean_s=client_mean_s,
        engine_ttft_mean_s=engine_mean_s,
    )
    assert [result["outcome"] for result in results] == ["ok"] * len(results)
    assert engine_count == len(results)
    assert engine_mean_s <= client_mean_s
    assert client_p50_s <= engine_mean_s + OVERHEAD_S


def mean_ttft(before: Page, after: Page) -> tuple[float, int]:
    """The engine's own mean TTFT and count between two readings of its page."""
    count = after.sum("vllm:time_to_first_token_seconds_count") - before.sum("vllm:time_to_first_token_seconds_count")
    total = after.sum("vllm:time_to_first_token_seconds_sum") - before.sum("vllm:time_to_first_token_seconds_sum")
    return total / count, int(count)


def test_the_daemons_series_add_up_to_the_engines(
    vllm: Server, daemon: Callable[[Server, str], Server], saw: Saw
) -> None:
    """Over the same requests the daemon's histogram has the engine's count, its counters the engine's tokens."""
    before = Page.of(vllm)
    prober = daemon(vllm, "rate: 2/s, arrivals: constant, warmup: 0")

    def both_at_rest() -> tuple[Page, Page] | None:
        """The pages at a moment with at least 40 probes done, and none between the engine and us."""
        client, engine = Page.of(prober), Page.of(vllm)
        probes = client.sum("llmslo_ttft_seconds_count")
        running = engine.sum("vllm:num_requests_running") + engine.sum("vllm:num_requests_waiting")
        return (client, engine) if probes >= 40 and mean_ttft(before, engine)[1] == probes and not running else None

    client, engine = until(both_at_rest, 120, "40 probes and a moment of rest")
    probes = client.sum("llmslo_ttft_seconds_count")
    client_mean_s = client.sum("llmslo_ttft_seconds_sum") / probes
    engine_mean_s, _ = mean_ttft(before, engine)
    tokens = {kind: client.sum("llmslo_probe_tokens_total", token_type=kind) for kind in ("prompt", "completion")}
    engine_tokens = {
        kind: engine.sum(name) - before.sum(name)
        for kind, name in {"prompt": "vllm:prompt_tokens_total", "completion": "vllm:generation_tokens_total"}.items()
    }
    saw(
        probes=probes,
        client_ttft_mean_s=client_mean_s,
        engine_ttft_mean_s=engine_mean_s,
        client_tokens=tokens,
        engine_tokens=engine_tokens,
    )
    assert client.sum("llmslo_probe_failures_total") == 0
    assert client.sum("llmslo_probes_total") == probes
    assert engine_mean_s <= client_mean_s
    assert tokens == engine_tokens


ENGINE_COUNTERS = {
    "llmslo_engine_preemptions_total": "vllm:num_preemptions_total",
    "llmslo_engine_prompt_tokens_total": "vllm:prompt_tokens_total",
    "llmslo_engine_generation_tokens_total": "vllm:generation_tokens_total",
    "llmslo_engine_prefix_cache_queries_total": "vllm:prefix_cache_queries_total",
    "llmslo_engine_prefix_cache_hits_total": "vllm:prefix_cache_hits_total",
    "llmslo_engine_requests_total": "vllm:request_success_total",
    "llmslo_engine_ttft_seconds_count": "vllm:time_to_first_token_seconds_count",
    "llmslo_engine_itl_seconds_count": "vllm:inter_token_latency_seconds_count",
}


def test_what_the_engine_says_under_load_is_what_we_show(
    vllm: Server, daemon: Callable[[Server, str], Server], saw: Saw
) -> None:
    """A queue, a full KV cache and preemptions are seen in our series; at rest every counter is the page's."""
    prober = daemon(vllm, "rate: 0.2/s, warmup: 0, metrics: {interval: 1s}")
    until(lambda: Page.of(prober).sum("llmslo_engine_up") == 1, 30, "the engine's page")
    asked = {"model": "tiny", "max_tokens": 600, "ignore_eos": True}  # eight of them are more than the cache holds
    with ThreadPoolExecutor(24) as users:
        prompts = [f"{i} {'time people way ' * 20}" for i in range(24)]
        answers = [users.submit(post, vllm.url + "/v1/completions", {**asked, "prompt": each}) for each in prompts]
        seen = {"waiting": 0.0, "running": 0.0, "kv": 0.0}
        while not all(answer.done() for answer in answers):
            page = Page.of(prober)
            for name, series in (
                ("waiting", "llmslo_engine_requests_waiting"),
                ("running", "llmslo_engine_requests_running"),
                ("kv", "llmslo_engine_kv_cache_usage_ratio"),
            ):
                seen[name] = max(seen[name], page.sum(series))
            time.sleep(0.5)

    def at_rest() -> tuple[dict[str, float], dict[str, float]] | None:
        """Both pages' counters at a moment in which nothing runs and both readings agree that nothing has moved."""
        before, client, after = Page.of(vllm), Page.of(prober), Page.of(vllm)
        ours = {name: client.sum(name) for name in ENGINE_COUNTERS}
        theirs = {name: before.sum(theirs) for name, theirs in ENGINE_COUNTERS.items()}
        still = all(before.sum(name) == after.sum(name) for name in ENGINE_COUNTERS.values())
        busy = after.sum("vllm:num_requests_running")
        return (ours, theirs) if still and not busy and ours == theirs else None

    ours, theirs = until(at_rest, 60, "both pages to say the same at rest")
    info = [labels for name, labels, _ in Page.of(prober).samples if name == "llmslo_engine_info"]
    saw(**seen, ours=ours, theirs=theirs, info=info)
    assert seen["waiting"] > 0
    assert seen["kv"] > 0.5
    assert ours["llmslo_engine_preemptions_total"] > 0
    assert len(info) == 1
    assert info[0]["engine"] == "vllm"
    assert info[0]["version"]


def test_an_engine_killed_in_mid_stream_is_never_ok(vllm: Server, saw: Saw) -> None:
    """SIGKILL to the engine while it streams is a broken stream; the next probe is refused."""
    process = begin_long_answer(vllm)
    vllm.kill()
    result = result_of(process)
    after = once(vllm)
    saw(**in_short(result), next_outcome=after["outcome"], next_detail=after["detail"])
    assert result["outcome"] in {"reset", "truncated"}
    assert 0 < result["content_chunks"] < result["asked"]["output_tokens"]
    assert after["outcome"] == "connect_refused"


def test_an_engine_that_dies_of_another_request_is_seen_dying(
    vllm: Server, daemon: Callable[[Server, str], Server], saw: Saw
) -> None:
    """A crash caused by someone else is an error inside our streams, then failures, and the target is no longer ready.

    The fatal request has a seed, a temperature, and a prompt longer than --max-num-batched-tokens: PyTorch's generator
    has no offset to move on the CPU. The HTTP server says so in the running streams, is unhealthy a while, and ends.
    """
    long_streams = f"rate: 0.5/s, arrivals: constant, warmup: 0, probes: [{{workload: {LONG_ANSWER[1]}}}]"
    prober = daemon(vllm, long_streams)  # a new one before the last has ended: there is always one in mid-stream
    until(lambda: state_of(prober) == "ready", 60, "the target to be ready")
    until(lambda: Page.of(vllm).sum("vllm:num_requests_running"), 30, "a probe to be under way")

    fatal = {"model": "tiny", "prompt": "the prompt " * MAX_BATCHED_TOKENS, "max_tokens": 8}
    fatal_status, _ = post(vllm.url + "/v1/completions", {**fatal, "seed": 1, "temperature": 0.7})
    until(lambda: state_of(prober) != "ready", 60, "the target to be no longer ready")
    until(lambda: not vllm.alive(), 60, "the engine to be gone")
    after = once(vllm)

    cut = [probe for probe in probes_of(prober) if probe["outcome"] != "ok" and probe["content_chunks"]]
    page = Page.of(prober)
    failures = {
        labels["reason"]: value
        for name, labels, value in page.samples
        if name == "llmslo_probe_failures_total" and value
    }
    saw(
        fatal_request_status=fatal_status,
        cut=[{key: probe[key] for key in ("outcome", "detail", "content_chunks")} for probe in cut],
        failures=failures,
        state=state_of(prober),
        next_outcome=after["outcome"],
    )
    assert cut
    assert {probe["outcome"] for probe in cut} <= {"error_in_stream", "reset"}
    assert failures
    assert after["outcome"] == "connect_refused"


def state_of(prober: Server) -> str:
    """The state its one target is in."""
    states = [
        labels["state"] for name, labels, value in Page.of(prober).samples if name == "llmslo_target_state" and value
    ]
    return states[0] if states else ""


def probes_of(prober: Server) -> list[Json]:
    """The probes it remembers."""
    with urllib.request.urlopen(prober.url + "/api/v1/probes", timeout=5) as answer:
        probes: list[Json] = json.load(answer)["data"]
        return probes


@pytest.mark.parametrize("api", ["chat", "completions"])
def test_llama_cpp_gives_the_length_asked_for_and_usage_tells_it(llama: Server, saw: Saw, api: str) -> None:
    """A probe of a healthy llama.cpp server is ok, has the forced length, and ends with [DONE]."""
    result = once(llama, "--api", api, *LENGTHS)
    saw(**in_short(result))
    assert result["outcome"] == "ok"  # for an engine that sends [DONE], ok says that it came
    assert result["engine"] == "llamacpp"
    assert result["usage"]["completion_tokens"] == result["asked"]["output_tokens"] == 128
    assert result["usage"]["prompt_tokens"] >= 256
    assert result["finish_reason"] == "length"
