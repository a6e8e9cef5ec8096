"""Finds facts about a target before a run, from its server and from this machine, and reads its GPUs during the run."""

import asyncio
import os
import platform
import re
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from prober.config.hosts import is_loopback
from prober.features.engines.context_reader import read_context
from prober.features.gpu.amd import AmdReader
from prober.features.gpu.hardware import read_hardware
from prober.features.gpu.reader import Reader, open_reader
from prober.measure.gpu_reading import GpuReading, serves
from prober.probing.target import Target
from prober.results.facts import Fact

READ_INTERVAL_S = 1.0
SOURCE = "the prober's machine"
DRIVER_TIMEOUT_S = 10.0
_OF_READINGS = {"gpu", "gpu_count", "gpu_memory"}  # facts that the readings of the chosen GPUs state


async def read_facts(target: Target, gpus: Collection[str] | None) -> list[Fact]:
    """Facts about the target, the most trusted source first. Raises nothing: a fact that cannot be read is left out.

    gpus: UUIDs of the target's GPUs, of which the result has readings; if None, this machine's GPUs are used for a loopback URL
    """
    facts = await read_context(target)
    chosen: Collection[int | str] | None = target.spec.gpus.indices if gpus is None else gpus
    if gpus or (gpus is None and chosen != () and (chosen or is_of_this_machine(target.spec.url))):
        try:
            async with asyncio.timeout(DRIVER_TIMEOUT_S):
                hardware = await asyncio.to_thread(read_hardware, chosen)
        except TimeoutError:
            hardware = []  # the driver hangs
        facts += [fact for fact in hardware if gpus is None or fact.name not in _OF_READINGS]
    return facts + read_host(target.spec.url)


async def read_gpus(target: Target, on_reading: Callable[[Sequence[GpuReading]], None]) -> None:
    """Call `on_reading` every second until cancelled, with the GPUs that serve the target.

    Returns at once if the target is not on this machine, or if no GPU can be read. `gpus.indices` chooses the GPUs; None: all
    """
    chosen = ("all",) if target.spec.gpus.indices is None else target.spec.gpus.indices
    if not is_loopback(target.endpoint.host.strip("[]")) or not chosen:
        return
    reader: Reader | AmdReader | None = None
    try:
        reader, _ = await asyncio.to_thread(open_reader)
        while reader is not None:
            devices = await asyncio.to_thread(reader.read)
            if own := [device for device in devices if serves(device, chosen)]:
                on_reading(own)
            await asyncio.sleep(READ_INTERVAL_S)
    finally:
        if reader is not None:
            await asyncio.to_thread(reader.close)


def read_host(url: str) -> list[Fact]:
    """Facts about this machine. Processor and memory of the engine's host are among them only for a loopback URL."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    models = (line.partition(":")[2].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name"))
    cpu = f"{count} × {next(models, platform.machine())}"
    system = f"{platform.system()} {platform.release()}, Python {platform.python_version()}"
    facts = [Fact("prober_host", f"{cpu}, {system}", SOURCE)]
    if is_of_this_machine(url):
        facts.append(Fact("cpu", cpu, SOURCE))
        totals = (re.match(r"MemTotal:\s+(\d+)", line) for line in _lines("/proc/meminfo"))
        facts += [Fact("host_ram", f"{int(total[1]) / 2**20:.0f} GiB", SOURCE) for total in totals if total is not None]
    return facts


def is_of_this_machine(url: str) -> bool:
    """True if the URL names this machine. As a forwarded port looks the same, sources of facts name the prober's machine."""
    return is_loopback(urlsplit(url).hostname or "")


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
