"""Plays a scenario on a reader: JSON steps in, JSON answers out. Run by test_gpu.py in a process with the stub's library.

Steps: ["set", {key: value}] changes the machine, ["open"] opens a reader, ["read"] reads, ["advance", seconds] moves the
reader's clock, ["faults", uuid, n] reads until that GPU has n faults, ["calls", f, ...] asks the stub how often it was called,
["look", attribute, ...] shows attributes of the reader, ["hardware", GPUs or null] reads facts, ["threads"] names
the threads, ["close"] closes.
"""

import ctypes
import dataclasses
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from prober.features.gpu import amd
from prober.features.gpu.amd import AmdReader
from prober.features.gpu.hardware import read_hardware
from prober.features.gpu.reader import Reader, open_reader
from prober.measure.gpu_reading import GpuReading


class Machine:
    def __init__(self) -> None:
        self.settings: dict[str, int] = {}
        self.seconds = 1000.0
        self.reader: Reader | AmdReader | None = None

    def set(self, settings: dict[str, int]) -> None:
        self.settings |= settings
        control = Path(os.environ["NVML_STUB"])
        beside = control.with_suffix(".new")
        beside.write_text("".join(f"{key}={value}\n" for key, value in self.settings.items()))
        beside.replace(control)

    def open(self) -> list[Any]:
        self.reader, line = open_reader(lambda: self.seconds)
        return [self.reader is not None, line]

    def read(self) -> list[dict[str, Any]]:
        assert self.reader is not None
        return [plain(device) for device in self.reader.read()]

    def advance(self, seconds: float) -> None:
        self.seconds += seconds

    def faults(self, uuid: str, number: int) -> int | None:
        seen = None
        for _ in range(2000):
            seen = next((one.get("xid_errors") for one in self.read() if one["uuid"] == uuid), None)
            if seen == number:
                break
            time.sleep(0.005)  # the thread that waits is a real one
        return seen

    def calls(self, *names: str) -> list[int]:
        stub = ctypes.CDLL("libnvidia-ml.so.1")
        return [stub.stub_calls(name.encode()) for name in names]

    def look(self, *names: str) -> list[Any]:
        return [getattr(self.reader, name) for name in names]

    def hardware(self, chosen: list[int | str] | None) -> list[list[str]]:
        return [[fact.name, fact.value] for fact in read_hardware(chosen)]

    def threads(self) -> list[str]:
        return sorted(thread.name for thread in threading.enumerate())

    def close(self) -> None:
        assert self.reader is not None
        self.reader.close()


def plain(device: GpuReading) -> dict[str, Any]:
    known = {key: value for key, value in dataclasses.asdict(device).items() if value is not None}
    if "throttled" in known:
        known["throttled"] = sorted(known["throttled"])
    return known


def main() -> None:
    amd.DRIVER = Path("/" if "AMD" in os.environ else "/no/such/driver")
    machine = Machine()
    answers = []
    for verb, *arguments in json.load(sys.stdin):
        method: Callable[..., Any] = getattr(machine, verb)
        answers.append(method(*arguments))
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main()
