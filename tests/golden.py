"""Records what the prober says, in virtual time, to compare versions of it: `python -m tests.golden FOLDER` in each, then `diff -r`.

The text, exit code and files of each command against a simulated engine, and the metrics, pages and API of a daemon after 3 and 25
minutes. Two recordings of one version are the same but for a spinner on the error stream of `sweep`. It takes half a minute.
"""

import asyncio
import itertools
import os
import random
import re
import signal
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from unittest.mock import patch

from prober.daemon.app import App, Options
from prober.mock.service import Settings
from prober.simulation.parameters import Parameters
from prober.web import answers
from tests.commands import prober
from tests.processes import free_port
from tests.virtual import FIRST_FREE_PORT, START_S, VirtualClock, VirtualLoop, running
from tests.virtual_commands import beside, mock

UNIX_S = 1_700_000_000.0
ENGINE = Settings(seed=1, simulation=Parameters(max_sequences=8, max_batched_tokens=512, prefix_block_tokens=16))
SMALLER = Settings(seed=1, simulation=Parameters(max_sequences=4, max_batched_tokens=512, prefix_block_tokens=16))
A, B, GONE = (f"http://127.0.0.1:{FIRST_FREE_PORT + number}" for number in (0, 1, 9))
CONFIG = f"""
defaults: {{rate: 0.5/s, warmup: 0}}
slos:
  ttft: {{signal: ttft, threshold: 100ms, objective: 95%}}
  itl: {{signal: itl, threshold: 30ms, objective: 95%}}
  quick: {{signal: ttft, threshold: 600ms, objective: 95%}}
workloads:
  short: {{prompt_tokens: {{uniform: {{min: 100, max: 300}}}}, output_tokens: 8}}
  long: {{prompt_tokens: 1000, output_tokens: 8}}
  talk: {{sessions: {{count: 2, turns: 3}}, prompt_tokens: 60, output_tokens: 8}}
targets:
  - {{name: first, url: '{A}', metrics: {{interval: 10s}}, budget: {{tokens_per_day: 20000000}},
     probes: [{{workload: short, slos: [ttft, itl]}}, {{workload: long, rate: 0.05/s}}],
     sweep: {{schedule: '20 22 * * *', workload: long, min_rate: 0.5/s, max_rate: 20/s, slos: [quick]}}}}
  - {{name: second, url: '{B}', metrics: {{interval: 10s}}, probes: [{{workload: short, slos: [ttft]}}]}}
  - {{name: gone, url: '{GONE}', metrics: {{url: none}}, probes: [{{workload: short, slos: [ttft]}}]}}
"""
ROWS = """
rows:
  - {name: short, prompt_tokens: 100, output_tokens: 8, rate: 1/s, duration: 40s, accept: ['ttft<500ms:90%']}
  - {name: long, prompt_tokens: 800, output_tokens: 8, rate: 2/s, duration: 40s, accept: ['ttft<60ms:90%']}
  - {name: talks, workload: talk, rate: 1/s, duration: 20s, accept: ['success:90%']}
  - {name: closed, prompt_tokens: 100, output_tokens: 16, concurrency: 4, duration: 20s, accept: ['success:90%']}
"""
COMMANDS = "once sweep matrix gate compare diagnose plan report check rules dashboards run mock demo drain watch"
SENT = {
    "once": f"once {A}",
    "once-json": f"once {A} --json",
    "once-gone": f"once {GONE}",
    "diagnose": f"diagnose {A}",
    "diagnose-json": f"diagnose {A} --json",
    "gate": f"gate {A} --slo ttft<500ms:90% --output gate.json",
    "gate-json": f"gate {A} --slo ttft<500ms:90% --json",
    "gate-fails": f"gate {A} --slo ttft<10ms:90%",
    "gate-baseline": f"gate {B} --baseline gate.json --output gate-b.json",
    "matrix": f"matrix {A} --file rows.yaml --config.file prober.yaml --output matrix.json",
    "matrix-json": f"matrix {A} --file rows.yaml --config.file prober.yaml --json",
    "compare": f"compare {A} {B} --rate 4/s --rounds 9 --requests 4 --cool-down 0.2s --output compare.json",
    "sweep": f"sweep {A} --max-time 120s --max-rate 20/s --output sweep.json",
    "sweep-grid": f"sweep {A} --rates 2,6 --step 20s --warm-up 2 --output sweep-grid.json",
    "sweep-gentle": f"sweep {A} --mode gentle --max-time 120s --output sweep-gentle.json",
}
READ = {
    "check": "check prober.yaml",
    "check-bad": "check bad.yaml",
    "rules": "rules --config.file prober.yaml",
    "dashboards": "dashboards write --output dashboards",
    "compare-files": "compare gate.json gate-b.json",
    "compare-files-json": "compare gate.json gate-b.json --json",
    "plan": "plan --sweep sweep.json --peak 40/s",
    "plan-json": "plan --sweep sweep.json --peak 40/s --json",
    "report-two": "report sweep.json sweep-grid.json --format html --output report-two.html",
    **{
        f"report-{name}-{form}": f"report {name}.json --format {form} --output report-{name}.{form}"
        for name in ("sweep", "sweep-grid", "matrix", "compare", "gate")
        for form in ("html", "markdown", "csv", "json")
    },
    **{f"help-{command}": f"{command} --help" for command in COMMANDS.split()},
}
PAGES = {
    "metrics": "/metrics",
    "page": "/",
    "page-first": "/?target=first",
    "page-gone": "/?target=gone",
    "page-failed": "/?q=se&outcome=failed",
    "targets": "/api/v1/targets",
    "probes": "/api/v1/probes?limit=50",
    "events": "/api/v1/events",
    "slos": "/api/v1/slos",
    "sweeps": "/api/v1/sweeps",
    "openapi": "/api/v1/openapi.json",
    "probe": f"/probe?target={A}",
    "runbook": "/runbooks/LLMErrorBudgetBurn",
}


