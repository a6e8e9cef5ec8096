"""NVIDIA's driver library (NVML), called through nvidia-ml-py (module `pynvml`, passed in).

Every error means one of three things: value permanently absent, value currently absent, GPU lost. A call that a GPU does not support
or forbids is remembered with its reason and not repeated.

All functions block. ctypes releases the interpreter's lock during each call, so a slow driver delays only the calling thread.
"""

import ctypes
import threading
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

_EVENT_WAIT_MS = 100  # longest call of the thread that waits for faults, so `stop` takes as long

# Return codes, fixed by the library's ABI; numbers, because the library may be missing.
_UNINITIALIZED, _INVALID_ARGUMENT, NO_PERMISSION, _TIMEOUT, _FUNCTION_NOT_FOUND = 1, 2, 4, 10, 13
_REFUSED = {3, NO_PERMISSION, _FUNCTION_NOT_FOUND, 25, 26}  # permanent: not supported, …, version mismatch, deprecated
UNKNOWN = _REFUSED | {
    _INVALID_ARGUMENT
}  # only for a single field or metric; invalid argument: the driver is older than the field
LOST = {_UNINITIALIZED, 15, 16, 28}  # …, GPU is lost, reset required, GPU not found

MAX_LINKS = 18
_NVLINK_ACTIVE = 1
_INTEGERS = {
    1: ("uiVal", 32),
    2: ("ulVal", 64),
    3: ("ullVal", 64),
    4: ("sllVal", 64),
    5: ("siVal", 32),
    6: ("usVal", 16),
}

Field = tuple[int, int]  # field, scope


class Lost(Exception):
    """The GPU or the entire library no longer answers."""


@dataclass(slots=True)
class Card:
    """A GPU, or a partition of one.

    instance: id of the partition's GPU instance, which the hardware counts separately
    refused: {call: reason} of calls that the GPU refuses
    samples: GPM samples, the older one first
    sampled_at: time of the newer sample in seconds; None before the first
    pcie_bytes: bytes sent and received, summed up from GPM's rates since the first sample
    """

    index: int
    uuid: str
    name: str
    handle: Any
    partition: int | None = None
    instance: int = 0
    refused: dict[str, str] = field(default_factory=dict)
    partitioned: bool | None = None
    partitions: dict[str, "Card"] = field(default_factory=dict)
    samples: list[Any] = field(default_factory=list)
    sampled_at: float | None = None
    pcie_bytes: list[float] = field(default_factory=list)


class Library:
    """NVIDIA's driver library. has_stale_handle: a handle was refused, so its GPU may have been lost and found again"""

    def __init__(self, nvml: Any) -> None:
        self.nvml = nvml
        self.has_stale_handle = False

    def call(self, name: str, *arguments: Any) -> Any:
        """Call `name` and return its result. Raises NVMLError."""
        function = getattr(self.nvml, name, None)
        if function is None:  # too old a version of nvidia-ml-py
            raise self.nvml.NVMLError(_FUNCTION_NOT_FOUND)
        return function(*arguments)

    def query(self, refused: dict[str, str], name: str, *arguments: Any) -> Any:
        """Call `name` and return its result; None if the value is absent. Raises Lost."""
        key = " ".join([name, *(str(argument) for argument in arguments if isinstance(argument, int))])
        if key in refused:
            return None
        try:
            return self.call(name, *arguments)
        except self.nvml.NVMLError as error:
            if error.value in LOST:
                raise Lost from error
            if error.value in _REFUSED:
                refused[key] = str(error)
            self.has_stale_handle |= error.value == _INVALID_ARGUMENT
            return None

    def release(self, name: str, *arguments: Any) -> None:
        """Call a function that releases a resource; errors are ignored, because lost GPUs need no release."""
        try:
            self.call(name, *arguments)
        except self.nvml.NVMLError:
            return

    def processes(self, refused: dict[str, str], handle: Any) -> dict[int, int | None] | None:
        """Read {id of a process that computes on the GPU or partition: bytes of memory}; None if the driver does not report them.

        Raises Lost.
        """
        running = self.query(refused, "nvmlDeviceGetComputeRunningProcesses", handle)
        return None if running is None else {process.pid: process.usedGpuMemory for process in running}

    def interconnect(self, handle: Any) -> str | None:
        """Describe the active NVLinks and the fastest PCIe link that the GPU supports here (idle links run slower). Raises Lost."""
        refused: dict[str, str] = {}
        states = (self.query(refused, "nvmlDeviceGetNvLinkState", handle, link) for link in range(MAX_LINKS))
        links = sum(state == _NVLINK_ACTIVE for state in states)
        generation = self.query(refused, "nvmlDeviceGetMaxPcieLinkGeneration", handle)
        width = self.query(refused, "nvmlDeviceGetMaxPcieLinkWidth", handle)
        parts = [f"{links} NVLinks" if links > 1 else "1 NVLink"] if links else []
        parts += [f"PCIe {generation}.0 x{width}"] if generation and width else []
        return ", ".join(parts) or None

    def fields(self, card: Card, fields: Sequence[Field], bits: int = 0) -> dict[Field, int]:
        """Read integer values of the fields in one call. Fields of fewer than `bits` bits are left out. Raises Lost."""
        queried = [counter for counter in fields if _field_name(counter) not in card.refused]
        answers = self.query(card.refused, "nvmlDeviceGetFieldValues", card.handle, queried) if queried else None
        values = {}
        for counter, answer in zip(queried, answers if answers is not None else (), strict=False):
            name, width = _INTEGERS.get(answer.valueType, ("", 0))
            if answer.nvmlReturn in LOST:
                raise Lost
            if answer.nvmlReturn in UNKNOWN:
                card.refused[_field_name(counter)] = f"return code {answer.nvmlReturn}"
            elif answer.nvmlReturn == 0 and width < bits:
                card.refused[_field_name(counter)] = f"narrower than {bits} bits"
            elif answer.nvmlReturn == 0 and name:
                values[counter] = int(getattr(answer.value, name))
        return values


