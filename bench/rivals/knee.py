"""Knee: the searches of GuideLLM and AIPerf and ours, on engines served over HTTP whose knee is known.

An engine (`bench/independent`) gets requests of one length, and every second one has a background of a fifth of its knee. The knee is
the total rate at which 1% of Poisson arrivals miss the threshold of TTFT, ten times that of an idle engine: bisection over runs of
60,000 requests in virtual time. The answer of a search is a rate of its own requests, and right is the knee less the background; ours
reads the engine's page, and answers with a total. GuideLLM looks for a number of requests in flight, and is taken at the rate of good
requests there. Harmed are requests of the background that missed the threshold from the begin of a search to its end, less those that
do without it.

`python -m bench.rivals.knee` runs `prober sweep` alone, without any rival, in ten minutes.
"""

import asyncio
import contextlib
import json
import math
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

import numpy as np

from bench.independent.engine import Engine
from bench.independent.engine_server import EngineServer
from bench.independent.kinds import draw_structure
from bench.report import goal, part, show
from bench.rivals.clients import OFFLINE, ROOT, Client, Load, Words, run
from prober.results.result_file import from_json
from tests.serving import serving

KINDS = (
    *("chunked", "slots", "separate", "alternating", "preempting", "prefix_cache"),
    *("speculative", "padding", "least_busy", "disaggregated", "serial_front", "shortest_first"),
)
SEED = 0
PROMPT_TOKENS, OUTPUT_TOKENS = 512, 16
THRESHOLD_FACTOR, ALLOWED, BACKGROUND_SHARE = 10.0, 0.01, 0.2
COUNT, WARM_UP, PRECISION = 20_000, 400, 1.01
SEEDS = (1, 2, 3)
LEAD_S = 30.0
MAX_PER_S = 100
STEP_S = 30
SEARCH_S = 900.0  # the longest search
MISSING = 1e9  # without any figure
LEAST_S = 1_800.0  # an engine is not begun with less
AT_ONCE = 3  # engines


@dataclass(frozen=True)
class Case:
    """An engine. knee_per_s: total rate"""

    kind: str
    threshold_s: float
    knee_per_s: float
    background_per_s: float

    def engine(self) -> Engine:
        """A new one."""
        return Engine(draw_structure(self.kind, SEED), SEED)

    def others(self) -> Iterator[tuple[float, int, int]]:
        """Requests of the background, without end."""
        rng, at_s = Random(f"others {self.kind}"), 0.0
        while True:
            at_s += rng.expovariate(self.background_per_s) if self.background_per_s else math.inf
            yield at_s, PROMPT_TOKENS, OUTPUT_TOKENS


def case(kind: str, has_background: bool) -> Case:
    """An engine and its knee."""
    structure = draw_structure(kind, SEED)

    def ttfts_s(rate_per_s: float, count: int, seed: int) -> Any:
        times_s = np.cumsum(np.random.default_rng(seed).exponential(1 / rate_per_s, count))
        lengths = np.full(count, PROMPT_TOKENS), np.full(count, OUTPUT_TOKENS)
        return (Engine(structure, SEED).run(times_s, *lengths).first_token_s - times_s)[WARM_UP:]

    threshold_s = round(THRESHOLD_FACTOR * float(np.median(ttfts_s(0.1, 2 * WARM_UP, 1))), 3)
    low, high = 1.0, 4.0 * MAX_PER_S
    while high / low > PRECISION:
        middle = math.sqrt(low * high)
        missed = [~(ttfts_s(middle, COUNT, seed) <= threshold_s) for seed in SEEDS]
        low, high = (middle, high) if float(np.mean(missed)) <= ALLOWED else (low, middle)
    knee_per_s = math.sqrt(low * high)
    return Case(kind, threshold_s, knee_per_s, BACKGROUND_SHARE * knee_per_s if has_background else 0.0)


@contextlib.contextmanager
def served(of: Case) -> Iterator[tuple[str, EngineServer]]:
    """Address of an engine in a thread of its own."""
    ready: Future[tuple[str, EngineServer]] = Future()
    loop, ended = asyncio.new_event_loop(), asyncio.Event()

    async def serve() -> None:
        server = EngineServer(of.engine(), of.others(), LEAD_S, PROMPT_TOKENS)
        async with serving(server.app()) as url:
            ready.set_result((url, server))
            await ended.wait()
            server.catch_up()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),), daemon=True)
    thread.start()
    try:
        yield ready.result(10)
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join(30)


