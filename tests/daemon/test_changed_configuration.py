"""A changed configuration with a mistake: it may mend itself, as the file stays and what it names comes later; or be far too large."""

import asyncio
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest

from prober.daemon import configuration_file
from prober.daemon.app import RETRY_CHANGE_S, App, Options
from prober.daemon.configuration_file import read_config_safely
from tests.virtual import VirtualClock

pytestmark = [pytest.mark.virtual_time, pytest.mark.usefixtures("garbage_collector")]
trustme = pytest.importorskip("trustme")
NOT_APPLIED = "configuration not applied, the old one stays in use"
SIDECAR = f"{256 << 20}\n"  # the limit of its manifest


def targets(count: int) -> str:
    each = "".join(f"  - {{name: t{number}, url: 'http://192.0.2.1:8000'}}\n" for number in range(count))
    return f"defaults: {{rate: 1/min}}\ntargets:\n{each}"


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[Path]:
    """A daemon of one target, and its configuration file."""
    config = folder / "prober.yaml"
    config.write_text(targets(1))
    app = App(Options(str(config), "", keep_running=True), partial(VirtualClock, 1.7e9))
    task = asyncio.create_task(app.run())
    await asyncio.sleep(5)
    yield config
    signal.raise_signal(signal.SIGTERM)
    await task


async def test_a_secret_that_comes_after_the_configuration_is_enough(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The kubelet updates the volumes of a ConfigMap and of a Secret independently of each other. The mistake is logged once."""
    caplog.set_level("INFO")
    authority, applied = tmp_path / "ca.pem", "configuration applied: 1 target"
    async with running(tmp_path) as config:
        config.write_text(f"targets: [{{name: one, url: 'https://192.0.2.1:8000', tls: {{ca_file: '{authority}'}}}}]")
        await asyncio.sleep(3 * RETRY_CHANGE_S)
        assert (caplog.messages.count(NOT_APPLIED), caplog.messages.count(applied)) == (1, 0)
        trustme.CA().cert_pem.write_to_path(str(authority))
        await asyncio.sleep(RETRY_CHANGE_S + 5)
        assert (caplog.messages.count(NOT_APPLIED), caplog.messages.count(applied)) == (1, 1)


async def test_a_file_that_cannot_be_used_is_read_again_each_minute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the old configuration is in use."""
    readings, in_thread = 0, asyncio.to_thread

    async def counted(function: Callable[..., object], /, *args: object, **more: object) -> object:
        nonlocal readings
        readings += function is read_config_safely
        return await in_thread(function, *args, **more)

    monkeypatch.setattr(asyncio, "to_thread", counted)
    async with running(tmp_path) as config:
        config.write_text("targets: 5")
        await asyncio.sleep(3600)
    assert 50 < readings <= 61


@pytest.mark.parametrize(
    ("limit", "count", "is_applied"),
    [("67108864", 1, True), (SIDECAR, 100, True), (SIDECAR, 500, False), ("max\n", 500, True), (None, 500, True)],
)
async def test_what_would_have_it_killed_is_refused(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    limit: str | None,
    count: int,
    *,
    is_applied: bool,
) -> None:
    """By the figures of the documentation: 100 targets take 160 MB and 500 take 410. The one target of before is probed on."""
    caplog.set_level("INFO")
    path = tmp_path / "memory.max"
    monkeypatch.setattr(configuration_file, "MEMORY_LIMITS", (tmp_path / "of another version", path))
    if limit is not None:
        path.write_text(limit)
    async with running(tmp_path) as config:
        config.write_text(f"# changed\n{targets(count)}")
        await asyncio.sleep(20)
        assert (NOT_APPLIED in caplog.messages) is not is_applied
        assert (f"configuration applied: {count} target{'s' * (count > 1)}" in caplog.messages) is is_applied
        needed = "500 take 360 MB of memory or more after an hour, and this container may use 268 MB"
        assert (needed in caplog.text) is not is_applied
