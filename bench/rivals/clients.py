"""Load clients: how each is called for the same load, and what its result says of every request.

Each is called as its documentation advises for this task: streamed chat completions of a forced length, tokens as the server counts
them where it has a flag for that, no warm-up that the task does not need.
"""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from bench.workers import processor_s
from prober.results.result_file import from_json

ROOT = Path(__file__).parents[2]
PROMPT_TOKENS = 64
POLL_S = 0.25
FILES = ("rows.yaml", "config.json")  # that a command is given
SLOWLY_PER_S = 3.0
OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
# Its package imports what a server needs; the client is one library of it, and needs nothing else.
SGLANG = """
import importlib.util, pathlib, sys, sysconfig
(path,) = pathlib.Path(sysconfig.get_path("purelib")).glob("sglang/srt/rust_extensions/_bench*.so")
spec = importlib.util.spec_from_file_location("_bench", path)
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
module.run_argv(sys.argv)
"""

Words = list[str | Path]


@dataclass(frozen=True)
class Load:
    """The load that every client is asked for.

    clients: folder of `install`; folder: for what a client writes; rate_per_s: None: one request after the other
    """

    clients: Path
    folder: Path
    url: str
    rate_per_s: float | None
    requests: int
    tokens: int

    @property
    def tokenizer(self) -> Path:
        """A tokenizer of a tiny model, without which most of them do not start."""
        return self.clients / "tiny"


@dataclass(frozen=True)
class Seen:
    """A request as the client reports it.

    start: sorts requests by their start
    itls_s: gaps between tokens; a single one if only their mean is reported
    tokens: of a success; None: not reported
    is_set_aside: the client says that its own lateness spoiled the measurement
    """

    start: float
    ttft_s: float | None
    itls_s: tuple[float, ...]
    tokens: int | None
    is_success: bool
    is_set_aside: bool = False


@dataclass(frozen=True)
class Client:
    """A load client. command, environment: its call; read: its result; has_gaps: it reports each gap, not only their mean."""

    name: str
    command: Callable[[Load], Words]
    read: Callable[[Load], list[Seen]]
    environment: dict[str, str]
    has_gaps: bool = True


@dataclass(frozen=True)
class Run:
    """A client's run. seen: None: no result, `problem` has its last words"""

    command: str
    seen: list[Seen] | None
    problem: str
    began_ns: int
    wall_s: float
    cpu_s: float
    memory_mb: float


def run(client: Client, load: Load, timeout_s: float) -> Run:
    """Call a client and read its result."""
    log, before, began_ns = load.folder / "log", processor_s(), time.monotonic_ns()
    words = client.command(load)
    if not Path(words[0]).exists():
        return Run("", None, "it could not be installed", began_ns, 0.0, 0.0, 0.0)
    problem = ""
    with log.open("wb") as out:
        environment = os.environ | client.environment
        process = subprocess.Popen(
            words, cwd=load.folder, env=environment, stdout=out, stderr=out, start_new_session=True
        )
        memory = Memory(process.pid)
        try:
            process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            problem = f"had not ended after {timeout_s:g} s"
            os.killpg(process.pid, 9)
            process.wait()
    memory_mb, cpu_s, wall_s = memory.end(), processor_s() - before, (time.monotonic_ns() - began_ns) / 1e9
    seen = None
    try:
        seen = sorted(client.read(load), key=lambda request: request.start)
    except (OSError, ValueError, KeyError, TypeError) as error:
        problem = f"{problem or 'no result'}: {error!r}: {log.read_text(errors='replace')[-1500:]}"
    shown = (
        " ".join(map(str, words)).replace(SGLANG, "…").replace(f"{load.clients}/", "").replace(sys.executable, "python")
    )
    files = [load.folder / name for name in FILES if (load.folder / name).exists()]
    shown = "; ".join([shown, *(f"{path.name}: {path.read_text()}".replace(f"{load.clients}/", "") for path in files)])
    return Run(shown, seen, problem, began_ns, wall_s, cpu_s, memory_mb)


class Memory:
    """Largest resident memory of a process and all below it, summed, as often as it is read."""

    def __init__(self, pid: int) -> None:
        self._pid, self._ended, self.peak_mb = pid, threading.Event(), 0.0
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def end(self) -> float:
        """Stop reading. Returns the largest."""
        self._ended.set()
        self._thread.join()
        return self.peak_mb

    def _watch(self) -> None:
        while not self._ended.wait(POLL_S):
            self.peak_mb = max(self.peak_mb, _resident_mb(self._pid))


def _resident_mb(pid: int) -> float:
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        children = [
            int(word) for path in Path(f"/proc/{pid}/task").glob("*/children") for word in path.read_text().split()
        ]
    except OSError:  # it has ended
        return 0.0
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6 + sum(map(_resident_mb, children))


