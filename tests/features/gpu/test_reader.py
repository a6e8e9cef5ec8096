"""The reader of GPUs, on nvidia-ml-py as it is and a driver library compiled here, in a process of its own."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from prober.measure.gpu_reading import GpuReading, ThrottleReason
from tests.conftest import absent
from tests.processes import HANG_S

HERE = Path(__file__).parent
GPM = {"sm_occupancy_ratio": 0.15, "tensor_active_ratio": 0.25, "memory_bandwidth_ratio": 0.5}
# Python 3.14 deprecates how the bindings of AMD's library lay out their structures.
AMDSMI_LAYOUT = "ignore:Due to '_pack_':DeprecationWarning:amdsmi.amdsmi_wrapper"

Play = Callable[..., list[Any]]


def full_gpu(index: int, **more: Any) -> dict[str, Any]:
    """The first reading of the stub's GPU with default values."""
    return {
        "index": index,
        "uuid": f"GPU-{index}",
        "name": "Stub H1",
        "utilization_ratio": (37 + index) / 100,
        "memory_used_bytes": 10000 + index,
        "memory_total_bytes": 80000,
        "power_watts": 250.5 + index,
        "energy_joules": 5000000000.5 + index,
        "temperature_celsius": 41.0 + index,
        "sm_clock_hertz": 1410e6 + index * 1e6,
        "throttled": [],
        "ecc_corrected_errors": 5 + index,
        "ecc_uncorrected_errors": index,
        "xid_errors": 0,
        "processes": {},
    } | more


def slot(number: int, made: int = 0, **more: Any) -> dict[str, Any]:
    """The first reading of a partition of the stub's first GPU."""
    return {
        "index": 0,
        "uuid": f"MIG-0-{number}-{made}",
        "name": "Stub H1 MIG 1g.10gb",
        "partition": number,
        "parent": "GPU-0",
        "memory_used_bytes": 1000,
        "memory_total_bytes": 10000,
        "processes": {},
    } | more


def without(answers: dict[str, Any], *names: str) -> dict[str, Any]:
    return {key: value for key, value in answers.items() if key not in names}


def process(steps: tuple[list[Any], ...], environment: dict[str, str]) -> list[Any]:
    """The answers of steps in a process of its own (see nvml_machine.py), of those that have one."""
    inherited = {key: value for key, value in os.environ.items() if key != "LD_LIBRARY_PATH"}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-W", AMDSMI_LAYOUT, str(HERE / "nvml_machine.py")],
        input=json.dumps(steps),
        env=inherited | {"PYTHONPATH": str(HERE.parents[2])} | environment,
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    answers: list[Any] = json.loads(done.stdout)
    return [
        answer for (verb, *_), answer in zip(steps, answers, strict=True) if verb not in ("set", "advance", "close")
    ]


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        absent("no C compiler: the driver library's stub cannot be built")
    made = tmp_path_factory.mktemp("nvml") / "libnvidia-ml.so.1"
    command = [compiler, "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", "-o", str(made), str(HERE / "nvml_stub.c")]
    subprocess.run([*command, "-lpthread", "-lm"], check=True)
    return made


@pytest.fixture
def play(library: Path, tmp_path: Path) -> Play:
    """Plays steps (see nvml_machine.py) and returns the answers of those that have one."""

    def run(*steps: list[Any]) -> list[Any]:
        return process(steps, {"LD_LIBRARY_PATH": str(library.parent), "NVML_STUB": str(tmp_path / "machine")})

    return run


def test_two_gpus_tell_their_figures(play: Play) -> None:
    """Every figure comes in its unit, and what the hardware counts as a mean from the second read on."""
    opened, first, second = play(["open"], ["read"], ["read"], ["close"])
    assert opened == [True, "2 GPUs, driver 570.1.0"]
    assert first == [full_gpu(0), full_gpu(1)]
    assert second == [full_gpu(0, **GPM), full_gpu(1, **GPM)]


