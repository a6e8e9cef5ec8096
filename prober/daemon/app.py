"""The composition root: reads as the list of the daemon's parts and how they meet."""

import asyncio
import gc
import logging
import os
import signal
import socket
import time
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prober import __version__, series
from prober.analysis.trust import Trust
from prober.config.discovery import PLACEHOLDER
from prober.config.load import ConfigError, load
from prober.config.specs import Specs
from prober.config.units import counted
from prober.daemon.discovery import Roster
from prober.daemon.fleet import Fleet
from prober.daemon.gpus import Gpus
from prober.daemon.grafana import Grafana
from prober.daemon.guard import unguarded
from prober.daemon.headroom import Headroom
from prober.daemon.history import History
from prober.daemon.leadership import Wanted, leadership
from prober.daemon.ledger import BUDGET, Ledger
from prober.daemon.memory import DEMAND, DRIFT, ENGINE, KEPT_S, Memory
from prober.daemon.site import Site, serve
from prober.daemon.sweeps import Sweeps
from prober.daemon.watch import Watch
from prober.edge.clock import Clock
from prober.edge.endpoint import BadEndpoint, endpoint
from prober.edge.files import Followed
from prober.edge.grafana import MISSING, available
from prober.edge.lease import remote
from prober.edge.store import Store
from prober.edge.timetable import BadSchedule, trigger
from prober.edge.webconfig import WebFile
from prober.engines import DIALECTS
from prober.exposition.buckets import COARSE
from prober.exposition.families import Family
from prober.limits.shard import Shard
from prober.metrics import Recorder, registry
from prober.probing.pacer import MISSED_NS
from prober.slo.firing import proofs

WATCH_S = 2.0
ALONE = (
    "sweeps and writes to Grafana are one at a time in this prober only, and a second one with this shard would do them too; "
    "give all of a shard the same lease"
)
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line sets."""

    config_file: str
    listen_address: str = ":9742"
    external_url: str = ""
    route_prefix: str = ""
    storage_path: str | None = None
    history_limit: int = 100
    admin_api: bool = False
    web_config_file: str | None = None
    drain_s: float = 20.0
    shard: Shard = Shard()
    lease: Wanted = Wanted()


def read_config(path: str) -> Specs:
    """What the configuration file says. Raises ConfigError, with every mistake."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        raise ConfigError(f"--config.file {path}: cannot be read: {problem}; name a YAML file") from None
    specs = load(text, source=path, engines=DIALECTS, environment=os.environ, read=_read)
    problems = [] if specs.grafana is None or available() else [f"{path}: grafana: {MISSING}"]
    places = [f"targets[{index}]" for index in range(len(specs.targets))]
    for place, spec in zip([*places, *(each.template.key for each in specs.discovery)], specs.kinds, strict=True):
        try:
            endpoint(spec)
            if spec.sweep is not None:
                trigger(spec.sweep.schedule or "0 0 * * *", spec.sweep.timezone)
        except BadEndpoint as problem:
            problems.append(f"{path}: {str(problem).replace(f'{PLACEHOLDER}/v1', place)}")
        except BadSchedule as problem:
            problems.append(f"{path}: {place}.sweep.{problem.key}: {problem}")
    if problems:
        raise ConfigError("\n".join(problems))
    return specs


def _warn(specs: Specs) -> None:
    """What does not stop the measuring, but would stop an alert or show a secret."""
    for each in specs.warnings:
        log.warning("%s", each)
    for slo, uses in specs.uses().items():
        for proof in proofs(slo, uses):
            if proof.problem:
                log.warning(
                    "%s: target=%s: an alert that cannot fire: %s", proof.place, proof.use.target, proof.problem
                )


def _found(specs: Specs) -> str:
    """What to say of those that are not configured one by one."""
    return f", and those of discovery {', '.join(each.name for each in specs.discovery)}" if specs.discovery else ""


def _read(path: str) -> str:
    return Path(path).read_text(encoding="utf-8")


