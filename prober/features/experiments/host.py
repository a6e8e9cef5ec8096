"""Facts about the machine that the prober runs on, and which of them are facts about the engine's."""

import os
import platform
from pathlib import Path
from urllib.parse import urlsplit

from prober.config.hosts import is_loopback
from prober.results.facts import Fact

SOURCE = "the prober's machine"


def read_host(url: str) -> list[Fact]:
    """Facts for the context of a result; processor and memory of the engine's host only for a loopback URL."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    lines = _lines("/proc/cpuinfo")
    model = next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine()
    )
    cpu = f"{count} × {model}"
    facts = [
        Fact(
            "prober_host",
            f"{cpu}, {platform.system()} {platform.release()}, Python {platform.python_version()}",
            SOURCE,
        )
    ]
    if is_of_this_machine(url):
        facts.append(Fact("cpu", cpu, SOURCE))
        if memory := _memory():
            facts.append(Fact("host_ram", memory, SOURCE))
    return facts


def is_of_this_machine(url: str) -> bool:
    """Whether the URL names this machine. A forwarded port looks the same, so sources name the prober's machine."""
    return is_loopback(urlsplit(url).hostname or "")


def _memory() -> str | None:
    """Total memory of the machine."""
    line = next((line for line in _lines("/proc/meminfo") if line.startswith("MemTotal:")), "")
    kib = line.split()[1:2]
    return f"{int(kib[0]) / 2**20:.0f} GiB" if kib and kib[0].isdecimal() else None


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
