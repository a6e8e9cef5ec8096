"""How true are the stamps? The daemon probes the mock; both stamp one monotonic clock; the mock's record is the truth.

64 tokens of 10 ms after 50 ms, at 5 and at 100 requests a second, everything recorded as in production; at 250 requests a second the
share of probes that the prober itself calls invalid, 1% of which end its trust in itself.
"""

import json
import subprocess
import sys
import time
from typing import Any

from bench.comparison import CONFIG, itl_errors_ms, pairs
from bench.report import goal, percentile, show
from bench.stage import stage


def measure(rate: int, requests: int) -> dict[str, Any]:
    """Errors in ms over at least `requests` successful requests, and processor seconds per 1,000 tokens."""
    with stage(CONFIG.format(rate=rate), history=2 * requests + 200) as running:
        time.sleep(3)  # warm-up over, the page open: what follows is the steady state
        cpu, begin = running.cpu_s(), time.monotonic_ns()
        time.sleep(requests / rate * 1.06 + 1)
        cpu, end = running.cpu_s() - cpu, time.monotonic_ns()
        time.sleep(1.5)
        window, good = pairs(running, begin, end)
        rss = running.rss_mb()
    receive = [(p["stamps_ns"]["first_content"] - t["writes"][0]) / 1e6 for p, t in good]
    ttft = [p["ttft_s"] * 1e3 - (t["writes"][0] - t["received_ns"]) / 1e6 for p, t in good]
    itl = [error for _, error in itl_errors_ms(good)]
    lag = [p["send_lag_s"] * 1e3 for p in window if p["send_lag_s"] is not None]
    tokens = sum(len(p["stamps_ns"]["content"]) for p, _ in good)
    outcomes: dict[str, int] = {}
    for p in window:
        outcomes[p["outcome"]] = outcomes.get(p["outcome"], 0) + 1
    return {
        "rate": rate,
        "requests": len(good),
        "outcomes": outcomes,
        "achieved_per_s": round(len(window) / ((end - begin) / 1e9), 2),
        "receive_ms": _spread(receive),
        "ttft_ms": _spread(ttft),
        "itl_ms": _spread(itl),
        "send_lag_ms": _spread(lag),
        "cpu_s_per_1k_tokens": round(cpu / (tokens / 1e3), 4),
        "rss_mb": round(rss, 1),
    }


def floor() -> dict[str, Any]:
    """The same load from a client that only stamps: what this machine's event loop and sockets cost by themselves."""
    with stage('targets: [{name: mock, url: "{mock}", rate: 1/h}]') as running:
        command = [sys.executable, "-m", "bench.floor", running.mock.rsplit(":", 1)[1], "100", "12"]
        found: dict[str, Any] = json.loads(subprocess.run(command, check=True, capture_output=True, timeout=60).stdout)
    return found


def _spread(values: list[float]) -> dict[str, float]:
    return {f"p{q * 100:g}": round(percentile(values, q), 4) for q in (0.5, 0.9, 0.99)}


def main() -> None:
    """Measure and print."""
    slow, fast, full = measure(5, 340), measure(100, 1500), measure(250, 2500)
    invalid = full["outcomes"].get("invalid", 0) / sum(full["outcomes"].values())
    show(
        "accuracy",
        [
            goal("receive error p50 at 5 rps", slow["receive_ms"]["p50"], 0.15, "ms"),
            goal("receive error p99 at 5 rps", slow["receive_ms"]["p99"], 1.0, "ms"),
            goal("receive error p50 at 100 rps", fast["receive_ms"]["p50"], 0.2, "ms"),
            goal("receive error p99 at 100 rps", fast["receive_ms"]["p99"], 1.5, "ms"),
            goal("TTFT error p50 at 100 rps", fast["ttft_ms"]["p50"], 0.7, "ms"),
            goal("TTFT error p99 at 100 rps", fast["ttft_ms"]["p99"], 1.8, "ms"),
            goal("ITL error p99 at 100 rps", fast["itl_ms"]["p99"], 0.5, "ms"),
            goal("send lag p99 at 5 rps", slow["send_lag_ms"]["p99"], 1.0, "ms"),
            goal("send lag p99 at 100 rps", fast["send_lag_ms"]["p99"], 1.0, "ms"),
            goal("processor time per 1,000 tokens at 100 rps", fast["cpu_s_per_1k_tokens"], 0.028, "s"),
            goal("share of invalid probes at 250 rps", invalid, 0.01, ""),
        ],
        runs=[slow, fast, full],
        floor=floor(),
    )


if __name__ == "__main__":
    main()
