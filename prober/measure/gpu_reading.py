"""What an accelerator says of itself: one vocabulary for every vendor. What a device does not tell is None, never 0."""

from dataclasses import dataclass
from enum import StrEnum


class Throttle(StrEnum):
    """Why a device runs slower than it could. Idling is no reason: nothing is slowed."""

    POWER_CAP = "power_cap"  # the driver keeps it below its power limit
    POWER_BRAKE = "power_brake"  # the board or the power supply asked for less, at once
    THERMAL = "thermal"  # the driver keeps it below its target temperature
    THERMAL_HARDWARE = "thermal_hardware"  # the chip protects itself: cooling has failed
    HARDWARE = "hardware"  # the chip halves its clocks or more; on with the two hardware reasons above, or alone
    SYNC = "sync"  # it waits for the slowest of a group that shares a clock
    CLOCK_SETTING = "clock_setting"  # somebody set a lower clock


@dataclass(frozen=True, slots=True)
class Device:
    """One device, or one partition of a device, at one moment.

    Ratios are 0 to 1. Counters (`energy_joules`, `*_errors`, `*_bytes`) only grow until the driver is loaded again or the
    device is reset; a fall is a new start. `sent` is away from the device, `received` towards it.
    """

    index: int  # the device's place on this machine; a partition has its device's
    uuid: str
    name: str
    partition: int | None = None  # the partition's place within its device; None for a whole device
    parent: str | None = None  # of a partition: its device's uuid
    utilization_ratio: float | None = None  # share of time with any work on the device, however little of it was busy
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    memory_bandwidth_ratio: float | None = None  # bytes moved over what the memory can move
    sm_occupancy_ratio: float | None = None  # threads resident over what the processors hold
    tensor_active_ratio: float | None = None  # share of time in which the matrix units worked
    power_watts: float | None = None
    energy_joules: float | None = None
    temperature_celsius: float | None = None
    sm_clock_hertz: float | None = None
    throttled: frozenset[Throttle] | None = None  # the reasons that are active; empty when it runs freely
    ecc_corrected_errors: int | None = None
    ecc_uncorrected_errors: int | None = None
    xid_errors: int | None = None  # faults the driver reported since the reader was opened
    pcie_sent_bytes: int | None = None
    pcie_received_bytes: int | None = None
    nvlink_sent_bytes: int | None = None
    nvlink_received_bytes: int | None = None

    @property
    def place(self) -> str:
        """`0` for a device, `0:2` for a partition, as its vendor's tools write it."""
        return str(self.index) if self.partition is None else f"{self.index}:{self.partition}"
