"""GPUs of this machine, read while a command measures an engine on it."""

import asyncio
from collections.abc import Callable, Sequence

from prober.config.hosts import is_loopback
from prober.features.gpu.reader import Reader, open_reader
from prober.measure.gpu_reading import GpuReading, serves
from prober.probing.target import Target

READ_INTERVAL_S = 1.0


async def read_gpus(target: Target, on_reading: Callable[[Sequence[GpuReading]], None]) -> None:
    """Call `on_reading` every second until cancelled, with the GPUs that serve the target.

    Returns at once if the target is not on this machine, or no GPU can be read. `gpus.indices` chooses the GPUs; None: all
    """
    chosen = ("all",) if target.spec.gpus.indices is None else target.spec.gpus.indices
    if not is_loopback(target.endpoint.host.strip("[]")) or not chosen:
        return
    reader: Reader | None = None
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
