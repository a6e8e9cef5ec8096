"""A relay between the prober and a real server of streams that holds answers back, as gateways do; a process of its own for benches.

    python -m tests.relay UPSTREAM_PORT POLICY

It prints its port. Requests and headers pass at once. POLICY: what is written together:

    none           everything as it comes
    all            the answer, when it has ended
    all-by-event   the same, one write per event
    events:N       N events with content
    bytes:N        N bytes
    time:S         what came within S seconds
"""

import asyncio
import contextlib
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

CONTENT = re.compile(rb'"content": ?"[^"]')


async def relay(client: asyncio.StreamReader, writer: asyncio.StreamWriter, upstream_port: int, policy: str) -> None:
    """Serve one connection: one request, and its answer by the policy."""
    kind, _, amount = policy.partition(":")
    size = float(amount or 0)
    reader, upstream = await asyncio.open_connection("127.0.0.1", upstream_port)
    requests = asyncio.create_task(_copy(client, upstream))
    try:
        writer.write(await reader.readuntil(b"\r\n\r\n"))
        held, loop = b"", asyncio.get_running_loop()
        began_s = loop.time()
        while True:
            try:
                wait_s = began_s + size - loop.time() if kind == "time" and held else None
                data = await asyncio.wait_for(reader.read(1 << 16), wait_s)
            except TimeoutError:
                data = None
            if data == b"":
                break
            if data and not held:
                began_s = loop.time()
            held += data or b""
            if (
                kind == "none"
                or (kind == "time" and data is None)
                or (kind == "bytes" and len(held) >= size)
                or (kind == "events" and len(CONTENT.findall(held)) >= size)
            ):
                writer.write(held)
                held = b""
        for piece in re.split(rb"(?=[0-9a-f]+\r\ndata:)", held) if kind == "all-by-event" else [held]:
            writer.write(piece)
            await writer.drain()
    finally:
        requests.cancel()
        upstream.close()
        writer.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(1 << 16):
            writer.write(data)


@asynccontextmanager
async def relaying(upstream_port: int, policy: str) -> AsyncIterator[int]:
    """A relay in this event loop; its port."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await relay(reader, writer, upstream_port, policy)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


async def _main(upstream_port: int, policy: str) -> None:
    async with relaying(upstream_port, policy) as port:
        print(port, flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_main(int(sys.argv[1]), sys.argv[2]))
