"""The front in a process of its own, so that the process that measures serves nobody.

It is forked before the measuring process has threads and before that loads what the front does not need, and shares the memory of what
is loaded by then. If it ends, the measuring process starts another one. A front sends the site one end of each connection to it; the
site says every second that it lives, and what has changed.
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

from prober.net.allocator import configure_malloc
from prober.net.log_lines import Format, Level, log_to_stderr
from prober.net.parent_death import end_with_parent
from prober.web.access_control import AccessControl, host_name, origin_of
from prober.web.front import Front
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
    """The front, seen from the measuring process. Call `fork`, `start`, `close`.

    process_id: of the front in use. log_level, log_format: of its log, set before `start`
    """

    log_level, log_format = Level.INFO, Format.LOGFMT

    def __init__(self, process_id: int, control: socket.socket) -> None:
        self.process_id, self._control = process_id, control
        self._tasks: set[asyncio.Task[Any]] = set()

    @classmethod
    def fork(cls) -> "FrontProcess | None":
        """Fork the front; None where this system cannot, or allows no further process. Call it without threads and event loop."""
        if sys.platform != "linux":
            return None
        ours, theirs = _channel()
        parent = os.getpid()
        gc.collect()
        gc.freeze()  # the collector would write to the shared memory, and so copy it
        try:
            process_id = os.fork()
        except OSError:
            ours.close()
            theirs.close()
            return None
        if process_id:
            theirs.close()
            return cls(process_id, ours)
        code = 1
        try:
            ours.close()
            _run(theirs, parent)
            code = 0
        except BaseException:
            log.exception("pages: their process failed; please report this")
        finally:
            logging.shutdown()
            os._exit(code)

    def start(
        self,
        settings: Settings,
        sockets: list[socket.socket],
        runner: web.AppRunner,
        state: Callable[[], dict[str, bool]],
    ) -> None:
        """Let the front accept connections of these sockets.

        runner: of the site. state: `ready` and `admin` of the site
        """
        self._settings, self._sockets, self._runner, self._state = settings, sockets, runner, state
        self._connect()

    def tell(self) -> None:
        """Send the state of the site to the front."""
        with contextlib.suppress(OSError):  # it is busy, or has ended, which `_receive` sees
            self._control.send(json.dumps(self._state()).encode())

    async def close(self) -> None:
        """Stop listening, and end the front."""
        self._timer.cancel()
        asyncio.get_running_loop().remove_reader(self._control)
        self._control.close()
        for listening in self._sockets:
            listening.close()
        end = asyncio.get_running_loop().call_later(END_S, os.kill, self.process_id, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):  # it has ended, and another one is not yet started
            await asyncio.to_thread(os.waitpid, self.process_id, 0)
        end.cancel()

    def _connect(self) -> None:
        log_options = (self.log_level, self.log_format)
        message = json.dumps({"settings": asdict(self._settings), "log_options": log_options}).encode()
        with contextlib.suppress(OSError):  # it has ended, which `_receive` sees
            socket.send_fds(self._control, [message], [listening.fileno() for listening in self._sockets])
        self._control.setblocking(False)
        asyncio.get_running_loop().add_reader(self._control, self._receive)
        self._beat()

    def _beat(self) -> None:
        self.tell()
        self._timer = asyncio.get_running_loop().call_later(BEAT_S, self._beat)  # or that of another front

    def _receive(self) -> None:
        """Take a connection of the front, or notice its end."""
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
            loop = asyncio.get_running_loop()
            loop.remove_reader(self._control)
            os.kill(self.process_id, signal.SIGKILL)  # if it has only closed the channel
            code = os.waitstatus_to_exitcode(os.waitpid(self.process_id, 0)[1])
            how = signal.Signals(-code).name if code < 0 else f"exit status {code}"
            log.error("the process of the pages ended (%s); it is started again in %g s", how, RESTART_S)
            self._timer.cancel()
            self._timer = loop.call_later(RESTART_S, self._start_again)

    def _start_again(self) -> None:
        """Start another front, from nothing: a process with threads and an event loop cannot be forked."""
        ours, theirs = _channel()
        theirs.set_inheritable(True)
        command = (sys.executable, "-m", __name__, str(theirs.fileno()), str(os.getpid()))
        try:
            self.process_id = os.posix_spawn(sys.executable, command, os.environ)
        except OSError as problem:
            log.error("no process for the pages: %s; it is tried again in %g s", problem.strerror, RESTART_S)
            ours.close()
            self._timer = asyncio.get_running_loop().call_later(RESTART_S, self._start_again)
        else:
            self._control.close()
            self._control = ours
            self._connect()
        finally:
            theirs.close()


def _channel() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


async def take(runner: web.AppRunner, connected: socket.socket) -> None:
    """Let the site serve a connection of a front."""
    connected.setblocking(False)
    assert runner.server is not None
    await asyncio.get_running_loop().connect_accepted_socket(runner.server, connected)


def _run(control: socket.socket, parent: int) -> None:
    """Serve until the measuring process closes the channel."""
    os.setsid()  # Ctrl-C in a terminal goes to the measuring process, which decides
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
    end_with_parent(parent)
    gc.enable()
    message, descriptors, _, _ = socket.recv_fds(control, MAX_MESSAGE_BYTES, MAX_SOCKETS)
    if message:
        start = json.loads(message)
        level, kind = start["log_options"]
        log_to_stderr(Level(level), Format(kind))
        os.nice(NICENESS)
        with contextlib.suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text(str(OOM_SCORE), encoding="ascii")
        sockets = [socket.socket(fileno=descriptor) for descriptor in descriptors]
        uvloop.run(_serve(control, Settings(**start["settings"]), sockets))


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


if __name__ == "__main__":
    configure_malloc()
    _run(socket.socket(fileno=int(sys.argv[1])), parent=int(sys.argv[2]))