def _prober(load: Load) -> Words:
    lengths = f"prompt_tokens: {PROMPT_TOKENS}, output_tokens: {load.tokens}"
    kind = "concurrency: 1" if load.rate_per_s is None else f"rate: {load.rate_per_s:g}/s"
    row = f"{{name: load, {lengths}, {kind}, requests: {load.requests}, accept: ['ttft<250ms:90%']}}"
    (load.folder / "rows.yaml").write_text(f"rows: [{row}]")
    command: Words = [sys.executable, "-m", "prober", "matrix", load.url, "--file", "rows.yaml"]
    return [*command, "--output", "result.json", "--warm-up", "0" if load.rate_per_s is None else "10"]


def _read_prober(load: Load) -> list[Seen]:
    result = from_json((load.folder / "result.json").read_text(), "result.json")
    return [
        Seen(
            request.start_s or 0.0,
            request.ttft_s,
            tuple(request.itls_s),
            request.output_tokens,
            request.outcome == "ok",
            request.outcome == "invalid",
        )
        for request in result.requests
        if not request.warm_up
    ]


def _sglang(load: Load) -> Words:
    command: Words = [load.clients / "sglang/bin/python", "-c", SGLANG, "--backend", "vllm-chat"]
    command += ["--base-url", load.url, "--model", "m", "--tokenizer", load.tokenizer]
    command += ["--dataset-name", "random-ids", "--random-input-len", str(PROMPT_TOKENS)]
    command += ["--random-output-len", str(load.tokens), "--random-range-ratio", "1"]
    command += ["--num-prompts", str(load.requests), "--warmup-requests", "0", "--disable-tqdm"]
    # One after the other it sends them in another order than it reports them in.
    command += ["--request-rate", f"{load.rate_per_s or SLOWLY_PER_S:g}"]
    return [*command, "--output-file", "result.jsonl", "--output-details"]


def _read_sglang(load: Load) -> list[Seen]:
    return _of_lists(json.loads((load.folder / "result.jsonl").read_text()))


def _vllm(load: Load) -> Words:
    command: Words = [load.clients / "vllm/bin/vllm", "bench", "serve", "--backend", "openai-chat"]
    command += ["--base-url", load.url, "--endpoint", "/v1/chat/completions", "--model", "m"]
    command += ["--tokenizer", load.tokenizer, "--dataset-name", "random", "--random-input-len", str(PROMPT_TOKENS)]
    command += ["--random-output-len", str(load.tokens), "--num-prompts", str(load.requests), "--ignore-eos"]
    pace = ["--max-concurrency", "1"] if load.rate_per_s is None else ["--request-rate", f"{load.rate_per_s:g}"]
    command += ["--disable-tqdm", "--ready-check-timeout-sec", "0", *pace]
    return [*command, "--save-result", "--save-detailed", "--result-filename", "result.json"]


def _read_vllm(load: Load) -> list[Seen]:
    return _of_lists(json.loads((load.folder / "result.json").read_text()))


def _of_lists(result: dict[str, Any]) -> list[Seen]:
    """Requests of a result with a list per figure; without start times they are in the order of sending."""
    starts = result.get("start_times") or range(len(result["ttfts"]))
    columns = (starts, result["ttfts"], result["itls"], result["output_lens"], result["errors"])
    return [
        Seen(start, ttft_s or None, tuple(itls), tokens, not error)
        for start, ttft_s, itls, tokens, error in zip(*columns, strict=True)
    ]


def _aiperf(load: Load) -> Words:
    command: Words = [load.clients / "aiperf/bin/aiperf", "profile", "-m", "m", "--url", load.url]
    command += ["--endpoint-type", "chat", "--streaming", "--tokenizer", load.tokenizer]
    command += ["--isl", str(PROMPT_TOKENS), "--osl", str(load.tokens), "--extra-inputs", "ignore_eos:true"]
    command += ["--use-server-token-count", "--request-count", str(load.requests)]
    command += ["--concurrency", "1"] if load.rate_per_s is None else ["--request-rate", f"{load.rate_per_s:g}"]
    return [*command, "--artifact-dir", "result", "--ui", "none"]


def _read_aiperf(load: Load) -> list[Seen]:
    lines = (load.folder / "result/profile_export.jsonl").read_text().splitlines()
    return [_of_aiperf(json.loads(line)) for line in lines]


