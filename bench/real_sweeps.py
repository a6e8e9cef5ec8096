"""Sweeps of a real vLLM on the CPU, beside `vllm bench serve` at fixed rates with the same numbers of tokens.

    python -m bench.real_sweeps --engine FOLDER --model FOLDER [--rates 10,11,12,13,14,15] [--seeds 4] [--sweeps 10]
    python -m bench.real_sweeps --engine FOLDER --model FOLDER --sweeps 0 --rates 15 [--reads-per-s 10]

FOLDER of the engine: a virtual environment with vLLM (`make test-engines` installs one). The model: `tests/engines/tiny_model.py
MODEL larger` makes it. Engine and client have a core each (`taskset`), so the machine must have two and be otherwise quiet. Half of
the sweeps run before the grid and half after it. The knee of the grid is where the p99 of the TTFT of all seeds passes the
threshold, between two rates by a straight line in logarithms: that of 400 requests is a matter of one burst.
With --reads-per-s the engine's page is read at this rate beside the grid, as a prober may do it. With --spinning as many processes that
never rest are beside the sweeps, on the core of the clients; the grid is without them.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from math import exp, log
from pathlib import Path
from statistics import quantiles
from typing import Any

from bench.report import part, show

THRESHOLD_S = 0.5
PROMPT_TOKENS, OUTPUT_TOKENS = 60, 32  # as asked of `prober sweep`
REQUESTS = 400  # a run of the grid
MAX_ERROR, MIN_RIGHT, MIN_COVERED = 0.15, 0.8, 0.9
START_S, STOP_S = 240.0, 20.0
ENGINE_CORE, CLIENT_CORE = "0", "1"


class Engine:
    """vLLM on one core of this machine. options: further arguments; pid: of its session"""

    def __init__(self, folder: Path, model: Path, port: int, scratch: Path, options: Sequence[str] = ()) -> None:
        self.folder, self.model, self.scratch = folder, model, scratch
        self.url = f"http://127.0.0.1:{port}"
        self.environment = os.environ | {
            "PATH": f"{folder}/bin:{os.environ['PATH']}",
            "OMP_NUM_THREADS": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
        }
        command = [
            "taskset",
            "-c",
            ENGINE_CORE,
            f"{folder}/bin/vllm",
            "serve",
            str(model),
            "--served-model-name",
            "tiny",
        ]
        command += ["--dtype", "float32", "--max-model-len", "2048", "--enforce-eager", "--block-size", "32"]
        command += ["--kv-cache-memory-bytes", "256M", "--max-num-seqs", "8", "--port", str(port), *options]
        with (scratch / "engine.log").open("wb") as output:
            self._process = subprocess.Popen(
                command, stdout=output, stderr=output, env=self.environment, start_new_session=True
            )
        self.pid = self._process.pid
        until_s = time.monotonic() + START_S
        while not self._answers():
            if time.monotonic() > until_s or self._process.poll() is not None:
                self.stop()
                raise SystemExit(f"vLLM did not start: {(scratch / 'engine.log').read_text()[-2_000:]}")
            time.sleep(1.0)

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=2):
                return True
        except OSError:
            return False

    def stop(self) -> None:
        """End it with all that it started."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(self._process.pid, number)
                self._process.wait(STOP_S)
            except (ProcessLookupError, subprocess.TimeoutExpired):
                continue

    def client(self, *command: str, **options: Any) -> "subprocess.CompletedProcess[str]":
        """Run a command on the core of the clients."""
        return subprocess.run(
            ["taskset", "-c", CLIENT_CORE, *command], capture_output=True, text=True, check=False, **options
        )


def swept(engine: Engine, number: int) -> dict[str, Any]:
    """Answer of one sweep, and the mean prompt tokens that the engine counted."""
    path = engine.scratch / f"sweep{number}.json"
    done = engine.client(
        *(sys.executable, "-m", "prober", "sweep", engine.url, "--model", "tiny"),
        *("--slo", f"ttft<{round(1e3 * THRESHOLD_S)}ms:99%", "--prompt-tokens", str(PROMPT_TOKENS)),
        *("--output-tokens", str(OUTPUT_TOKENS), "--output", str(path)),
    )
    if not path.exists():
        return {"code": done.returncode, "error": done.stderr[-300:]}
    file = json.loads(path.read_text())
    result = file["llm_slo_prober"]["result"]
    lengths = [length for length in file.get("input_lens", ()) if length]
    return {
        "code": done.returncode,
        "stop": f"{result['stop']}: {result['stop_detail']}",
        "prompt_tokens": round(sum(lengths) / len(lengths), 1) if lengths else None,
        **{name: result["capacities"][0][name] for name in ("verdict", "lower", "estimate", "upper", "fit")},
    }


