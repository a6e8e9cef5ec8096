"""`prober demo`: runs mock engines, some of them with problems, the prober, and Prometheus if installed."""

import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer
import yaml

from prober.cli.exit_codes import ExitCode, exit_on, fail
from prober.cli.options import Duration, quantity
from prober.cli.output import echo
from prober.cli.rules import as_yaml
from prober.cli.scenes import ALL, SCENES, SLOWDOWN_RATIO, Engine, engines_of, listed
from prober.config.units import duration as parse_duration
from prober.daemon.configuration_file import read_config
from prober.daemon.rules import groups
from prober.exposition.alerting import RuleOptions

HOST = "127.0.0.1"
FIRST_ENGINE_PORT, PROBER_PORT, PROMETHEUS_PORT = 8000, 9742, 9090
SWEEP_BUDGET = "{tokens_per_day: 500M, cost_per_day: 200, price_per_million: {prompt: 0.20, completion: 0.60}}"  # a sweep every 5 min
# TPOT is judged only on engines without sweeps, because sweeps increase it.
SWEPT = (
    "probes: [{workload: probe, slos: [ttft, success]}], "
    'sweep: {mode: gentle, schedule: "*/5 * * * *", min_gap: 4m, slos: [ttft], max_rate: 50/s, limits: {time: 2m}}'
)
ENGINES = {
    "healthy": Engine(target=SWEPT, budget=SWEEP_BUDGET),
    "regressing": SCENES["slow"].engine,
    "full": SCENES["full"].engine,
    "failing": SCENES["broken"].engine,
}
# Four probes per second give a p99 its thousand samples within minutes. A step takes 8.5 ms: TPOT is 9 ms, 15 ms after the
# slowdown.
DEFAULTS = "defaults: {rate: 4/s, max_in_flight: 64, warmup: 10}\n"
SLOS = {
    "ttft": "{signal: ttft, threshold: 500ms, objective: 99%}",
    "tpot": "{signal: tpot, threshold: 13ms, objective: 95%}",
    "success": "{signal: success, objective: 99%}",
}
PROMETHEUS = """\
global: {{scrape_interval: 5s, evaluation_interval: 5s}}
rule_files: [rules.yaml]
scrape_configs:
  - job_name: llm-slo-prober
    static_configs: [{{targets: ["127.0.0.1:{port}"]}}]
"""
# The second for a Prometheus built without its newer pages, such as Debian's; the third for one without page templates.
ALERTS = ("/alerts", "/classic/alerts", "/api/v1/rules?type=alert")
READY_TIMEOUT_S = 20.0  # for Prometheus to be ready
RULES_INTERVAL_S = 15  # elsewhere budgets are judged every four minutes, as their windows are days
ADDRESSES = """\
prober       http://127.0.0.1:{prober}/        targets, SLOs, the last probes and what failed; /metrics is what is scraped
Prometheus   {prometheus}
dashboards   `prober dashboards write` writes them; import them into a Grafana that has this Prometheus as its data source
engines      {engines}

What to expect:
"""
STORY = f"""\
  after {{after:12}}  regressing  each step takes {SLOWDOWN_RATIO} times as long: TPOT goes from 9 to 15 ms, and its SLO burns
  after {{after:12}}  full        {SCENES["full"].trouble}:
                                  {SCENES["full"].shown.partition(";")[0]}
  after {{after:12}}  failing     answers 503: it is failing within seconds, and an alert fires two minutes later
  after 5 minutes     all         a p99 has its thousand samples; until then the prober's page says that there are too few
  within 8 minutes    healthy     meets its SLOs; a gentle sweep every five minutes finds its capacity, and so its headroom
Drift is not shown, since a baseline takes days (`--scene drift` simulates them), and GPUs are not, since mock engines have none.
"""
ENDING = "Ctrl-C ends it all."


