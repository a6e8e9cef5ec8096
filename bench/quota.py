"""What is measured where processor time is scarce? Daemons in cgroups with a CPU limit, or a small weight on a taken node.

The server (`bench/independent/stream_server.c`) streams 64 tokens, the first 50 ms after the kernel has the request. Counted is, of
all due times of the daemon, the share whose TTFT is decided: an event of an SLO of 500 ms. The error of a TTFT is its distance from
the server's own, kernel stamp of the request's arrival to the write of the first token, which lasts from one clock reading to another.

Parts, chosen by `--only`: `limits` (none, 200m, 100m, 50m, by probe rate and number of targets, each daemon scraped every 15 s),
`weights` (the daemon's cgroup beside one with the server and two spinning processes, with the shares that Kubernetes gives to
requests), `stopped` (SIGSTOP for 0.3 of each second: a target with slow steps beside a healthy one), `sweeps` (`prober sweep` in the
small cgroup, and beside others of its own weight; `--sweeps` says how many). Needs root and a cgroup hierarchy (v1 or v2) with the
controller `cpu`; each part prints its own line as soon as it has ended, and the last line has all goals.
"""

import argparse
import contextlib
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.accuracy import TTFT_MS, Written, process, serving, spin, spread, truth_of
from bench.report import goal, part, percentile, show
from bench.stage import free_port

ROOT = Path("/sys/fs/cgroup")
PERIOD_US = 100_000  # the kernel's default, which Kubernetes uses
LIMIT_S, WEIGHT_S, STOPPED_S = 240.0, 120.0, 120.0
SCRAPE_TIMEOUT_S = 10.0  # Prometheus's default
CORES = os.cpu_count() or 1


class Cgroup:
    """A cgroup of its own, of v1 or v2. limit: CPU limit in cores; shares: of cgroup v1, as Kubernetes computes them of a request"""

    def __init__(self, name: str, limit: float | None = None, shares: int | None = None) -> None:
        v1 = (ROOT / "cpu/cpu.shares").exists() or (ROOT / "cpu").is_dir()
        self.folder = (ROOT / "cpu" if v1 else ROOT) / f"prober-bench-{os.getpid()}-{name}"
        if not v1:
            (ROOT / "cgroup.subtree_control").write_text("+cpu")
        self.folder.mkdir()
        if limit is not None:
            quota = round(limit * PERIOD_US)
            file, text = ("cpu.cfs_quota_us", f"{quota}") if v1 else ("cpu.max", f"{quota} {PERIOD_US}")
            (self.folder / file).write_text(text)
        if shares is not None:  # the conversion of v1 to v2 is that of Kubernetes (KEP-2254)
            weight = 1 + (shares - 2) * 9999 // 262142
            file, text = ("cpu.shares", f"{shares}") if v1 else ("cpu.weight", f"{weight}")
            (self.folder / file).write_text(text)

    def enter(self) -> None:
        """Move the calling process into it."""
        (self.folder / "cgroup.procs").write_text(str(os.getpid()))

    def __enter__(self) -> "Cgroup":
        return self

    def __exit__(self, *problem: object) -> None:
        for _ in range(100):  # its last process may not be gone yet
            with contextlib.suppress(OSError):
                self.folder.rmdir()
                return
            time.sleep(0.05)


