"""Reads NVIDIA's GPUs through NVML and nvidia-ml-py (module `pynvml`, imported only when a reader is opened).

All functions block: call `open_reader`, `Reader.read` and `Reader.close` in one dedicated thread. `nvml` makes the
calls and classifies their errors.

Calls for each GPU in a read, and their mean costs on an H200 with driver 580 (measured by `bench.gpu`):

    call                                                  cost          when
    GetHandleByIndex, GetUUID, GetName                    6 ms          opening and re-listing only: handles are kept
    GetUtilizationRates, GetMemoryInfo, GetPowerUsage,    0.01 to       each read
      GetTemperatureV, GetClockInfo, GetMigMode,          0.4 ms
      GetCurrentClocksEventReasons, GetTotalEccErrors
    GetComputeRunningProcesses                            not measured  each read
    GetTotalEnergyConsumption                             4, to 17 ms   each read
    GetFieldValues: PCIe and NVLink byte counters         0.2 ms        each read, one call for each bus
    GpmSampleGet, GpmMetricsGet                           2, to 11 ms   each read, Hopper and later
    GetPcieThroughput                                     20 ms each    never
    Init, Shutdown                                        to seconds    opening; every 60 s while a GPU is lost

A call that a GPU does not support or forbids is made once, and again only after the GPU was lost or its partitioning changed.
"""

import importlib
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from prober.features.gpu.amd import AmdReader, open_amd_reader
from prober.features.gpu.nvml import LOST, NO_PERMISSION, UNKNOWN, Card, Faults, Library, Lost, address
from prober.measure.gpu_reading import GpuReading, ThrottleReason

REOPEN_INTERVAL_S = 60.0  # a lost GPU needs a restart of the library, which can take seconds

_THROTTLES = {
    0x002: ThrottleReason.CLOCK_SETTING,
    0x004: ThrottleReason.POWER_CAP,
    0x008: ThrottleReason.HARDWARE,
    0x010: ThrottleReason.SYNC,
    0x020: ThrottleReason.THERMAL,
    0x040: ThrottleReason.THERMAL_HARDWARE,
    0x080: ThrottleReason.POWER_BRAKE,
    0x100: ThrottleReason.CLOCK_SETTING,  # set by a display
}
_GRAPHICS, _OCCUPANCY, _TENSOR, _DRAM, _PCIE_SENT, _PCIE_RECEIVED = 1, 3, 5, 10, 20, 21  # GPM metrics
_METRICS = dict.fromkeys((_GRAPHICS, _OCCUPANCY, _TENSOR, _DRAM), 0.01)  # from per cent to a ratio
_METRICS |= dict.fromkeys((_PCIE_SENT, _PCIE_RECEIVED), 2.0**20)  # from MiB/s to bytes/s
_PCIE = ((197, 0), (198, 0))  # bytes sent, received
_ALL_LINKS = 0xFFFFFFFF  # scope: sum over all links
_LINK_COUNT = (91, 0)
_LINK_COUNTERS = (  # sent, received, bytes of one count
    ((138, _ALL_LINKS), (139, _ALL_LINKS), 1024),
    ((202, _ALL_LINKS), (204, _ALL_LINKS), 1),  # NVLink 5
)
_LINKS = (_LINK_COUNT, *(counter for *pair, _ in _LINK_COUNTERS for counter in pair))