def harmed(of: Case, server: EngineServer, begin_s: float) -> int:
    """Requests of the background since `begin_s` that missed the threshold, less those that do without the search."""
    alone, ended_s = of.engine(), server.engine.at_s
    numbers: list[tuple[float, int]] = []
    for at_s, prompt, output in of.others():
        if at_s > ended_s:
            break
        numbers.append((at_s, alone.submit(at_s, prompt, output)))
    alone.advance(ended_s)
    missed = []
    for engine, requests in ((server.engine, server.arrived_others), (alone, numbers)):
        first_s = engine.results().first_token_s
        missed.append(
            sum(at_s >= begin_s and not first_s[number] - at_s <= of.threshold_s for at_s, number in requests)
        )
    return missed[0] - missed[1]


def _prober(of: Case) -> Callable[[Load], Words]:
    def command(load: Load) -> Words:
        words: Words = [sys.executable, "-m", "prober", "sweep", load.url, "--prompt-tokens", str(PROMPT_TOKENS)]
        words += ["--output-tokens", str(OUTPUT_TOKENS), "--slo", f"ttft<{of.threshold_s * 1e3:g}ms:{1 - ALLOWED:.0%}"]
        return [*words, "--max-rate", f"{MAX_PER_S}/s", "--output", "result.json", "--json"]

    return command


def _guidellm(of: Case) -> Callable[[Load], Words]:
    def command(load: Load) -> Words:
        slo = json.dumps({"kind": "generative", "slo": {"ttft_ms": of.threshold_s * 1e3}})
        words: Words = [load.clients / "guidellm/bin/guidellm", "run", "--disable-console"]
        words += ["--backend", f"kind=openai_http,target={load.url},model=simulated"]
        words += ["--profile", f"kind=goodput,target_attainment={1 - ALLOWED:g}", "--metrics", slo]
        words += ["--constraint", f"kind=max_duration,seconds={STEP_S}"]
        words += ["--tokenizer", f"kind=huggingface_auto,model={load.tokenizer}"]
        words += ["--data", f"kind=synthetic_text,prompt_tokens={PROMPT_TOKENS},output_tokens={OUTPUT_TOKENS}"]
        return [*words, "--output", "kind=json,path=result.json"]

    return command


def _aiperf(of: Case) -> Callable[[Load], Words]:
    def command(load: Load) -> Words:
        words: Words = [load.clients / "aiperf/bin/aiperf", "profile", "-m", "simulated", "--url", load.url]
        words += ["--endpoint-type", "chat", "--streaming", "--tokenizer", load.tokenizer, "--ui", "none"]
        words += ["--isl", str(PROMPT_TOKENS), "--osl", str(OUTPUT_TOKENS), "--extra-inputs", "ignore_eos:true"]
        words += ["--search-space", f"phases.profiling.rate:1,{MAX_PER_S}:int", "--search-planner", "smooth_isotonic"]
        words += ["--search-metric", "request_throughput", "--search-direction", "maximize"]
        words += ["--search-max-iterations", "10", "--arrival-pattern", "poisson"]
        words += ["--search-sla", f"time_to_first_token:p99:lt:{of.threshold_s * 1e3:g}"]
        return [*words, "--benchmark-duration", str(STEP_S), "--artifact-dir", "result"]

    return command


def _rate_prober(folder: Path) -> float | None:
    result = from_json((folder / "result.json").read_text(), "result.json")
    (capacity,) = result.capacities
    if capacity.estimate is None:
        raise ValueError(f"{capacity.verdict}, ended by {result.stop}: {result.stop_detail}")
    return capacity.estimate


def _rate_guidellm(folder: Path) -> float | None:
    search = json.loads((folder / "result.json").read_text())["conclusions"][0]
    rates = [probe["goodput"] for probe in search["probes"] if probe["streams"] == search["best_passing_streams"]]
    return rates[-1] if rates else None


def _rate_aiperf(folder: Path) -> float | None:
    best = json.loads((folder / "result/search_history.json").read_text())["boundary_summary"]["feasible_max"]
    return None if best is None else float(best["value"])


