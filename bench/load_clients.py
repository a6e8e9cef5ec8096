"""Load clients beside each other: cost, error of TTFT, achieved rate, cut streams noticed, memory.

`bench/load_clients.sh DIR` installs those of others. Each sends the same load (Poisson, 64 tokens an answer) to a server in C
(`bench/independent/stream_server.c`), which stamps arrival and first chunk by itself and cuts every fiftieth answer. Requests are
paired with its stamps in the order in which they were sent. TTFT is as each client defines it: ours counts from the due time, the
others from sending, so ours includes its own lateness. Processor time is of all processes of a client, its start included.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.report import goal, percentile, show
from bench.stage import free_port
from bench.workers import SOURCE, processor_s
from prober.results.result_file import from_json

TTFT_MS, ITL_MS, TOKENS, PROMPT_TOKENS = 50, 10, 64, 64
CUT_EVERY = 50
CUTS = {1: "ended_cleanly", 2: "closed_in_body", 3: "reset"}  # as the server numbers them
CUT_TOKENS = {TOKENS // 2: 1, TOKENS * 3 // 4: 2, TOKENS // 4: 3}  # tokens that such an answer has
POLL_S, TIMEOUT_S = 0.25, 300
# Its package imports what a server needs; the client is one library of it, and needs nothing else.
SGLANG = """
import importlib.util, pathlib, sys, sysconfig
(path,) = pathlib.Path(sysconfig.get_path("purelib")).glob("sglang/srt/rust_extensions/_bench*.so")
spec = importlib.util.spec_from_file_location("_bench", path)
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
module.run_argv(sys.argv)
"""


@dataclass(frozen=True)
class Load:
    """What every client is asked for. clients: folder of `bench/load_clients.sh`; folder: for what a client writes."""

    clients: Path
    folder: Path
    url: str
    rate_per_s: float
    requests: int


@dataclass(frozen=True)
class Seen:
    """A request as the client reports it.

    start: sorts requests by their start
    tokens: of a success
    is_set_aside: the client says that its own lateness spoiled the measurement
    """

    start: float
    ttft_s: float | None
    tokens: int
    is_success: bool
    is_set_aside: bool = False


@dataclass(frozen=True)
class Client:
    """A load client. command, environment: its call; read: its result."""

    name: str
    command: Callable[[Load], "Words"]
    read: Callable[[Load], list[Seen]]
    environment: dict[str, str]


Words = list[str | Path]


def _prober(load: Load) -> Words:
    lengths = f"prompt_tokens: {PROMPT_TOKENS}, output_tokens: {TOKENS}"
    seconds = load.requests / load.rate_per_s
    accept = "accept: ['ttft<250ms:90%']"
    rows = f"rows: [{{name: load, {lengths}, rate: {load.rate_per_s:g}/s, duration: {seconds:g}s, {accept}}}]"
    (load.folder / "rows.yaml").write_text(rows)
    command: Words = [
        sys.executable,
        "-m",
        "prober",
        "matrix",
        load.url,
        "--file",
        "rows.yaml",
        "--output",
        "result.json",
    ]
    return [*command, "--warm-up", "10"]


def _read_prober(load: Load) -> list[Seen]:
    result = from_json((load.folder / "result.json").read_text(), "result.json")
    return [
        Seen(
            request.start_s or 0.0,
            request.ttft_s,
            request.output_tokens or 0,
            request.outcome == "ok",
            request.outcome == "invalid",
        )
        for request in result.requests
    ]


def _sglang(load: Load) -> Words:
    command: Words = [
        load.clients / "sglang/bin/python",
        "-c",
        SGLANG,
        "--backend",
        "vllm-chat",
        "--base-url",
        load.url,
    ]
    command += ["--model", "m", "--tokenizer", load.clients / "tiny", "--dataset-name", "random-ids"]
    command += ["--random-input-len", str(PROMPT_TOKENS), "--random-output-len", str(TOKENS)]
    command += ["--random-range-ratio", "1", "--num-prompts", str(load.requests)]
    command += ["--request-rate", f"{load.rate_per_s:g}", "--disable-tqdm"]
    return [*command, "--output-file", "result.jsonl", "--output-details"]


def _read_sglang(load: Load) -> list[Seen]:
    return _of_lists(json.loads((load.folder / "result.jsonl").read_text()))


def _vllm(load: Load) -> Words:
    command: Words = [
        load.clients / "vllm/bin/vllm",
        "bench",
        "serve",
        "--backend",
        "openai-chat",
        "--base-url",
        load.url,
    ]
    command += ["--endpoint", "/v1/chat/completions", "--model", "m", "--tokenizer", load.clients / "tiny"]
    command += ["--dataset-name", "random", "--random-input-len", str(PROMPT_TOKENS)]
    command += ["--random-output-len", str(TOKENS), "--num-prompts", str(load.requests), "--ignore-eos"]
    command += ["--request-rate", f"{load.rate_per_s:g}", "--disable-tqdm", "--ready-check-timeout-sec", "0"]
    return [*command, "--save-result", "--save-detailed", "--result-filename", "result.json"]


def _read_vllm(load: Load) -> list[Seen]:
    return _of_lists(json.loads((load.folder / "result.json").read_text()))


def _of_lists(result: dict[str, Any]) -> list[Seen]:
    """Requests of a result with a list per figure; without start times they are in the order of sending."""
    starts = result.get("start_times") or range(len(result["ttfts"]))
    figures = zip(starts, result["ttfts"], result["generated_texts"], result["errors"], strict=True)
    return [Seen(start, ttft_s or None, len(text.split()), not error) for start, ttft_s, text, error in figures]


def _aiperf(load: Load) -> Words:
    command: Words = [
        load.clients / "aiperf/bin/aiperf",
        "profile",
        "-m",
        "m",
        "--url",
        load.url,
        "--endpoint-type",
        "chat",
    ]
    command += ["--streaming", "--tokenizer", load.clients / "tiny", "--isl", str(PROMPT_TOKENS)]
    command += ["--osl", str(TOKENS), "--extra-inputs", "ignore_eos:true", "--request-rate", f"{load.rate_per_s:g}"]
    return [*command, "--request-count", str(load.requests), "--artifact-dir", "result", "--ui", "none"]


def _read_aiperf(load: Load) -> list[Seen]:
    rows = [json.loads(line) for line in (load.folder / "result/profile_export.jsonl").read_text().splitlines()]
    whole = max(row["metrics"].get("output_token_count", {}).get("value", 0) for row in rows)  # by its tokenizer
    return [_of_aiperf(row, whole) for row in rows]


def _of_aiperf(row: dict[str, Any], whole: float) -> Seen:
    def value(name: str) -> float | None:
        found: float | None = row["metrics"].get(name, {}).get("value")
        return found

    ttft_ms = value("time_to_first_token")
    tokens = round((value("output_token_count") or 0) / whole * TOKENS)
    start = row["metadata"]["request_start_ns"]
    return Seen(start, None if ttft_ms is None else ttft_ms / 1e3, tokens, row.get("error") is None)


def _guidellm(load: Load) -> Words:
    command: Words = [load.clients / "guidellm/bin/guidellm", "run", "--disable-console"]
    command += ["--backend", f"kind=openai_http,target={load.url},model=m"]
    command += ["--profile", f"kind=poisson,rate={load.rate_per_s:g}"]
    command += ["--constraint", f"kind=max_requests,count={load.requests}"]
    command += ["--tokenizer", f"kind=huggingface_auto,model={load.clients / 'tiny'}"]
    command += ["--data", f"kind=synthetic_text,prompt_tokens={PROMPT_TOKENS},output_tokens={TOKENS}"]
    return [*command, "--output", "kind=json,path=result.json"]


def _read_guidellm(load: Load) -> list[Seen]:
    (benchmark,) = json.loads((load.folder / "result.json").read_text())["benchmarks"]
    return [
        Seen(
            row["request_start_time"],
            None if row["time_to_first_token_ms"] is None else row["time_to_first_token_ms"] / 1e3,
            len((row["output"] or "").split()),
            kind == "successful",
        )
        for kind in ("successful", "errored")
        for row in benchmark["requests"][kind]
    ]


OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
CLIENTS = (
    Client("prober matrix", _prober, _read_prober, {"PYTHONPATH": str(Path.cwd())}),
    Client("sglang's compiled client", _sglang, _read_sglang, OFFLINE),
    Client("vllm bench serve", _vllm, _read_vllm, OFFLINE),
    Client("AIPerf", _aiperf, _read_aiperf, {"DO_NOT_TRACK": "1"}),  # offline it does not take a tokenizer of a folder
    Client("GuideLLM", _guidellm, _read_guidellm, OFFLINE),
)


@contextmanager
def serving(folder: Path) -> Iterator[tuple[int, Path]]:
    """Port of a server that cuts answers, and the file of its stamps, which is complete when it has ended."""
    program, truth, port = folder / "server", folder / "truth", free_port()
    subprocess.run(["gcc", "-O2", "-o", program, SOURCE], check=True)
    words: Words = [program, str(port), str(TTFT_MS), str(ITL_MS), str(CUT_EVERY)]
    with truth.open("wb") as out, subprocess.Popen(words, stdout=out) as server:
        try:
            time.sleep(0.3)
            yield port, truth
        finally:
            server.send_signal(signal.SIGTERM)


class Memory:
    """Largest resident memory of a process and all below it, summed, as often as it is read."""

    def __init__(self, pid: int) -> None:
        self._pid, self._ended, self.peak_mb = pid, threading.Event(), 0.0
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def end(self) -> float:
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


def measure(client: Client, clients: Path, rate_per_s: float, requests: int) -> dict[str, Any]:
    """One run of a client against a server of its own. Raises SystemExit with the client's last words if it has no result."""
    with tempfile.TemporaryDirectory(prefix="prober-bench-") as path:
        folder = Path(path)
        with serving(folder) as (port, truth):
            load = Load(clients, folder, f"http://127.0.0.1:{port}", rate_per_s, requests)
            log, before, begin_s = folder / "log", processor_s(), time.monotonic()
            with log.open("wb") as out:
                environment = os.environ | client.environment
                words = client.command(load)
                with subprocess.Popen(words, cwd=folder, env=environment, stdout=out, stderr=out) as process:
                    memory = Memory(process.pid)
                    process.wait(TIMEOUT_S)
            peak_mb, used_s, wall_s = memory.end(), processor_s() - before, time.monotonic() - begin_s
        try:
            seen = sorted(client.read(load), key=lambda request: request.start)
        except (OSError, ValueError, KeyError) as problem:
            raise SystemExit(f"{client.name}: no result: {problem!r}\n{log.read_text()[-2000:]}") from None
        stamps = sorted(tuple(map(int, line.split())) for line in truth.read_text().splitlines())
    return figures(seen, stamps, used_s) | {"memory_mb": round(peak_mb), "wall_s": round(wall_s, 1)}


