"""How many targets a core carries: series, memory, page, scrape and processor time for 100, 1,000 and 10,000 of them.

Idle: so many targets at a rate so low that hardly any is probed (EACH_RATE), which shows what a target costs by being there: series,
memory, the page, the start, and processor time, with and without its engine's page being read.

Busy: BUSY_TARGETS targets whose rates add up to each of RATES. What a core carries is told twice: the highest of them at which the
prober trusts itself, which a busy machine spoils, and the rate that would fill FULL of a core by its processor time, which it does
not. The number of shards for the default rate of 0.2/s follows from either. The mocks run as two processes, the daemon as
one, and all targets of one machine lead to those two under names of their own.

Full: a shard as docs/scaling.md has it, SHARD targets at the default rate, their engines' pages read every 30 s, until each has had
ENOUGH probes: then the past that is kept of it is there but for the samples for quantiles, which take 75 kB of each in all.
"""

import argparse
import gzip
import http.client
import os
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import urlsplit

from bench.report import goal, part, show
from prober.exposition.families import Form
from tests.processes import Daemon, Mock

TICKS = os.sysconf("SC_CLK_TCK")
COUNTS = (100, 1_000, 10_000)
EACH_RATE = "1/h"
PAGES = {  # how often, at which count; a page of the mock is about 190 lines
    100: (("engine_pages_every_5s", "5s"),),
    1_000: (("engine_pages_every_30s", "30s"),),
}
RATES = (25, 50, 100, 200)
FULL = 0.6  # of a core: the rest is for bursts, scrapes, pages and neighbours
BUSY_TARGETS = 100
SHARD, ENOUGH = 500, 160
PROBES, NEUTRAL = "llmslo_probes_total", "llmslo_probes_neutral_total"
DEFAULT_RATE = 0.2
SETTLE_S, SPAN_S = 8.0, 20.0
SCRAPES = 3
MB = 1 << 20


class Seen:
    """A running daemon, from outside."""

    def __init__(self, daemon: Daemon) -> None:
        self.daemon = daemon
        self._proc = Path(f"/proc/{daemon.process.pid}")

    def cpu_s(self) -> float:
        """Processor seconds so far."""
        fields = (self._proc / "stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def rss_mb(self) -> float:
        """Resident memory."""
        fields = (self._proc / "status").read_text()
        return int(fields.partition("VmRSS:")[2].split()[0]) / 1024

    def page(self, form: Form = Form.TEXT) -> tuple[bytes, int, float]:
        """(page, bytes on the wire gzipped, seconds)."""
        host = urlsplit(self.daemon.url)
        asked = http.client.HTTPConnection(host.hostname or "", host.port, timeout=300)
        begun = time.monotonic()
        asked.request("GET", "/metrics", headers={"Accept": form.value, "Accept-Encoding": "gzip"})
        answer = asked.getresponse()
        body = answer.read()
        took_s = time.monotonic() - begun
        asked.close()
        packed = answer.getheader("Content-Encoding") == "gzip"
        return (gzip.decompress(body) if packed else body), len(body), took_s

    def total(self, name: str) -> float:
        """The sum of all samples of this name."""
        lines = self.page()[0].decode().splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith((name + "{", name + " ")))

    def spent(self, seconds: float) -> float:
        """Share of a core over a span."""
        cpu, begun = self.cpu_s(), time.monotonic()
        time.sleep(seconds)
        return (self.cpu_s() - cpu) / (time.monotonic() - begun)


def configuration(mocks: list[Mock], count: int, rate: str, every: str | None) -> str:
    """`count` targets, by turns on the mocks; every: how often their engines' pages are read."""
    metrics = f", metrics: {{interval: {every}}}" if every else ", metrics: {url: none}"
    targets = "\n".join(
        f'  - {{name: team-{i % 7}/model-{i:05}, url: "{mocks[i % len(mocks)].url}/v1", model: mock{metrics}}}'
        for i in range(count)
    )
    slo = "slos:\n  ttft: {signal: ttft, threshold: 500ms, objective: 99%}"
    return f"defaults: {{rate: {rate}, max_in_flight: 1000}}\n{slo}\ntargets:\n{targets}\n"


