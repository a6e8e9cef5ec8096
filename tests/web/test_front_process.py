"""The process of the pages, where there can be none."""

import gc
import os
import socket
from typing import NoReturn

import pytest

from prober.web.front_process import FrontProcess


def test_where_no_further_process_is_allowed_there_is_none(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A pod's limit of processes, which an engine can use up, ends no prober; it leaves nothing open, and says so."""

    def refused() -> NoReturn:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    pairs, pair = [], socket.socketpair

    def kept(*kind: int) -> tuple[socket.socket, socket.socket]:
        pairs.append(pair(*kind))
        return pairs[-1]

    monkeypatch.setattr(os, "fork", refused)
    monkeypatch.setattr(socket, "socketpair", kept)
    try:
        assert FrontProcess.fork() is None
    finally:
        gc.unfreeze()
    assert [end.fileno() for ends in pairs for end in ends] == [-1, -1]
    assert (
        "no process for the pages: Resource temporarily unavailable; the prober serves them itself" in caplog.messages
    )