def _of_aiperf(row: dict[str, Any]) -> Seen:
    metrics = {name: metric["value"] for name, metric in (row["metrics"] or {}).items()}
    ttft_ms, tokens = metrics.get("time_to_first_token"), metrics.get("output_sequence_length")
    return Seen(
        row["metadata"]["request_start_ns"],
        None if ttft_ms is None else ttft_ms / 1e3,
        tuple(gap_ms / 1e3 for gap_ms in metrics.get("inter_chunk_latency") or ()),
        None if tokens is None else round(tokens),
        row.get("error") is None,
    )


def _guidellm(load: Load) -> Words:
    pace = "kind=synchronous" if load.rate_per_s is None else f"kind=poisson,rate={load.rate_per_s:g}"
    command: Words = [load.clients / "guidellm/bin/guidellm", "run", "--disable-console"]
    command += ["--backend", f"kind=openai_http,target={load.url},model=m", "--profile", pace]
    command += ["--constraint", f"kind=max_requests,count={load.requests}"]
    command += ["--tokenizer", f"kind=huggingface_auto,model={load.tokenizer}"]
    command += ["--data", f"kind=synthetic_text,prompt_tokens={PROMPT_TOKENS},output_tokens={load.tokens}"]
    return [*command, "--output", "kind=json,path=result.json"]


def _read_guidellm(load: Load) -> list[Seen]:
    (benchmark,) = json.loads((load.folder / "result.json").read_text())["benchmarks"]
    return [
        Seen(
            row["request_start_time"] or 0.0,
            None if row["time_to_first_token_ms"] is None else row["time_to_first_token_ms"] / 1e3,
            () if row["inter_token_latency_ms"] is None else (row["inter_token_latency_ms"] / 1e3,),
            row["output_tokens"],
            kind == "successful",
        )
        for kind in ("successful", "errored")
        for row in benchmark["requests"][kind]
    ]


def _inference_perf(load: Load) -> Words:
    """Its prompts of a given length are for the older API, even if it is told otherwise; its chats ask for 30 tokens each."""
    length = {"type": "fixed"}
    if load.rate_per_s is None:
        api, kind, data = "chat", "concurrent", dict[str, Any](type="mock")
        stage: dict[str, float] = {"num_requests": load.requests, "concurrency_level": 1}
    else:
        api, kind, data = "completion", "poisson", dict[str, Any](type="random")
        data["input_distribution"] = length | dict.fromkeys(("min", "max", "mean"), PROMPT_TOKENS)
        data["output_distribution"] = length | dict.fromkeys(("min", "max", "mean"), load.tokens)
        stage = {"rate": load.rate_per_s, "duration": round(load.requests / load.rate_per_s)}
    fields = {"computed_metrics": True, "request": False, "response": False}
    report = {"per_request": True, "per_request_fields": fields, "use_server_output_tokens": True}
    config = {
        "api": {"type": api, "streaming": True},
        "server": {"type": "vllm", "model_name": "m", "base_url": load.url, "ignore_eos": True},
        "tokenizer": {"pretrained_model_name_or_path": str(load.tokenizer)},
        "data": data,
        "load": {"type": kind, "stages": [stage]},
        "report": {"request_lifecycle": report},
        "storage": {"local_storage": {"path": "result"}},
    }
    (load.folder / "config.json").write_text(json.dumps(config))  # which is YAML too
    return [load.clients / "inference_perf/bin/inference-perf", "--config_file", "config.json"]


def _read_inference_perf(load: Load) -> list[Seen]:
    rows = json.loads((load.folder / "result/per_request_lifecycle_metrics.json").read_text())
    return [_of_inference_perf(row) for row in rows]


def _of_inference_perf(row: dict[str, Any]) -> Seen:
    computed = row.get("computed_metrics") or {}
    response = (row["info"] or {}).get("response_metrics") or {}
    usage = response.get("server_usage") or {}
    times = response.get("chunk_times") or ()  # its times of tokens are of words cut by the tiny tokenizer
    return Seen(
        row["start_time"],
        computed.get("time_to_first_token"),
        tuple(later - earlier for earlier, later in pairwise(times)),
        usage.get("completion_tokens", computed.get("output_tokens")),
        row["error"] is None,
    )


OURS = Client("prober matrix", _prober, _read_prober, {"PYTHONPATH": str(ROOT)})
CLIENTS = (
    OURS,
    Client("SGLang's compiled client", _sglang, _read_sglang, OFFLINE),
    Client("vllm bench serve", _vllm, _read_vllm, OFFLINE),
    Client("AIPerf", _aiperf, _read_aiperf, {"DO_NOT_TRACK": "1"}),  # offline it does not take a tokenizer of a folder
    Client("GuideLLM", _guidellm, _read_guidellm, OFFLINE, has_gaps=False),
    Client("inference-perf", _inference_perf, _read_inference_perf, OFFLINE),
)