@contextmanager
def running(count: int, rate: str, every: str | None = None) -> Iterator[tuple[Seen, float]]:
    """A daemon with `count` targets, and the seconds that it took to be ready."""
    with TemporaryDirectory(prefix="prober-sizing-") as name, ExitStack() as stack:
        folder = Path(name)
        mocks = [stack.enter_context(Mock(folder / f"mock{i}.log", "--seed", i)) for i in range(2)]
        config = configuration(mocks, count, rate, every)
        begun = time.monotonic()
        daemon = stack.enter_context(Daemon(folder, config, ready_s=300))
        yield Seen(daemon), time.monotonic() - begun


def held_ms(seen: Seen) -> float:
    """The upper bound of the highest bucket of loop lag that has a value."""
    lines = [
        line for line in seen.page()[0].decode().splitlines() if line.startswith("llmslo_event_loop_lag_seconds_bucket")
    ]
    counts = [(float(line.partition('le="')[2].partition('"')[0]), float(line.rpartition(" ")[2])) for line in lines]
    return next(1e3 * bound for bound, count in counts if count == counts[-1][1])


def scraped(seen: Seen, form: Form) -> tuple[list[tuple[bytes, int, float]], float]:
    """(pages, processor seconds of one)."""
    begun = seen.cpu_s()
    pages = [seen.page(form) for _ in range(SCRAPES)]
    return pages, (seen.cpu_s() - begun) / SCRAPES


def idle(count: int) -> dict[str, Any]:
    """What they cost by being there."""
    found: dict[str, Any] = {"targets": count}
    for name, every in (("without_engine_pages", None), *PAGES.get(count, ())):
        with running(count, EACH_RATE, every) as (seen, ready_s):
            time.sleep(SETTLE_S + count / 500)
            ready_cpu_s = seen.cpu_s()
            seen.page(), seen.page(Form.PROTOBUF)  # the first of each form is the dearest
            text, text_cpu_s = scraped(seen, Form.TEXT)
            proto, proto_cpu_s = scraped(seen, Form.PROTOBUF)
            lines = [line for line in text[-1][0].decode().splitlines() if not line.startswith("#")]
            found[name] = {
                "ready_s": round(ready_s, 2),
                "ready_and_settled_core_s": round(ready_cpu_s, 2),
                "series": len(lines),
                "series_a_target": round(sum('target="' in line for line in lines) / count, 1),
                "rss_mb": round(seen.rss_mb(), 1),
                "text_mb": round(len(text[-1][0]) / MB, 3),
                "text_gzip_mb": round(text[-1][1] / MB, 3),
                "text_scrape_s": round(statistics.median(each[2] for each in text), 3),
                "text_scrape_core_s": round(text_cpu_s, 3),
                "protobuf_mb": round(len(proto[-1][0]) / MB, 3),
                "protobuf_gzip_mb": round(proto[-1][1] / MB, 3),
                "protobuf_scrape_s": round(statistics.median(each[2] for each in proto), 3),
                "protobuf_scrape_core_s": round(proto_cpu_s, 3),
                "core_share": round(seen.spent(SPAN_S), 4),
                "loop_held_at_most_ms": held_ms(seen),
            }
    return found


