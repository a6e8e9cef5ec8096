"""Costs of several processes: the same load by 1, 2 and 4 of them, and the merging of a thousand workers' results.

`prober matrix --workers N` sends to a server in C (`bench/independent/stream_server.c`), which keeps stamps of its own. Processor
time is of all processes of the command, read from the kernel; what the start costs is taken out by a short run beside a long one.
"""

import argparse
import json
import os
import pickle
import resource
import signal
import subprocess
import sys
import tempfile
import time
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

from bench.report import goal, part, percentile, show
from bench.stage import TICKS, free_port
from prober.exposition.buckets import Exponential
from prober.features.capacity.sweep import Sweep
from prober.measure.chunk import Usage
from prober.measure.engine_signals import EngineInfo, EngineSignals
from prober.measure.objective import Slo
from prober.measure.outcome import Outcome
from prober.measure.result import ProbeResult
from prober.measure.target_state import WarmUpLength
from prober.measure.timeline import Connection, Timeline
from prober.probing.channel import LENGTH_BYTES, Ended, packed
from prober.results.result_file import from_json
from prober.results.stage import stage_of
from prober.workload.built_in import BUILT_IN
from prober.workload.workloads import RequestGenerator
from tests.features.capacity.simulated_sweep import sweep_spec

SOURCE = Path(__file__).parent / "independent/stream_server.c"
TTFT_MS, ITL_MS, TOKENS = 50, 10, 64
# (name, seconds, objective): TTFT is 50 ms, so that the first is rejected and the second accepted.
ROWS = (("short", 6, "ttft<25ms:90%"), ("long", 30, "ttft<250ms:90%"))
MERGED_WORKERS, MERGED_REQUESTS, MERGED_TOKENS = 1_000, 20, 300


@contextmanager
def serving(folder: Path) -> Iterator[tuple[int, Path]]:
    """Port of a server, and the file that it writes its stamps into when it ends."""
    program, truth, port = folder / "server", folder / "truth", free_port()
    subprocess.run(["gcc", "-O2", "-o", str(program), str(SOURCE)], check=True)
    with truth.open("wb") as out:
        server = subprocess.Popen([program, str(port), str(TTFT_MS), str(ITL_MS)], stdout=out)
        try:
            time.sleep(0.3)
            yield port, truth
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait(10)


def send(workers: int, rate: float, row: tuple[str, int, str], ray: str = "") -> dict[str, Any]:
    """A row by so many processes, on a Ray cluster if its address is given: verdict, figures and processor time."""
    name, seconds, accept = row
    with tempfile.TemporaryDirectory(prefix="prober-bench-") as path:
        folder = Path(path)
        lengths = f"prompt_tokens: 64, output_tokens: {TOKENS}"
        rows = f"rows: [{{name: {name}, {lengths}, rate: {rate}/s, duration: {seconds}s, accept: ['{accept}']}}]"
        (folder / "rows.yaml").write_text(rows)
        with serving(folder) as (port, truth_file):
            command = [sys.executable, "-m", "prober", "matrix", f"http://127.0.0.1:{port}", "--file", "rows.yaml"]
            command += [
                "--workers",
                str(workers),
                "--output",
                "result.json",
                "--json",
                "--warm-up",
                "10",
                "--burst",
                "0s",
            ]
            command += ["--ray", ray] if ray else []
            before = processor_s()
            environment = os.environ | {"PYTHONPATH": str(Path.cwd())}
            done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, check=False)
            cpu_s = processor_s() - before
        if done.returncode not in (0, 1, 4):
            raise SystemExit(done.stderr.decode())
        result = from_json((folder / "result.json").read_text(), "result.json")
        requests = sorted(result.requests, key=lambda request: request.start_s or 0)
        truth = sorted(tuple(map(int, line.split())) for line in truth_file.read_text().splitlines())
        stamps = truth[-len(requests) :]
    span_s = (requests[-1].start_s or 0.0) - (requests[0].start_s or 0.0)
    errors_ms = [
        (request.ttft_s - (first - received) / 1e9) * 1e3
        for request, (received, first, _) in zip(requests, stamps, strict=True)
        if request.ttft_s is not None and first
    ]
    lags_ms = [request.send_lag_s * 1e3 for request in requests if request.send_lag_s is not None]
    outcomes = Counter(request.outcome for request in requests)
    return {
        "workers": workers,
        "rate_per_s": rate,
        "row": name,
        "verdict": json.loads(done.stdout)["rows"][0]["state"],
        "requests": len(requests),
        "received": len(truth),
        "workers_said": [text for text in result.differs if text.startswith("worker")],
        "outcomes": outcomes,
        "tokens": sum(chunks for _, _, chunks in stamps),
        "achieved_ratio": round(span_s / ((stamps[-1][0] - stamps[0][0]) / 1e9), 4),
        "ttft_error_ms": {f"p{q * 100:g}": round(percentile(errors_ms, q), 3) for q in (0.5, 0.99)},
        "send_lag_p99_ms": round(percentile(lags_ms, 0.99), 3),
        "cpu_s": round(cpu_s, 3),
    }


