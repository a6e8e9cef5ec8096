"""Effect of an attack on the prober's pages on its stamps, over TLS and with passwords.

Of PERIOD_S each, periods under attack follow quiet ones; those without are of two kinds, whose difference tells what other work on
the machine leaves of the figure (`null_ms`). The attack comes from one address that is not the reader's: wrong passwords at 100/s,
as many connections as it gets that say half a request and wait, bodies of 10 MB, and `/probe` as fast as it is answered, with
a right password. It runs only on time that nobody else wants (SCHED_IDLE), as its own work is elsewhere in earnest.
"""

import asyncio
import base64
import contextlib
import json
import os
import ssl
import subprocess
import sys
import tempfile
import time
from bisect import bisect_right
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import aiohttp
import bcrypt
import trustme
import yaml

from bench.comparison import CONFIG, itl_errors_ms, pairs
from bench.report import goal, percentile, show
from bench.stage import Door, Stage, stage

RATE = 50
PERIOD_S = 2.0
ROUNDS = 8
ORDER = (False, True, False, True)  # whether it is attacked
WARM_S = 15.0
ATTACKER = "127.0.0.2"
PASSWORD = "what the reader knows"
COST = 10
SILENT = 200
BODY = 10_000_000
PASSWORDS_PER_S = 100.0


def basic(password: str) -> dict[str, str]:
    """The header of a user with this password."""
    return {"Authorization": "Basic " + base64.b64encode(f"reader:{password}".encode()).decode()}


class Attack:
    """One attacker, in a process of its own. begin_ns: of the first period, on the monotonic clock of the machine."""

    def __init__(self, url: str, begin_ns: int) -> None:
        self._url, self._begin_ns = url, begin_ns
        self.seen: Counter[str] = Counter()
        self._tls = ssl.create_default_context()
        self._tls.check_hostname, self._tls.verify_mode = False, ssl.CERT_NONE

    async def run(self) -> None:
        """All kinds at once, in the periods that are its own."""
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)  # it cuts connections off at any moment
        kinds = (self._passwords, self._silent, self._bodies, self._probes)
        for period, attacked in enumerate(ORDER * ROUNDS):
            await self._until(period)
            if attacked:
                end_s = (self._begin_ns / 1e9) + (period + 1) * PERIOD_S
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(max(0.0, end_s - time.monotonic())), asyncio.TaskGroup() as group:
                        for kind in kinds:
                            group.create_task(kind())

    async def _until(self, period: int) -> None:
        await asyncio.sleep(max(0.0, self._begin_ns / 1e9 + period * PERIOD_S - time.monotonic()))

    async def _passwords(self) -> None:
        async with self._session() as session, asyncio.TaskGroup() as group:
            while True:
                group.create_task(self._ask(session, "password", "/metrics", headers=basic(os.urandom(9).hex())))
                await asyncio.sleep(1 / PASSWORDS_PER_S)

    async def _silent(self) -> None:
        held: list[asyncio.StreamWriter] = []
        host, _, port = self._url.removeprefix("https://").partition(":")
        try:
            while True:
                if len(held) >= SILENT:
                    held.pop(0).transport.abort()
                try:
                    _, writer = await asyncio.open_connection(host, int(port), ssl=self._tls, local_addr=(ATTACKER, 0))
                except OSError:
                    self.seen["silent: refused"] += 1
                    await asyncio.sleep(0.01)
                    continue
                writer.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\nX-Slow: ")
                held.append(writer)
                self.seen["silent: held"] += 1
                await asyncio.sleep(0.005)
        finally:
            for writer in held:
                writer.transport.abort()

    async def _bodies(self) -> None:
        await self._again("body", "/-/reload", method="POST", headers=basic(PASSWORD), data=b"x" * BODY)

    async def _probes(self) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(10):
                group.create_task(self._again("probe", "/probe?target=mock", headers=basic(PASSWORD)))

    async def _again(self, kind: str, path: str, **more: Any) -> None:
        async with self._session() as session:
            while True:
                await self._ask(session, kind, path, **more)

    async def _ask(
        self, session: aiohttp.ClientSession, kind: str, path: str, method: str = "GET", **more: Any
    ) -> None:
        try:
            async with session.request(method, self._url + path, **more) as answer:
                self.seen[f"{kind}: {answer.status}"] += 1
        except (aiohttp.ClientError, OSError):
            self.seen[f"{kind}: refused"] += 1
            await asyncio.sleep(0.01)

    def _session(self) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=self._tls, local_addr=(ATTACKER, 0), limit=64),
            cookie_jar=aiohttp.DummyCookieJar(),
        )