@dataclass(slots=True)
class Daemon:
    """A running daemon. ready_s: seconds from its start until it was ready; start_cpu_s: processor time of that"""

    url: str
    process: "subprocess.Popen[bytes]"
    ready_s: float = 0.0
    start_cpu_s: float = 0.0

    def get(self, path: str, timeout_s: float = 60) -> str:
        with urllib.request.urlopen(self.url + path, timeout=timeout_s) as answer:
            return str(answer.read().decode())

    def cpu_s(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def config(targets: dict[str, int], rate: float, tokens: int = 64) -> str:
    """Configuration of a daemon. targets: port by name"""
    lines = [
        f"defaults: {{rate: {rate}/s, max_in_flight: 1000, warmup: 0}}",
        "slos: {ttft: {signal: ttft, threshold: 500ms, objective: 99%}}",
        f"workloads: {{fixed: {{prompt_tokens: 64, output_tokens: {tokens}}}}}",
        "targets:",
    ]
    same = "model: m, engine: vllm, metrics: {url: none}, probes: [{workload: fixed}]"
    lines += [f'  - {{name: {name}, url: "http://127.0.0.1:{port}", {same}}}' for name, port in targets.items()]
    return "\n".join(lines) + "\n"


@contextmanager
def daemon(folder: Path, name: str, text: str, group: Cgroup | None = None) -> Iterator[Daemon]:
    """A daemon in a cgroup, until the context ends."""
    port = free_port()
    file = folder / f"{name}.yaml"
    file.write_text(text)
    command = [sys.executable, "-m", "prober", "run", "--config.file", str(file), "--history.limit", "100000"]
    command += ["--web.listen-address", f"127.0.0.1:{port}"]
    with (folder / f"{name}.log").open("wb") as out:
        begun_s = time.monotonic()
        running = subprocess.Popen(command, stdout=out, stderr=out, preexec_fn=group.enter if group else None)
        it = Daemon(f"http://127.0.0.1:{port}", running)
        try:
            while True:
                with contextlib.suppress(OSError):
                    it.get("/-/ready", 5)
                    break
                if time.monotonic() - begun_s > 120 or running.poll() is not None:
                    raise RuntimeError(
                        f"the daemon {name} is not ready: {(folder / f'{name}.log').read_text()[-2000:]}"
                    )
                time.sleep(0.02)
            it.ready_s, it.start_cpu_s = time.monotonic() - begun_s, it.cpu_s()
            yield it
        finally:
            running.send_signal(signal.SIGCONT)
            running.send_signal(signal.SIGTERM)
            try:
                running.wait(60)
            except subprocess.TimeoutExpired:
                running.kill()
                running.wait()


def total(page: str, series: str, **labels: str) -> float:
    """Sum of a series' values on a metrics page, of those lines that have the labels."""
    found = re.findall(rf"^{series}\{{([^}}]*)\}} (\S+)", page, re.MULTILINE)
    return sum(
        float(value) for text, value in found if all(f'{key}="{value_}"' in text for key, value_ in labels.items())
    )


def due_times(page: str, **labels: str) -> float:
    """How many probes were due."""
    return total(page, "llmslo_probes_total", **labels) + total(page, "llmslo_probes_neutral_total", **labels)


def decided(page: str, **labels: str) -> float:
    """Share of the due times that ended in an event of the SLO."""
    due = due_times(page, **labels)
    return total(page, "llmslo_slo_events_total", slo="ttft", **labels) / due if due else 0.0


def errors_ms(probes: Sequence[dict[str, Any]], truth: dict[str, Written]) -> list[float]:
    """Milliseconds by which TTFTs lie outside the time that the server's write of the first token took; 0 within."""
    found = []
    for probe in probes:
        written = truth.get(probe["request_id"])
        if probe["ttft_s"] is not None and written is not None and written.writes:
            earliest, latest = ((at - written.received_ns) / 1e6 for at in written.writes[0])
            found.append(max(earliest - probe["ttft_s"] * 1e3, probe["ttft_s"] * 1e3 - latest, 0.0))
    return found


def seen(it: Daemon, **labels: str) -> dict[str, Any]:
    """What one daemon measured of targets with these labels, without the errors."""
    begun_s = time.monotonic()
    page = it.get("/metrics", 120)
    metrics_s = time.monotonic() - begun_s
    series = ("llmslo_probe_failures_total", "llmslo_probes_neutral_total")
    reasons = {
        reason: count
        for name in series
        for reason in re.findall(rf'^{name}\{{.*reason="(\w+)"', page, re.MULTILINE)
        if (count := total(page, name, reason=reason, **labels))
    }
    trust = [float(value) for value in re.findall(r"^llmslo_trusted\{[^}]*\} (\S+)", page, re.MULTILINE)]
    return {
        "due": due_times(page, **labels),
        "decided_ratio": round(decided(page, **labels), 4),
        "untimed": total(page, "llmslo_probes_untimed_total", **labels),
        "untrusted": trust.count(0.0),
        "not_ok": reasons,
        "metrics_s": round(metrics_s, 3),
        "ready_s": round(it.ready_s, 2),
        "start_cpu_s": round(it.start_cpu_s, 2),
        "cpu_s": round(it.cpu_s(), 2),
    }


def probes_of(it: Daemon) -> list[dict[str, Any]]:
    """The probes that it remembers."""
    found: list[dict[str, Any]] = json.loads(it.get("/api/v1/probes?limit=100000", 120))["data"]
    return found


@dataclass
class Scrapes:
    """What Prometheus would see of a daemon that it scrapes every 15 s. took_s: seconds of each scrape, TimeoutError counts 10"""

    it: Daemon
    took_s: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        request = urllib.request.Request(self.it.url + "/metrics", headers={"Accept-Encoding": "gzip"})
        while not self._ended.wait(15):
            begun_s = time.monotonic()
            with contextlib.suppress(OSError), urllib.request.urlopen(request, timeout=SCRAPE_TIMEOUT_S) as answer:
                answer.read()
            self.took_s.append(min(time.monotonic() - begun_s, SCRAPE_TIMEOUT_S))

    def __enter__(self) -> "Scrapes":
        self._thread.start()
        return self

    def __exit__(self, *problem: object) -> None:
        self._ended.set()
        self._thread.join()


@dataclass(frozen=True)
class Probing:
    """Targets of one daemon, and the requests per second to each."""

    targets: int
    rate: float

    def __str__(self) -> str:
        return f"{self.rate}/s" if self.targets == 1 else f"{self.targets} targets of {self.rate}/s"


# Daemons of one row run side by side; with a hundred targets only one does.
LIMITS = (None, 0.2, 0.1, 0.05)
SIDE_BY_SIDE = (
    ((Probing(1, 0.2), Probing(1, 0.5), Probing(1, 1.0), Probing(1, 2.0)), LIMITS, LIMIT_S),
    ((Probing(10, 0.2),), LIMITS, LIMIT_S / 2),
    *(((Probing(100, 0.2),), (limit,), LIMIT_S / 4) for limit in LIMITS),
)


def limits() -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Daemons by their CPU limits and by what they probe."""
    raw: dict[str, Any] = {}
    for probings, of_row, seconds in SIDE_BY_SIDE:
        raw |= part(f"{', '.join(map(str, probings))}; {len(of_row)} limits", _limited(probings, of_row, seconds))
    goals = []
    for name, row in raw.items():
        goals.append(goal(f"{name}: share of due times without a decided event", 1 - row["decided_ratio"], 0.02, ""))
        goals.append(goal(f"{name}: TTFT error p99", row["ttft_error_ms"].get("p99", 99.0), 0.1, "ms"))
        goals.append(goal(f"{name}: targets without trust", row["untrusted"], 0, ""))
        goals.append(goal(f"{name}: seconds of the slowest scrape", row["scrape_s"]["max"], SCRAPE_TIMEOUT_S / 2, "s"))
    ready_s = max(row["ready_s"] for name, row in raw.items() if name.startswith("100m, ") and "targets" not in name)
    goals.append(goal("100m: seconds until ready", ready_s, 10, "s"))
    goals.append(goal("processor time of the start", raw["no limit, 0.5/s"]["start_cpu_s"], 0.8, "s"))
    return raw, goals


def _limited(probings: Sequence[Probing], of_row: Sequence[float | None], seconds: float) -> dict[str, Any]:
    """What daemons measure in so many seconds, each kind of probing under each limit, all at once."""
    raw: dict[str, Any] = {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="prober-bench-")))
        probes: dict[str, list[dict[str, Any]]] = {}
        with serving(folder, 10, None) as port, ExitStack() as daemons:
            running: dict[str, tuple[Daemon, Scrapes, float]] = {}
            for limit in of_row:
                for probing in probings:
                    name = f"{'no limit' if limit is None else f'{round(limit * 1000)}m'}, {probing}"
                    word = re.sub(r"[^\w.]+", "-", name)
                    group = None if limit is None else stack.enter_context(Cgroup(word, limit))
                    text = config({f"t{number}": port for number in range(probing.targets)}, probing.rate)
                    it = daemons.enter_context(daemon(folder, word, text, group))
                    running[name] = it, daemons.enter_context(Scrapes(it)), it.cpu_s()
            begun_s = time.monotonic()
            time.sleep(seconds)
            for name, (it, scrapes, before_s) in running.items():
                used = (it.cpu_s() - before_s) / (time.monotonic() - begun_s)
                raw[name] = seen(it) | {
                    "core_ratio": round(used, 4),
                    "scrape_s": {
                        "p50": round(statistics.median(scrapes.took_s), 3),
                        "max": round(max(scrapes.took_s), 3),
                    },
                }
                probes[name] = probes_of(it)
        truth = truth_of(folder)
        for name, of_daemon in probes.items():
            errors = errors_ms(of_daemon, truth)
            raw[name] |= {"ttft_error_ms": spread(errors), "compared": len(errors)}
    return raw


@contextmanager
def taken_node(shares: int, engine_shares: int) -> Iterator[tuple[Path, Cgroup, int]]:
    """(folder, cgroup of the prober, port of the server) on a node whose processors are all taken by the engine's cgroup."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="prober-bench-")))
        engine = stack.enter_context(Cgroup("engine", shares=engine_shares))
        small = stack.enter_context(Cgroup("prober", shares=shares))
        before = set(_children())
        port = stack.enter_context(serving(folder, 10, None))
        for pid in set(_children()) - before:  # the server
            (engine.folder / "cgroup.procs").write_text(pid)
        for _ in range(CORES):
            stack.enter_context(process(_beside, spin, str(engine.folder)))
        time.sleep(1.0)
        yield folder, small, port


def _children() -> list[str]:
    return Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()


def weights() -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A daemon with the weight of a small request on a taken node."""
    raw: dict[str, Any] = {}
    goals = []
    for shares, engine_shares, rate, least in ((102, 1945, 1, 0.995), (20, 2027, 1, 0.9), (102, 8192, 5, 0.8)):
        name = f"{shares} : {engine_shares}, {rate}/s"
        with taken_node(shares, engine_shares) as (folder, group, port):
            with daemon(folder, "weights", config({"t": port}, rate)) as it:
                # Not at its start, which takes minutes of so small a share: see the part `limits`.
                (group.folder / "cgroup.procs").write_text(str(it.process.pid))
                time.sleep(WEIGHT_S)
                raw[name] = seen(it)
                probes = probes_of(it)
            time.sleep(0.5)
        raw[name]["probes"] = len(probes)
        print(json.dumps({name: raw[name]}), file=sys.stderr, flush=True)
        goals.append(
            goal(
                f"{name}: share of due times without a decided event",
                1 - raw[name]["decided_ratio"],
                round(1 - least, 4),
                "",
            )
        )
        goals.append(goal(f"{name}: seconds of /metrics", raw[name]["metrics_s"], 2, "s"))
    return raw, goals


def stopped() -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A daemon that is stopped for 0.3 of each second, with a target of slow steps and a healthy one."""
    ended = threading.Event()
    with ExitStack() as stack:
        folders = [Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="prober-bench-"))) for _ in range(2)]
        healthy = stack.enter_context(serving(folders[0], 10, None))
        slow = stack.enter_context(serving(folders[1], 60, None))
        with daemon(folders[0], "stopped", config({"healthy": healthy, "slow": slow}, 1.0)) as it:

            def rhythm() -> None:
                while not ended.wait(0.7):
                    it.process.send_signal(signal.SIGSTOP)
                    time.sleep(0.3)
                    it.process.send_signal(signal.SIGCONT)

            stopping = threading.Thread(target=rhythm, daemon=True)
            stopping.start()
            time.sleep(STOPPED_S)
            ended.set()
            stopping.join()
            time.sleep(5)
            raw = {name: seen(it, target=name) for name in ("healthy", "slow")}
    goals = [
        goal(f"stopped, {name}: share of due times without a decided event", 1 - row["decided_ratio"], 0.1, "")
        for name, row in raw.items()
    ]
    return raw, goals


