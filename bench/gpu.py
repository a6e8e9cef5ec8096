"""The reader of GPUs on a real NVIDIA GPU: its values beside known work, nvidia-smi and the hardware's data sheet.

Needs one idle GPU that nobody else uses, nvidia-smi, and a Python with PyTorch and CuPy, which runs this program; not among those that
`python -m bench` runs. The work is done by a process of this program and known from its own counts: bytes copied, floating-point
operations, memory allocated, bytes from the host. Settings of the GPU are not changed.
"""

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from statistics import fmean, median
from typing import Any

from bench.report import goal, part, percentile, show
from bench.stage import stage
from prober.features.gpu.hardware import read_hardware
from prober.features.gpu.reader import Reader, open_reader
from prober.measure.bandwidth_bound import UnknownFigure, memory_bandwidth
from prober.measure.gpu_reading import GpuReading

WORK_S, SETTLE_S, INTERVAL_S = 6.0, 2.0, 1.0
ALLOCATED_BYTES = 8 << 30
SMI = "utilization.gpu,memory.used,memory.total,power.draw.instant,temperature.gpu,clocks.sm,uuid,name,driver_version"
DAEMON = "targets: [{name: mock, url: '{mock}', gpus: {indices: [0]}}]\n"
GPU_SERIES = ("utilization_ratio", "memory_used_bytes", "memory_bandwidth_ratio", "tensor_active_ratio", "power_watts")

# Each waits for a line, works for WORK_S, and prints what it did and for how long.
WORKERS = {
    "idle": "begin()\ntime.sleep(SECONDS)",
    "copy": """
a, b = (torch.empty(1 << 30, dtype=torch.uint8, device="cuda").random_() for _ in range(2))
begin()
while running():
    for _ in range(20): b.copy_(a)
    synchronize(); amount += 20 * 2 * a.numel()
""",
    "copy half of the time": """
a, b = (torch.empty(1 << 30, dtype=torch.uint8, device="cuda").random_() for _ in range(2))
begin()
while running():
    started = time.monotonic()
    for _ in range(20): b.copy_(a)
    synchronize(); amount += 20 * 2 * a.numel()
    time.sleep(time.monotonic() - started)
""",
    "matrix product": """
a, b = (torch.randn(8192, 8192, dtype=torch.bfloat16, device="cuda") for _ in range(2))
a @ b
begin()
while running():
    for _ in range(20): a @ b
    synchronize(); amount += 20 * 2 * 8192**3
""",
    "from the host": """
a = torch.empty(1 << 28, dtype=torch.uint8).random_().pin_memory(); b = torch.empty_like(a, device="cuda")
begin()
while running():
    for _ in range(4): b.copy_(a, non_blocking=True)
    synchronize(); amount += 4 * a.numel()
""",
    "allocation": f"""
a = torch.ones({ALLOCATED_BYTES}, dtype=torch.uint8, device="cuda")
begin()
while running(): time.sleep(0.1)
""",
}
WORKER = """
import sys, time, torch
SECONDS = {seconds}; amount = 0; started_at = ended_at = 0.0
synchronize = torch.cuda.synchronize
torch.zeros(1, device="cuda"); synchronize()
def begin():
    global started_at
    synchronize(); print("ready", flush=True); sys.stdin.readline(); started_at = time.monotonic()
def running(): return time.monotonic() - started_at < SECONDS
{work}
synchronize(); print(amount, time.monotonic() - started_at, flush=True); sys.stdin.readline()
"""
FAULT = """
import cupy
cupy.RawKernel('extern "C" __global__ void stray() { *(volatile int *)4096 = 1; }', "stray")((1,), (1,), ())
cupy.cuda.Device().synchronize()
"""


def smi() -> dict[str, Any]:
    """The first GPU as nvidia-smi shows it now."""
    command = ["nvidia-smi", f"--query-gpu={SMI}", "--format=csv,noheader,nounits", "--id=0"]
    fields = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip().split(", ")
    values = dict(zip(SMI.split(","), fields, strict=True))
    return {name: float(text) if text.replace(".", "", 1).isdigit() else text for name, text in values.items()}


def compute_processes() -> dict[int, int]:
    """Memory in MiB by the id of each process that computes on the first GPU, as nvidia-smi shows it now."""
    command = ["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits", "--id=0"]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    return {int(pid): int(size) for pid, size in (line.split(", ") for line in lines)}


