"""Sweeps of the tests look at the load that is there for a shorter time."""

import pytest

from prober.features.capacity import sweep_runner


@pytest.fixture(autouse=True)
def short_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep_runner, "BEFORE_S", 0.6)