def _spin_briefly() -> None:
    """Use half of a core, a millisecond at a time."""
    while True:
        end_s = time.monotonic() + 0.001
        while time.monotonic() < end_s:
            pass
        time.sleep(0.001)


@dataclass(frozen=True)
class Crowd:
    """Who shares the processors with sweeps.

    shares: of the prober's cgroup; 0: it has none
    others: what runs beside, in the engine's cgroup if the prober has one
    """

    shares: int
    others: Sequence[Callable[[], None]]


CROWDS = {
    "quiet": Crowd(0, ()),
    "a taken node": Crowd(102, (spin,) * CORES),
    "six spinning processes": Crowd(0, (spin,) * 6),
    "six short loops": Crowd(0, (_spin_briefly,) * 6),
}
ENGINES = {"eight slots": ("--slots", "8"), "simulated": ("--engine", "simulated")}


def sweeps(count: int = 20) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Default sweeps: on a quiet node, with the weight of a small request on a taken one, and beside others of equal weight."""
    raw: dict[str, Any] = {}
    goals = []
    for engine, options in ENGINES.items():
        truth = 0.0
        for name, crowd in CROWDS.items():
            rows = part(f"{engine}, {name}", _sweeps_of(options, crowd, count if crowd.others else max(1, count // 4)))
            raw[f"{engine}, {name}"] = rows
            figures = [row["estimate"] for row in rows if row["estimate"]]
            if not crowd.others:
                truth = statistics.median(figures) if figures else 0.0
                continue
            goals.append(goal(f"{engine}, {name}: share without a figure", 1 - len(figures) / len(rows), 0.1, ""))
            if figures and truth:
                off = percentile([abs(figure / truth - 1) for figure in figures], 0.5)
                goals.append(goal(f"{engine}, {name}: median distance from the quiet figure", off, 0.1, ""))
    return raw, goals


def _sweeps_of(options: Sequence[str], crowd: Crowd, count: int) -> list[dict[str, Any]]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="prober-bench-")))
        small = stack.enter_context(Cgroup("prober", shares=crowd.shares)) if crowd.shares else None
        large = stack.enter_context(Cgroup("engine", shares=1945)) if crowd.shares else None
        port = free_port()
        mock = [sys.executable, "-m", "prober", "mock", "--port", str(port), *options]
        out = stack.enter_context((folder / "mock.log").open("wb"))
        server = subprocess.Popen(mock, stdout=out, stderr=out, preexec_fn=large.enter if large else None)
        stack.callback(server.wait)
        stack.callback(server.terminate)
        time.sleep(3)
        for other in crowd.others:
            stack.enter_context(process(_beside, other, str(large.folder) if large else ""))
        return [_sweep(folder, port, small) for _ in range(count)]


def _beside(work: Callable[[], None], folder: str) -> None:
    if folder:
        (Path(folder) / "cgroup.procs").write_text(str(os.getpid()))
    work()


def _sweep(folder: Path, port: int, group: Cgroup | None) -> dict[str, Any]:
    result = folder / "sweep.json"
    result.unlink(missing_ok=True)
    command = [sys.executable, "-m", "prober", "sweep", f"http://127.0.0.1:{port}", "--output", str(result)]
    begun_s = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, preexec_fn=group.enter if group else None)
    if done.returncode == 2:
        sys.exit(f"{' '.join(command)}: {done.stderr}")
    capacities = (
        json.loads(result.read_text())["llm_slo_prober"]["result"].get("capacities", []) if result.exists() else []
    )
    return {
        "estimate": min((row["estimate"] or row["lower"] for row in capacities), default=None),
        "seconds": round(time.monotonic() - begun_s, 1),
        "exit": done.returncode,
        "words": done.stdout.strip()[-300:],
    }


PARTS: dict[str, Callable[[], tuple[dict[str, Any], list[dict[str, Any]]]]] = {
    "limits": limits,
    "weights": weights,
    "stopped": stopped,
    "sweeps": sweeps,
}


def main() -> None:
    """Measure the chosen parts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=PARTS, action="append")
    parser.add_argument("--sweeps", type=int, default=20, help="sweeps of an engine beside each crowd")
    arguments = parser.parse_args()
    chosen = arguments.only or list(PARTS)
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package has its bytecode
    raw: dict[str, Any] = {"answer": f"{TTFT_MS} ms to the first token"}
    goals: list[dict[str, Any]] = []
    for name in chosen:
        of_name, of_part = sweeps(arguments.sweeps) if name == "sweeps" else PARTS[name]()
        raw[name] = of_name
        goals += of_part
        print(json.dumps({"part": name, "goals": of_part, "raw": of_name}), file=sys.stderr, flush=True)
    show("quota", goals, **raw)


if __name__ == "__main__":
    main()
