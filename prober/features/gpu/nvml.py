"""NVIDIA's driver library (NVML) as a GPU's reader needs it, through nvidia-ml-py (module `pynvml`, passed in).

Every call is timed, and every error is sorted into absent for good, absent now, and lost. A call that a GPU does not support,
or that it forbids, is remembered by who asked, with its reason, and not made again.

Everything here blocks. ctypes lets go of the interpreter's lock during each call, so a slow driver delays its own thread only.
"""

import ctypes
import threading
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

_WAIT_MS = 100  # how long the thread that waits for faults sleeps in the driver at a time, so what `stop` may take

# Return codes: fixed by the library's ABI. Numbers, so that they can be named without the library.
_UNINITIALIZED, _INVALID_ARGUMENT, NO_PERMISSION, _TIMEOUT, _FUNCTION_NOT_FOUND = 1, 2, 4, 10, 13
_REFUSED = {3, NO_PERMISSION, _FUNCTION_NOT_FOUND, 25, 26}  # not supported, …, version mismatch, deprecated: for good
UNKNOWN = _REFUSED | {_INVALID_ARGUMENT}  # of one field or metric of many; the latter: a driver older than the field
LOST = {_UNINITIALIZED, 15, 16, 28}  # …, GPU is lost, reset required, GPU not found

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
    """The GPU, or the whole library, no longer answers."""


class Asked(Protocol):
    """A GPU that is asked. refused: what it will not answer, and why."""

    uuid: str
    handle: Any
    refused: dict[str, str]


@dataclass(slots=True)
class Cost:
    """What one kind of call has cost so far, in seconds of the worker thread."""

    calls: int = 0
    seconds: float = 0.0
    worst_seconds: float = 0.0


class Library:
    """The driver's library: each call timed, each error sorted into absent for good, absent now, and lost."""

    def __init__(self, nvml: Any) -> None:
        self.nvml = nvml
        self.costs: dict[str, Cost] = {}
        self.doubtful = False  # a handle was not accepted: it may be of a GPU that has gone and come back

    def call(self, name: str, *arguments: Any) -> Any:
        """What the call returns. Raises NVMLError."""
        function = getattr(self.nvml, name, None)
        if function is None:  # an older nvidia-ml-py
            raise self.nvml.NVMLError(_FUNCTION_NOT_FOUND)
        began = time.perf_counter()
        try:
            return function(*arguments)
        finally:
            took = time.perf_counter() - began
            cost = self.costs.setdefault(name, Cost())
            cost.calls += 1
            cost.seconds += took
            cost.worst_seconds = max(cost.worst_seconds, took)

    def ask(self, refused: dict[str, str], name: str, *arguments: Any) -> Any:
        """What the call returns, or None where there is nothing to be had. Raises Lost."""
        what = " ".join([name, *(str(argument) for argument in arguments if isinstance(argument, int))])
        if what in refused:
            return None
        try:
            return self.call(name, *arguments)
        except self.nvml.NVMLError as error:
            if error.value in LOST:
                raise Lost from error
            if error.value in _REFUSED:
                refused[what] = str(error)
            self.doubtful |= error.value == _INVALID_ARGUMENT
            return None

    def release(self, name: str, *arguments: Any) -> None:
        """Give something back; what is lost already needs no giving back."""
        try:
            self.call(name, *arguments)
        except self.nvml.NVMLError:
            return

    def fields(self, card: Asked, wanted: Sequence[Field], bits: int = 0) -> dict[Field, int]:
        """The integers among `wanted` that the card tells, in one call; narrower ones than `bits` say nothing. Raises Lost."""
        asked = [one for one in wanted if _told(one) not in card.refused]
        values = self.ask(card.refused, "nvmlDeviceGetFieldValues", card.handle, asked) if asked else None
        found = {}
        for one, value in zip(asked, values if values is not None else (), strict=False):
            name, wide = _INTEGERS.get(value.valueType, ("", 0))
            if value.nvmlReturn in LOST:
                raise Lost
            if value.nvmlReturn in UNKNOWN:
                card.refused[_told(one)] = f"return code {value.nvmlReturn}"
            elif value.nvmlReturn == 0 and wide < bits:
                card.refused[_told(one)] = f"narrower than {bits} bits"
            elif value.nvmlReturn == 0 and name:
                found[one] = int(getattr(value.value, name))
        return found


class Faults:
    """A thread that waits in the driver for faults and counts them by GPU. `stop` when the list of GPUs changes."""

    def __init__(self, library: Library, cards: Collection[Asked], totals: dict[str, int]) -> None:
        self._library, self._totals = library, totals
        self._stop = threading.Event()
        self._uuids: dict[int | None, str] = {}
        self.cards = {address(card.handle): card.uuid for card in cards}  # those it was asked to watch
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
        """The driver broke off the waiting, as it does when a GPU is lost."""
        return bool(self._uuids) and self._thread is not None and not self._thread.is_alive()

    def watches(self, uuid: str) -> bool:
        return uuid in self._uuids.values()

    def stop(self) -> None:
        """Return when the thread has ended. One that is stuck in the driver is left to it, with its set of events."""
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
                event = nvml.nvmlEventSetWait_v2(self._set, _WAIT_MS)
            except nvml.NVMLError as error:
                if error.value == _TIMEOUT:
                    continue
                if error.value in _REFUSED:
                    self._uuids = {}  # nothing will be counted here: no zeros, and no second try
                return
            uuid = self._uuids.get(address(event.device))
            if uuid is not None and event.eventType & nvml.nvmlEventTypeXidCriticalError:
                self._totals[uuid] += 1


def address(handle: Any) -> int | None:
    """What tells two handles apart: the driver's pointer."""
    return ctypes.cast(handle, ctypes.c_void_p).value


def _told(one: Field) -> str:
    return f"field {one[0]} scope {one[1]}"
