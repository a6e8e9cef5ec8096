"""Which facts and GPUs are read of which target."""

from collections.abc import Sequence
from dataclasses import replace

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
    """Its server's too."""
    async with running(replace(Settings(), model="llama")) as url:
        found = await facts(url, None)
    assert found["engine_version"] == "0.32.0"
    assert found["weights"] == "llama"
    assert {"gpu", "gpu_count", "driver", "cpu", "prober_host"} <= found.keys()
    assert asked == [None]


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


@pytest.mark.parametrize(
    ("url", "local"),
    [
        ("http://localhost:8000", True),
        ("http://127.1.2.3/v1", True),
        ("http://[::1]:80", True),
        ("http://a.localhost", True),
        ("http://10.0.0.1", False),
        ("http://localhost.example.com", False),
        ("http://127.0.0.1.nip.io", False),
    ],
)
def test_loopback(url: str, local: bool) -> None:
    """By the text of the URL: nothing is looked up."""
    assert target_facts.is_of_this_machine(url) is local


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
