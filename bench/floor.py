"""Bare clients, beside which a prober is compared: they send, stamp each piece, and understand nothing.

No HTTP parser, no events, no JSON, no series. `user` is a protocol of asyncio that stamps first thing when it gets the bytes, as
clients do; `kernel` reads a socket of its own and takes the kernel's stamp. Prints processor seconds per 1,000 pieces, and the
stamps of each request by its id; `bench.accuracy` runs them beside the daemon, against the same server.
"""

import asyncio
import json
import resource
import socket
import ssl
import struct
import sys
import time
from typing import cast

BODY = json.dumps(
    {
        "model": "m",
        "max_tokens": 64,
        "stream": True,
        "ignore_eos": True,
        "min_tokens": 64,
        "messages": [{"role": "user", "content": "time people way " * 40}],
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }
).encode()
HEAD = (
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nX-Request-Id: %b-%d\r\n"
    b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n"
)
TIMESPEC = struct.Struct("ll")


class Stamps(asyncio.Protocol):
    """One request; the stamps of what came."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.stamps: list[int] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast(asyncio.Transport, transport).write(HEAD % (b"user", self.number, len(BODY)) + BODY)

    def data_received(self, data: bytes) -> None:
        self.stamps.append(time.monotonic_ns())


class KernelStamps:
    """The same with the stamps of the kernel."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.stamps: list[int] = []
        self.sock = socket.socket()
        self.sock.setblocking(False)
        self.sock.setsockopt(socket.SOL_SOCKET, 35, 1)

    async def run(self, port: int) -> None:
        """Connect, send, and read whenever something is there."""
        loop = asyncio.get_running_loop()
        await loop.sock_connect(self.sock, ("127.0.0.1", port))
        loop.add_reader(self.sock, self.read)
        self.sock.send(HEAD % (b"kernel", self.number, len(BODY)) + BODY)

    def read(self) -> None:
        """Read what is there."""
        data, ancillary, _, _ = self.sock.recvmsg(65536, 64)
        now_ns, real_ns = time.monotonic_ns(), time.time_ns()
        if not data:
            asyncio.get_running_loop().remove_reader(self.sock)
            self.sock.close()
        elif ancillary:
            seconds, nanoseconds = TIMESPEC.unpack(ancillary[0][2])
            self.stamps.append(now_ns - (real_ns - seconds * 10**9 - nanoseconds))
        else:
            self.stamps.append(now_ns)


async def load(kind: str, port: int, rate: float, seconds: float, tls: ssl.SSLContext | None) -> dict[str, list[int]]:
    """Requests at a constant rate; the stamps of each."""
    loop = asyncio.get_running_loop()
    made: list[Stamps | KernelStamps] = []
    waiting: set[asyncio.Task[object]] = set()
    begin = loop.time()
    for number in range(round(rate * seconds)):
        await asyncio.sleep(max(0.0, begin + number / rate - loop.time()))
        if kind == "kernel":
            client = KernelStamps(number)
            made.append(client)
            task: asyncio.Task[object] = asyncio.create_task(client.run(port))
        else:
            protocol = Stamps(number)
            made.append(protocol)
            name = "localhost" if tls else None
            connecting = loop.create_connection(
                lambda protocol=protocol: protocol,
                "127.0.0.1",
                port,
                ssl=tls,
                server_hostname=name,
            )
            task = asyncio.create_task(connecting)
        waiting.add(task)
        task.add_done_callback(waiting.discard)
    await asyncio.sleep(1.5)
    return {f"{kind}-{client.number}": client.stamps for client in made}


def main() -> None:
    """floor KIND PORT RATE SECONDS [CA_FILE]"""
    kind, port, rate, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4])
    tls = ssl.create_default_context(cafile=sys.argv[5]) if sys.argv[5:] else None
    before = resource.getrusage(resource.RUSAGE_SELF)
    stamps = asyncio.run(load(kind, port, rate, seconds, tls))
    after = resource.getrusage(resource.RUSAGE_SELF)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    pieces = sum(map(len, stamps.values()))
    print(json.dumps({"cpu_s_per_1k_pieces": round(cpu / pieces * 1e3, 4), "stamps": stamps}))


if __name__ == "__main__":
    main()