@dataclass(frozen=True)
class Search:
    """A search. command, rate_per_s: its call, and its answer; is_total: of all requests, not only of its own"""

    name: str
    command: Callable[[Case], Callable[[Load], Words]]
    rate_per_s: Callable[[Path], float | None]
    environment: dict[str, str]
    is_total: bool = False


SEARCHES = (
    Search("prober sweep", _prober, _rate_prober, {"PYTHONPATH": str(ROOT)}, is_total=True),
    Search("GuideLLM goodput", _guidellm, _rate_guidellm, OFFLINE),
    Search("AIPerf smooth_isotonic", _aiperf, _rate_aiperf, {"DO_NOT_TRACK": "1"}),
)


def measure(search: Search, of: Case, clients: Path, timeout_s: float) -> dict[str, Any]:
    """A search's answer beside the truth, and its price."""
    with tempfile.TemporaryDirectory(prefix="prober-bench-") as path:
        folder = Path(path)
        with served(of) as (url, server):
            begin_s = server.now_s
            client = Client(search.name, search.command(of), lambda _: [], search.environment)
            done = run(client, Load(clients, folder, url, None, 0, OUTPUT_TOKENS), timeout_s)
        found: dict[str, Any] = {
            "command": done.command,
            "requests": server.served,
            "seconds": round(done.wall_s),
            "harmed": harmed(of, server, begin_s),
        }
        try:
            rate_per_s = search.rate_per_s(folder)
        except (OSError, ValueError, KeyError, TypeError) as error:
            log = (folder / "log").read_text(errors="replace")[-500:]
            return found | {"problem": f"{done.problem or 'no result'}: {error!r}: {log}"}
    if rate_per_s is None:
        return found | {"problem": done.problem or "gives no figure"}
    truth_per_s = of.knee_per_s - (0.0 if search.is_total else of.background_per_s)
    return found | {"rate_per_s": round(rate_per_s, 2), "error": round(rate_per_s / truth_per_s - 1, 3)}


def play(clients: Path, deadline_s: float, searches: Sequence[Search] = SEARCHES) -> list[dict[str, Any]]:
    """Engines with all searches, as many as time is left for; `AT_ONCE` of them at a time, each in a process of its own."""
    with ProcessPoolExecutor(AT_ONCE) as processes:
        rows = processes.map(partial(_searched, clients, deadline_s, searches), range(len(KINDS)))
        return [part("knee", row) for row in rows if row is not None]


def _searched(clients: Path, deadline_s: float, searches: Sequence[Search], number: int) -> dict[str, Any] | None:
    """An engine with all searches, one after the other; None if no time is left for them."""
    if deadline_s - time.monotonic() < LEAST_S:
        return None
    of = case(KINDS[number], has_background=number % 2 == 1)
    row: dict[str, Any] = {"engine": of.kind, "knee_per_s": round(of.knee_per_s, 2), "threshold_s": of.threshold_s}
    row["background_per_s"] = round(of.background_per_s, 2)
    return row | {search.name: measure(search, of, clients, SEARCH_S) for search in searches}


def goals(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Ours at most the best of the others: error (1 without a figure), and the price of the searches that gave a figure."""
    if not rows:
        return []
    figures = {search.name: _figures([row[search.name] for row in rows]) for search in SEARCHES}
    ours = figures.pop(SEARCHES[0].name)
    return [
        goal(
            f"knee of {len(rows)} engines: {title} (best other)",
            ours[title],
            min(of[title] for of in figures.values()),
            "",
        )
        for title in ours
    ]


def _figures(runs: list[dict[str, Any]]) -> dict[str, float]:
    answered = [of for of in runs if "error" in of]
    price = {
        key: median(of[key] for of in answered) if answered else MISSING for key in ("requests", "seconds", "harmed")
    }
    return {
        "error, median": median(abs(of.get("error", 1.0)) for of in runs),
        "engines without a figure": len(runs) - len(answered),
        **{f"{key}, median": value for key, value in price.items()},
    }


def main() -> None:
    """Measure our own search and print."""
    rows = play(Path(), math.inf, SEARCHES[:1])
    ours = _figures([row[SEARCHES[0].name] for row in rows])
    bounds = {"error, median": 0.05, "engines without a figure": 0.0}
    show("rivals_knee", [goal(title, ours[title], most, "") for title, most in bounds.items()], rows=rows)


if __name__ == "__main__":
    main()
