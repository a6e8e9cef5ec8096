"""The hostile inference server of the tests (`tests/security/attacking_endpoint.py`) as a process, for `bench.hostile`.

It reads `attack` or `quiet` from its standard input.
"""

import asyncio
import json
import os
import subprocess
import sys
from typing import Self

from tests.scripted import scripted
from tests.security.attacking_endpoint import ATTACKS, Server


class Endpoint:
    """The server in a process of its own, on `port`."""

    def __init__(self, name: str) -> None:
        self.workload = ATTACKS[name].config
        command = [sys.executable, "-m", "bench.hostile_endpoint", name]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    def attack(self, attacking: bool) -> None:
        """Be hostile from now on, or answer as others do."""
        assert self._process.stdin is not None
        self._process.stdin.write("attack\n" if attacking else "quiet\n")
        self._process.stdin.flush()

    def stop(self) -> dict[str, int]:
        """End; returns how many requests were answered by path."""
        out, _ = self._process.communicate(timeout=30)
        seen: dict[str, int] = json.loads(out)
        return seen


async def main(name: str) -> None:
    """Serve until standard input ends, then print what was answered."""
    server = Server(ATTACKS[name])
    loop = asyncio.get_running_loop()
    async with scripted(server.answer) as url:
        print(url.rpartition(":")[2], flush=True)
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            server.attacking = line == "attack\n"
    print(json.dumps(server.seen), flush=True)


if __name__ == "__main__":
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    asyncio.run(main(sys.argv[1]))
