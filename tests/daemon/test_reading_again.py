"""A changed configuration whose mistake mends itself: the file stays as it is, and what it names comes later."""

import asyncio
import gc
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from prober.daemon.app import RETRY_CHANGE_S, App, Options
from tests.virtual import VirtualClock

pytestmark = pytest.mark.virtual_time
trustme = pytest.importorskip("trustme")
OLD = "targets: [{name: one, url: 'http://192.0.2.1:8000'}]"
APPLIED, NOT_APPLIED = "configuration applied: 1 target", "configuration not applied, the old one stays in use"


@pytest.fixture(autouse=True)
def garbage_collector() -> Iterator[None]:
    """The daemon sets it for its process."""
    threshold = gc.get_threshold()
    yield
    gc.set_threshold(*threshold)
    gc.unfreeze()


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
