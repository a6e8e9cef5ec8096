"""This machine's GPUs, read in one thread of their own and shown with the targets that they serve."""

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor

from prober.daemon.fleet import Fleet
from prober.edge.gpu import Reader, open_reader
from prober.measure.devices import Device

EVERY_S = 5.0
log = logging.getLogger(__name__)


class Gpus:
    """Reads for all targets together; a machine without GPUs or driver costs one line of the log."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._thread = ThreadPoolExecutor(1, "gpus")
        self._reader: Reader | None = None

    async def run(self) -> None:
        """Until cancelled, or until it is known that there are none."""
        loop = asyncio.get_running_loop()
        try:
            self._reader, said = await loop.run_in_executor(self._thread, open_reader)
            log.info("%s", said)
            while self._reader is not None:
                self.show(await loop.run_in_executor(self._thread, self._reader.read), self._reader.driver)
                await asyncio.sleep(EVERY_S)
        finally:
            if self._reader is not None:
                self._thread.submit(self._reader.close)
            self._thread.shutdown(wait=False)

    def show(self, devices: list[Device], driver: str) -> None:
        """Into the series of the targets they serve."""
        lines = self._fleet.lines.values()
        for line in lines:
            # A sidecar sees its pod's GPUs; a prober of many targets has to be told whose this machine's are.
            chosen = line.target.spec.gpus if line.target.spec.gpus is not None else ("all",) if len(lines) == 1 else ()
            line.gpus([device for device in devices if serves(device, chosen)], driver)


def serves(device: Device, chosen: tuple[int | str, ...]) -> bool:
    """`chosen`: indices and UUIDs, or "all"; a partition is chosen with its GPU or by its own UUID."""
    return "all" in chosen or device.index in chosen or device.uuid in chosen or device.parent in chosen
