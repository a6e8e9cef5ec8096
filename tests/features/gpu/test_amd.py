"""The reader of AMD's GPUs, on `amdsmi` as it is and a library compiled here, in a process of its own."""

import importlib.util
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from prober.features.gpu.amd import open_amd_reader
from tests.conftest import absent
from tests.features.gpu.test_reader import HERE, Play, process, without
from tests.processes import HANG_S


@pytest.fixture(scope="session")
def amd_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stub; functions that the reader does not call, but that `amdsmi` looks for when it is loaded, support nothing."""
    compiler, package = shutil.which("cc") or shutil.which("gcc"), importlib.util.find_spec("amdsmi")
    if compiler is None or package is None or package.origin is None:
        absent("no C compiler or no amdsmi: AMD's library cannot be stood in for")
    folder = tmp_path_factory.mktemp("amdsmi")
    wrapper = Path(package.origin).with_name("amdsmi_wrapper.py").read_text()
    names = sorted(set(re.findall(r"_libraries\['libamd_smi.so'\]\.(\w+)", wrapper)))
    rest = folder / "rest.c"
    rest.write_text("".join(f"__attribute__((weak)) int {name}(void) {{ return 2; }}\n" for name in names))
    made = folder / "libamd_smi.so"
    flags = ("-shared", "-fPIC", "-Wall", "-Wextra", "-Werror")
    subprocess.run([compiler, *flags, "-o", str(made), str(HERE / "amd_stub.c"), str(rest)], check=True)
    return made


@pytest.fixture
def play(amd_library: Path, tmp_path: Path) -> Play:
    """Plays steps (see nvml_machine.py) on a machine with AMD's GPUs only."""

    def run(*steps: list[Any]) -> list[Any]:
        environment = {"LD_LIBRARY_PATH": str(amd_library.parent), "NVML_STUB": str(tmp_path / "machine"), "AMD": "1"}
        return process(steps, environment)

    return run


def full_gpu(index: int, **more: Any) -> dict[str, Any]:
    """A reading of the stub's GPU with default values."""
    return {
        "index": index,
        "uuid": f"75ff74b9-0000-1000-80b7-{index:012d}",
        "name": "AMD Instinct MI300X",
        "utilization_ratio": (37 + index) / 100,
        "memory_used_bytes": (150 << 30) + index,
        "memory_total_bytes": 192 << 30,
        "power_watts": 612 + index,
        "energy_joules": (1_000_000 + index) * 15.25 / 1e6,
        "temperature_celsius": 41.0 + index,
        "sm_clock_hertz": (2100 + index) * 1e6,
        "ecc_corrected_errors": 5,
        "ecc_uncorrected_errors": index,
        "processes": {},
    } | more


def test_two_gpus_tell_their_figures(play: Play) -> None:
    """Every figure comes in its unit; what AMD SMI does not tell is absent."""
    opened, read = play(["open"], ["read"], ["close"])
    assert opened == [True, "2 AMD GPUs, driver 6.14.14"]
    assert read == [full_gpu(0), full_gpu(1)]


def test_an_older_gpu_tells_the_average_power_and_the_temperature_at_the_edge(play: Play) -> None:
    """The largest integer stands for no value."""
    (_, (first, _)) = play(["set", {"mi200": 1}], ["open"], ["read"])
    assert first == without(full_gpu(0), "sm_clock_hertz")


def test_facts_of_the_hardware(play: Play) -> None:
    """As of NVIDIA's: names and memory once, the number if it is known, processes by GPU."""
    facts, chosen = play(["set", {"processes.1": 2}], ["hardware", None], ["hardware", [1]])
    expected = {"gpu": "AMD Instinct MI300X", "gpu_memory": "192 GiB", "driver": "6.14.14"}
    processes = {"gpu_processes": "GPU 1: process 4101 (2.0 GiB), process 4100 (1.0 GiB)"}
    assert dict(facts) == expected | processes
    assert dict(chosen) == expected | processes | {"gpu_count": "1"}


def test_another_user_of_the_library_in_this_process_closes_it_for_nobody(play: Play) -> None:
    """Facts are read while the GPUs are."""
    _, first, _, again = play(["open"], ["read"], ["hardware", None], ["read"])
    assert again == first == [full_gpu(0), full_gpu(1)]


@pytest.mark.parametrize(
    ("call", "names"),
    [
        ("gpu_activity", ("utilization_ratio",)),
        ("power_info", ("power_watts",)),
        ("energy_count", ("energy_joules",)),
        ("temp_metric", ("temperature_celsius",)),
        ("gpu_total_ecc_count", ("ecc_corrected_errors", "ecc_uncorrected_errors")),
        ("gpu_process_list", ("processes",)),
    ],
)
def test_what_a_gpu_does_not_support_is_absent(play: Play, call: str, names: tuple[str, ...]) -> None:
    """The others stay, and the reason is kept."""
    _, read, (refused,) = play(["set", {f"return.{call}": 2}], ["open"], ["read"], ["look", "refused"])
    assert read == [without(full_gpu(index), *names) for index in (0, 1)]
    assert [len(reasons) for reasons in refused.values()] == [2 if call == "temp_metric" else 1] * 2


@pytest.mark.parametrize(
    ("settings", "reason"),
    [({"count": 0}, "the driver shows no GPU"), ({"return.init": 34}, "AMDSMI_STATUS_DRIVER_NOT_LOADED")],
)
def test_without_a_driver_or_a_gpu_there_is_no_reader(play: Play, settings: dict[str, int], reason: str) -> None:
    """The log line has both vendors' reasons, and there are no facts."""
    (is_open, line), facts = play(["set", settings], ["open"], ["hardware", None])
    assert not is_open
    assert line.startswith("no GPU series: NVML Shared Library Not Found; amdsmi: ")
    assert reason in line
    assert facts == []


def test_a_driver_that_fails_later_gives_no_reading_and_a_reason(play: Play) -> None:
    """And readings again when it answers."""
    _, failed, (trouble,), again = play(
        ["open"],
        ["set", {"return.processor_handles": 34}],
        ["read"],
        ["look", "trouble"],
        ["set", {"return.processor_handles": 0}],
        ["read"],
    )
    assert failed == []
    assert "AMDSMI_STATUS_DRIVER_NOT_LOADED" in trouble
    assert again == [full_gpu(0), full_gpu(1)]


def test_two_readers_that_are_opened_at_once_leave_standard_output_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A session opens one for facts and one for readings, each in a thread: the table of a sweep was lost."""
    first_left, second_entered = threading.Event(), threading.Event()
    second = threading.Thread(target=open_amd_reader)

    def import_module(name: str) -> None:
        if threading.current_thread() is second:
            second_entered.set()
            first_left.wait(HANG_S)
        else:
            second.start()
            second_entered.wait(0.1)  # it never comes while the first one is here
        raise ModuleNotFoundError(name)

    monkeypatch.setattr("prober.features.gpu.amd.DRIVER", Path("/"))
    monkeypatch.setattr("prober.features.gpu.amd.importlib.import_module", import_module)
    before = sys.stdout
    assert open_amd_reader() == (None, "")
    first_left.set()
    second.join()
    assert sys.stdout is before


def test_without_amds_driver_its_library_is_not_loaded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It prints to standard output, which commands need for their results."""
    monkeypatch.setattr("prober.features.gpu.amd.DRIVER", tmp_path / "amdgpu")
    monkeypatch.setattr("prober.features.gpu.amd.importlib.import_module", None)
    assert open_amd_reader() == (None, "")