def test_facts_of_the_hardware(play: Play) -> None:
    """Equal GPUs are named once. Their number is stated if they are chosen, or if there is only one: others may be idle."""
    facts, chosen, one = play(
        ["set", {"memory": 80 << 30, "links": 4}],
        ["hardware", None],
        ["hardware", ["GPU-1"]],
        ["set", {"count": 1, "links": 0}],
        ["hardware", None],
    )
    expected = {
        "gpu": "Stub H1",
        "gpu_memory": "80 GiB",
        "interconnect": "3 NVLinks, PCIe 5.0 x16",
        "driver": "570.1.0, for CUDA up to 12.8",
    }
    assert dict(facts) == expected
    assert dict(chosen) == expected | {"gpu_count": "1"}
    assert dict(one) == expected | {"gpu_count": "1", "interconnect": "PCIe 5.0 x16"}


def test_processes_that_compute_on_a_gpu(play: Play) -> None:
    """By id, with their memory where the driver tells it; as facts the largest first. A driver that forbids it leaves them out."""
    processes = {"processes.0": 2, "processes.1": 3, "unsized.1": 1}
    _, listed, facts = play(["set", processes], ["open"], ["read"], ["hardware", None])
    gib = 1 << 30
    assert [gpu["processes"] for gpu in listed] == [
        {"4000": gib, "4001": 2 * gib},
        {"4100": gib, "4101": 2 * gib, "4102": None},
    ]
    assert dict(facts)["gpu_processes"] == (
        "GPU 0: process 4001 (2.0 GiB), process 4000 (1.0 GiB); "
        "GPU 1: process 4101 (2.0 GiB), process 4100 (1.0 GiB), process 4102"
    )
    forbidden = {"return.GetComputeRunningProcesses": 4}
    _, listed, facts = play(["set", processes | forbidden], ["open"], ["read"], ["hardware", None])
    assert listed == [without(full_gpu(index), "processes") for index in (0, 1)]
    assert "gpu_processes" not in dict(facts)


@pytest.mark.parametrize("call", ["Init", "GetCount", "GetHandleByIndex", "GetHandleByIndex.1", "GetName"])
def test_a_driver_that_fails_states_no_hardware(play: Play, call: str) -> None:
    """Nothing is raised. Nor does it if one GPU fails, as it would state a wrong number."""
    assert play(["set", {f"return.{call}": 999}], ["hardware", None]) == [[]]


def test_calls_that_a_gpu_does_not_support_leave_facts_out(play: Play) -> None:
    """The others stay."""
    calls = ("GetMemoryInfo", "GetMemoryInfo_v2", "GetNvLinkState", "GetMaxPcieLinkWidth")
    (facts,) = play(["set", {"count": 1} | {f"return.{call}": 3 for call in calls}], ["hardware", None])
    assert [name for name, _ in facts] == ["gpu", "gpu_count", "driver"]


def test_a_device_names_its_place() -> None:
    """A partition's place holds its device's, as the vendor's tools write it."""
    assert GpuReading(3, "u", "n").device_id == "3"
    assert GpuReading(3, "u", "n", partition=1).device_id == "3:1"


@pytest.mark.parametrize(
    ("call", "gone"),
    [
        ("GetUtilizationRates", {"utilization_ratio"}),
        ("GetPowerUsage", {"power_watts"}),
        ("GetTotalEnergyConsumption", {"energy_joules"}),
        ("GetClockInfo", {"sm_clock_hertz"}),
        ("GetTotalEccErrors", {"ecc_corrected_errors", "ecc_uncorrected_errors"}),
        ("RegisterEvents", {"xid_errors"}),
        ("EventSetCreate", {"xid_errors"}),
        ("GetMigMode", set()),
    ],
)
def test_what_is_not_supported_is_absent_and_not_asked_again(play: Play, call: str, gone: set[str]) -> None:
    """A figure that the GPU does not support is absent, never 0, and costs nothing at later reads."""
    steps = [["set", {f"return.{call}": 3, "gpm.0": 0, "count": 1}], ["open"], ["read"], ["calls", call]]
    _, first, calls, second, again = play(*steps, ["read"], ["calls", call], ["close"])
    assert first == second == [without(full_gpu(0), *gone)]
    assert calls == again == [2 if call == "GetTotalEccErrors" else 1]


