"""The process of the pages, where there can be none."""

import gc
import os
from typing import NoReturn

import pytest

from prober.web.front_process import FrontProcess


def test_where_no_further_process_is_allowed_there_is_none(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A pod's limit of processes, which an engine can use up, ends no prober; it leaves nothing open, and says so."""

    def refused() -> NoReturn:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", refused)
    before = os.listdir("/proc/self/fd")
    try:
        assert FrontProcess.fork() is None
    finally:
        gc.unfreeze()
    assert len(os.listdir("/proc/self/fd")) == len(before)
    assert (
        "no process for the pages: Resource temporarily unavailable; the prober serves them itself" in caplog.messages
    )
