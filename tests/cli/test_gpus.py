"""GPUs of this machine beside the measurement of a command."""

from collections.abc import Sequence

import pytest

from prober.cli import gpus
from prober.config.target import TargetSpec
from prober.measure.gpu_reading import GpuReading
from prober.net.clock import Clock
from prober.probing.target import Target


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
    monkeypatch.setattr(gpus, "open_reader", lambda: (card, ""))
    monkeypatch.setattr(gpus, "READ_INTERVAL_S", 0.0)

    def on_reading(read: Sequence[GpuReading]) -> None:
        seen.append([device.uuid for device in read])
        if len(seen) == 3:
            raise Over

    target = Target(TargetSpec.model_validate({"url": url, "gpus": {"indices": indices}}), clock)
    try:
        await gpus.read_gpus(target, on_reading)
    except Over:
        assert card.is_closed
    finally:
        clock.close()
    assert seen == ([devices] * 3 if devices else [])