@dataclass(slots=True)
class Processes:
    """The processes of the demo, each with its log file in the demo's folder.

    successors: name of a process that may end → command that replaces it; None: no replacement
    """

    folder: Path
    successors: dict[str, list[str] | None]
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def start(self, name: str, command: list[str]) -> None:
        with (self.folder / f"{name}.log").open("ab") as out:
            # Separate sessions: Ctrl-C in the terminal only reaches this program, which ends them in order.
            self.running[name] = subprocess.Popen(command, stdout=out, stderr=out, start_new_session=True)

    def check(self) -> None:
        """Start the successors of ended processes. Exits with FAILED if another process has ended."""
        for name, process in list(self.running.items()):
            if process.poll() is None:
                continue
            if process.returncode or name not in self.successors:
                text = (self.folder / f"{name}.log").read_text(encoding="utf-8", errors="replace")[-2000:]
                fail(f"{name} exited with {process.returncode}; its log:\n{text}", ExitCode.FAILED)
            del self.running[name]
            if (command := self.successors.pop(name)) is not None:
                self.start(name, command)

    def end(self) -> None:
        """Terminate all processes, and wait for their end."""
        for process in self.running.values():
            process.terminate()
        for process in self.running.values():
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def demo(
    duration: Duration = "",
    trouble_after: Annotated[str, typer.Option(help="Time after which troubles begin, such as 30s.")] = "2m",
    scene: Annotated[
        list[str] | None,
        typer.Option(help="Show this trouble beside a healthy engine; repeatable; list: name them; all: all at once."),
    ] = None,
) -> None:
    """Run the demo on this machine. No traffic leaves it."""
    with exit_on(ValueError, command="demo"):
        trouble_s = quantity("--trouble-after", trouble_after, parse_duration)
        duration_s = quantity("--duration", duration, parse_duration) if duration else float("inf")
    if scene == ["list"]:
        echo(listed())
        return
    scenes = list(SCENES) if scene == [ALL] else list(dict.fromkeys(scene or ()))
    for name in scenes:
        if name not in SCENES:
            fail(f"prober demo: --scene: {name!r} is not a scene; {ALL}, or one of:\n{listed()}", ExitCode.WRONG_CALL)
    # Signals. Not an Event: setting one in a handler waits for ever if the signal came while it is waited for.
    received: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: received.append(number))
    _show(engines_of(scenes) if scenes else ENGINES, _story(scenes, trouble_s), trouble_s, duration_s, received)


def _show(engines: Mapping[str, Engine], story: str, trouble_s: float, duration_s: float, received: list[int]) -> None:
    """Run the engines, the prober and Prometheus until a signal is received or `duration_s` is over."""
    preferred = {name: FIRST_ENGINE_PORT + place for place, name in enumerate(engines)}
    prometheus = shutil.which("prometheus")
    preferred |= {"prober": PROBER_PORT} | ({"Prometheus": PROMETHEUS_PORT} if prometheus else {})
    with reserved_ports(preferred) as ports, tempfile.TemporaryDirectory(prefix="prober-demo-") as folder:
        config = Path(folder, "prober.yaml")
        config.write_text(configuration(engines, ports), "utf-8")
        learnt = [name for name, engine in engines.items() if engine.has_past]
        if learnt:
            from prober.cli.simulated_past import store_past

            echo(f"simulating three days of {' and '.join(learnt)} ...", flush=True)
            store_past(folder, learnt)
        commands = {name: _mock(name, ports[name], engine.options, trouble_s) for name, engine in engines.items()}
        commands["prober"] = [
            *(sys.executable, "-m", "prober", "run", "--config.file", str(config), "--storage.path", folder),
            *("--web.listen-address", f"{HOST}:{ports['prober']}", "--shutdown.timeout", "2"),
        ]
        if prometheus:
            commands["Prometheus"] = _prometheus(prometheus, config, ports)
        successors = {
            name: _mock(name, ports[name], engine.successor, trouble_s) if engine.successor else None
            for name, engine in engines.items()
            if "--duration" in engine.options
        }
        processes = Processes(Path(folder), successors)
        try:
            for name, command in commands.items():
                processes.start(name, command)
            alerts = _alerts(ports, processes.running["Prometheus"], received) if prometheus else None
            prometheus_text = "not on the PATH, so there are no alerts; `make tools` fetches it for `make demo`"
            if alerts is not None:
                prometheus_text = f"{alerts}    what fires, by the shipped rules"
            listed_engines = ", ".join(f"{name} :{ports[name]}" for name in engines)
            addresses = ADDRESSES.format(prober=ports["prober"], prometheus=prometheus_text, engines=listed_engines)
            echo(addresses + story, flush=True)
            end = time.monotonic() + duration_s
            while not received and time.monotonic() < end:
                processes.check()
                time.sleep(0.2)
        finally:
            processes.end()


