"""The process of the pages, where there can be none, and where it ends."""

import asyncio
import gc
import os
import signal
import socket
from collections.abc import Callable
from typing import NoReturn

import pytest
from aiohttp import web

from prober.web.front_process import FrontProcess, Settings

SETTINGS = Settings("127.0.0.1", "", "", None)


def refused(*_: object) -> NoReturn:
    raise BlockingIOError(11, "Resource temporarily unavailable")


def sleeping_process() -> int:
    return os.posix_spawn("/bin/sleep", ["sleep", "30"], os.environ)


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> list[socket.socket]:
    """Both ends of each channel that is made."""
    ends: list[socket.socket] = []

    def channel() -> tuple[socket.socket, socket.socket]:
        made = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ends.extend(made)
        return made

    monkeypatch.setattr("prober.web.front_process._channel", channel)
    return ends


def test_where_no_further_process_is_allowed_there_is_none(
    monkeypatch: pytest.MonkeyPatch, ends: list[socket.socket]
) -> None:
    """A pod's limit of processes, which an engine can use up, ends no prober, and leaves nothing open."""
    monkeypatch.setattr(os, "fork", refused)
    try:
        assert FrontProcess.fork() is None
    finally:
        gc.unfreeze()
    assert [end.fileno() for end in ends] == [-1, -1]


async def test_a_front_that_ends_is_started_again_until_that_works(
    monkeypatch: pytest.MonkeyPatch, ends: list[socket.socket], caplog: pytest.LogCaptureFixture
) -> None:
    """The measuring process goes on, waits if no process can be started, and gives another front all that the first one had."""
    monkeypatch.setattr("prober.web.front_process.RESTART_S", 0.0)
    monkeypatch.setattr("prober.web.front_process.END_S", 0.0)
    first, second = sleeping_process(), sleeping_process()
    is_started = asyncio.Event()

    def started(*_: object) -> int:
        is_started.set()
        return second

    outcomes: list[Callable[..., int]] = [started, refused]
    monkeypatch.setattr(os, "posix_spawn", lambda *command: outcomes.pop()(*command))
    runner = web.AppRunner(web.Application())
    await runner.setup()
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    front, listening = FrontProcess(first, ours), socket.create_server(("127.0.0.1", 0))
    front.start(SETTINGS, [listening], runner, lambda: {"ready": True, "admin": False})
    os.kill(first, signal.SIGTERM)
    theirs.close()
    await is_started.wait()
    assert (front.process_id, listening.fileno() > 0) == (second, True)
    await front.close()
    assert [end.fileno() for end in [ours, *ends, listening]] == [-1] * 6
    assert caplog.messages == [
        "the process of the pages ended (SIGTERM); it is started again in 0 s",
        "no process for the pages: Resource temporarily unavailable; it is tried again in 0 s",
    ]