class Reader:
    """The NVIDIA GPUs of this machine. While one does not answer, the library is reopened every REOPEN_INTERVAL_S.

    trouble: why the last read failed for all GPUs, or ""; is_complete: every GPU of the machine answered the last read
    """

    def __init__(self, nvml: Any, now: Callable[[], float]) -> None:
        self._library, self._now = Library(nvml), now
        self._is_open, self._opened_at = True, now()
        self._xids: dict[str, int] = {}
        self._faults: Faults | None = None
        self._request: Any = None
        self.trouble = ""
        self._list()

    @property
    def refused(self) -> dict[str, dict[str, str]]:
        """Calls that NVML refuses: {UUID of the GPU or partition: {call: reason}}."""
        return {part.uuid: dict(part.refused) for card in self._cards for part in _parts(card)}

    def read(self) -> list[GpuReading]:
        """Read every GPU and partition; those that do not answer are left out. Errors of GPUs and driver are not raised."""
        devices: list[GpuReading] = []
        try:
            self._ready()
        except (Lost, self._library.nvml.NVMLError) as error:
            self.is_complete, self.trouble = False, str(error) or str(error.__cause__)
            return devices
        answering = []
        for card in self._cards:
            try:
                devices += self._read(card)
                answering.append(card)
            except Lost:
                self._free(card)
        self.is_complete = self._all_listed and answering == self._cards and not self._library.has_stale_handle
        self._answering, self._library.has_stale_handle = answering, False
        return devices

    def close(self) -> None:
        """End the thread and release all resources. Later reads return nothing."""
        self._shut()
        self._opened_at = math.inf

    def cuda(self) -> str:
        """Highest CUDA version that the driver supports, which the engine need not use; "" if unknown. Raises Lost."""
        version = self._library.query({}, "nvmlSystemGetCudaDriverVersion_v2")
        return f"{version // 1000}.{version % 1000 // 10}" if version else ""

    def interconnect(self, uuid: str) -> str | None:
        """Describe the links of a GPU that was read. Raises Lost."""
        return next(self._library.interconnect(card.handle) for card in self._cards if card.uuid == uuid)

    # --- list of the GPUs

    def _ready(self) -> None:
        """Reopen the library if the number of GPUs changed, or if a GPU does not answer and REOPEN_INTERVAL_S have passed."""
        is_due = self._now() - self._opened_at >= REOPEN_INTERVAL_S
        if self._is_open and (self.is_complete or not is_due):
            is_due = self._library.call("nvmlDeviceGetCount") != self._count
        if is_due:
            self._shut()
            self._opened_at = self._now()
            self._library.call("nvmlInit")
            self._is_open = True
            self._list()
        if self._is_open:
            self._watch()
            self.trouble = ""

    def _list(self) -> None:
        self.driver: str = self._library.query({}, "nvmlSystemGetDriverVersion") or ""
        self._count: int = self._library.call("nvmlDeviceGetCount")
        self._cards: list[Card] = []
        self._all_listed = True
        for index in range(self._count):
            try:
                handle = self._library.call("nvmlDeviceGetHandleByIndex", index)
                uuid = self._library.call("nvmlDeviceGetUUID", handle)
                self._cards.append(Card(index, uuid, self._library.call("nvmlDeviceGetName", handle), handle))
            except self._library.nvml.NVMLError as error:
                self._all_listed &= error.value == NO_PERMISSION  # such a GPU belongs to another container
        self.is_complete, self._answering = self._all_listed, list(self._cards)

    def _watch(self) -> None:
        """Watch the GPUs that answered the last read for faults; a watch of the same GPUs continues."""
        uuids = {address(card.handle): card.uuid for card in self._answering}
        if self._faults is not None:
            if not self._faults.ended and self._faults.cards == uuids:
                return
            self._faults.stop()
        self._faults = Faults(self._library, self._answering, self._xids)

    def _free(self, card: Card) -> None:
        for part in _parts(card):
            for sample in part.samples:
                self._library.release("nvmlGpmSampleFree", sample)
            part.samples, part.sampled_at = [], None

    def _shut(self) -> None:
        """Release all resources, if the library is open."""
        if not self._is_open:
            return
        if self._faults is not None:
            self._faults.stop()
        for card in self._cards:
            self._free(card)
        self._library.release("nvmlShutdown")
        self._is_open, self._faults, self._cards = False, None, []

    # --- readings of a GPU

    def _read(self, card: Card) -> list[GpuReading]:
        mode = self._library.query(card.refused, "nvmlDeviceGetMigMode", card.handle)
        partitioned = mode is not None and mode[0] == 1
        if card.partitioned is not None and partitioned != card.partitioned:
            card.refused.clear()  # entire and partitioned GPUs support different calls
            self._free(card)
        card.partitioned = partitioned
        partitions = (
            replace(self._part(partition, card), partition=partition.partition, parent=card.uuid)
            for partition in self._partitions(card)
        )
        return [self._device(card), *partitions]

    def _partitions(self, card: Card) -> list[Card]:
        """List the partitions of a GPU. Done at each read, because partitions come and go at run time, with their handles."""
        partitions = {}
        slots = (
            self._library.query(card.refused, "nvmlDeviceGetMaxMigDeviceCount", card.handle) if card.partitioned else 0
        )
        for number in range(slots or 0):
            try:
                handle = self._library.call("nvmlDeviceGetMigDeviceHandleByIndex", card.handle, number)
                uuid = self._library.call("nvmlDeviceGetUUID", handle)
                partition = card.partitions.pop(uuid, None)
                if partition is None:
                    name = self._library.call("nvmlDeviceGetName", handle)
                    partition = Card(card.index, uuid, name, handle)
                partition.instance = self._library.call("nvmlDeviceGetGpuInstanceId", handle)
            except self._library.nvml.NVMLError as error:
                if error.value in LOST:
                    raise Lost from error
                continue  # an empty slot, or a partition destroyed meanwhile
            partition.handle, partition.partition = handle, number
            partitions[uuid] = partition
        for removed in card.partitions.values():
            self._free(removed)
        card.partitions = partitions
        return list(partitions.values())

    def _part(self, card: Card, parent: Card) -> GpuReading:
        """What a GPU and a partition have in common."""
        used, total = self._memory(card)  # before GPM: driver 535 is said to confuse the two
        metrics = self._profile(card, parent)
        return GpuReading(
            index=card.index,
            uuid=card.uuid,
            name=card.name,
            utilization_ratio=metrics.get(_GRAPHICS),
            memory_used_bytes=used,
            memory_total_bytes=total,
            memory_bandwidth_ratio=metrics.get(_DRAM),
            sm_occupancy_ratio=metrics.get(_OCCUPANCY),
            tensor_active_ratio=metrics.get(_TENSOR),
            processes=self._library.processes(card.refused, card.handle),
        )

    def _device(self, card: Card) -> GpuReading:
        part = self._part(card, card)
        link_sent, link_received = self._nvlink(card)
        sent, received = self._pcie(card)
        watched = self._faults is not None and self._faults.watches(card.uuid)
        clock = self._query(card, "nvmlDeviceGetClockInfo", 1)  # MHz of the SMs
        rates = self._query(card, "nvmlDeviceGetUtilizationRates")  # absent if the GPU is partitioned; GPM has it
        celsius = self._query_either(card, "nvmlDeviceGetTemperatureV", "nvmlDeviceGetTemperature", 0)
        throttles = self._query_either(
            card, "nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"
        )
        return replace(
            part,
            utilization_ratio=part.utilization_ratio if rates is None else rates.gpu / 100,
            power_watts=_thousandths(self._query(card, "nvmlDeviceGetPowerUsage")),
            energy_joules=_thousandths(self._query(card, "nvmlDeviceGetTotalEnergyConsumption")),
            temperature_celsius=None if celsius is None else float(celsius),
            sm_clock_hertz=None if clock is None else clock * 1e6,
            throttled=None
            if throttles is None
            else frozenset(reason for bit, reason in _THROTTLES.items() if throttles & bit),
            ecc_corrected_errors=self._query(card, "nvmlDeviceGetTotalEccErrors", 0, 0),  # since the driver was loaded
            ecc_uncorrected_errors=self._query(card, "nvmlDeviceGetTotalEccErrors", 1, 0),
            xid_errors=self._xids.get(card.uuid) if watched else None,
            pcie_sent_bytes=sent,
            pcie_received_bytes=received,
            nvlink_sent_bytes=link_sent,
            nvlink_received_bytes=link_received,
        )

    def _query(self, card: Card, name: str, *arguments: int) -> Any:
        return self._library.query(card.refused, name, card.handle, *arguments)

    def _query_either(self, card: Card, name: str, old_name: str, *arguments: int) -> Any:
        """Make the call `name`, or on older drivers `old_name`, which CUDA 14 removes."""
        value = self._query(card, name, *arguments)
        return self._query(card, old_name, *arguments) if value is None else value

    def _memory(self, card: Card) -> tuple[int | None, int | None]:
        """(used bytes, total bytes). Memory reserved by the driver is counted only by the call of older drivers."""
        memory = self._query(card, "nvmlDeviceGetMemoryInfo", self._library.nvml.nvmlMemory_v2)
        if memory is None:
            memory = self._query(card, "nvmlDeviceGetMemoryInfo")
        return (None, None) if memory is None else (memory.used, memory.total)

    def _pcie(self, card: Card) -> tuple[int | None, int | None]:
        """(bytes sent, bytes received), with packet headers.

        On a busy bus, 32-bit counters (driver 580 on an H200) wrap ten times a second; then GPM's rates are summed instead.
        """
        values = self._library.fields(card, _PCIE, bits=64)
        if not values and card.pcie_bytes:
            return int(card.pcie_bytes[0]), int(card.pcie_bytes[1])
        return values.get(_PCIE[0]), values.get(_PCIE[1])

    def _nvlink(self, card: Card) -> tuple[int | None, int | None]:
        """(bytes sent, bytes received) over all links; None without links."""
        values = self._library.fields(card, _LINKS)
        for sent, received, unit in _LINK_COUNTERS if values.get(_LINK_COUNT) else ():
            if sent in values and received in values:
                return values[sent] * unit, values[received] * unit
        return None, None

    def _countable(self, card: Card, parent: Card) -> bool:
        """True if the hardware supports GPM counters (Hopper and later). Allocates the card's two samples if so."""
        support = self._library.query(card.refused, "nvmlGpmQueryDeviceSupport", parent.handle)
        if support is None:
            return False
        if not support.isSupportedDevice:
            card.refused["nvmlGpmQueryDeviceSupport"] = "needs Hopper or later"
            return False
        samples = [self._library.query(card.refused, "nvmlGpmSampleAlloc") for _ in range(2)]
        card.samples = [sample for sample in samples if sample is not None]
        if len(card.samples) < 2:
            self._free(card)
        return bool(card.samples)

    def _profile(self, card: Card, parent: Card) -> dict[int, float]:
        """Read GPM metrics (ratios, bytes/s) as means since the last read; empty at the first read."""
        library, nvml = self._library, self._library.nvml
        if not card.samples and not self._countable(card, parent):
            return {}
        older, newer = card.samples
        if card.partition is None:
            taken = library.query(card.refused, "nvmlGpmSampleGet", card.handle, newer)
        else:
            taken = library.query(card.refused, "nvmlGpmMigSampleGet", parent.handle, card.instance, newer)
        before, card.sampled_at = card.sampled_at, None if taken is None else self._now()
        if taken is None:
            return {}
        card.samples.reverse()
        metrics = [metric for metric in _METRICS if f"metric {metric}" not in card.refused]
        if before is None or card.sampled_at is None or not metrics:
            return {}
        if self._request is None:
            self._request = nvml.c_nvmlGpmMetricsGet_t()  # 20 kB, reused
        request = self._request
        request.version, request.numMetrics = nvml.NVML_GPM_METRICS_GET_VERSION, len(metrics)
        request.sample1, request.sample2 = older, newer
        for place, metric in enumerate(metrics):
            request.metrics[place].metricId = metric
        if library.query(card.refused, "nvmlGpmMetricsGet", request) is None:
            return {}
        values = _values(card, [request.metrics[place] for place in range(len(metrics))])
        if _PCIE_SENT in values and _PCIE_RECEIVED in values:
            seconds, counted = card.sampled_at - before, card.pcie_bytes or [0.0, 0.0]
            rates = values[_PCIE_SENT], values[_PCIE_RECEIVED]
            card.pcie_bytes = [total + rate * seconds for total, rate in zip(counted, rates, strict=True)]
        return values