@contextmanager
def same_each_time() -> Iterator[None]:
    """Identities, seeds and the wall clock are the same in each recording, and no other process of this machine locks its targets."""
    numbers = itertools.count(1)

    def now_s() -> float:
        try:
            return UNIX_S + asyncio.get_running_loop().time() - START_S
        except RuntimeError:
            return UNIX_S

    random.seed(1)
    with (
        tempfile.TemporaryDirectory() as locks,
        patch.object(tempfile, "tempdir", locks),
        patch.object(uuid, "uuid4", lambda: uuid.UUID(int=next(numbers) << 64)),
        patch.object(time, "time", now_s),
        patch.dict(os.environ, COLUMNS="140", TERM="dumb", NO_COLOR="1", POD_NAME="golden", TZ="UTC"),
    ):
        yield


def plain(text: str, folder: Path) -> str:
    """The text without what is of this machine."""
    text = text.replace(str(folder), "FOLDER")
    text = re.sub(r'("(?:cpu|cpus|cores|machine|kernel|python|host|hostname|platform)"): [^,\n}]*', r"\1: X", text)
    text = re.sub(r'(host_ram_available": ?"|RAM available \| )\d+', r"\1X", text)
    text = re.sub(r"(?m)^(# (HELP|TYPE) )?(process_|python_).*\n", "", text)
    return re.sub(r"\d:\d\d:\d\d", "H:MM:SS", text)


def record_commands(folder: Path, out: Path) -> None:
    """Run the commands in `folder`, each beside two engines of its own."""
    for name, text in (SENT | READ).items():
        with same_each_time(), beside(mock(ENGINE), mock(SMALLER)):
            done = prober(*text.split(), cwd=folder)
        shown = f"exit code {done.returncode}\n{done.stdout}\n--- standard error\n{done.stderr}"
        (out / f"{name}.txt").write_text(plain(shown, folder))
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            (out / "files" / path.name).write_text(plain(path.read_text(), folder))


async def record_daemon(folder: Path, out: Path) -> None:
    """Run the daemon for 25 minutes, without the keeping of answers that are younger than a real second."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    port = free_port()
    options = Options(str(folder / "prober.yaml"), f"127.0.0.1:{port}", storage_path=str(folder / "store"))
    async with AsyncExitStack() as servers:
        for settings in (ENGINE, SMALLER):
            await servers.enter_async_context(running(settings))
        servers.enter_context(patch.object(answers, "FRESH_S", 0.0))
        daemon = asyncio.create_task(App(options, lambda: VirtualClock(UNIX_S)).run())
        for minutes in (3, 25):
            await asyncio.sleep(minutes * 60 - (loop.time() - START_S))
            for name, path in PAGES.items():
                with loop.real_network():
                    reader, writer = await asyncio.open_connection("127.0.0.1", port)
                    writer.write(f"GET {path} HTTP/1.1\r\nHost: prober\r\nConnection: close\r\n\r\n".encode())
                    head, _, body = (await reader.read()).decode().partition("\r\n\r\n")
                    writer.close()
                (out / f"daemon-{minutes}-{name}.txt").write_text(plain(f"{head.splitlines()[0]}\n{body}", folder))
        signal.raise_signal(signal.SIGTERM)
        await daemon


def main() -> None:
    """Record into the folder that the command line names."""
    out = Path(sys.argv[1]).absolute()
    (out / "files").mkdir(parents=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "prober.yaml").write_text(CONFIG)
        (folder / "bad.yaml").write_text(CONFIG.replace("threshold: 100ms", "threshold: 100").replace("turns", "turn"))
        (folder / "rows.yaml").write_text(ROWS)
        record_commands(folder, out)
        with same_each_time(), asyncio.Runner(loop_factory=VirtualLoop) as runner:
            runner.run(record_daemon(folder, out))


if __name__ == "__main__":
    main()