def busy(rate: float) -> dict[str, Any]:
    """What so many probes a second cost, and whether the latencies of all targets are judged at it."""
    with running(BUSY_TARGETS, f"{rate / BUSY_TARGETS}/s") as (seen, _):
        time.sleep(SETTLE_S)
        good, bad, begun = seen.total(PROBES), seen.total(NEUTRAL), time.monotonic()
        core = seen.spent(SPAN_S)
        span_s = time.monotonic() - begun
        good, bad = seen.total(PROBES) - good, seen.total(NEUTRAL) - bad
        sent_per_s = (good + bad) / span_s
        return {
            "asked_per_s": rate,
            "sent_per_s": round(sent_per_s, 1),
            "invalid_share": round(bad / max(1.0, good + bad), 4),
            "trusted": seen.total("llmslo_trusted") == BUSY_TARGETS,
            "core_share": round(core, 3),
            "core_ms_a_probe": round(core / sent_per_s * 1e3, 2),
            "rss_mb": round(seen.rss_mb(), 1),
            "loop_held_at_most_ms": held_ms(seen),
        }


def full() -> dict[str, Any]:
    """A shard once its past is there: memory, then and at the start, and whether the latencies of all targets are judged."""
    with running(SHARD, f"{DEFAULT_RATE}/s", "30s") as (seen, _):
        time.sleep(SETTLE_S)
        empty_mb, begun, cpu_s = seen.rss_mb(), time.monotonic(), seen.cpu_s()
        while (good := seen.total(PROBES)) + (bad := seen.total(NEUTRAL)) < ENOUGH * SHARD:
            print(
                f"{(good + bad) / SHARD:.0f} of {ENOUGH} probes a target, {seen.rss_mb():.1f} MB",
                file=sys.stderr,
                flush=True,
            )
            time.sleep(20)
        span_s = time.monotonic() - begun
        return {
            "targets": SHARD,
            "sent_per_s": round((good + bad) / span_s, 1),
            "invalid_share": round(bad / (good + bad), 4),
            "trusted": seen.total("llmslo_trusted") == SHARD,
            "core_share": round((seen.cpu_s() - cpu_s) / span_s, 3),
            "empty_mb": round(empty_mb, 1),
            "full_mb": round(seen.rss_mb(), 1),
            "kb_a_target": round((seen.rss_mb() - empty_mb) * 1024 / SHARD),
        }


def share(rate: float, rates: list[dict[str, Any]]) -> float:
    """Of a core, for so many probes a second: on the line through the measured rates (least squares)."""
    line = statistics.linear_regression([each["sent_per_s"] for each in rates], [each["core_share"] for each in rates])
    return line.intercept + line.slope * rate


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--targets", type=int, nargs="*", default=COUNTS)
    parser.add_argument("--rates", type=float, nargs="*", default=RATES)
    parser.add_argument("--full", action="store_true", help="a shard with its past; a quarter of an hour")
    asked = parser.parse_args()
    past = part("full", full()) if asked.full else None
    rates = [part(f"{rate:g}/s", busy(rate)) for rate in asked.rates]
    table = [part(f"{count} targets", idle(count)) for count in asked.targets]
    trusted = max((each["asked_per_s"] for each in rates if each["trusted"]), default=0.0)
    filled = next((rate for rate in range(1_000, 0, -1) if share(rate, rates) <= FULL), 0) if len(rates) > 1 else 0
    carried = {"trusted": trusted, "by_processor": filled}
    goals = []
    if thousand := next((each["without_engine_pages"] for each in table if each["targets"] == 1_000), None):
        goals = [
            goal("resident memory of 1,000 targets", thousand["rss_mb"], 256, "MB"),
            goal("page of 1,000 targets, gzipped text, on the wire", thousand["text_gzip_mb"], 2, "MB"),
            goal("processor time of its scrape", thousand["text_scrape_core_s"], 0.5, "s"),
            goal("a core's share for 1,000 targets that are not probed", thousand["core_share"], 0.05, "cores"),
        ]
    shards = {
        name: {str(count): -(-round(count * DEFAULT_RATE) // int(rate)) for count in COUNTS}
        for name, rate in carried.items()
        if rate
    }
    show(
        "sizing", goals, idle=table, busy=rates, full=past, probes_per_s_and_core=carried, shards_at_default_rate=shards
    )


if __name__ == "__main__":
    main()
