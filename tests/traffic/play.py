"""Plays a case: the command in this process and the server in its event loop, in virtual time, so that times are exact."""

from __future__ import annotations

import asyncio
import json
import shlex
import signal
from functools import partial
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import yaml

from prober.daemon.app import App, Options
from tests.commands import prober
from tests.processes import free_port
from tests.traffic.answers import Exchange
from tests.traffic.server import Play, Server
from tests.traffic.verdicts import SHORT, BudgetCase, ProbeCase, RunCase, always
from tests.virtual import FIRST_FREE_PORT, VirtualClock, VirtualLoop
from tests.virtual_commands import beside

URL = f"http://127.0.0.1:{FIRST_FREE_PORT}"
HEALTHY = "healthy"


def _config(folder: Path, **workloads: dict[str, Any]) -> Path:
    path = folder / "prober.yaml"
    path.write_text(yaml.safe_dump({"targets": [{"url": URL}], "workloads": workloads}))
    return path


def once(case: ProbeCase, folder: Path) -> tuple[dict[str, Any], str, Exchange]:
    """`prober once`: its JSON, what it wrote beside that, and the server's truth."""
    if case.golden is not None:
        golden = [{"prompt": "What is the capital of France?", "expect": {"text": case.golden}}]
        path = _config(folder, asked={"golden": golden, "output_tokens": case.output_tokens})
        words = ["--config.file", path, "--workload", "asked"]
    else:
        words = ["--prompt-tokens", 8, "--output-tokens", case.output_tokens]
    if case.sampling:
        words += ["--sampling", json.dumps(case.sampling)]
    play = Play(lambda exchange, earlier: case.reply, case.owner)
    with beside(partial(Server, {"case": play})):
        done = prober("once", f"{URL}/case/v1", "--api", case.api, "--json", *words)
    assert len(play.exchanges) == 1, done.stderr
    return json.loads(done.stdout), done.stderr, play.exchanges[0]


def run(case: RunCase, folder: Path) -> tuple[CompletedProcess[str], CompletedProcess[str] | None, list[Exchange]]:
    """The command of a case, the command after it, and the server's truth."""
    rows = folder / "rows.yaml"
    row = (
        {"name": "row"}
        | ({"workload": "talk"} if case.workload else {"prompt_tokens": 8, "output_tokens": 3})
        | case.rows
    )
    rows.write_text(yaml.safe_dump({"rows": [row]}))
    places = {
        "url": f"{URL}/case/v1",
        "b": f"{URL}/{HEALTHY}/v1",
        "rows": rows,
        "config": _config(folder, talk=case.workload) if case.workload else "",
        "out": folder / "result.json",
    }
    play = Play(case.script, case.owner, case.pause_s)
    healthy = Play(always(SHORT), case.owner, case.pause_s)
    with beside(partial(Server, {"case": play, HEALTHY: healthy})):
        done = prober(*shlex.split(case.command.format(**places)), "--api", case.api)
    after = prober(*shlex.split(case.then[0].format(**places))) if case.then else None
    return done, after, play.exchanges


async def spend(
    cases: list[BudgetCase], folder: Path, duration_s: float = 8.0
) -> dict[str, tuple[float, list[Exchange]]]:
    """A daemon that probes all cases, once a second: the tokens spent of each budget, and the server's truth, by case."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    plays = {f"case{number}": Play(case.script) for number, case in enumerate(cases)}
    targets = [
        {
            "name": name,
            "url": f"{URL}/{name}/v1",
            "api": case.api,
            "budget": {"tokens_per_day": 100_000_000},
            "metrics": {"url": "none"},
        }
        for name, case in zip(plays, cases, strict=True)
    ]
    path = folder / "prober.yaml"
    path.write_text(
        yaml.safe_dump(
            {
                "defaults": {"rate": "1/s", "arrivals": "constant", "warmup": 0},
                "workloads": {"asked": {"prompt_tokens": 8, "output_tokens": 64}},
                "targets": [target | {"probes": [{"workload": "asked"}]} for target in targets],
            }
        )
    )
    port = free_port()
    async with Server(plays):
        app = asyncio.create_task(App(Options(str(path), f"127.0.0.1:{port}"), VirtualClock).run())
        await asyncio.sleep(duration_s)
        with loop.real_network():
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET /api/v1/targets HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
            head, _, body = (await reader.read()).decode().partition("\r\n\r\n")
            writer.close()
        assert head.startswith("HTTP/1.1 200"), head
        exchanges = {name: list(play.exchanges) for name, play in plays.items()}
        signal.raise_signal(signal.SIGTERM)
        await app
    spent = {row["name"]: row["budgets"][0]["spent"] for row in json.loads(body)["data"]}
    return {case.name: (spent[name], exchanges[name]) for name, case in zip(plays, cases, strict=True)}