def figures(seen: list[Seen], stamps: list[tuple[int, ...]], used_s: float) -> dict[str, Any]:
    """What a run shows. seen: requests by their start; stamps: of the server by arrival, those before the measured requests first."""
    sent = stamps[len(stamps) - len(seen) :]
    errors_ms = [
        (request.ttft_s - (first - received) / 1e9) * 1e3
        for request, (received, first, *_) in zip(seen, sent, strict=True)
        if request.ttft_s is not None and request.is_success
    ]
    cuts = Counter(kind for request, (*_, kind) in zip(seen, sent, strict=True) if kind and not request.is_set_aside)
    unnoticed = Counter(CUT_TOKENS.get(request.tokens, 0) for request in seen if request.is_success)
    return {
        "requests": len(seen),
        "cpu_s": round(used_s, 2),
        "cpu_s_per_1k_tokens": round(used_s / (sum(chunks for _, _, chunks, _ in stamps) / 1e3), 4),
        "ttft_error_ms": {f"p{q * 100:g}": round(percentile(errors_ms, q), 2) for q in (0.5, 0.99)},
        "achieved_per_s": round((len(sent) - 1) / ((sent[-1][0] - sent[0][0]) / 1e9), 1),
        "cut_streams": {name: cuts[kind] for kind, name in CUTS.items()},
        "cut_streams_noticed": {name: cuts[kind] - unnoticed[kind] for kind, name in CUTS.items()},
        "whole_streams_called_failed": sum(not (request.is_success or request.is_set_aside) for request in seen)
        - sum(cuts[kind] - unnoticed[kind] for kind in CUTS),
        "set_aside": sum(request.is_set_aside for request in seen),
    }


