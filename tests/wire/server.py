"""A server of raw bytes in the memory of a `VirtualLoop`: executes the script of a case and takes the time of each marked step.

It knows nothing of HTTP except where a request ends. It leaves the last byte of a request unread, so that closing its socket is a
reset for the client, as it is with TCP.
"""

from __future__ import annotations

import asyncio
import re
import socket
from contextlib import suppress
from dataclasses import dataclass, field

from tests.virtual import VirtualLoop
from tests.wire.case import FIN, HOLD, REQUEST, RST, Case, Mark

HOST = "127.0.0.1"
PORT = 80


@dataclass
class WireServer:
    """Serves one case on HOST and PORT. The script runs on the first connection; others are closed.

    stamps_ns: time of the step behind each mark
    """

    case: Case
    loop: VirtualLoop
    stamps_ns: dict[Mark, int] = field(default_factory=dict)
    _task: asyncio.Task[None] | None = None

    def __post_init__(self) -> None:
        self.loop.listen(HOST, PORT, self)

    def accept(self, sock: socket.socket) -> None:
        """Take a connection."""
        if self._task is None:
            self._task = self.loop.create_task(self._serve(sock))
        else:
            sock.close()

    async def _serve(self, sock: socket.socket) -> None:
        with sock, suppress(OSError, EOFError):
            await self._execute(sock)

    async def _execute(self, sock: socket.socket) -> None:
        case = self.case
        if case.tls:
            await self._read(sock, 1)
        elif not case.before_request:
            await self._read_request(sock)
        marks: list[Mark] = []
        for step in case.script:
            if isinstance(step, float):
                await asyncio.sleep(step)
            elif isinstance(step, Mark):
                marks.append(step)
            else:
                for mark in marks:
                    self.stamps_ns.setdefault(mark, round(self.loop.time() * 1e9))
                marks.clear()
                if isinstance(step, bytes):
                    await self.loop.sock_sendall(sock, step)
                elif step is REQUEST:
                    await self._read_request(sock)
                elif step is RST:
                    return
                elif step is FIN:
                    sock.shutdown(socket.SHUT_WR)
                else:
                    assert step is HOLD
        while await self.loop.sock_recv(sock, 4096):
            pass

    async def _read(self, sock: socket.socket, size: int) -> bytes:
        data = b""
        while len(data) < size:
            piece = await self.loop.sock_recv(sock, size - len(data))
            if not piece:
                raise EOFError
            data += piece
        return data

    async def _read_request(self, sock: socket.socket) -> None:
        """Read a request but for its last byte."""
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            head += await self._read(sock, 1)
        length = re.search(rb"\r\ncontent-length: *(\d+)", head.lower())
        assert length is not None
        await self._read(sock, int(length[1]) - 1)