def processor_s() -> float:
    """Processor seconds of all processes that ended below this one."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def compared(loads: Sequence[tuple[int, float]], rounds: int) -> dict[tuple[int, float], dict[str, Any]]:
    """Short and long runs of each (processes, requests per second), in turn so that a busy machine hits all; costs are of the sums."""
    runs: dict[tuple[int, float], list[dict[str, Any]]] = {load: [] for load in loads}
    for number in range(rounds):
        for load in loads if number % 2 == 0 else reversed(loads):
            runs[load] += [part(f"{load[0]} processes, {load[1]:g}/s", send(*load, row)) for row in ROWS]
    table = {}
    for load, sent in runs.items():
        short, long = ([run for run in sent if run["row"] == name] for name in ("short", "long"))
        cpu_s, tokens = (
            sum(run[name] for run in long) - sum(run[name] for run in short) for name in ("cpu_s", "tokens")
        )
        short_s = sum(run["cpu_s"] for run in short) - cpu_s / tokens * sum(run["tokens"] for run in short)
        invalid = sum(run["outcomes"]["invalid"] for run in sent) / sum(run["requests"] for run in sent)
        table[load] = {
            "workers": load[0],
            "rate_per_s": load[1],
            "cpu_s_per_1k_tokens": round(cpu_s / tokens * 1e3, 4),
            "start_cpu_s": round(short_s / rounds, 2),
            "invalid_ratio": round(invalid, 4),
            "verdicts": [run["verdict"] for run in sent],
            "runs": sent,
        }
    return table


def shared(rate_per_s: float) -> dict[str, Any]:
    """Processor time a request and memory of the prober and of its two workers during a sweep, from its 19th to its 34th second."""
    with tempfile.TemporaryDirectory(prefix="prober-bench-") as path, serving(Path(path)) as (port, _):
        command = [sys.executable, "-m", "prober", "sweep", f"http://127.0.0.1:{port}", "--workers", "2"]
        command += [
            "--prompt-tokens",
            "64",
            "--output-tokens",
            str(TOKENS),
            "--rates",
            f"{rate_per_s:g}",
            "--step",
            "30s",
        ]
        command += ["--warm-up", "10", "--metrics-url", "none"]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as sweep:
            time.sleep(19)
            lists = Path(f"/proc/{sweep.pid}/task").glob("*/children")
            pids = [sweep.pid, *(int(pid) for children in lists for pid in children.read_text().split())]
            try:
                before, begin_s = [_used(pid) for pid in pids], time.monotonic()
                time.sleep(15)
                after, requests = [_used(pid) for pid in pids], rate_per_s * (time.monotonic() - begin_s)
            except FileNotFoundError:  # as on a machine so busy that the prober is late
                return {
                    "problem": f"a process of the sweep ended in its first 34 s; the sweep ended with {sweep.wait()}"
                }
    return {
        "ms_per_request": [round((b - a) / requests * 1e3, 3) for (a, _), (b, _) in zip(before, after, strict=True)],
        "memory_mb": [round(memory_mb, 1) for _, memory_mb in after],
    }


def _used(pid: int) -> tuple[float, float]:
    """Processor seconds and resident MB of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS, int(fields[21]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def merged(workers: int, requests: int, tokens: int) -> dict[str, Any]:
    """Merge results as the prober does: every stamp of every request comes through a channel; and, beside it, only histograms."""
    rng = Random(1)
    frames = [_frame(rng, number, tokens) for number in range(requests)]
    sizes = sum(map(len, frames)) * workers
    memory_mb, begin_s = _memory_mb(), time.process_time()
    results: list[ProbeResult] = []
    for _ in range(workers):
        for frame in frames:
            result = pickle.loads(frame).result
            results.append(result)
    read_s, kept_mb = time.process_time() - begin_s, _memory_mb() - memory_mb
    begin_s = time.process_time()
    stage = stage_of("s", None, results, origin_ns=0, begin_ns=0, sending_s=60.0)
    stage_s, stage_mb = time.process_time() - begin_s, _memory_mb() - memory_mb - kept_mb
    gaps_s = [list(row.itls_s) for row in stage.requests[:requests]]
    histograms, total = [], Exponential()
    for number in range(workers):
        histogram = Exponential()
        histogram.observe(gaps_s[number % requests])
        histograms.append(histogram)
        total.observe(gaps_s[number % requests])
    begin_s, sums = time.process_time(), Counter[int]()
    for histogram in histograms:
        sums.update(histogram.counts)
    histograms_s = time.process_time() - begin_s
    return {
        "workers": workers,
        "requests": len(results),
        "tokens": len(results) * tokens,
        "stage_requests": stage.sent,
        "channel_mb": round(sizes / 1e6, 1),
        "read_s": round(read_s, 2),
        "kept_mb": round(kept_mb, 1),
        "stage_s": round(stage_s, 2),
        "stage_mb": round(stage_mb, 1),
        "histograms_s": round(histograms_s, 4),
        "histograms_mb": round(sum(len(pickle.dumps(histogram.counts)) for histogram in histograms) / 1e6, 2),
        "histograms_equal": dict(sums) == total.counts,
    }


def decided(requests: int, in_flight: int) -> dict[str, Any]:
    """Processor time of the prober itself: drawing a request, and the machine of a sweep with so many requests, some in flight."""
    drawer, begin_s = RequestGenerator(BUILT_IN["chat"], Random(1)), time.process_time()
    for number in range(2_000):
        drawer.draw(number)
    draw_us = (time.process_time() - begin_s) / 2_000 * 1e6
    slo = Slo("ttft", "ttft", 10.0, Decimal("0.99"), 86_400.0)
    spec = sweep_spec(slo, mode="grid", rates=(10_000.0,), step=1e6, max_in_flight=10**9)
    sweep = Sweep(spec, 0.0, WarmUpLength(0))
    result = pickle.loads(_frame(Random(1), 0, MERGED_TOKENS)).result
    begin_s = time.process_time()
    for number in range(requests):
        sweep.sent(str(number), number / 10_000, 500, MERGED_TOKENS)
        if number >= in_flight:
            sweep.result(replace(result, request_id=str(number - in_flight)), number / 10_000)
    request_us = (time.process_time() - begin_s) / requests * 1e6
    at_s = requests / 10_000
    return {
        "draw_us": round(draw_us, 1),
        "request_us": round(request_us, 1),
        "requests": requests,
        "in_flight": in_flight,
        "tick_ms": round(_least_ms(lambda: sweep.tick(at_s)), 1),
        "page_ms": round(_least_ms(lambda: sweep.page(at_s, EngineSignals(EngineInfo("vllm")))), 1),
    }


def _least_ms(work: Callable[[], None]) -> float:
    """Least processor time of five calls."""
    times = []
    for _ in range(5):
        begin_s = time.process_time()
        work()
        times.append(time.process_time() - begin_s)
    return min(times) * 1e3


def _frame(rng: Random, number: int, tokens: int) -> bytes:
    """A worker's message with a result of so many chunks."""
    due_ns = number * 10**8
    stamps, at_ns = array("q"), due_ns + round(rng.uniform(4e7, 9e7))
    for _ in range(tokens):
        stamps.append(at_ns)
        at_ns += round(rng.lognormvariate(16.1, 0.2))
    timeline = Timeline(
        *(due_ns, Connection(due_ns - 10**8, due_ns - 10**8 + 300_000, 10**8, tcp_s=2e-4)),
        sent_ns=due_ns + 90_000,
        acknowledged_ns=due_ns + 200_000,
        headers_ns=due_ns + 10**6,
        first_ns=stamps[0],
        first_answer_ns=stamps[0],
        end_ns=at_ns,
        content_ns=stamps,
        usage=Usage(500, tokens),
        finish_reason="length",
        answered_model="m",
    )
    request_id = f"slo-probe-{number:016x}"
    result = ProbeResult("t", "chat", request_id, 1.7e9, Outcome.OK, "", timeline, "m", "vllm", 500, tokens, worker=1)
    return packed(Ended(result, None))[LENGTH_BYTES:]


def _memory_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=float, default=100.0)
    parser.add_argument("--rounds", type=int, default=3)
    chosen = parser.parse_args()
    merging = part("merging", merged(MERGED_WORKERS, MERGED_REQUESTS, MERGED_TOKENS))
    counts = [count for count in (1, 2, 4) if count == 1 or count <= len(os.sched_getaffinity(0))]
    deciding = part("deciding", decided(100_000, 30_000))
    counts = [count for count in (2, 4) if count <= len(os.sched_getaffinity(0))]
    rate_per_s = chosen.rate
    processes = part("processes", shared(rate_per_s))
    # Several processes beside one with the load of each of them, which costs the same a token, and beside one with all of it.
    loads = [load for n in counts for load in ((1, rate_per_s / n), (1, rate_per_s), (n, rate_per_s))]
    table = compared(list(dict.fromkeys(loads)), chosen.rounds)
    goals = []
    for count in counts:
        row, one, share = (table[load] for load in ((count, rate_per_s), (1, rate_per_s), (1, rate_per_s / count)))
        runs, ratio = row["runs"], row["cpu_s_per_1k_tokens"] / share["cpu_s_per_1k_tokens"]
        differing = sum(a != b for a, b in zip(row["verdicts"], one["verdicts"], strict=True))
        drift = max(abs(1 - run["achieved_ratio"]) for run in runs)
        goals += [
            goal(f"processor time a token, {count} workers over one process with a share of the load", ratio, 1.10, ""),
            goal(f"verdicts that differ from those of one process, {count} workers", differing, 0, ""),
            goal(f"achieved rate of {count} workers, difference", drift, 0.01, ""),
            goal(f"invalid requests of {count} workers", row["invalid_ratio"], 0.0, ""),
            goal(f"TTFT error p50 of {count} workers", max(run["ttft_error_ms"]["p50"] for run in runs), 0.7, "ms"),
            goal(f"TTFT error p99 of {count} workers", max(run["ttft_error_ms"]["p99"] for run in runs), 1.8, "ms"),
            goal(f"send lag p99 of {count} workers", max(run["send_lag_p99_ms"] for run in runs), 1.0, "ms"),
        ]
    goals.append(
        goal("histograms of 1,000 workers that differ from one", float(not merging["histograms_equal"]), 0, "")
    )
    show("workers", goals, runs=list(table.values()), processes=processes, merging=merging, deciding=deciding)


if __name__ == "__main__":
    main()
