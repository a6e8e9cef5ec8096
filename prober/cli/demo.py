"""`prober demo`: runs four mock engines, three of them with problems, the prober, and Prometheus if installed."""

import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Annotated, Any

import typer
import yaml

from prober.cli.exit_codes import ExitCode, fail
from prober.cli.output import echo

HOST = "127.0.0.1"
PORTS = {"healthy": 8000, "regressing": 8001, "full": 8002, "failing": 8003, "prober": 9742, "Prometheus": 9090}
SLOWDOWN_RATIO = 1.6
MAX_SEND_LAG_MS = 50
ENGINES = {
    "healthy": ("--background", "0.2/s"),
    "regressing": ("--background", "0.2/s", "--fault", f"latency:{SLOWDOWN_RATIO}@{{trouble:g}}s-"),
    # A cache of 6,080 tokens is at the edge for that load: it fills and recovers, but never for good. In four simulated hours of
    # this seed 30% of the TTFTs are over 500 ms, 42% in the first five minutes, the longest 15 s; 10 of 240 minutes have none
    # over a second.
    "full": ("--background", "1/s", "--kv-blocks", "380", "--seed", "3"),
    "failing": ("--background", "0.2/s", "--fault", "http:503@{trouble:g}s-"),
}
# Four probes per second give a p99 its thousand samples within minutes. A step takes 8.5 ms: TPOT is 9 ms, 15 ms after the
# slowdown. TPOT is judged on engines without sweeps, as a sweep makes it longer. A machine that runs the demo also runs a
# browser, so max_send_lag is longer than by default; the demo prints it.
CONFIG = """\
slos:
  ttft: {{signal: ttft, threshold: 500ms, objective: 99%}}
  tpot: {{signal: tpot, threshold: 13ms, objective: 95%}}
  success: {{signal: success, objective: 99%}}
defaults: {{rate: 4/s, max_in_flight: 64, warmup: 10, max_send_lag: {lag:g}ms}}
targets:
  - name: healthy
    url: http://127.0.0.1:{healthy}
    probes: [{{workload: probe, slos: [ttft, success]}}]
    budget: {swept}
    sweep: {{mode: gentle, schedule: "*/5 * * * *", min_gap: 4m, slos: [ttft], max_rate: 50/s, limits: {{time: 2m}}}}
  - {{name: regressing, url: "http://127.0.0.1:{regressing}", budget: {budget}}}
  - {{name: full, url: "http://127.0.0.1:{full}", budget: {budget}}}
  - {{name: failing, url: "http://127.0.0.1:{failing}", budget: {budget}}}
"""
BUDGET = "{tokens_per_day: 100M, cost_per_day: 60, price_per_million: {prompt: 0.20, completion: 0.60}}"
SWEEP_BUDGET = "{tokens_per_day: 500M, cost_per_day: 200, price_per_million: {prompt: 0.20, completion: 0.60}}"  # a sweep every 5 min
PROMETHEUS = """\
global: {{scrape_interval: 5s, evaluation_interval: 5s}}
rule_files: [rules.yaml]
scrape_configs:
  - job_name: llm-slo-prober
    static_configs: [{{targets: ["127.0.0.1:{prober}"]}}]
"""
# The second where Prometheus is built without its newer pages, as Debian's is; the third where its page templates are not installed.
ALERTS = ("/alerts", "/classic/alerts", "/api/v1/rules?type=alert")
READY_TIMEOUT_S = 20.0  # of Prometheus
RULES_INTERVAL = "15s"  # budgets are judged every four minutes elsewhere, as their windows are of days
ADDRESSES = """\
prober       http://127.0.0.1:{prober}/        targets, SLOs, the last probes and what failed; /metrics is what is scraped
Prometheus   {prometheus}
dashboards   `prober dashboards write` writes them; import them into a Grafana that has this Prometheus as its data source
engines      {engines}
"""
STORY = """
What to expect:
  from the start      full        its KV cache is too small for its load: again and again requests wait or are preempted, and
                                  TTFT is seconds; in between it recovers
  after {after:12}  regressing  each step takes {slower} times as long: TPOT goes from 9 to 15 ms, and its SLO burns
  after {after:12}  failing     answers 503: it is failing within seconds, and an alert fires two minutes later
  after 5 minutes     all         a p99 has its thousand samples; until then the prober's page says that there are too few
  within 8 minutes    healthy     meets its SLOs; a gentle sweep every five minutes finds its capacity, and so its headroom
Drift is not shown, since a baseline takes days, and GPUs are not, since mock engines have none. All of it shares this machine:
a probe counts as invalid from {lag:g} ms of the prober's own lateness on (max_send_lag), instead of the default of 10 ms.
Ctrl-C ends it all."""


def demo(
    duration: Annotated[float, typer.Option(help="Seconds until it ends; 0: run until Ctrl-C.")] = 0.0,
    trouble_after: Annotated[
        str, typer.Option(help="Time after which one engine slows down and one fails, such as 30s.")
    ] = "2m",
) -> None:
    """Run the demo on this machine. No traffic leaves it."""
    from prober.config.units import UnitError
    from prober.config.units import duration as seconds

    try:
        trouble_s = seconds(trouble_after)
    except UnitError as problem:
        fail(f"prober demo: --trouble-after: {problem}", ExitCode.WRONG_CALL)
    stop = Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: stop.set())
    ports = {name: _port(name, port) for name, port in PORTS.items()}
    prometheus = shutil.which("prometheus")
    with tempfile.TemporaryDirectory(prefix="prober-demo-") as folder:
        config = Path(folder, "prober.yaml")
        config.write_text(
            CONFIG.format(budget=BUDGET, swept=SWEEP_BUDGET, lag=MAX_SEND_LAG_MS, **ports), encoding="utf-8"
        )
        commands = _engines(ports, trouble_s) | {"prober": _prober(config, ports)}
        if prometheus:
            commands["Prometheus"] = _prometheus(prometheus, config, ports)
        with _running(commands, Path(folder)) as processes:
            _tell(ports, trouble_s, _alerts(ports, processes["Prometheus"], stop) if prometheus else None)
            _watch(processes, Path(folder), stop, duration)