class App:
    """One daemon."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._families = registry()
        self._stopping = asyncio.Event()
        self._reloading = asyncio.Lock()
        self._file = Followed(options.config_file)
        self._tasks: set[asyncio.Task[Any]] = set()

    async def run(self) -> None:
        """Probe until SIGTERM or SIGINT, then drain. Raises ConfigError, OSError (address in use)."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stopping.set)  # first: as PID 1 there is no other way to end it
        log.info("llm-slo-prober %s, configuration %s", __version__, self._options.config_file)
        self._file.taken()
        specs = read_config(self._options.config_file)
        web = WebFile(self._options.web_config_file)
        if self._options.web_config_file and not (web.now.tls or web.now.config.authenticates):
            log.warning(
                "%s: %s: whoever reaches the pages may read them", self._options.web_config_file, web.now.config.words
            )
        if self._options.admin_api and (why := unguarded(self._options.listen_address, web.now)):
            raise ConfigError(why)
        clock = Clock()
        trust = Trust(min(spec.max_send_lag_s for spec in specs.kinds))
        _warn(specs)
        instance = os.environ.get("POD_NAME") or f"{socket.gethostname()}-{uuid.uuid4().hex[:8]}"
        history = History(self._options.history_limit)
        self._clock, self._trust = clock, trust
        recorder = Recorder(self._families)
        path = self._options.storage_path or specs.storage_path
        store = Store(path) if path else None
        if path and (kind := remote(Path(path))):
            log.warning(
                "--storage.path %s: is on %s, where SQLite's locks cannot be relied on: one prober only", path, kind
            )
        shard = self._options.shard
        leading = leadership(self._options.lease, shard, instance, self._families)
        if shard.count > 1 and not leading.where:
            log.warning("--shard %s without --lease.name or --lease.path: %s", shard, ALONE)
        kinds = (DRIFT, ENGINE, DEMAND, BUDGET)
        drifts, engines, demands, budgets = (store.load(kind, time.time() - KEPT_S) if store else {} for kind in kinds)
        self._drifts = Watch(recorder, history, specs.drift, drifts, keeps=store is not None)
        headroom = Headroom(self._families, demands)
        self._sweeps = Sweeps(self._families, history, headroom, trust, store, leading)
        self._sweeps.prometheus_url = specs.prometheus_url
        self._fleet = Fleet(clock, recorder, history, self._drifts, headroom, self._sweeps, trust, instance, engines)
        self._fleet.shard = shard
        self._family(series.SHARD_INFO.name).value(str(shard.index), str(shard.count)).value = 1.0
        self._family(series.SHARDS.name).value().value = float(shard.count)
        failures = self._family(series.STORAGE_FAILURES.name).value()
        self._fleet.ledger = Ledger(store, failures, budgets)
        self._roster = Roster(self._families, lambda wanted: self._fleet.change(wanted, self._options.drain_s))
        self._memory = Memory(self._drifts, self._fleet, headroom, store, specs.prometheus_url, failures)
        self._grafana = Grafana(
            self._families, history, self._sweeps.results, lambda: leading.held() is not None, first=shard.index == 0
        )
        leading.listen(self._grafana.lost, lambda: None)
        self._grafana.configure(specs.grafana)
        site = Site(
            self._fleet, self._families, self.reload, self._options.external_url, self._options.route_prefix, web
        )
        site.admin = self._options.admin_api
        runner = await serve(site, self._options.listen_address)
        loop.add_signal_handler(signal.SIGHUP, lambda: self._keep(asyncio.create_task(self.reload())))
        self._family(series.BUILD_INFO.name).value(__version__).value = 1.0
        self._applied()
        self._fleet.ledger.start()
        await self._roster.configure(specs)
        self._keep(asyncio.create_task(self._roster.run()))
        self._keep(asyncio.create_task(leading.run()))
        self._keep(asyncio.create_task(self._watch()))
        clock.heard = self._feel_lag()
        self._keep(asyncio.create_task(self._memory.recall()))
        self._keep(asyncio.create_task(Gpus(self._fleet).run()))
        self._keep(asyncio.create_task(self._fleet.explain()))
        self._keep(asyncio.create_task(self._memory.save_often()))
        self._keep(asyncio.create_task(self._grafana.run()))
        gc.collect()
        gc.freeze()  # what is there now stays: the collector need not walk it while stamps are taken
        gc.set_threshold(50_000, 20, 20)
        site.ready = True
        pages = f"{self._options.listen_address} ({web.now.config.words})"
        log.info("probing %s%s, pages on %s", counted(len(specs.targets), "target"), _found(specs), pages)
        if shard.count > 1:
            log.info("shard %s has %d of them", shard, len(self._fleet.lines))
        await self._stopping.wait()
        log.info("stopping: no new probes, up to %g s for those under way", self._options.drain_s)
        site.ready = False
        for task in list(self._tasks):
            task.cancel()
        await self._roster.close()
        await self._sweeps.close()
        await leading.close()  # when nothing is under way any more, so that others need not wait for its end
        await self._fleet.stop(self._options.drain_s)
        await self._fleet.ledger.close()
        await self._memory.close()
        await runner.cleanup()
        clock.close()

    async def reload(self) -> str | None:
        """Take the configuration file over; a file with mistakes changes nothing. The mistakes, or None."""
        async with self._reloading:
            self._file.taken()
            try:
                specs = read_config(self._options.config_file)
            except ConfigError as problem:
                self._refused(str(problem).splitlines())
                return str(problem)
            self._trust.max_lag_s = min(spec.max_send_lag_s for spec in specs.kinds)
            self._drifts.configure(specs.drift)
            self._memory.prometheus_url = self._sweeps.prometheus_url = specs.prometheus_url
            self._grafana.configure(specs.grafana)
            await self._roster.configure(specs)
            await self._fleet.settled()
            self._applied()
            _warn(specs)
            log.info("configuration taken over: %s%s", counted(len(specs.targets), "target"), _found(specs))
            return None

    def _refused(self, mistakes: Iterable[str]) -> None:
        self._family(series.RELOAD_OK.name).value().value = 0.0
        log.error("configuration not taken over, the old one goes on")
        for line in mistakes:
            log.error("%s", line)

    def _applied(self) -> None:
        self._family(series.RELOAD_OK.name).value().value = 1.0
        self._family(series.RELOAD_TIME.name).value().value = time.time()

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(WATCH_S)
            match self._file.look():
                case "changed":
                    await self.reload()
                case "gone":
                    self._refused([f"--config.file {self._options.config_file}: is not there any more; put it back"])

    def _feel_lag(self) -> Callable[[int, float], None]:
        lags = self._family(series.LOOP_LAG.name).histogram(COARSE)
        trusted = self._family(series.TRUSTED.name).value()

        def beat(now_ns: int, late_s: float) -> None:
            lags.observe(late_s)
            self._trust.lag(now_ns, late_s)
            if late_s * 1e9 > MISSED_NS:
                self._trust.missed(now_ns)
            trusted.value = float(self._trust.trusted(now_ns))

        return beat

    def _keep(self, task: asyncio.Task[Any]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _family(self, name: str) -> Family:
        return self._families[name]
