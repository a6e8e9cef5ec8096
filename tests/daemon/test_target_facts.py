"""Which facts and GPUs are read of which target."""

import os
from collections.abc import Sequence
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path

import pytest

from prober.config.target import TargetSpec
from prober.daemon import target_facts
from prober.measure.gpu_reading import GpuReading
from prober.mock.server import running
from prober.mock.service import Settings
from prober.net.clock import Clock
from prober.probing.target import Target
from prober.results.facts import Fact

GPU = [Fact("gpu", "NVIDIA L4", "NVML"), Fact("gpu_count", "1", "NVML"), Fact("driver", "570", "NVML")]


async def facts(url: str, gpus: list[str] | None, indices: tuple[int, ...] | None = None) -> dict[str, str]:
    clock = Clock()
    try:
        spec = TargetSpec.model_validate({"url": url, "name": "t", "gpus": {"indices": indices}})
        found = await target_facts.read_facts(Target(spec, clock), gpus)
    finally:
        clock.close()
    return {fact.name: fact.value for fact in found}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    calls: list[object] = []

    def read_hardware(chosen: object) -> list[Fact]:
        calls.append(chosen)
        return GPU

    monkeypatch.setattr(target_facts, "read_hardware", read_hardware)
    return calls


async def test_a_local_engine_has_the_facts_of_this_machine(asked: list[object]) -> None:
    """Its server's too, and the disk of the weights if they have a path here."""
    for weights, is_here in (("llama", False), ("/proc/self", True), ("/no such folder", False)):
        async with running(replace(Settings(), model=weights)) as url:
            found = await facts(url, None)
        assert found["engine_version"] == "0.32.0"
        assert found["weights"] == weights
        assert {"gpu", "gpu_count", "driver", "cpu", "prober_host", "host_ram", "host_ram_available"} <= found.keys()
        assert found.get("storage") == ("proc" if is_here else None)
        assert found["network"] == "IPv4 over loopback"
        assert 0 < float(found["network_round_trip"].removesuffix(" ms")) < 10_000
    assert asked == [None] * 3


def test_an_interface_has_the_speed_that_its_device_states(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the address that the connection has; a virtual interface states no true speed."""
    files = {
        "/proc/net/if_inet6": ["00000000000000000000000000000001 01 80 10 80       lo"],
        "/sys/class/net/lo/speed": ["25000"],
    }
    monkeypatch.setattr(target_facts, "_lines", lambda path: files.get(str(path), []))
    assert target_facts._interface(ip_address("::1")) == "lo"
    monkeypatch.setattr(Path, "exists", lambda self: str(self) == "/sys/class/net/lo/device")
    assert [target_facts._interface(ip_address(text)) for text in ("::1", "127.0.0.1")] == ["lo at 25 Gb/s"] * 2
    assert target_facts._interface(ip_address("203.0.113.9")) == ""
    files["/sys/class/net/lo/speed"] = ["-1"]
    assert target_facts._interface(ip_address("::1")) == "lo"


def test_the_disk_of_a_path_has_its_model(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """File system from the mounts, disk from the device of the path; of a network file system only its type."""
    device = tmp_path.stat().st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    mounts = [f"27 1 {number} / /models rw,relatime shared:1 - nfs4 host:/models rw"]
    files = {"/proc/self/mountinfo": mounts, f"{tmp_path}/nvme0n1/device/model": ["Fast SSD 980   "]}
    monkeypatch.setattr(target_facts, "_lines", lambda path: files.get(str(path), []))
    monkeypatch.setattr(Path, "resolve", lambda self: tmp_path / "nvme0n1" / "nvme0n1p1")
    assert target_facts.storage_of(tmp_path) == "nfs4"
    (tmp_path / "nvme0n1" / "queue").mkdir(parents=True)
    mounts[0] = mounts[0].replace("nfs4 host:/models", "ext4 /dev/nvme0n1p1")
    assert target_facts.storage_of(tmp_path) == "ext4 on nvme0n1 (Fast SSD 980)"
    assert target_facts.storage_of(tmp_path / "gone") == ""


async def test_a_remote_engine_has_none_of_this_machine(asked: list[object]) -> None:
    """Its host and GPUs are others; only the prober's host is known."""
    assert set(await facts("http://192.0.2.1.invalid", None)) == {"prober_host"}
    assert asked == []


async def test_the_daemon_has_chosen_the_gpus(asked: list[object]) -> None:
    """What their readings state is not stated twice; without GPUs none are read, and `none` means none."""
    found = await facts("http://h.invalid", ["GPU-0"])
    assert "driver" in found
    assert "gpu" not in found
    assert asked == [["GPU-0"]]
    await facts("http://127.0.0.1:1", [])
    await facts("http://127.0.0.1:1", None, ())
    assert len(asked) == 1


class Card:
    """A reader whose third reading is the last."""

    readings = 0
    is_closed = False

    def read(self) -> list[GpuReading]:
        self.readings += 1
        return [GpuReading(0, "a", "H100"), GpuReading(1, "b", "H100")]

    def close(self) -> None:
        self.is_closed = True


class Over(Exception):
    pass


@pytest.mark.parametrize(
    ("url", "indices", "devices"),
    [
        ("http://127.0.0.1:8000", None, ["a", "b"]),
        ("http://localhost:8000", (1,), ["b"]),
        ("http://127.0.0.1:8000", (), None),
        ("http://engine:8000", None, None),
    ],
)
async def test_gpus_are_read_where_the_engine_runs_on_this_machine(
    url: str, indices: tuple[int, ...] | None, devices: list[str] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All, or those that are chosen; of an engine elsewhere none, as they are not its GPUs."""
    card, clock, seen = Card(), Clock(), list[list[str]]()
    monkeypatch.setattr(target_facts, "open_reader", lambda: (card, ""))
    monkeypatch.setattr(target_facts, "READ_INTERVAL_S", 0.0)

    def on_reading(read: Sequence[GpuReading]) -> None:
        seen.append([device.uuid for device in read])
        if len(seen) == 3:
            raise Over

    target = Target(TargetSpec.model_validate({"url": url, "gpus": {"indices": indices}}), clock)
    try:
        await target_facts.read_gpus(target, on_reading)
    except Over:
        assert card.is_closed
    finally:
        clock.close()
    assert seen == ([devices] * 3 if devices else [])
