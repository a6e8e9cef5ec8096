"""Start of a command: processor time of its help, and until its first byte and its first request are sent; least of several runs.

With compiled bytecode, as an installed package has it. The least, as other work on the machine only adds. A server of this program,
which has one model, reads the processor time that the command has used when its bytes arrive, as the kernel counts it, in ticks of
10 ms. The daemon is measured until it answers that it is ready, all its processes together, and its memory a while later; these
are medians, as others' work makes its start longer in any case.
"""

import asyncio
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from tempfile import NamedTemporaryFile, TemporaryDirectory

from bench.report import goal, part, show
from bench.stage import TICKS, stage

RUNS = 5
SETTLED_S = 10.0
DAEMON = 'targets: [{name: mock, url: "{mock}"}]\n'
ROWS = "rows: [{name: row, prompt_tokens: 16, output_tokens: 16, rate: 1/s, requests: 10, accept: ['success:99%']}]"
MODELS = json.dumps({"data": [{"id": "model"}]})


def help_s(command: str) -> float:
    """Processor time of `prober COMMAND --help`, in seconds."""
    process = subprocess.Popen([sys.executable, "-m", "prober", command, "--help"], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return usage.ru_utime + usage.ru_stime


def used_s(pid: int) -> float:
    """Processor time of a running process so far, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


async def sent_s(command: str, *options: str) -> tuple[float, float]:
    """Processor time of `prober COMMAND URL OPTIONS` until its first byte and until its first request, in seconds."""
    at_first_byte: list[float] = []
    at_request: asyncio.Future[float] = asyncio.get_running_loop().create_future()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readline()
        at_first_byte.append(used_s(process.pid))
        if head.startswith(b"POST"):
            if not at_request.done():
                at_request.set_result(at_first_byte[-1])
        else:
            body = MODELS if b"/v1/models" in head else ""
            status = "200 OK" if body else "404 Not Found"
            writer.write(f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        drop = asyncio.subprocess.DEVNULL
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "prober", command, url, *options, stdout=drop, stderr=drop
        )
        request_s = await asyncio.wait_for(at_request, 30)
        process.kill()
        await process.wait()
    return at_first_byte[0], request_s


def daemon_start() -> tuple[float, float, float]:
    """Seconds and processor seconds of `prober run` until it is ready, and its memory (PSS, MB) `SETTLED_S` later."""
    with stage(DAEMON) as running:
        ready_s, cpu_s = (time.monotonic_ns() - running.started_ns) / 1e9, running.cpu_s()
        time.sleep(SETTLED_S)
        return ready_s, cpu_s, running.rss_mb()


def main() -> None:
    """Measure and print."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    with TemporaryDirectory() as bytecode:
        os.environ["PYTHONPYCACHEPREFIX"] = bytecode
        measure()


def measure() -> None:
    """Measure, after a run that compiles, and print."""
    for command in ("once", "sweep", "matrix", "run"):
        help_s(command)
    helps = {command: min(help_s(command) for _ in range(RUNS)) for command in ("once", "sweep", "matrix", "run")}
    part("help", helps)
    with NamedTemporaryFile("w", suffix=".yaml") as rows:
        rows.write(ROWS)
        rows.flush()
        calls = (("once",), ("sweep",), ("matrix", "--file", rows.name))
        sent = {call[0]: [asyncio.run(sent_s(*call)) for _ in range(RUNS)] for call in calls}
    first_byte = {command: min(byte_s for byte_s, _ in runs) for command, runs in sent.items()}
    first_request = {command: min(request_s for _, request_s in runs) for command, runs in sent.items()}
    part("first byte and request", sent)
    daemon_start()  # compiles
    starts = [daemon_start() for _ in range(RUNS)]
    ready_s, cpu_s, memory_mb = (median(values) for values in zip(*starts, strict=True))
    show(
        "start",
        [
            goal("prober run, first answer of /-/ready", ready_s, 1.0, "s"),
            goal("prober run, processor time of all processes until then", cpu_s, 1.0, "CPU s"),
            goal(f"prober run, memory of all processes (PSS) {SETTLED_S:g} s later", memory_mb, 80, "MB"),
            goal("prober once --help", helps["once"], 0.35, "CPU s"),
            *(
                goal(f"prober {name} URL, first byte sent", byte_s, 0.35, "CPU s")
                for name, byte_s in first_byte.items()
            ),
        ],
        help_s={command: round(seconds, 3) for command, seconds in helps.items()},
        first_byte_s=first_byte,
        first_request_s=first_request,
        daemon_starts=starts,
        runs=RUNS,
    )


if __name__ == "__main__":
    main()
