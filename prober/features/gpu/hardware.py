"""Facts about the GPUs of this machine for the context of a result: names, memory, processes, driver and interconnect.

All functions block, for as long as the driver takes.
"""

import importlib
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from prober.features.gpu.amd import open_amd_reader
from prober.features.gpu.nvml import Library, Lost
from prober.measure.gpu_reading import serves
from prober.results.facts import Fact

SOURCE, AMD_SOURCE = "NVML on the prober's machine", "AMD SMI on the prober's machine"
MAX_LINKS = 18
_NVLINK_ACTIVE = 1


def read_hardware(chosen: Collection[int | str] | None = None) -> list[Fact]:
    """Facts about the GPUs of NVIDIA, else of AMD; empty without GPUs or driver. Their number is stated with `chosen`, or if 1.

    chosen: indices and UUIDs of the GPUs that serve the target; None if not known
    """
    return _of_nvidia(chosen) or _of_amd(chosen)


def _of_amd(chosen: Collection[int | str] | None) -> list[Fact]:
    reader, _ = open_amd_reader()
    if reader is None:
        return []
    devices = [device for device in reader.read() if not chosen or serves(device, tuple(chosen))]
    reader.close()
    sizes = [device.memory_total_bytes for device in devices]
    processes = (_process_text(device.index, device.processes or {}) for device in devices)
    values = {
        "gpu": _joined([device.name for device in devices]),
        "gpu_count": str(len(devices)) if chosen or len(devices) == 1 else None,
        "gpu_memory": _joined([None if size is None else f"{size / 2**30:.0f} GiB" for size in sizes]),
        "gpu_processes": "; ".join(filter(None, processes)),
        "driver": reader.driver,
    }
    return [Fact(name, value, AMD_SOURCE) for name, value in values.items() if value and devices]


def _of_nvidia(chosen: Collection[int | str] | None) -> list[Fact]:
    try:
        nvml = importlib.import_module("pynvml")
        nvml.nvmlInit()
    except ImportError:
        return []
    except nvml.NVMLError:
        return []
    try:
        return _facts(Library(nvml), chosen)
    except (nvml.NVMLError, Lost):
        return []
    finally:
        nvml.nvmlShutdown()


def _facts(library: Library, chosen: Collection[int | str] | None) -> list[Fact]:
    handles = []
    for index in range(library.call("nvmlDeviceGetCount")):
        handle = library.call("nvmlDeviceGetHandleByIndex", index)
        if not chosen or "all" in chosen or index in chosen or library.call("nvmlDeviceGetUUID", handle) in chosen:
            handles.append(handle)
    if not handles:
        return []
    version = library.query({}, "nvmlSystemGetDriverVersion")
    cuda = library.query({}, "nvmlSystemGetCudaDriverVersion_v2")  # the highest supported: the engine's may be lower
    processes = (
        _process_text(library.query({}, "nvmlDeviceGetIndex", handle), library.processes({}, handle) or {})
        for handle in handles
    )
    values = {
        "gpu": _joined([library.call("nvmlDeviceGetName", handle) for handle in handles]),
        "gpu_count": str(len(handles)) if chosen or len(handles) == 1 else None,
        "gpu_memory": _joined([_memory(library, handle) for handle in handles]),
        "interconnect": _joined([_interconnect(library, handle) for handle in handles]),
        "gpu_processes": "; ".join(filter(None, processes)),
        "driver": f"{version}, for CUDA up to {cuda // 1000}.{cuda % 1000 // 10}" if version and cuda else version,
    }
    return [Fact(name, value, SOURCE) for name, value in values.items() if value]


def _memory(library: Library, handle: Any) -> str | None:
    memory = library.query({}, "nvmlDeviceGetMemoryInfo", handle)
    return None if memory is None else f"{memory.total / 2**30:.0f} GiB"


def _process_text(index: int | None, sizes: Mapping[int, int | None]) -> str:
    """The processes that compute on a GPU, largest first, such as `GPU 0: process 4242 (60.1 GiB), process 977`; "" without any."""
    ordered = sorted(sizes.items(), key=lambda item: -(item[1] or 0))
    shown = [f"process {pid}" + (f" ({size / 2**30:.1f} GiB)" if size is not None else "") for pid, size in ordered]
    return f"GPU {'?' if index is None else index}: {', '.join(shown)}" if shown else ""


def _interconnect(library: Library, handle: Any) -> str | None:
    """Text on the active NVLinks and the fastest PCIe link that the GPU supports here, as an idle link runs slower."""
    refused: dict[str, str] = {}
    links = sum(
        library.query(refused, "nvmlDeviceGetNvLinkState", handle, link) == _NVLINK_ACTIVE for link in range(MAX_LINKS)
    )
    generation = library.query(refused, "nvmlDeviceGetMaxPcieLinkGeneration", handle)
    width = library.query(refused, "nvmlDeviceGetMaxPcieLinkWidth", handle)
    parts = [f"{links} NVLinks" if links > 1 else "1 NVLink"] if links else []
    if generation and width:
        parts.append(f"PCIe {generation}.0 x{width}")
    return ", ".join(parts) or None


def _joined(values: Sequence[str | None]) -> str | None:
    """The distinct values, joined to a text; None if one of them is unknown."""
    known = [value for value in values if value is not None]
    return ", ".join(sorted(set(known))) if len(known) == len(values) else None
