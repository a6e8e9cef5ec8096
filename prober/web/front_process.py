"""The front in a process of its own, so that the process that measures serves nobody.

It is forked before the measuring process has threads and before that loads what the front does not need, and shares the memory of what
is loaded by then: a page that both write is there three times, as the keeper has it too. Between both is a keeper, which
only waits, and forks the front again if it ends. A front sends the site one end of each connection to it; the site says every
second that it lives, and what has changed.
"""

import asyncio
import contextlib
import gc
import json
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import uvloop
from aiohttp import web

from prober.net.parent_death import end_with_parent
from prober.web.access_control import AccessControl, origin_of
from prober.web.front import Front
from prober.web.host_name import host_name
from prober.web.web_config import WebFile

BEAT_S = 1.0
RESTART_S = 1.0
END_S = 3.0
NICENESS = 5  # timestamps come before pages
OOM_SCORE = 500  # if memory runs out, the kernel ends the front and not the measuring
MAX_MESSAGE_BYTES = 1 << 16
MAX_SOCKETS = 16
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Settings:
    """What a front needs to know. host: of the listen address; None for all addresses"""

    host: str | None
    prefix: str
    external_url: str
    web_config_file: str | None


class FrontProcess:
    """The keeper and its front, seen from the measuring process. Call `fork`, `start`, `close`.

    process_id: of the keeper
    """

    def __init__(self, process_id: int, control: socket.socket) -> None:
        self.process_id, self._control = process_id, control
        self._beating: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closing = False

    @classmethod
    def fork(cls) -> "FrontProcess | None":
        """Fork the keeper; None where this system cannot, or allows no further process. Call it without threads and event loop."""
        if sys.platform != "linux":
            return None
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        parent = os.getpid()
        gc.collect()
        gc.freeze()  # the collector would write to the shared memory, and so copy it
        try:
            process_id = os.fork()
        except OSError as problem:
            log.error("no process for the pages: %s; the prober serves them itself", problem.strerror)
            ours.close()
            theirs.close()
            return None
        if process_id:
            theirs.close()
            return cls(process_id, ours)
        code = 1
        try:
            ours.close()
            _keep(theirs, parent)
            code = 0
        except BaseException:
            log.exception("pages: their process failed; please report this")
        finally:
            logging.shutdown()
            os._exit(code)  # of the keeper, and of a front, which is started again unless it is 0

    def start(
        self,
        settings: Settings,
        sockets: list[socket.socket],
        runner: web.AppRunner,
        state: Callable[[], dict[str, bool]],
        lost: Callable[[], None],
    ) -> None:
        """Let the front accept connections of these sockets, which are closed here.

        runner: of the site. state: `ready` and `admin` of the site. lost: called if the keeper ends
        """
        self._runner, self._lost = runner, lost
        message = json.dumps(asdict(settings)).encode()
        socket.send_fds(self._control, [message], [listening.fileno() for listening in sockets])
        for listening in sockets:
            listening.close()
        self._control.setblocking(False)
        asyncio.get_running_loop().add_reader(self._control, self._receive)
        self._state = state
        self._beating = asyncio.create_task(self._beat())

    def tell(self) -> None:
        """Send the state of the site to the front."""
        try:
            self._control.send(json.dumps(self._state()).encode())
        except BlockingIOError:  # the front is busy, or begins anew
            pass
        except OSError:
            self._gone()

    async def close(self) -> None:
        """End the front and the keeper."""
        self._closing = True
        if self._beating is not None:
            self._beating.cancel()
            asyncio.get_running_loop().remove_reader(self._control)
        self._control.close()
        await asyncio.to_thread(self._ended, END_S)

    def _ended(self, within_s: float) -> None:
        until_s = time.monotonic() + within_s
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(self.process_id, os.WNOHANG) == (0, 0):
                if time.monotonic() > until_s:
                    os.kill(self.process_id, signal.SIGKILL)  # the front ends with it
                    os.waitpid(self.process_id, 0)
                    return
                time.sleep(0.01)

    async def _beat(self) -> None:
        while not self._closing:
            self.tell()
            await asyncio.sleep(BEAT_S)

    def _receive(self) -> None:
        """Take a connection of the front."""
        try:
            data, descriptors, _, _ = socket.recv_fds(self._control, MAX_MESSAGE_BYTES, MAX_SOCKETS)
        except BlockingIOError:
            return
        except OSError:
            data, descriptors = b"", []
        for descriptor in descriptors:
            task = asyncio.create_task(take(self._runner, socket.socket(fileno=descriptor)))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        if not data:
            asyncio.get_running_loop().remove_reader(self._control)
            self._gone()

    def _gone(self) -> None:
        if not self._closing:
            self._closing = True
            self._lost()


async def take(runner: web.AppRunner, connected: socket.socket) -> None:
    """Let the site serve a connection of a front."""
    connected.setblocking(False)
    assert runner.server is not None
    await asyncio.get_running_loop().connect_accepted_socket(runner.server, connected)


def _keep(control: socket.socket, parent: int) -> None:
    """Wait for the sockets, and keep a front for them until the measuring process closes the channel."""
    os.setsid()  # Ctrl-C in a terminal goes to the measuring process, which decides
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
    end_with_parent(parent)
    message, descriptors, _, _ = socket.recv_fds(control, MAX_MESSAGE_BYTES, MAX_SOCKETS)
    if not message:
        return
    settings = Settings(**json.loads(message))
    keeper = os.getpid()
    while True:
        process_id = os.fork()
        if not process_id:
            end_with_parent(keeper)
            os.nice(NICENESS)
            with contextlib.suppress(OSError):
                Path("/proc/self/oom_score_adj").write_text(str(OOM_SCORE), encoding="ascii")
            sockets = [socket.socket(fileno=descriptor) for descriptor in descriptors]
            uvloop.run(_serve(control, settings, sockets))
            return
        _, status = os.waitpid(process_id, 0)
        code = os.waitstatus_to_exitcode(status)
        if code == 0:
            return
        how = signal.Signals(-code).name if code < 0 else f"exit status {code}"
        log.error("the process of the pages ended (%s); it is started again in %g s", how, RESTART_S)
        time.sleep(RESTART_S)


async def _serve(control: socket.socket, settings: Settings, sockets: list[socket.socket]) -> None:
    """Serve until the measuring process closes the channel."""
    loop = asyncio.get_running_loop()
    closed = loop.create_future()
    state, heard_s = {"ready": False, "admin": False}, time.monotonic()

    def receive() -> None:
        nonlocal heard_s
        try:
            message = control.recv(MAX_MESSAGE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            message = b""
        if message:
            state.update(json.loads(message))
            heard_s = time.monotonic()
        elif not closed.done():
            loop.remove_reader(control)
            closed.set_result(None)

    async def hand_over(connected: socket.socket) -> None:
        socket.send_fds(control, [b"connection"], [connected.fileno()])

    access = AccessControl(
        WebFile(settings.web_config_file, keep_running=True),
        settings.prefix,
        {origin_of(settings.external_url)} if settings.external_url else set(),
        lambda: state["admin"],
        lambda: state["ready"],
        lambda: time.monotonic() - heard_s,
    )
    access.names.add(host_name(settings.host or "") or "")
    front = Front(access, settings.prefix, hand_over)
    await front.start(sockets)
    control.setblocking(False)
    loop.add_reader(control, receive)
    await closed
    await front.close()
