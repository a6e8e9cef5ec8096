"""Readings of accelerators, in one vocabulary for all vendors. A value that a device does not report is None, never 0."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum


class ThrottleReason(StrEnum):
    """Reasons for a clock below the maximum. Idleness is not one, as it slows down no work."""

    POWER_CAP = "power_cap"  # the driver enforces the power limit
    POWER_BRAKE = "power_brake"  # the board or the power supply demands an immediate reduction
    THERMAL = "thermal"  # the driver enforces the target temperature
    THERMAL_HARDWARE = "thermal_hardware"  # the chip protects itself: cooling has failed
    HARDWARE = "hardware"  # the chip halves its clocks or more; reported with the two hardware reasons above, or alone
    SYNC = "sync"  # the device waits for the slowest of a group with a common clock
    CLOCK_SETTING = "clock_setting"  # a lower clock was configured


@dataclass(frozen=True, slots=True)
class GpuReading:
    """A reading of a device or of a partition of a device.

    Ratios are 0 to 1. Counters (`energy_joules`, `*_errors`, `*_bytes`) increase until the driver is reloaded or the device is
    reset; a decrease is a counter reset. `sent` means from the device, `received` to the device.
    """

    index: int  # index of the device on this machine; a partition has the index of its device
    uuid: str
    name: str
    partition: int | None = None  # index of the partition within its device; None for an entire device
    parent: str | None = None  # UUID of the device of a partition
    utilization_ratio: float | None = None  # share of time with any work on the device, even if most of it was idle
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    memory_bandwidth_ratio: float | None = None  # bytes moved ÷ bytes that the memory can move
    sm_occupancy_ratio: float | None = None  # resident threads ÷ maximum resident threads
    tensor_active_ratio: float | None = None  # share of time in which the tensor cores were active
    power_watts: float | None = None
    energy_joules: float | None = None
    temperature_celsius: float | None = None
    sm_clock_hertz: float | None = None
    throttled: frozenset[ThrottleReason] | None = None  # the active reasons; empty if not throttled
    ecc_corrected_errors: int | None = None
    ecc_uncorrected_errors: int | None = None
    xid_errors: int | None = None  # Xid errors that the driver reported since the reader was opened
    pcie_sent_bytes: int | None = None
    pcie_received_bytes: int | None = None
    nvlink_sent_bytes: int | None = None
    nvlink_received_bytes: int | None = None
    # {process id: memory in bytes}, None if the driver does not report it. In a container the driver may hide other processes.
    processes: Mapping[int, int | None] | None = None

    @property
    def device_id(self) -> str:
        """`0` for a device, `0:2` for a partition, as in the vendor's tools."""
        return str(self.index) if self.partition is None else f"{self.index}:{self.partition}"

    @property
    def process_count(self) -> int | None:
        """Number of processes that compute on the device, as far as the driver shows them; None if it does not report them."""
        return None if self.processes is None else len(self.processes)


def serves(device: GpuReading, chosen: tuple[int | str, ...]) -> bool:
    """True if `chosen` (indices, UUIDs, "all") contains the device; a partition is chosen by its UUID or that of its GPU."""
    return "all" in chosen or device.index in chosen or device.uuid in chosen or device.parent in chosen


def without_parts(devices: Sequence[GpuReading]) -> list[GpuReading]:
    """The devices without partitions of a listed device, so that nothing is counted twice."""
    entire = {device.uuid for device in devices if device.partition is None}
    return [device for device in devices if device.parent not in entire]
