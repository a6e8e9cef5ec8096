"""Reads the GPUs of this machine in one thread, and exports them as series of the targets that they serve."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

from prober.exposition.families import AnySeries, Registry
from prober.features.gpu import series
from prober.features.gpu.amd import AmdReader
from prober.features.gpu.reader import Reader, open_reader
from prober.measure.gpu_reading import GpuReading, ThrottleReason, serves
from prober.probing.feature import Monitor
from prober.probing.observer import ObservedTarget, TargetObserver
from prober.probing.target_runner import TargetRunner

READ_INTERVAL_S = 5.0
STALE_S = 3 * READ_INTERVAL_S
_VALUES: tuple[tuple[AnySeries, str] | tuple[AnySeries, str, str], ...] = (
    (series.GPU_UTILIZATION, "utilization_ratio"),
    (series.GPU_MEMORY_USED, "memory_used_bytes"),
    (series.GPU_MEMORY_TOTAL, "memory_total_bytes"),
    (series.GPU_PROCESSES, "process_count"),
    (series.GPU_BANDWIDTH, "memory_bandwidth_ratio"),
    (series.GPU_OCCUPANCY, "sm_occupancy_ratio"),
    (series.GPU_TENSOR, "tensor_active_ratio"),
    (series.GPU_POWER, "power_watts"),
    (series.GPU_ENERGY, "energy_joules"),
    (series.GPU_TEMPERATURE, "temperature_celsius"),
    (series.GPU_CLOCK, "sm_clock_hertz"),
    (series.GPU_XID, "xid_errors"),
    (series.GPU_ECC, "ecc_corrected_errors", "corrected"),
    (series.GPU_ECC, "ecc_uncorrected_errors", "uncorrected"),
    (series.GPU_PCIE, "pcie_sent_bytes", "sent"),
    (series.GPU_PCIE, "pcie_received_bytes", "received"),
    (series.GPU_NVLINK, "nvlink_sent_bytes", "sent"),
    (series.GPU_NVLINK, "nvlink_received_bytes", "received"),
)
log = logging.getLogger(__name__)


class GpuMonitor(Monitor):
    """Reads the GPUs for all targets. On a machine without GPUs or driver it only logs one line."""

    task = "gpus"

    def __init__(self, registry: Registry, targets: Callable[[], Iterable[TargetRunner]]) -> None:
        self._registry, self._targets = registry, targets
        self._logged: set[str] = set()

    def observe(self, observed: ObservedTarget) -> "TargetGpus":
        """Create the series of the GPUs that serve one target."""
        return TargetGpus(self._registry, observed)

    async def run(self) -> None:
        """Read until cancelled; return immediately if there are no GPUs."""
        loop, thread = asyncio.get_running_loop(), ThreadPoolExecutor(1, "gpus")
        reader: Reader | AmdReader | None = None
        try:
            reader, message = await loop.run_in_executor(thread, open_reader)
            log.info("%s", message)
            while reader is not None:
                reading = loop.run_in_executor(thread, reader.read)
                if not (await asyncio.wait([reading], timeout=STALE_S))[0]:
                    self.show([], reader.driver)  # remove values that the hanging driver no longer updates
                    self._log_once(f"GPUs: the driver has not answered for {STALE_S:g} s")
                self.show(await reading, reader.driver)
                if reader.trouble:
                    self._log_once(f"GPUs cannot be read: {reader.trouble}")
                for uuid, refused in reader.refused.items():
                    if refused:
                        self._log_once(f"{uuid} does not answer, so these are absent: {', '.join(sorted(refused))}")
                await asyncio.sleep(READ_INTERVAL_S)
        finally:
            if reader is not None:
                thread.submit(reader.close)
            thread.shutdown(wait=False)

    def show(self, devices: list[GpuReading], driver: str) -> None:
        """Pass the readings to the targets that the GPUs serve."""
        targets = list(self._targets())
        for target in targets:
            # A sidecar sees only the GPUs of its pod; a prober of many targets needs the configuration to map GPUs to targets.
            chosen = target.spec.gpus.indices
            if chosen is None:
                chosen = ("all",) if len(targets) == 1 else ()
            for choice in chosen:
                if devices and not any(serves(device, (choice,)) for device in devices):
                    self._log_once(f"target={target.name} gpus.indices: there is no GPU {choice!r} here")
            target.gpus_read([device for device in devices if serves(device, chosen)], driver)

    def _log_once(self, text: str) -> None:
        if text not in self._logged:
            self._logged.add(text)
            log.info("%s", text)


class TargetGpus(TargetObserver):
    """Series of the GPUs that serve one target. A value that a GPU does not support has no series."""

    def __init__(self, registry: Registry, observed: ObservedTarget) -> None:
        self._registry, self._name = registry, observed.name
        gpus = observed.spec.gpus
        registry.show(series.GPU_PRICE, gpus.price_per_hour, self._name)
        registry.show(series.GPUS, gpus.count, self._name)

    def gpus_read(self, devices: Sequence[GpuReading], driver: str) -> None:
        current: dict[str, set[tuple[str, ...]]] = {}

        def show(declared: AnySeries, value: float | None, device: GpuReading, *extra: str) -> None:
            if value is not None:
                labels = (self._name, device.device_id, *extra)
                self._registry.show(declared, value, *labels)
                current.setdefault(declared.name, set()).add(labels)

        for device in devices:
            show(series.GPU_INFO, 1.0, device, device.uuid, device.name)
            for declared, field, *extra in _VALUES:
                show(declared, getattr(device, field), device, *extra)
            for reason in ThrottleReason if device.throttled is not None else ():
                show(series.GPU_THROTTLE, float(reason in (device.throttled or ())), device, reason.value)
        for declared in dict.fromkeys((series.GPU_INFO, series.GPU_THROTTLE, *(declared for declared, *_ in _VALUES))):
            self._registry.keep(declared, current.get(declared.name, ()), self._name)
