"""Reads facts about a target before a run, from its server and this machine, and its GPUs during the run."""

import asyncio
import os
import platform
import re
import socket
import struct
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from fcntl import ioctl
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path
from urllib.parse import urlsplit

from prober.config.hosts import ip_address, is_loopback
from prober.features.engines.context_reader import read_context
from prober.features.gpu.amd import AmdReader
from prober.features.gpu.hardware import read_hardware
from prober.features.gpu.reader import Reader, open_reader
from prober.measure.gpu_reading import GpuReading, serves
from prober.net.connection import Broken, connect
from prober.net.exchange import Exchange
from prober.probing.target import Target
from prober.results.facts import Fact

READ_INTERVAL_S = 1.0
SOURCE = "the prober's machine"
DRIVER_TIMEOUT_S = 10.0
CONNECT_TIMEOUT_S = 2.0
OF_MEMORY = {"Total": "host_ram", "Available": "host_ram_available"}  # kernel's name → fact
SIOCGIFADDR = 0x8915  # ioctl of Linux: IPv4 address of an interface
_OF_READINGS = {"gpu", "gpu_count", "gpu_memory"}  # stated by the readings of the chosen GPUs


async def read_facts(target: Target, gpus: Collection[str] | None) -> list[Fact]:
    """Facts about the target, most trusted source first. Raises nothing: an unreadable fact is left out.

    gpus: UUIDs of the target's GPUs in the result's readings; None: for a loopback URL, this machine's GPUs
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
    facts += [*read_host(target.spec.url), *await read_network(target)]
    weights = next((fact.value for fact in facts if fact.name == "weights"), "")
    if is_of_this_machine(target.spec.url) and (storage := storage_of(Path(weights))):
        facts.append(Fact("storage", storage, SOURCE))
    return facts


async def read_gpus(target: Target, on_reading: Callable[[Sequence[GpuReading]], None]) -> None:
    """Call `on_reading` every second with the GPUs that serve the target, until cancelled.

    Returns immediately if the target is on another machine, or if no GPU can be read. `gpus.indices` chooses the GPUs; None: all
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
    """Facts about this machine; with CPU and memory of the engine's host for a loopback URL."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    models = (line.partition(":")[2].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name"))
    cpu = f"{count} × {next(models, platform.machine())}"
    system = f"{platform.system()} {platform.release()}, Python {platform.python_version()}"
    facts = [Fact("prober_host", f"{cpu}, {system}", SOURCE)]
    if is_of_this_machine(url):
        facts.append(Fact("cpu", cpu, SOURCE))
        memory = (re.match(r"Mem(Total|Available):\s+(\d+)", line) for line in _lines("/proc/meminfo"))
        facts += [
            Fact(OF_MEMORY[row[1]], f"{int(row[2]) / 2**20:.0f} GiB", SOURCE) for row in memory if row is not None
        ]
    return facts


async def read_network(target: Target) -> list[Fact]:
    """Facts about the network path from this machine to the server or proxy; empty if the target was not identified."""
    if target.identity is None:
        return []
    exchange = Exchange(None, target.clock)
    try:
        await connect(target.endpoint, exchange, CONNECT_TIMEOUT_S)
        connection = exchange.connection
        if connection is None or (address := ip_address(connection.local_address)) is None:
            return []
        info = connection.tcp_info()
    except (Broken, OSError):  # or the server ended it immediately
        return []
    finally:
        exchange.abort()
    proxy = " to the proxy" if target.endpoint.proxy else ""
    interface = "loopback" if address.is_loopback else _interface(address)
    facts = [Fact("network", f"IPv{address.version}{f' over {interface}' if interface else ''}{proxy}", SOURCE)]
    if info is not None:
        facts.append(Fact("network_round_trip", f"{info.round_trip_us / 1e3:.3g} ms{proxy}", SOURCE))
    return facts


def storage_of(path: Path) -> str:
    """File system of a path on this machine, with disk and disk model if known; "" if the path is not here."""
    try:
        device = path.stat().st_dev if path.is_absolute() else 0
    except (OSError, ValueError):  # the path has a NUL
        return ""
    name = f"{os.major(device)}:{os.minor(device)}"
    mounts = (line.split() for line in _lines("/proc/self/mountinfo"))
    kind = next((mount[mount.index("-") + 1] for mount in mounts if mount[2] == name), "")
    disk = Path("/sys/dev/block", name).resolve()
    disk = disk if (disk / "queue").exists() else disk.parent  # of a partition
    if not kind or not (disk / "queue").exists():
        return kind
    model = " ".join(_lines(f"{disk}/device/model")).strip()
    return f"{kind} on {disk.name}{f' ({model})' if model else ''}"


def _interface(address: IPv4Address | IPv6Address) -> str:
    """The interface with this address, with its link's speed if it is a device; "" if not found."""
    link = ""
    if address.version == 6:
        rows = (line.split() for line in _lines("/proc/net/if_inet6"))
        link = next((row[5] for row in rows if row[0] == address.packed.hex()), "")
    else:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            for _, name in socket.if_nameindex():
                with suppress(OSError):  # the interface has no address
                    if ioctl(sock, SIOCGIFADDR, struct.pack("256s", name.encode()))[20:24] == address.packed:
                        link = name
    speed = "".join(_lines(f"/sys/class/net/{link}/speed")) if Path(f"/sys/class/net/{link}/device").exists() else ""
    return f"{link} at {int(speed) / 1000:g} Gb/s" if link and speed.isdecimal() else link


def is_of_this_machine(url: str) -> bool:
    """True if the URL names this machine. A forwarded port looks the same, so sources of facts name the prober's machine."""
    return is_loopback(urlsplit(url).hostname or "")


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
