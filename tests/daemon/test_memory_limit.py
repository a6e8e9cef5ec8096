"""A configuration that is far too large for its container, such as that of a fleet in a sidecar."""

import asyncio
import signal
from functools import partial
from pathlib import Path

import pytest

from prober.daemon import configuration_file
from prober.daemon.app import App, Options
from tests.virtual import VirtualClock

pytestmark = [pytest.mark.virtual_time, pytest.mark.usefixtures("garbage_collector")]
SIDECAR = f"{256 << 20}\n"  # the limit of its manifest


@pytest.mark.parametrize(
    ("limit", "targets", "is_applied"),
    [("67108864", 1, True), (SIDECAR, 100, True), (SIDECAR, 500, False), ("max\n", 500, True), (None, 500, True)],
)
async def test_what_would_have_it_killed_is_refused(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    limit: str | None,
    targets: int,
    is_applied: bool,
) -> None:
    """By the figures of the documentation: 100 targets take 160 MB and 500 take 410. The one target of before is probed on."""
    caplog.set_level("INFO")
    path = tmp_path / "memory.max"
    monkeypatch.setattr(configuration_file, "MEMORY_LIMITS", (tmp_path / "of another version", path))
    if limit is not None:
        path.write_text(limit)
    config = tmp_path / "prober.yaml"
    config.write_text(written(1))
    app = App(Options(str(config), "", keep_running=True), partial(VirtualClock, 1.7e9))
    running = asyncio.create_task(app.run())
    await asyncio.sleep(5)
    config.write_text(f"# changed\n{written(targets)}")
    await asyncio.sleep(20)
    assert ("configuration not applied, the old one stays in use" in caplog.messages) is not is_applied
    assert (f"configuration applied: {targets} target{'s' * (targets > 1)}" in caplog.messages) is is_applied
    assert (
        "500 take 360 MB of memory or more after an hour, and this container may use 268 MB" in caplog.text
    ) is not is_applied
    signal.raise_signal(signal.SIGTERM)
    await running


def written(targets: int) -> str:
    each = "".join(f"  - {{name: t{number}, url: 'http://192.0.2.1:8000'}}\n" for number in range(targets))
    return f"defaults: {{rate: 1/min}}\ntargets:\n{each}"
