"""Connections beyond the limits: each is answered or closed, whatever it says or does not say."""

import asyncio
import contextlib
import socket
import ssl
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trustme

from prober.web import overflow
from prober.web.overflow import Overflow
from prober.web.web_config import Loaded, read

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


@asynccontextmanager
async def overflowing(loaded: Loaded | None = None) -> AsyncIterator[int]:
    """The port of a server whose connections are all beyond the limits."""

    def answer(head: bytes) -> bytes:
        if head.startswith(b"FAULT"):
            raise RuntimeError("a fault of ours")
        return ANSWER

    overflow_ = Overflow(answer)
    overflow_.start()
    listening = socket.create_server(("127.0.0.1", 0), backlog=1024)
    listening.setblocking(False)
    loop = asyncio.get_running_loop()

    def accept() -> None:
        with contextlib.suppress(BlockingIOError):
            overflow_.offer(listening.accept()[0], loaded or Loaded())

    loop.add_reader(listening, accept)
    try:
        yield listening.getsockname()[1]
    finally:
        loop.remove_reader(listening)
        listening.close()
        await asyncio.to_thread(overflow_.close)


async def response_to(port: int, *pieces: bytes) -> bytes:
    """All that comes back until the connection ends."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        async with asyncio.timeout(20):
            for piece in pieces:
                writer.write(piece)
                await asyncio.sleep(0.02)
            return await reader.read()
    except ConnectionError:
        return b""
    finally:
        await ended(writer)


async def ended(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


@pytest.mark.parametrize(
    "pieces",
    [
        (b"GET / HTTP/1.1\r\n\r\n",),
        (b"GET / HT", b"TP/1.1\r", b"\n\r", b"\n"),
        (b"POST / HTTP/1.1\r\n\r\n" + b"x" * 100_000,),
        (b"x" * overflow.MAX_HEAD_BYTES,),
        (b"\x16\x03\x01\r\n\r\n",),
    ],
)
async def test_what_is_said_is_answered_and_the_connection_ends(pieces: tuple[bytes, ...]) -> None:
    """In one piece or several; who never ends its headers is answered when they are too long."""
    async with overflowing() as port:
        assert await response_to(port, *pieces) in (ANSWER, *((b"",) if len(pieces[0]) > 10_000 else ()))


async def test_who_says_nothing_has_its_time_and_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither silence, nor half a request, nor a fault of the answering keeps the next one from its answer."""
    monkeypatch.setattr(overflow, "MAX_AGE_S", 0.3)
    async with overflowing() as port:
        slow = [asyncio.create_task(response_to(port, start)) for start in (b"", b"GET / HT", b"FAULT\r\n\r\n")]
        await asyncio.sleep(0.05)
        assert await response_to(port, b"GET / HTTP/1.1\r\n\r\n") == ANSWER
        assert await asyncio.gather(*slow) == [b""] * 3


async def test_of_too_many_the_oldest_go() -> None:
    """However many are silent, they are bounded, and one that speaks is answered."""
    async with overflowing() as port:
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2 * overflow.MAX_CONNECTIONS)]
        assert await response_to(port, b"GET / HTTP/1.1\r\n\r\n") == ANSWER
        async with asyncio.timeout(20):
            for reader, _ in silent[: overflow.MAX_CONNECTIONS]:
                with contextlib.suppress(ConnectionError):
                    assert await reader.read() == b""
        for _, writer in silent:
            await ended(writer)


async def test_with_tls_only_tls_is_answered(tmp_path: Path) -> None:
    """A handshake in several turns; plain text or a client that trusts another authority end the connection."""
    authority = trustme.CA()
    issued = authority.issue_cert("localhost")
    (tmp_path / "s.pem").write_bytes(issued.private_key_and_cert_chain_pem.bytes())
    (tmp_path / "w.yml").write_text("tls_server_config: {cert_file: s.pem, key_file: s.pem}")
    async with overflowing(read(str(tmp_path / "w.yml"))) as port:
        for trusted, expected in ((authority, ANSWER), (trustme.CA(), b"")):
            context = ssl.create_default_context()
            trusted.configure_trust(context)
            answer = b""
            with contextlib.suppress(OSError):
                reader, writer = await asyncio.open_connection(
                    "127.0.0.1", port, ssl=context, server_hostname="localhost"
                )
                writer.write(b"GET / HTTP/1.1\r\n\r\n")
                answer = await reader.read()
                await ended(writer)
            assert answer == expected
        assert not (await response_to(port, b"GET / HTTP/1.1\r\n\r\n")).startswith(b"HTTP")


async def test_its_processor_time_is_bounded() -> None:
    """Connections as fast as they are answered do not take it more than its share of a core."""
    async with overflowing() as port:
        begin_s = time.monotonic()
        thread = next(candidate for candidate in threading.enumerate() if candidate.name == "overflow")
        used = time.clock_gettime(time.pthread_getcpuclockid(thread.ident or 0))

        async def hammer() -> None:
            while time.monotonic() - begin_s < 1.0:
                await response_to(port, b"GET / HTTP/1.1\r\n\r\n")

        await asyncio.gather(*(hammer() for _ in range(20)))
        used = time.clock_gettime(time.pthread_getcpuclockid(thread.ident or 0)) - used
        assert 0 < used <= 1.5 * overflow.MAX_CPU_RATIO * (time.monotonic() - begin_s)