@pytest.mark.parametrize("code", [3, 4, 13, 25, 26])
def test_every_lasting_refusal_is_remembered_with_its_reason(play: Play, code: int) -> None:
    """Not supported, not permitted, missing in an old driver, of another version, deprecated: asked once."""
    steps = [["set", {"return.GetPowerUsage.0": code, "count": 1}], ["open"], ["read"], ["read"]]
    *_, refused, calls = play(*steps, ["look", "refused"], ["calls", "GetPowerUsage"], ["close"])
    assert refused[0]["GPU-0"]["nvmlDeviceGetPowerUsage"]
    assert calls == [1]


@pytest.mark.parametrize("code", [10, 19, 999])
def test_a_passing_error_leaves_a_gap_only(play: Play, code: int) -> None:
    """A timeout, a busy or an unknown answer is absent now and asked again at the next read."""
    steps = [["set", {"return.GetPowerUsage.0": code, "count": 1, "gpm.0": 0}], ["open"], ["read"]]
    _, first, second = play(*steps, ["set", {"return.GetPowerUsage.0": 0}], ["read"], ["close"])
    assert first == [without(full_gpu(0), "power_watts")]
    assert second == [full_gpu(0)]


def test_an_older_driver_is_asked_by_its_older_names(play: Play) -> None:
    """Temperature, throttle reasons and memory fall back; the older form of memory counts the driver's share as used."""
    old = {"return.GetTemperatureV": 13, "return.GetCurrentClocksEventReasons": 13, "return.GetMemoryInfo_v2": 13}
    _, first, second, calls = play(
        ["set", old | {"count": 1, "gpm.0": 0}],
        ["open"],
        ["read"],
        ["read"],
        ["calls", "GetTemperatureV", "GetCurrentClocksEventReasons", "GetMemoryInfo_v2"],
        ["close"],
    )
    assert (
        first == second == [full_gpu(0, temperature_celsius=61.0, throttled=["power_brake"], memory_used_bytes=12000)]
    )
    assert calls == [1, 1, 1]


def test_every_throttle_reason_has_its_name_and_idling_is_none(play: Play) -> None:
    """All reasons at once give the closed list; idle, and bits of a later driver, give none."""
    steps = [["set", {"reasons.0": 0x1FF, "reasons.1": 0x8001}], ["open"], ["read"], ["close"]]
    _, (first, second) = play(*steps)
    assert first["throttled"] == sorted(ThrottleReason)
    assert second["throttled"] == []


def test_hardware_counters_that_are_missing_are_absent(play: Play) -> None:
    """A metric that is refused is left out of later requests; one that is not a number is absent; before Hopper all are."""
    settings = {"return.metric.5": 3, "metric.10": -1, "metric.3": 42500, "gpm.1": 0}
    steps = [["set", settings], ["open"], ["read"], ["read"], ["look", "refused"], ["read"], ["close"]]
    _, first, second, (refused,), third, calls = play(*steps, ["calls", "GpmQueryDeviceSupport", "GpmSampleAlloc"])
    assert first == [full_gpu(0), full_gpu(1)]
    assert second == third == [full_gpu(0, sm_occupancy_ratio=0.425), full_gpu(1)]
    assert "metric 5" in refused["GPU-0"]
    assert refused["GPU-1"]["nvmlGpmQueryDeviceSupport"] == "needs Hopper or later"
    assert calls == [2, 2]