def measured(engine: Engine, rate_per_s: float, prompt_tokens: int, requests: int, seeds: int) -> dict[str, Any]:
    """TTFT quantiles at a rate by `vllm bench serve`: of each seed's requests, and of all together."""
    ttfts_s: list[float] = []
    p99s_s = []
    first_seed = round(1_000 * rate_per_s)  # no prompts of another rate, which would be in the prefix cache
    for seed in range(first_seed, first_seed + seeds):
        path = engine.scratch / f"bench{rate_per_s}-{seed}.json"
        engine.client(
            *("vllm", "bench", "serve", "--backend", "openai-chat", "--endpoint", "/v1/chat/completions"),
            *("--base-url", engine.url, "--model", "tiny", "--tokenizer", str(engine.model)),
            *("--dataset-name", "random", "--random-input-len", str(prompt_tokens)),
            *("--random-output-len", str(OUTPUT_TOKENS), "--ignore-eos", "--seed", str(seed)),
            *("--num-prompts", str(requests), "--request-rate", str(rate_per_s), "--disable-tqdm"),
            *("--save-result", "--save-detailed", "--result-dir", str(engine.scratch), "--result-filename", path.name),
            env=engine.environment,
        )
        result = json.loads(path.read_text())
        ttfts_s += result["ttfts"]
        p99s_s.append(round(quantile(result["ttfts"], 0.99), 3))
    return {
        "rate_per_s": rate_per_s,
        "p50_s": round(quantile(ttfts_s, 0.5), 3),
        "p99_s": round(quantile(ttfts_s, 0.99), 3),
        "p99s_s": p99s_s,
        "prompt_tokens": round(result["total_input_tokens"] / result["completed"], 1),
        "completed": len(ttfts_s),
    }


def quantile(values: list[float], level: float) -> float:
    """Between neighbours by a straight line, as vLLM reports it."""
    return quantiles(values, n=1_000, method="inclusive")[round(1_000 * level) - 1]


@contextmanager
def page_read(engine: Engine, reads_per_s: float) -> Iterator[None]:
    """Read the engine's page at a rate meanwhile, on the core of the clients; 0: do not."""
    ended = threading.Event()

    def read() -> None:
        os.sched_setaffinity(0, {int(CLIENT_CORE)})
        while not ended.wait(1 / reads_per_s):
            with urllib.request.urlopen(f"{engine.url}/metrics", timeout=2) as page:
                page.read()

    reader = threading.Thread(target=read, daemon=True)
    if reads_per_s:
        reader.start()
    yield
    ended.set()
    if reads_per_s:
        reader.join()


@contextmanager
def spinning(count: int) -> Iterator[None]:
    """Processes that never rest meanwhile, on the core of the clients."""
    command = ["taskset", "-c", CLIENT_CORE, sys.executable, "-c", "while True: pass"]
    processes = [subprocess.Popen(command) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def crossing(grid: list[dict[str, Any]]) -> float | None:
    """Rate at which the p99 passes the threshold; None if it does not between two neighbours."""
    for before, after in pairwise(grid):
        if before["p99_s"] <= THRESHOLD_S < after["p99_s"]:
            share = log(THRESHOLD_S / before["p99_s"]) / log(after["p99_s"] / before["p99_s"])
            return exp(log(before["rate_per_s"]) + share * log(after["rate_per_s"] / before["rate_per_s"]))
    return None


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--rates", default="10,11,12,13,14,15")
    parser.add_argument("--seeds", type=int, default=4, help="runs of the grid at each rate")
    parser.add_argument("--sweeps", type=int, default=10)
    parser.add_argument("--reads-per-s", type=float, default=0.0, help="of the engine's page, beside the grid")
    parser.add_argument("--spinning", type=int, default=0, metavar="N", help="busy processes beside the sweeps")
    parser.add_argument("--port", type=int, default=18_123)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        engine = Engine(options.engine.absolute(), options.model.absolute(), options.port, Path(scratch))
        try:
            with spinning(options.spinning):
                sweeps = [part("sweep", swept(engine, number)) for number in range(options.sweeps // 2)]
            lengths = [sweep["prompt_tokens"] for sweep in sweeps if sweep.get("prompt_tokens")]
            # of the chat template
            overhead = measured(engine, 4.0, PROMPT_TOKENS, 20, 1)["prompt_tokens"] - PROMPT_TOKENS
            prompt_tokens = round((sum(lengths) / len(lengths) if lengths else PROMPT_TOKENS) - overhead)
            with page_read(engine, options.reads_per_s):
                grid = [
                    part(f"{rate}/s", measured(engine, float(rate), prompt_tokens, REQUESTS, options.seeds))
                    for rate in options.rates.split(",")
                ]
            with spinning(options.spinning):
                sweeps += [
                    part("sweep", swept(engine, number)) for number in range(options.sweeps // 2, options.sweeps)
                ]
        finally:
            engine.stop()
    knee = crossing(grid)
    found = [sweep for sweep in sweeps if sweep.get("estimate")]
    right = covered = 0
    if knee is not None:
        right = sum(abs(sweep["estimate"] / knee - 1) <= MAX_ERROR for sweep in found)
        covered = sum(sweep["lower"] <= knee <= sweep["upper"] for sweep in found)
    goals = [
        {
            "name": name,
            "value": value / len(sweeps),
            "goal": least,
            "unit": "share",
            "met": value >= least * len(sweeps),
        }
        for name, value, least in (
            (f"sweeps within {MAX_ERROR:.0%} of the grid", right, MIN_RIGHT),
            ("intervals that hold the grid's knee", covered, MIN_COVERED),
        )
        if sweeps
    ]
    show("real_sweeps", goals, spinning=options.spinning, knee_per_s=knee, grid=grid, sweeps=sweeps)


if __name__ == "__main__":
    main()