def _engines(ports: Mapping[str, int], trouble_s: float) -> dict[str, list[str]]:
    """The command of each engine."""
    fixed = [sys.executable, "-m", "prober", "mock", "--engine", "simulated"]
    return {
        name: [*fixed, "--model", name, "--port", str(ports[name]), *(word.format(trouble=trouble_s) for word in words)]
        for name, words in ENGINES.items()
    }


def _prober(config: Path, ports: Mapping[str, int]) -> list[str]:
    address = ("--web.listen-address", f"{HOST}:{ports['prober']}")
    return [sys.executable, "-m", "prober", "run", "--config.file", str(config), *address, "--shutdown.timeout", "2"]


def _prometheus(binary: str, config: Path, ports: Mapping[str, int]) -> list[str]:
    """Write Prometheus's files beside the configuration; return its command."""
    folder = config.parent
    page = f"http://{HOST}:{ports['prober']}"
    links = ("--runbook-url", f"{page}/runbooks", "--prober-url", page, "--slow-interval", RULES_INTERVAL)
    command = [sys.executable, "-m", "prober", "rules", "--config.file", str(config), *links]
    rules = yaml.safe_load(
        subprocess.run(command, check=True, capture_output=True, text=True, start_new_session=True).stdout
    )
    for group in rules["groups"]:
        group["interval"] = RULES_INTERVAL
        for rule in group["rules"]:
            _lead_here(rule)
    (folder / "rules.yaml").write_text(yaml.safe_dump(rules), encoding="utf-8")
    (folder / "prometheus.yml").write_text(PROMETHEUS.format(**ports), encoding="utf-8")
    return [
        binary,
        f"--config.file={folder}/prometheus.yml",
        f"--storage.tsdb.path={folder}/tsdb",
        f"--web.listen-address={HOST}:{ports['Prometheus']}",
    ]


def _lead_here(rule: dict[str, Any]) -> None:
    """Let the dashboard links of a rule lead to the prober's page, as the demo has no Grafana."""
    if links := rule.get("annotations"):
        links["dashboard_url"] = links["prober_url"]


def _alerts(ports: Mapping[str, int], prometheus: subprocess.Popen[bytes], stop: Event) -> str:
    """URL of Prometheus's alerts page: the first of ALERTS that answers once Prometheus is ready."""
    base, end = f"http://{HOST}:{ports['Prometheus']}", time.monotonic() + READY_TIMEOUT_S
    while prometheus.poll() is None and time.monotonic() < end and not stop.wait(0.1):
        if _answers(f"{base}/-/ready"):
            return next((base + path for path in ALERTS if _answers(base + path)), base)
    return base


def _answers(url: str) -> bool:
    """Whether a GET of the URL is answered with success. No proxy is between this machine and itself."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=5):
            return True
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False


def _tell(ports: Mapping[str, int], trouble_s: float, alerts: str | None) -> None:
    """Print the addresses and what to expect. alerts: URL of Prometheus's alerts page, None without Prometheus."""
    addresses = ADDRESSES.format(
        prober=ports["prober"],
        prometheus=f"{alerts}    what fires, by the shipped rules"
        if alerts
        else "not on the PATH: only the prober's own pages are there",
        engines=", ".join(f"{name} :{ports[name]}" for name in ENGINES),
    )
    after = f"{trouble_s:g} s" if trouble_s < 120 else f"{trouble_s / 60:g} minutes"
    echo(addresses + STORY.format(after=after, slower=SLOWDOWN_RATIO, lag=MAX_SEND_LAG_MS), flush=True)


@contextmanager
def _running(commands: Mapping[str, list[str]], folder: Path) -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    """Run the commands, each with a log file of its name; terminate and wait for all at the end."""
    processes: dict[str, subprocess.Popen[bytes]] = {}
    try:
        for name, command in commands.items():
            with (folder / f"{name}.log").open("wb") as out:
                # In sessions of their own: a Ctrl-C in the terminal is for this program, which ends them in order.
                processes[name] = subprocess.Popen(command, stdout=out, stderr=out, start_new_session=True)
        yield processes
    finally:
        for process in processes.values():
            process.terminate()
        for process in processes.values():
            _wait(process)


def _wait(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _watch(processes: Mapping[str, subprocess.Popen[bytes]], folder: Path, stop: Event, duration_s: float) -> None:
    """Wait until `stop` is set or `duration_s` is over (0: never). Exits with FAILED if a process ends by itself."""
    end = time.monotonic() + duration_s if duration_s else float("inf")
    while not stop.wait(0.2) and time.monotonic() < end:
        for name, process in processes.items():
            if process.poll() is not None:
                text = (folder / f"{name}.log").read_text(encoding="utf-8", errors="replace")[-2000:]
                fail(f"{name} exited with {process.returncode}; its log:\n{text}", ExitCode.FAILED)


def _port(name: str, preferred: int) -> int:
    """The preferred port if it is free, else any free port, which is printed."""
    for port in (preferred, 0):
        with socket.socket() as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                tried.bind((HOST, port))
            except OSError:
                continue
            free_port = int(tried.getsockname()[1])
            if not port:
                echo(f"port {preferred} is taken by another program: {name} is at {free_port} instead")
            return free_port
    raise OSError(f"no port is free on {HOST} for {name}")