def open_reader(now: Callable[[], float] = time.monotonic) -> tuple[Reader | AmdReader | None, str]:
    """Open the visible GPUs of NVIDIA, or else of AMD: (reader, line for the log). The reader is None if there are no GPUs.

    now: clock in seconds, which times REOPEN_INTERVAL_S
    """
    nvidia, message = _open_nvidia_reader(now)
    if nvidia is not None:
        return nvidia, message
    amd, of_amd = open_amd_reader()
    return amd, of_amd if amd is not None else "; ".join(filter(None, (message, of_amd)))


def _open_nvidia_reader(now: Callable[[], float]) -> tuple[Reader | None, str]:
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError:
        return None, "no GPU series: nvidia-ml-py is not installed"
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return None, f"no GPU series: {error}"
    try:
        count = nvml.nvmlDeviceGetCount()
        if count:
            reader = Reader(nvml, now)
            return reader, f"{count} GPU{'s' if count > 1 else ''}, driver {reader.driver or 'of unknown version'}"
        why = "the driver shows none"
    except (nvml.NVMLError, Lost) as error:
        why = str(error) or str(error.__cause__)
    nvml.nvmlShutdown()
    return None, f"no GPU series: {why}"


def _parts(card: Card) -> tuple[Card, ...]:
    return (card, *card.partitions.values())


def _thousandths(value: Any) -> float | None:
    return None if value is None else value / 1000


def _values(card: Card, metrics: Sequence[Any]) -> dict[int, float]:
    values = {}
    for metric in metrics:
        if metric.nvmlReturn in UNKNOWN:
            card.refused[f"metric {metric.metricId}"] = f"return code {metric.nvmlReturn}"
        elif metric.nvmlReturn == 0 and math.isfinite(metric.value):
            values[metric.metricId] = metric.value * _METRICS[metric.metricId]
    return values