def test_bus_counters_are_bytes_and_narrow_ones_are_absent(play: Play) -> None:
    """PCIe counts bytes in 64 bits; a 32-bit counter would wrap between two reads, so it is not shown."""
    counters = {"field.197.0": 7 << 40, "field.198.0": 0, "field.197.1": 5}
    _, wide = play(["set", counters], ["open"], ["read"], ["close"])
    _, narrow = play(["set", counters | {"type.197": 1}], ["open"], ["read"], ["close"])
    assert wide == [full_gpu(0, pcie_sent_bytes=7 << 40, pcie_received_bytes=0), full_gpu(1, pcie_sent_bytes=5)]
    assert narrow == [full_gpu(0, pcie_received_bytes=0), full_gpu(1)]


def test_where_bus_counters_are_narrow_the_rates_of_the_hardware_are_counted(play: Play) -> None:
    """As an H200 answers with driver 580: 32 bits at fields 197 and 198, and MiB/s at metrics 20 and 21. No read, no increase."""
    settings = {"field.197.0": 9, "field.198.0": 9, "type.197": 1, "type.198": 1, "metric.20": 3000, "metric.21": 56000}
    steps = [["set", settings | {"count": 1}], ["open"], ["read"], ["advance", 5], ["read"], ["advance", 2], ["read"]]
    _, (first,), (second,), (third,) = play(*steps, ["close"])
    assert "pcie_sent_bytes" not in first
    assert (second["pcie_sent_bytes"], second["pcie_received_bytes"]) == (15 << 20, 280 << 20)
    assert (third["pcie_sent_bytes"], third["pcie_received_bytes"]) == (21 << 20, 392 << 20)


@pytest.mark.parametrize(
    ("counters", "sent", "received"),
    [
        ({"field.138.4294967295.0": 3, "field.139.4294967295.0": 4, "field.138.0": 1, "field.139.0": 1}, 3072, 4096),
        ({"field.202.4294967295.0": 3, "field.203.0": 9, "field.204.4294967295.0": 4}, 3, 4),
    ],
    ids=["older", "NVLink 5"],
)
def test_links_are_counted_over_all(play: Play, counters: dict[str, int], sent: int, received: int) -> None:
    """Older links count KiB, later ones bytes. A GPU without links has no count."""
    steps = [["set", {"count": 1, "gpm.0": 0, "field.91.0": 2} | counters], ["open"], ["read"], ["read"], ["close"]]
    _, first, second = play(*steps)
    assert first == second == [full_gpu(0, nvlink_sent_bytes=sent, nvlink_received_bytes=received)]


def test_partitions_are_listed_at_each_read(play: Play) -> None:
    """Made, destroyed and made anew in the same slot: each read shows those there are, each with its own hardware counters."""
    _, first, second, third, fourth, calls = play(
        ["set", {"count": 1, "mig.0": 1, "slot.0.0": 11, "slot.0.2": 13}],
        ["open"],
        ["read"],
        ["read"],
        ["set", {"slot.0.0": 0, "uuid.0.2": 1, "slot.0.5": 15}],
        ["read"],
        ["read"],
        ["close"],
        ["calls", "GpmSampleAlloc", "GpmSampleFree"],
    )
    eleven: dict[str, Any] = {
        "utilization_ratio": 0.16,
        "sm_occupancy_ratio": 0.26,
        "tensor_active_ratio": 0.36,
        "memory_bandwidth_ratio": 0.61,
    }
    thirteen: dict[str, Any] = {key: round(value + 0.02, 2) for key, value in eleven.items()}
    fifteen: dict[str, Any] = {key: round(value + 0.04, 2) for key, value in eleven.items()}
    parent = without(full_gpu(0), "utilization_ratio")
    counted = parent | GPM | {"utilization_ratio": 0.05}  # the driver's own is refused: the hardware's stands in
    assert first == [parent, slot(0), slot(2)]
    assert second == [counted, slot(0, **eleven), slot(2, **thirteen)]
    assert third == [counted, slot(2, made=1), slot(5)]
    assert fourth == [counted, slot(2, made=1, **thirteen), slot(5, **fifteen)]
    assert calls == [10, 10]