class Faults:
    """A thread that waits in the driver for faults and counts them by GPU. Call `stop` if the list of GPUs changes.

    cards: address of the handle → UUID, for each watched GPU
    """

    def __init__(self, library: Library, cards: Collection[Card], totals: dict[str, int]) -> None:
        self._library, self._totals = library, totals
        self._stop = threading.Event()
        self._uuids: dict[int | None, str] = {}
        self.cards = {address(card.handle): card.uuid for card in cards}
        self._thread: threading.Thread | None = None
        nvml = library.nvml
        try:
            self._set = library.call("nvmlEventSetCreate")
        except nvml.NVMLError:
            return
        for card in cards:
            try:
                library.call("nvmlDeviceRegisterEvents", card.handle, nvml.nvmlEventTypeXidCriticalError, self._set)
            except nvml.NVMLError as error:
                card.refused["nvmlDeviceRegisterEvents"] = str(error)
                continue
            self._uuids[address(card.handle)] = card.uuid
            totals.setdefault(card.uuid, 0)
        if self._uuids:
            self._thread = threading.Thread(target=self._run, name="gpu-faults", daemon=True)
            self._thread.start()
        else:
            library.release("nvmlEventSetFree", self._set)

    @property
    def ended(self) -> bool:
        """True if the driver ended the wait, as it does when a GPU is lost."""
        return bool(self._uuids) and self._thread is not None and not self._thread.is_alive()

    def watches(self, uuid: str) -> bool:
        return uuid in self._uuids.values()

    def stop(self) -> None:
        """Wait for the thread to end. A thread that hangs in the driver is abandoned with its event set."""
        self._stop.set()
        if self._thread is None:
            return
        self._thread.join(2.0)
        if not self._thread.is_alive():
            self._library.release("nvmlEventSetFree", self._set)
        self._thread = None

    def _run(self) -> None:
        nvml = self._library.nvml
        while not self._stop.is_set():
            try:
                event = nvml.nvmlEventSetWait_v2(self._set, _EVENT_WAIT_MS)
            except nvml.NVMLError as error:
                if error.value == _TIMEOUT:
                    continue
                if error.value in _REFUSED:
                    self._uuids = {}  # the driver cannot report faults: report no zeros, and do not retry
                return
            uuid = self._uuids.get(address(event.device))
            if uuid is not None and event.eventType & nvml.nvmlEventTypeXidCriticalError:
                self._totals[uuid] += 1


def address(handle: Any) -> int | None:
    """Address to which a handle points in the driver, the handle's identity; None for a null pointer."""
    return ctypes.cast(handle, ctypes.c_void_p).value


def _field_name(field: Field) -> str:
    return f"field {field[0]} scope {field[1]}"