def summary(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians over the rounds; cut streams are summed."""
    found: dict[str, Any] = {
        name: statistics.median(run[name] for run in runs)
        for name in ("cpu_s_per_1k_tokens", "achieved_per_s", "memory_mb", "wall_s")
    }
    found["ttft_error_ms"] = {q: statistics.median(run["ttft_error_ms"][q] for run in runs) for q in ("p50", "p99")}
    for name in ("cut_streams", "cut_streams_noticed"):
        found[name] = {kind: sum(run[name][kind] for run in runs) for kind in CUTS.values()}
    for name in ("requests", "whole_streams_called_failed", "set_aside"):
        found[name] = sum(run[name] for run in runs)
    return found | {"runs": runs}


def main() -> None:
    """Measure and print; rounds go through the clients in turn, every other one backwards."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("clients", type=Path, help="the folder of bench/load_clients.sh")
    parser.add_argument("--rate", type=float, default=100.0, help="requests per second")
    parser.add_argument("--requests", type=int, default=1500, help="requests of each client in a round")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    runs: dict[str, list[dict[str, Any]]] = {client.name: [] for client in CLIENTS}
    for number in range(arguments.rounds):
        for client in CLIENTS if number % 2 == 0 else reversed(CLIENTS):
            run = measure(client, arguments.clients.resolve(), arguments.rate, arguments.requests)
            runs[client.name].append(run | {"load_1m": round(os.getloadavg()[0], 1)})
            print(f"round {number + 1}: {client.name}: {runs[client.name][-1]}", file=sys.stderr)
    found = {name: summary(of_client) for name, of_client in runs.items()}
    ours = found["prober matrix"]
    cut, noticed = (sum(ours[name].values()) for name in ("cut_streams", "cut_streams_noticed"))
    show(
        "load_clients",
        [
            goal("processor time per 1,000 tokens, start included", ours["cpu_s_per_1k_tokens"], 0.035, "s"),
            goal("TTFT error p50", ours["ttft_error_ms"]["p50"], 0.7, "ms"),
            goal("TTFT error p99", ours["ttft_error_ms"]["p99"], 1.8, "ms"),
            goal("share of cut streams not noticed", 1 - noticed / cut, 0.0, ""),
            goal("whole streams called failed", ours["whole_streams_called_failed"], 0, ""),
            goal("share of requests set aside", ours["set_aside"] / ours["requests"], 0.0, ""),
            goal("distance from the rate asked for", abs(1 - ours["achieved_per_s"] / arguments.rate), 0.05, ""),
        ],
        rate_per_s=arguments.rate,
        requests=arguments.requests,
        tokens=TOKENS,
        clients=found,
    )


if __name__ == "__main__":
    main()
