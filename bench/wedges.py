"""Are wedges told that an engine's health check hides? The daemon, a real Prometheus, and the servers of `bench.independent.wedges`.

Each scene is a server of its own and a target of one daemon with default rates; where it has several data-parallel ranks, so has the
target. All begin together once the daemon has warmed up. Counted is the time from there until the target's state is `failing` and
until `/health/TARGET` says 503, of the worst of a scene's targets; and the pages (alerts of severity critical, each once with its
target) that a Prometheus with the shipped rules fires until some minutes after the end. `--limit` and `--shares` put the daemon into
a cgroup with that CPU limit in cores, or the weight of such a request beside two processes that spin.
"""

import argparse
import asyncio
import json
import shutil
import subprocess
import sys
import tempfile
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from bench.accuracy import process, spin
from bench.independent.wedges import SCENES, VERDICTS, WedgeServer
from bench.quota import CORES, Cgroup, Daemon, daemon
from bench.report import goal, require, show
from tests.processes import Prometheus, fetch

LEAD_S, POLL_S, AFTER_S = 120.0, 1.0, 180.0
PAGES = 'ALERTS{alertstate="firing",severity="critical"}'


@dataclass(slots=True)
class Told:
    """What was said of a scene. Seconds from its begin; None: never"""

    failing_s: float | None = None
    unhealthy_s: float | None = None
    pages: list[str] = field(default_factory=list)


def configuration(servers: dict[str, WedgeServer]) -> str:
    """A target for each server."""
    lines = ["slos: {success: {signal: success, objective: 99%}}", "targets:"]
    for name, server in servers.items():
        ranks = f", ranks: {SCENES[name].ranks}" if SCENES[name].ranks > 1 else ""
        lines.append(f'  - {{name: {name}, url: "{server.url}"{ranks}}}')
    return "\n".join(lines) + "\n"


def scene_of(target: str) -> str:
    """The scene of a target, which may be a rank."""
    return target.partition("-rank-")[0]


def look(it: Daemon, told: dict[str, Told], since_s: float) -> None:
    """Read states and health checks once."""
    for target in json.loads(it.get("/api/v1/targets"))["data"]:
        scene = told[scene_of(target["name"])]
        if target["state"] == "failing" and scene.failing_s is None:
            scene.failing_s = since_s
        status, _ = fetch(f"{it.url}/health/{target['name']}")
        if status == 503 and scene.unhealthy_s is None:
            scene.unhealthy_s = since_s


async def play(it: Daemon, prometheus: Prometheus, servers: dict[str, WedgeServer]) -> dict[str, Told]:
    """Begin and end all scenes, and return what was said."""
    told = {name: Told() for name in servers}
    loop = asyncio.get_running_loop()
    await asyncio.sleep(LEAD_S)
    begin_s = loop.time()
    for server in servers.values():
        server.begin()
    running = dict(servers)
    last_s = max(VERDICTS[name].lasts_s for name in servers)
    while (since_s := loop.time() - begin_s) < last_s + AFTER_S:
        for name in [name for name in running if since_s >= VERDICTS[name].lasts_s]:
            await running.pop(name).end()
        if running:
            await asyncio.to_thread(look, it, told, since_s)
        await asyncio.sleep(POLL_S)
    seconds = round(LEAD_S + last_s + AFTER_S)
    for row in await asyncio.to_thread(prometheus.query, f"count_over_time({PAGES}[{seconds}s])"):
        labels = row["metric"]
        names = [labels[key] for key in ("alertname", "slo", "target") if key in labels]
        told.setdefault(scene_of(labels.get("target", "the prober")), Told()).pages.append(" ".join(names))
    return told


def rules_of(configuration_file: Path) -> str:
    """The shipped rules of a configuration."""
    command = [sys.executable, "-m", "prober", "rules", str(configuration_file)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


async def run(names: list[str], limit: float | None, shares: int | None) -> dict[str, Told]:
    """All scenes side by side."""
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="prober-bench-")))
        servers = {name: await stack.enter_async_context(WedgeServer(name)) for name in names}
        text = configuration(servers)
        started = stack.enter_context(ExitStack())
        group = started.enter_context(Cgroup("wedges", limit, shares)) if limit or shares else None
        if shares:
            for _ in range(CORES):
                started.enter_context(process(spin))
        it = await asyncio.to_thread(started.enter_context, daemon(folder, "wedges", text, group))
        rules = folder / "rules.yml"
        rules.write_text(await asyncio.to_thread(rules_of, folder / "wedges.yaml"))
        document = {
            "global": {"scrape_interval": "15s", "evaluation_interval": "15s"},
            "rule_files": [str(rules)],
            "scrape_configs": [
                {"job_name": "prober", "static_configs": [{"targets": [it.url.removeprefix("http://")]}]}
            ],
        }
        binary = Path(shutil.which("prometheus") or "")
        prometheus = await asyncio.to_thread(lambda: started.enter_context(Prometheus(binary, folder, document)))
        return await play(it, prometheus, servers)


def main() -> None:
    """Play the scenes and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="names of scenes, separated by commas")
    parser.add_argument("--limit", type=float, help="CPU limit of the daemon in cores")
    parser.add_argument("--shares", type=int, help="weight of the daemon's cgroup on a taken machine, as of cgroup v1")
    options = parser.parse_args()
    require("prometheus")
    names = options.only.split(",") if options.only else [*SCENES]
    told = asyncio.run(run(names, options.limit, options.shares))
    failing = [name for name in names if VERDICTS[name].is_failing]
    unhealthy = [name for name in names if VERDICTS[name].health == 503]
    healthy = [name for name in names if VERDICTS[name].health == 200]
    never = 1e9
    show(
        "wedges",
        [
            goal("wedges: longest until `failing`", max(told[name].failing_s or never for name in failing), 60, "s"),
            goal("until /health/TARGET is 503", max(told[name].unhealthy_s or never for name in unhealthy), 60, "s"),
            goal(
                "wedges without exactly one page",
                sum(len(told[name].pages) != VERDICTS[name].pages for name in failing),
                0,
                f"of {len(failing)}",
            ),
            goal(
                "neighbours that are paged, failing or unhealthy",
                sum(
                    len(told[name].pages) != VERDICTS[name].pages
                    or (VERDICTS[name].is_failing is False and told[name].failing_s is not None)
                    or (name in healthy and told[name].unhealthy_s is not None)
                    for name in names
                    if name not in failing
                ),
                0,
                f"of {len(names) - len(failing)}",
            ),
            goal(
                "pages about the prober itself",
                len(told["the prober"].pages) if "the prober" in told else 0,
                0,
                "pages",
            ),
        ],
        limit=options.limit,
        shares=options.shares,
        told={name: [of.failing_s, of.unhealthy_s, of.pages] for name, of in told.items()},
    )


if __name__ == "__main__":
    main()