def test_a_device_that_stops_being_partitioned_is_asked_anew(play: Play) -> None:
    """Calls that the partitioned GPU refused are made again."""
    steps = [["set", {"count": 1, "gpm.0": 0, "mig.0": 1, "slot.0.0": 11}], ["open"], ["read"]]
    _, split, joined = play(*steps, ["set", {"mig.0": 0, "slot.0.0": 0}], ["read"], ["close"])
    assert split == [without(full_gpu(0), "utilization_ratio"), slot(0)]
    assert joined == [full_gpu(0)]


def test_a_lost_gpu_is_absent_and_comes_back(play: Play) -> None:
    """While it is lost the others are read; afterwards its figures are there again, its faults still counted."""
    _, before, faults, gone, still, back, later, calls, created, freed = play(
        ["open"],
        ["read"],
        *[["set", {"xid.1": 1}], ["faults", "GPU-1", 1]],
        *[["set", {"lost.1": 1}], ["read"], ["read"]],
        *[["set", {"lost.1": 0}], ["read"], ["read"]],
        *[
            ["close"],
            ["calls", "Init", "GpmSampleAlloc", "GpmSampleFree"],
            ["calls", "EventSetCreate"],
            ["calls", "EventSetFree"],
        ],
    )
    assert before == [full_gpu(0), full_gpu(1)]
    assert faults == 1
    assert gone == still == [full_gpu(0, **GPM)]
    assert back == [full_gpu(0, **GPM), without(full_gpu(1), "xid_errors")]  # nobody waits for its faults yet
    assert later == [full_gpu(0, **GPM), full_gpu(1, xid_errors=1, **GPM)]
    assert calls == [1, 6, 6]
    assert created == freed


def test_a_gpu_lost_for_this_process_comes_back_with_the_library(play: Play) -> None:
    """Once a minute the library is started afresh while a GPU is lost, since some losses last as long as it is open."""
    lost, returned = [["set", {"lost.1": 1}], ["read"]], [["set", {"lost.1": 0}], ["read"]]
    _, _, gone, shut, back, driver, calls = play(
        *[["set", {"sticky": 1}], ["open"], ["read"]],
        *[*lost, *returned, ["set", {"driver": 2}], ["advance", 60.0], ["read"], ["look", "driver"], ["close"]],
        ["calls", "Init", "Shutdown"],
    )
    assert gone == shut == [full_gpu(0, **GPM)]
    assert back == [full_gpu(0), full_gpu(1)]  # new samples: the hardware's means start again
    assert driver == ["570.1.2"]
    assert calls == [2, 2]


def test_a_driver_that_goes_away_leaves_nothing_and_says_why(play: Play) -> None:
    """While the library cannot be opened nothing is shown and nothing raised; it is tried again each minute."""
    gone = [
        ["set", {"lost.0": 1, "lost.1": 1, "return.Init": 9}],
        ["read"],
        ["advance", 60.0],
        ["read"],
        ["look", "trouble"],
    ]
    back = [
        ["set", {"lost.0": 0, "lost.1": 0, "return.Init": 0}],
        ["read"],
        ["advance", 60.0],
        ["read"],
        ["look", "trouble"],
    ]
    _, *answers = play(["open"], *gone, *back, ["close"])
    assert answers == [[], [], ["Driver Not Loaded"], [], [full_gpu(0), full_gpu(1)], [""]]


def test_another_number_of_gpus_is_noticed(play: Play) -> None:
    """A GPU that is added or taken away shows at the next read."""
    steps = [["open"], ["read"], ["set", {"count": 3}], ["read"], ["set", {"count": 1}], ["read"], ["close"]]
    _, *reads = play(*steps)
    assert [[device["uuid"] for device in read] for read in reads] == [
        ["GPU-0", "GPU-1"],
        ["GPU-0", "GPU-1", "GPU-2"],
        ["GPU-0"],
    ]


