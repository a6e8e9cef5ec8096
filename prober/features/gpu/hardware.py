"""Facts about the GPUs of this machine for a result: names, memory, processes, driver and interconnect.

All functions block while the driver answers.
"""

from collections.abc import Collection, Mapping, Sequence

from prober.features.gpu.amd import AmdReader
from prober.features.gpu.nvml import Lost
from prober.features.gpu.reader import Reader, open_reader
from prober.measure.gpu_reading import serves
from prober.results.facts import Fact

SOURCE, AMD_SOURCE = "NVML on the prober's machine", "AMD SMI on the prober's machine"


def read_hardware(chosen: Collection[int | str] | None = None) -> list[Fact]:
    """Facts about NVIDIA's GPUs, or else AMD's; empty without GPUs or driver, and if a GPU does not answer.

    chosen: indices and UUIDs of the GPUs that serve the target; None if unknown. The number of GPUs is a fact if known, or if it is 1
    """
    reader, _ = open_reader()
    if reader is None:
        return []
    try:
        return _facts(reader, chosen)
    except Lost:
        return []
    finally:
        reader.close()


def _facts(reader: Reader | AmdReader, chosen: Collection[int | str] | None) -> list[Fact]:
    entire = [device for device in reader.read() if device.partition is None]
    devices = [device for device in entire if not chosen or serves(device, tuple(chosen))]
    nvidia = reader if isinstance(reader, Reader) else None
    if not devices or (nvidia and not nvidia.is_complete):
        return []
    sizes = [device.memory_total_bytes for device in devices]
    processes = (_process_text(device.index, device.processes or {}) for device in devices)
    cuda = nvidia.cuda() if nvidia else ""
    values = {
        "gpu": _joined([device.name for device in devices]),
        "gpu_count": str(len(devices)) if chosen or len(devices) == 1 else None,
        "gpu_memory": _joined([None if size is None else f"{size / 2**30:.0f} GiB" for size in sizes]),
        "interconnect": _joined([nvidia.interconnect(device.uuid) for device in devices]) if nvidia else None,
        "gpu_processes": "; ".join(filter(None, processes)),
        "driver": f"{reader.driver}, for CUDA up to {cuda}" if reader.driver and cuda else reader.driver,
    }
    source = SOURCE if nvidia else AMD_SOURCE
    return [Fact(name, value, source) for name, value in values.items() if value]


def _process_text(index: int, sizes: Mapping[int, int | None]) -> str:
    """Describe the processes that compute on a GPU, largest first: `GPU 0: process 4242 (60.1 GiB), process 977`; "" for none."""
    ordered = sorted(sizes.items(), key=lambda item: -(item[1] or 0))
    shown = [f"process {pid}" + (f" ({size / 2**30:.1f} GiB)" if size is not None else "") for pid, size in ordered]
    return f"GPU {index}: {', '.join(shown)}" if shown else ""


def _joined(values: Sequence[str | None]) -> str | None:
    """Join the distinct values to a text; None if one is unknown."""
    texts = [value for value in values if value is not None]
    return ", ".join(sorted(set(texts))) if len(texts) == len(values) else None