def processes_that_differ(reader: Reader) -> float:
    """Number of processes of which our reader and nvidia-smi disagree, with one, two and none computing."""
    differing = 0
    with contextlib.ExitStack() as running:
        for name in ("allocation", "idle"):
            begin(running.enter_context(work(name)))
            ours = {pid: (size or 0) >> 20 for pid, size in (reader.read()[0].processes or {}).items()}
            differing += len(ours.items() ^ compute_processes().items())
    return float(differing + len(reader.read()[0].processes or {}))


@contextlib.contextmanager
def work(name: str) -> Iterator["subprocess.Popen[str]"]:
    """A process that has prepared the work and waits for a line to begin it."""
    program = WORKER.format(seconds=SETTLE_S + 2 * WORK_S, work=WORKERS[name])
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", program], stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None
        if process.stdout.readline() != "ready\n":
            sys.exit(f"could not start the work {name!r}")
        yield process
        process.communicate("\n")  # let it end


def begin(process: "subprocess.Popen[str]") -> None:
    """Let the process begin its work."""
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def during(reader: Reader, name: str) -> dict[str, Any]:
    """Readings of our reader and of nvidia-smi while the work runs at its full rate, and what the work did."""
    with work(name) as process:
        begin(process)
        time.sleep(SETTLE_S)
        reader.read()
        readings: list[tuple[float, GpuReading]] = []
        others: list[dict[str, Any]] = []
        while len(readings) < WORK_S / INTERVAL_S:
            time.sleep(INTERVAL_S)
            readings.append((time.monotonic(), reader.read()[0]))
            others.append(smi())
        assert process.stdout is not None
        amount, seconds = map(float, process.stdout.readline().split())
    return {"readings": readings, "smi": others, "per_s": amount / seconds}


def mean(run: dict[str, Any], name: str) -> float:
    """The mean of a gauge over the readings; NaN if a reading lacks it."""
    values = [getattr(reading, name) for _, reading in run["readings"]]
    return float("nan") if None in values else fmean(values)


def rate(run: dict[str, Any], name: str) -> float:
    """The increase of a counter a second, from the first reading to the last; NaN if one lacks it."""
    (first_at, first), (last_at, last) = run["readings"][0], run["readings"][-1]
    values = getattr(first, name), getattr(last, name)
    return float("nan") if None in values else float(values[1] - values[0]) / (last_at - first_at)


def by_smi(run: dict[str, Any], name: str) -> float:
    return float(fmean(reading[name] for reading in run["smi"]))


def difference(value: float, truth: float) -> float:
    """Relative, in per cent; infinite if the value is not known."""
    return abs(value / truth - 1) * 100 if value == value else float("inf")


def fault_seen(reader: Reader) -> bool:
    """Whether an illegal write of a process, which the driver reports as an Xid error, is counted within three seconds."""
    before = reader.read()[0].xid_errors
    ended = subprocess.run([sys.executable, "-c", FAULT], capture_output=True, text=True, check=False)
    if ended.returncode == 0 or "illegal" not in ended.stderr.lower():
        sys.exit(f"the illegal write did not fail as one: {ended.stderr[-500:]}")
    time.sleep(3)
    after = reader.read()[0].xid_errors
    return before is not None and after is not None and after > before


def daemon_shows() -> dict[str, float]:
    """GPU series on the page of a running daemon while a copy runs."""
    with stage(DAEMON) as running, work("copy") as process:
        time.sleep(4)
        begin(process)
        time.sleep(WORK_S + SETTLE_S)
        lines = running.get("/metrics").decode().splitlines()
    values = (line.rsplit(" ", 1) for line in lines if line.startswith("llmslo_gpu_"))
    return {name.replace("llmslo_gpu_", ""): float(value) for name, value in values}


def timed(reader: Reader) -> dict[str, list[float]]:
    """Seconds of each call from now on, by its name."""
    took: dict[str, list[float]] = {}
    call = reader._library.call

    def measured(name: str, *arguments: Any) -> Any:
        began = time.perf_counter()
        try:
            return call(name, *arguments)
        finally:
            took.setdefault(name, []).append(time.perf_counter() - began)

    reader._library.call = measured  # type: ignore[method-assign]
    return took