def attack(url: str, begin_ns: int) -> None:
    """Attack, and print what was seen."""
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    attacker = Attack(url, begin_ns)
    asyncio.run(attacker.run())
    print(json.dumps(attacker.seen))


def door(folder: Path) -> Door:
    """TLS with an ECDSA key, and one user."""
    authority = trustme.CA(key_type=trustme.KeyType.ECDSA)
    issued = authority.issue_cert("127.0.0.1", key_type=trustme.KeyType.ECDSA)
    (folder / "tls.crt").write_bytes(b"".join(pem.bytes() for pem in issued.cert_chain_pems))
    (folder / "tls.key").write_bytes(issued.private_key_pem.bytes())
    hashed = bcrypt.hashpw(PASSWORD.encode(), bcrypt.gensalt(COST)).decode()
    file = folder / "web.yml"
    tls = {"cert_file": "tls.crt", "key_file": "tls.key"}
    file.write_text(yaml.safe_dump({"tls_server_config": tls, "basic_auth_users": {"reader": hashed}}))
    trust = ssl.create_default_context()
    authority.configure_trust(trust)
    return Door((f"--web.config.file={file}", "--web.enable-admin-api"), basic(PASSWORD), trust)


def used(running: Stage, begin_ns: int) -> list[float]:
    """Processor seconds that the daemon used in each period, all threads."""
    found: list[float] = []
    for period in range(len(ORDER) * ROUNDS + 1):
        time.sleep(max(0.0, begin_ns / 1e9 + period * PERIOD_S - time.monotonic()))
        found.append(running.cpu_s())
    return [after - before for before, after in pairwise(found)]


def measure() -> dict[str, Any]:
    """ITL errors in ms, attacked and not."""
    with tempfile.TemporaryDirectory(prefix="prober-bench-") as name:
        history = round(RATE * PERIOD_S * ROUNDS * len(ORDER) * 2)
        with stage(CONFIG.format(rate=RATE), history=history, door=door(Path(name))) as running:
            time.sleep(WARM_S)
            begin_ns = time.monotonic_ns() + 2 * 10**9
            command = [sys.executable, "-m", "bench.web", running.prober, str(begin_ns)]
            with subprocess.Popen(command, stdout=subprocess.PIPE) as attacker:
                used_s = used(running, begin_ns)
                seen = attacker.communicate()[0]
            end_ns = begin_ns + round(len(ORDER) * ROUNDS * PERIOD_S * 1e9)
            time.sleep(2)
            probes, good = pairs(running, begin_ns, end_ns)
    begins = [begin_ns + round(index * PERIOD_S * 1e9) for index in range(len(ORDER) * ROUNDS)]
    split: list[list[float]] = [[] for _ in ORDER]
    for at, error in itl_errors_ms(good):
        if begin_ns <= at < end_ns:
            split[(bisect_right(begins, at) - 1) % len(ORDER)].append(error)
    quiet, once, again, twice = split
    shares = {
        name: sum(used_s[kind::2]) / len(used_s[kind::2]) / PERIOD_S for kind, name in enumerate(("quiet", "attacked"))
    }
    p99 = {"quiet": percentile(quiet + again, 0.99), "attacked": percentile(once + twice, 0.99)}
    return {
        "gaps": sum(map(len, split)),
        "probes": len(probes),
        "not_ok": dict(Counter(each["outcome"] for each in probes if each["outcome"] != "ok")),
        "itl_error_p99_ms": {name: round(value, 4) for name, value in p99.items()},
        "more_ms": round(p99["attacked"] - p99["quiet"], 4),
        "null_ms": round(percentile(again, 0.99) - percentile(quiet, 0.99), 4),
        "daemon_cores": {name: round(share, 3) for name, share in shares.items()},
        "attack": json.loads(seen),
    }


def main() -> None:
    """Measure and print; with an address, attack it."""
    if len(sys.argv) == 3:
        attack(sys.argv[1], int(sys.argv[2]))
        return
    found = measure()
    goals = [
        goal("ITL error p99, pages attacked, minus not", found["more_ms"], 0.5, "ms"),
        goal("probes that did not end well", sum(found["not_ok"].values()), 0, "probes"),
    ]
    show("web", goals, **found)


if __name__ == "__main__":
    main()