def test_a_gpu_of_another_container_is_left_alone(play: Play) -> None:
    """A GPU that may not be opened is not shown, and the others are not listed again because of it."""
    steps = [
        ["set", {"return.GetHandleByIndex.1": 4}],
        ["open"],
        ["read"],
        ["read"],
        ["calls", "GetHandleByIndex"],
        ["close"],
    ]
    _, first, second, calls = play(*steps)
    assert first == [full_gpu(0)]
    assert second == [full_gpu(0, **GPM)]
    assert calls == [2]


def test_a_handle_that_is_no_longer_accepted_is_fetched_again(play: Play) -> None:
    """An invalid argument may mean a GPU that has been replaced: after a minute the library is started afresh."""
    steps = [
        ["set", {"return.GetPowerUsage.1": 2}],
        ["open"],
        ["read"],
        ["set", {"return.GetPowerUsage.1": 0}],
        ["advance", 60.0],
        ["read"],
    ]
    _, first, second, calls = play(*steps, ["calls", "GetHandleByIndex", "EventSetCreate"], ["close"])
    assert first == [full_gpu(0), without(full_gpu(1), "power_watts")]
    assert second == [full_gpu(0), full_gpu(1)]
    assert calls == [4, 2]


def test_faults_are_counted_by_gpu_and_the_thread_ends(play: Play) -> None:
    """Each fault is counted for the GPU that had it; closing ends the thread, gives all back, and later reads are empty."""
    _, _, third, devices, running, ended, calls, after = play(
        ["open"],
        ["read"],
        *[["set", {"xid.1": 3}], ["faults", "GPU-1", 3], ["read"], ["threads"]],
        *[["close"], ["threads"], ["calls", "EventSetCreate", "EventSetFree", "Shutdown"], ["close"], ["read"]],
    )
    assert third == 3
    assert [device["xid_errors"] for device in devices] == [0, 3]
    assert running == ["MainThread", "gpu-faults"]
    assert ended == ["MainThread"]
    assert calls == [1, 1, 1]
    assert after == []


def test_faults_that_cannot_be_waited_for_are_absent(play: Play) -> None:
    """If the driver allows to register but not to wait, the count is absent instead of 0, and there is one try."""
    steps = [["set", {"return.EventSetWait": 3}], ["open"], ["read"], ["faults", "GPU-0", None], ["read"], ["close"]]
    *_, devices, calls = play(*steps, ["calls", "EventSetWait", "EventSetCreate", "EventSetFree"])
    assert [device.get("xid_errors") for device in devices] == [None, None]
    assert calls == [1, 1, 1]


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"return.Init": 9}, "no GPU series: Driver Not Loaded"),
        ({"return.Init": 4}, "no GPU series: Insufficient Permissions"),
        ({"return.Init": 18}, "no GPU series: RM has detected an NVML/RM version mismatch."),
        ({"count": 0}, "no GPU series: the driver shows none"),
        ({"return.GetCount": 999}, "no GPU series: Unknown Error"),
    ],
)
def test_without_a_driver_there_is_one_line_and_no_reader(play: Play, settings: dict[str, int], line: str) -> None:
    """A library that cannot be opened, or shows no GPU, is no error: no reader, and why; it is closed again if it was opened."""
    opened, calls = play(["set", settings], ["open"], ["calls", "Shutdown"])
    assert opened == [False, line]
    assert calls == [0 if "return.Init" in settings else 1]


@pytest.mark.parametrize(
    ("package", "reason"),
    [(None, "NVML Shared Library Not Found"), ("raise ImportError\n", "nvidia-ml-py is not installed")],
)
def test_without_library_or_package_there_is_one_line_and_no_reader(
    tmp_path: Path, package: str | None, reason: str
) -> None:
    """Most machines have no library; nvidia-ml-py missing or broken is no error either."""
    if package is not None:
        (tmp_path / "pynvml.py").write_text(package)
    (opened,) = process((["open"],), {"PYTHONPATH": f"{tmp_path}:{HERE.parents[2]}"})
    if package is None and "Not Found" not in opened[1]:
        pytest.skip("this machine has the driver's library")
    assert opened == [False, f"no GPU series: {reason}"]
