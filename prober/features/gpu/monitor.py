"""This machine's GPUs, read in one thread of their own and shown with the targets that they serve."""

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor

from prober.daemon.fleet import Fleet
from prober.features.gpu.reader import Reader, open_reader
from prober.measure.gpu_reading import Device

EVERY_S = 5.0
STALE_S = 3 * EVERY_S
log = logging.getLogger(__name__)


class Gpus:
    """Reads for all targets together; a machine without GPUs or driver costs one line of the log."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._thread = ThreadPoolExecutor(1, "gpus")
        self._said: set[str] = set()

    async def run(self) -> None:
        """Until cancelled, or until it is known that there are none."""
        loop = asyncio.get_running_loop()
        reader: Reader | None = None
        try:
            reader, said = await loop.run_in_executor(self._thread, open_reader)
            log.info("%s", said)
            while reader is not None:
                reading = loop.run_in_executor(self._thread, reader.read)
                if not (await asyncio.wait([reading], timeout=STALE_S))[0]:
                    self.show([], reader.driver)  # nothing old as now's, while the driver is stuck
                    self._say(f"GPUs: the driver has not answered for {STALE_S:g} s")
                self.show(await reading, reader.driver)
                self._tell(reader)
                await asyncio.sleep(EVERY_S)
        finally:
            if reader is not None:
                self._thread.submit(reader.close)
            self._thread.shutdown(wait=False)

    def show(self, devices: list[Device], driver: str) -> None:
        """Into the series of the targets they serve."""
        lines = self._fleet.lines.values()
        for line in lines:
            # A sidecar sees its pod's GPUs; a prober of many targets has to be told whose this machine's are.
            chosen = line.target.spec.gpus.chosen
            if chosen is None:
                chosen = ("all",) if len(lines) == 1 else ()
            for one in chosen:
                if devices and not any(serves(device, (one,)) for device in devices):
                    self._say(f"target={line.name} gpus.indices: there is no GPU {one!r} here")
            line.gpus([device for device in devices if serves(device, chosen)], driver)

    def _tell(self, reader: Reader) -> None:
        """Once: why nothing can be read, and what is not there because a GPU does not have it."""
        if reader.trouble:
            self._say(f"GPUs cannot be read: {reader.trouble}")
        for uuid, refused in reader.refused.items():
            if refused:
                self._say(f"{uuid} does not answer, so these are absent: {', '.join(sorted(refused))}")

    def _say(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            log.info("%s", text)


def serves(device: Device, chosen: tuple[int | str, ...]) -> bool:
    """`chosen`: indices and UUIDs, or "all"; a partition is chosen with its GPU or by its own UUID."""
    return "all" in chosen or device.index in chosen or device.uuid in chosen or device.parent in chosen