def costs(took: dict[str, list[float]], reads: Sequence[float]) -> dict[str, Any]:
    """Milliseconds of each kind of call and of a whole read."""
    calls = {
        name: {
            "calls": len(seconds),
            "mean_ms": round(1e3 * sum(seconds) / len(seconds), 3),
            "worst_ms": round(1e3 * max(seconds), 2),
        }
        for name, seconds in took.items()
    }
    return {
        "read_p50_ms": round(1e3 * median(reads), 2),
        "read_p99_ms": round(1e3 * percentile(reads, 0.99), 2),
        "calls": calls,
    }


def main() -> None:
    """Print the result."""
    reader, message = open_reader()
    if not isinstance(reader, Reader):
        sys.exit(f"{message}: this program needs an NVIDIA GPU")
    took = timed(reader)
    runs = {name: part(name, during(reader, name)) for name in WORKERS}
    spans = []
    for _ in range(100):
        started = time.perf_counter()
        reader.read()
        spans.append(time.perf_counter() - started)
        time.sleep(0.02)
    differing = processes_that_differ(reader)
    has_fault = fault_seen(reader)
    shown = daemon_shows()
    peak_bytes = float("nan")
    with contextlib.suppress(UnknownFigure):
        peak_bytes = memory_bandwidth(runs["idle"]["readings"][-1][1].name)
    idle, copy, half, product, host, allocation = (runs[name] for name in WORKERS)
    allocated = mean(allocation, "memory_used_bytes") - mean(idle, "memory_used_bytes")
    goals = [
        goal(
            f"memory bandwidth while copying {label}, from the bytes copied",
            100 * abs(mean(run, "memory_bandwidth_ratio") - run["per_s"] / peak_bytes),
            5,
            "points",
        )
        for label, run in (("always", copy), ("half of the time", half))
    ]
    goals += [
        goal("memory bandwidth while idle", 100 * mean(idle, "memory_bandwidth_ratio"), 1, "%"),
        goal(
            "tensor cores while idle and while copying",
            100 * max(mean(idle, "tensor_active_ratio"), mean(copy, "tensor_active_ratio")),
            1,
            "%",
        ),
        goal("utilization while idle", 100 * mean(idle, "utilization_ratio"), 1, "%"),
        goal("missing utilization while computing", 100 - 100 * mean(product, "utilization_ratio"), 2, "%"),
        goal("memory in use, from the bytes allocated", abs(allocated - ALLOCATED_BYTES) / 2**20, 64, "MiB"),
        goal(
            "bytes from the host, from those copied",  # headers of PCIe packets, which the driver counts, add some 7%
            difference(rate(host, "pcie_received_bytes"), host["per_s"]),
            10,
            "%",
        ),
        goal(
            "energy's increase, from nvidia-smi's power",
            difference(rate(product, "energy_joules"), by_smi(product, "power.draw.instant")),
            8,
            "%",
        ),
        goal(
            "power, from nvidia-smi's",
            difference(mean(product, "power_watts"), by_smi(product, "power.draw.instant")),
            8,
            "%",
        ),
        goal(
            "SM clock, from nvidia-smi's",
            difference(mean(product, "sm_clock_hertz"), by_smi(product, "clocks.sm") * 1e6),
            5,
            "%",
        ),
        goal(
            "temperature, from nvidia-smi's",
            abs(mean(product, "temperature_celsius") - by_smi(product, "temperature.gpu")),
            3,
            "°C",
        ),
        goal(
            "memory in use, from nvidia-smi's",
            abs(mean(allocation, "memory_used_bytes") / 2**20 - by_smi(allocation, "memory.used")),
            16,
            "MiB",
        ),
        goal("processes on the GPU that differ from nvidia-smi's", differing, 0, "processes"),
        goal("an Xid error that was not counted", 0 if has_fault else 1, 0, "errors"),
        goal(
            "series that the daemon does not show",
            sum(not any(key.startswith(name) for key in shown) for name in GPU_SERIES),
            0,
            "series",
        ),
        goal("one read, p99", 1e3 * percentile(spans, 0.99), 50, "ms"),
    ]
    show(
        "gpu",
        goals,
        driver=message,
        hardware=[asdict(fact) for fact in read_hardware()],
        peak_bytes_per_s=str(peak_bytes),
        costs=costs(took, spans),
        refused=reader.refused,
        daemon=shown,
        runs={
            name: {
                "work_per_s": run["per_s"],
                "readings": [
                    asdict(reading) | {"throttled": sorted(reading.throttled or ())} for _, reading in run["readings"]
                ],
                "nvidia_smi": run["smi"],
            }
            for name, run in runs.items()
        },
    )
    reader.close()


if __name__ == "__main__":
    main()
