"""A changed configuration whose mistake mends itself: the file stays as it is, and what it names comes later."""

import asyncio
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from prober.daemon.app import RETRY_CHANGE_S, App, Options
from prober.daemon.configuration_file import read_config_safely
from tests.virtual import VirtualClock

pytestmark = [pytest.mark.virtual_time, pytest.mark.usefixtures("garbage_collector")]
trustme = pytest.importorskip("trustme")
OLD = "targets: [{name: one, url: 'http://192.0.2.1:8000'}]"
APPLIED, NOT_APPLIED = "configuration applied: 1 target", "configuration not applied, the old one stays in use"


async def test_a_secret_that_comes_after_the_configuration_is_enough(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The kubelet updates the volumes of a ConfigMap and of a Secret independently of each other. The mistake is logged once."""
    caplog.set_level("INFO")
    config, authority = tmp_path / "prober.yaml", tmp_path / "ca.pem"
    config.write_text(OLD)
    app = App(Options(str(config), "", keep_running=True), partial(VirtualClock, 1.7e9))
    running = asyncio.create_task(app.run())
    await asyncio.sleep(5)
    config.write_text(f"targets: [{{name: one, url: 'https://192.0.2.1:8000', tls: {{ca_file: '{authority}'}}}}]")
    await asyncio.sleep(3 * RETRY_CHANGE_S)
    assert (caplog.messages.count(NOT_APPLIED), caplog.messages.count(APPLIED)) == (1, 0)
    trustme.CA().cert_pem.write_to_path(str(authority))
    await asyncio.sleep(RETRY_CHANGE_S + 5)
    assert (caplog.messages.count(NOT_APPLIED), caplog.messages.count(APPLIED)) == (1, 1)
    signal.raise_signal(signal.SIGTERM)
    await running


async def test_a_file_that_cannot_be_used_is_read_again_each_minute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the old configuration is in use."""
    config, readings = tmp_path / "prober.yaml", 0
    config.write_text(OLD)
    in_thread = asyncio.to_thread

    async def slow(function: Callable[..., object], /, *args: object, **more: object) -> object:
        nonlocal readings
        if function is read_config_safely:
            readings += 1
        return await in_thread(function, *args, **more)

    monkeypatch.setattr(asyncio, "to_thread", slow)
    app = App(Options(str(config), "", keep_running=True), partial(VirtualClock, 1.7e9))
    running = asyncio.create_task(app.run())
    await asyncio.sleep(5)
    config.write_text("targets: 5")
    await asyncio.sleep(3600)
    assert 50 < readings <= 61
    signal.raise_signal(signal.SIGTERM)
    await running