def configuration(engines: Mapping[str, Engine], ports: Mapping[str, int]) -> str:
    """The prober's configuration for the demo, with the SLOs that its targets use."""
    targets = "targets:\n" + "".join(
        f'  - {{name: {name}, url: "http://{HOST}:{ports[name]}", budget: {engine.budget}, {engine.target}}}\n'
        for name, engine in engines.items()
    )
    probes = (probe for target in yaml.safe_load(targets)["targets"] for probe in target["probes"])
    used = {slo for probe in probes for slo in probe["slos"]}
    slos = "slos:\n" + "".join(f"  {name}: {slo}\n" for name, slo in SLOS.items() if name in used)
    return slos + DEFAULTS + targets


def _mock(name: str, port: int, options: Sequence[str], trouble_s: float) -> list[str]:
    """The command that starts an engine."""
    fixed = [sys.executable, "-m", "prober", "mock", "--engine", "simulated", "--model", name, "--port", str(port)]
    return [*fixed, *(word.format(trouble=trouble_s) for word in options)]


def _story(scenes: Sequence[str], trouble_s: float) -> str:
    """Text on the expected course of each scene; without scenes, of all four engines."""
    after = f"{trouble_s:g} s" if trouble_s < 120 else f"{trouble_s / 60:g} minutes"
    if not scenes:
        return STORY.format(after=after) + ENDING
    lines = [f"  {name:10} after {after}: {SCENES[name].trouble}\n{'':13}{SCENES[name].shown}\n" for name in scenes]
    neighbours = [name for name in engines_of(scenes) if name not in scenes]
    lines += [f"  {name:10} no trouble: its SLOs are met once they have enough events\n" for name in neighbours]
    return "".join(lines) + ENDING


def _prometheus(binary: str, config: Path, ports: Mapping[str, int]) -> list[str]:
    """Write Prometheus's configuration files and return its command."""
    folder = config.parent
    rules = groups(read_config(str(config)), RuleOptions(slow_s=RULES_INTERVAL_S))
    for group in rules:
        group["interval"] = f"{RULES_INTERVAL_S}s"
    (folder / "rules.yaml").write_text(as_yaml({"groups": rules}), encoding="utf-8")
    (folder / "prometheus.yml").write_text(PROMETHEUS.format(port=ports["prober"]), encoding="utf-8")
    return [
        binary,
        f"--config.file={folder}/prometheus.yml",
        f"--storage.tsdb.path={folder}/tsdb",
        f"--web.listen-address={HOST}:{ports['Prometheus']}",
    ]


def _alerts(ports: Mapping[str, int], prometheus: subprocess.Popen[bytes], received: list[int]) -> str:
    """URL of the alerts page: the first of ALERTS that answers once Prometheus is ready."""
    base, end = f"http://{HOST}:{ports['Prometheus']}", time.monotonic() + READY_TIMEOUT_S
    while prometheus.poll() is None and time.monotonic() < end and not received:
        time.sleep(0.1)
        if _answers(f"{base}/-/ready"):
            return next((base + path for path in ALERTS if _answers(base + path)), base)
    return base


def _answers(url: str) -> bool:
    """True if a GET of the URL succeeds. It bypasses proxies, because the URL is on this machine."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=5):
            return True
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False


@contextmanager
def reserved_ports(preferred: Mapping[str, int]) -> Iterator[dict[str, int]]:
    """Ports by name: the preferred port if it is free, else any free one, which is printed.

    The processes of the demo listen only a second later. Until the end, a UDP socket with each port number keeps other demos away.
    """
    with ExitStack() as reservations:
        ports: dict[str, int] = {}
        for name, first in preferred.items():
            for port in (first, *[0] * 9):
                udp = reservations.enter_context(socket.socket(type=socket.SOCK_DGRAM))
                with socket.socket() as tcp, suppress(OSError):
                    tcp.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    udp.bind((HOST, port))
                    tcp.bind(udp.getsockname())
                    break
            else:
                raise OSError(f"no port is free on {HOST} for {name}")
            ports[name] = udp.getsockname()[1]
            if ports[name] != first:
                echo(f"port {first} is taken by another program: {name} is at {ports[name]} instead")
        yield ports
