"""`prober demo`: a mock engine, the prober, and a real Prometheus where there is one on the PATH."""

import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated

import typer

CONFIG = """\
slos:
  ttft: {{signal: ttft, threshold: 200ms, objective: 99%}}
  itl: {{signal: itl, threshold: 25ms, objective: 99%}}
  ok: {{signal: success, objective: 99%}}
targets:
  - name: demo
    url: http://127.0.0.1:{mock}
    rate: 1/s
"""
PROMETHEUS = """\
global: {{scrape_interval: 5s, evaluation_interval: 5s}}
rule_files: [rules.yaml]
scrape_configs:
  - job_name: llm-slo-prober
    static_configs: [{{targets: ["127.0.0.1:{prober}"]}}]
"""


def demo(
    duration: Annotated[float, typer.Option(help="Seconds until it ends by itself; 0: runs until Ctrl-C.")] = 0.0,
) -> None:
    """Show the whole on this machine; nothing leaves it."""
    ports = {"mock": _port(8000), "prober": _port(9742), "prometheus": _port(9090)}
    with tempfile.TemporaryDirectory(prefix="prober-demo-") as folder:
        config = Path(folder, "prober.yaml")
        config.write_text(CONFIG.format(**ports))
        command = [sys.executable, "-m", "prober"]
        mock = [*command, "mock", "--port", str(ports["mock"]), "--ttft", "lognormal:80ms:0.4"]
        run = [*command, "run", "--config.file", str(config), "--web.listen-address", f"127.0.0.1:{ports['prober']}"]
        commands = [mock, run]
        if server := shutil.which("prometheus"):
            rules = [*command, "rules", "--config.file", str(config), "--output", str(Path(folder, "rules.yaml"))]
            subprocess.run(rules, check=True)
            scrape = Path(folder, "prometheus.yml")
            scrape.write_text(PROMETHEUS.format(**ports))
            listen = f"127.0.0.1:{ports['prometheus']}"
            commands.append(
                [
                    server,
                    f"--config.file={scrape}",
                    f"--storage.tsdb.path={folder}/tsdb",
                    f"--web.listen-address={listen}",
                ]
            )
        print(f"mock engine  http://127.0.0.1:{ports['mock']}/v1")
        print(f"prober       http://127.0.0.1:{ports['prober']}/ and /metrics")
        if server:
            print(f"Prometheus   http://127.0.0.1:{ports['prometheus']}/ and /alerts")
        else:
            print("Prometheus   not found on the PATH: only the prober's own pages are there")
        print("Ctrl-C ends it all.", flush=True)
        _run(commands, folder, duration)


def _run(commands: list[list[str]], folder: str, duration: float) -> None:
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    started: list[tuple[subprocess.Popen[bytes], Path]] = []
    try:
        for index, command in enumerate(commands):
            log = Path(folder, f"{index}.log")
            with log.open("wb") as out:
                started.append((subprocess.Popen(command, stdout=out, stderr=out, start_new_session=True), log))
        end = time.monotonic() + duration if duration else float("inf")
        while time.monotonic() < end:
            time.sleep(0.2)
            for command, (process, log) in zip(commands, started, strict=True):
                if process.poll() is not None:
                    said = log.read_text()[-2000:]
                    print(f"{' '.join(command)} ended with {process.returncode}:\n{said}", file=sys.stderr)
                    sys.exit(1)
    except KeyboardInterrupt:
        print()
    finally:
        for process, _ in started:
            process.terminate()
        for process, _ in started:
            process.wait(30)


def _port(wanted: int) -> int:
    """`wanted` if it is free, else any free port."""
    for port in (wanted, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise OSError("no free port on 127.0.0.1")
