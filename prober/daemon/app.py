"""The composition root: reads as the list of the daemon's parts and how they meet."""

import asyncio
import contextlib
import gc
import logging
import os
import signal
import socket
import sqlite3
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prober import __version__
from prober.config.discovery import PLACEHOLDER
from prober.config.load import ConfigError, load, nothing
from prober.config.specs import Specs
from prober.config.units import counted
from prober.daemon import series as own_series
from prober.daemon.registry import registry
from prober.daemon.state_persistence import DEMAND, DRIFT, ENGINE, KEPT_S, StatePersistence
from prober.exposition.buckets import COARSE
from prober.exposition.families import Family
from prober.features.budget.checkpoints import BUDGET, Ledger
from prober.features.budget.monitor import BudgetMonitor
from prober.features.capacity.cron import BadSchedule, trigger
from prober.features.capacity.headroom import Headroom
from prober.features.capacity.monitor import Sweeps
from prober.features.diagnosis.monitor import DiagnosisMonitor
from prober.features.discovery.desired_targets import DesiredTargets
from prober.features.drift.monitor import DriftMonitor
from prober.features.engines.monitor import EngineMonitor
from prober.features.engines.page_reader import PageReader
from prober.features.gpu.monitor import GpuMonitor
from prober.features.grafana.client import MISSING, available
from prober.features.grafana.sync import Grafana
from prober.features.replicas import series as replicas_series
from prober.features.replicas.leadership import LeaseOptions, leadership
from prober.features.replicas.lease_store import network_file_system
from prober.features.slo.firing import firing_checks
from prober.features.slo.monitor import SloMonitor
from prober.measure.engines import DIALECTS
from prober.net.clock import Clock
from prober.net.endpoint import BadEndpoint, endpoint
from prober.probing.event_log import EventLog
from prober.probing.fleet import Fleet
from prober.probing.history import ProbeHistory
from prober.probing.pacer import MISSED_NS
from prober.probing.recorder import ProbeRecorder
from prober.probing.shard import Shard
from prober.probing.target_runner import Names, RunnerContext
from prober.probing.trust import Trust
from prober.storage.store import Store
from prober.storage.watched_file import WatchedFile
from prober.web.access_control import unguarded
from prober.web.page.view import Problem
from prober.web.site import Serving, Site, host_and_port, serve
from prober.web.web_config import WebFile

WATCH_S = 2.0
READ_AGAIN_S = 10.0  # without any configuration: also what it names may be there by then
LISTEN_AGAIN_S, LISTEN_AGAIN_AT_MOST_S = 1.0, 30.0
MAX_SEND_LAG_S = 0.010  # without any target
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
    lease: LeaseOptions = LeaseOptions()
    keep_running: bool = False


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


def _read_whatever(path: str) -> Specs:
    """The same, with no other exception: what a file holds must not end a prober that runs. Raises ConfigError."""
    try:
        return read_config(path)
    except ConfigError:
        raise
    except Exception as problem:
        log.debug("the configuration cannot be read", exc_info=True)
        raise ConfigError(f"{path}: cannot be read: {problem!r}; please report this with the file") from problem


def _warn(specs: Specs) -> None:
    """What does not stop the measuring, but would stop an alert or show a secret."""
    for each in specs.warnings:
        log.warning("%s", each)
    for slo, uses in specs.uses().items():
        for check in firing_checks(slo, uses):
            if check.problem:
                log.warning(
                    "%s: target=%s: an alert that cannot fire: %s", check.place, check.use.target, check.problem
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
        self._file = WatchedFile(options.config_file)
        self._problems: dict[str, Problem] = {}  # what is not in effect, by part
        self._configured = False  # a configuration was taken over
        self._serving: Serving | None = None
        self._tasks: set[asyncio.Task[Any]] = set()

    async def run(self) -> None:
        """Probe until SIGTERM or SIGINT, then drain. Raises ConfigError, OSError (address in use).

        With `keep_running` only what no file and no neighbour can mend is raised: flags.
        """
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stopping.set)  # first: as PID 1 there is no other way to end it
        log.info("llm-slo-prober %s, configuration %s", __version__, self._options.config_file)
        host_and_port(self._options.listen_address)
        keep_running = self._options.keep_running
        self._file.mark_read()
        specs = self._first()
        web = WebFile(self._options.web_config_file, keep_running=keep_running)
        if web.problem:
            headline = "web configuration not taken over, only /-/healthy and /-/ready are served until it is mended"
            self._refused("web", headline, web.problem.splitlines())
        elif self._options.web_config_file and not (web.now.tls or web.now.config.authenticates):
            log.warning(
                "%s: %s: whoever reaches the pages may read them", self._options.web_config_file, web.now.config.words
            )
        why = unguarded(self._options.listen_address, web.now) if self._options.admin_api else ""
        if why and not (keep_running and self._options.web_config_file):
            raise ConfigError(why)
        if why and not web.problem:
            self._refused("web", "actions stay off", [why])
        clock = Clock()
        trust = Trust(min((spec.max_send_lag_s for spec in specs.kinds), default=MAX_SEND_LAG_S))
        _warn(specs)
        instance = os.environ.get("POD_NAME") or f"{socket.gethostname()}-{uuid.uuid4().hex[:8]}"
        events = EventLog()
        self._clock, self._trust = clock, trust
        path = self._storage_path = self._options.storage_path or specs.storage_path
        kinds = (DRIFT, ENGINE, DEMAND, BUDGET)
        store, (drifts, engine_facts, demands, budgets) = self._stored(path, kinds)
        if path and store and (kind := network_file_system(Path(path))):
            log.warning(
                "--storage.path %s: is on %s, where SQLite's locks cannot be relied on: one prober only", path, kind
            )
        shard = self._options.shard
        leading = leadership(self._options.lease, shard, instance, self._families)
        if shard.count > 1 and not leading.where:
            log.warning("--shard %s without --lease.name or --lease.path: %s", shard, ALONE)
        failures = self._family(own_series.STORAGE_FAILURES.name).value()
        engines = EngineMonitor(self._families, events, engine_facts)
        headroom = Headroom(self._families, demands)
        self._drift = DriftMonitor(self._families, events, specs.drift, drifts, has_store=store is not None)
        self._sweeps = Sweeps(self._families, events, headroom, trust, store, PageReader, leading)
        self._sweeps.prometheus_url = specs.prometheus_url
        diagnosis = DiagnosisMonitor(self._families, events)
        gpus = GpuMonitor(self._families, lambda: self._fleet.runners.values())
        ledger = Ledger(store, failures, budgets)
        # The list of what listens to a target, in the order in which it hears: a new feature is one line here.
        features = (
            ProbeRecorder(self._families),
            SloMonitor(self._families),
            BudgetMonitor(self._families),
            ProbeHistory(self._options.history_limit),
            engines,
            gpus,
            self._drift,
            diagnosis,
            headroom,
            self._sweeps,
        )
        context = RunnerContext(clock, trust, events, features, self._families.remove, instance, Names(), ledger)
        self._fleet = Fleet(context, shard)
        self._family(replicas_series.SHARD_INFO.name).value(str(shard.index), str(shard.count)).value = 1.0
        self._family(replicas_series.SHARDS.name).value().value = float(shard.count)
        self._roster = DesiredTargets(self._families, lambda wanted: self._fleet.change(wanted, self._options.drain_s))
        self._persistence = StatePersistence(self._drift, engines, headroom, store, specs.prometheus_url, failures)
        self._grafana = Grafana(
            self._families, events, self._sweeps.results, lambda: leading.held() is not None, first=shard.index == 0
        )
        leading.listen(self._grafana.lost, lambda: None)
        self._grafana.configure(specs.grafana)
        site = Site(
            self._fleet,
            self._sweeps,
            headroom,
            self._families,
            self.reload,
            self._options.external_url,
            self._options.route_prefix,
            web,
        )
        site.admin = self._options.admin_api and not why
        site.views.problems = self._problems
        await self._listen(site)
        loop.add_signal_handler(signal.SIGHUP, lambda: self._keep(asyncio.create_task(self.reload())))
        self._family(own_series.BUILD_INFO.name).value(__version__).value = 1.0
        if "configuration" not in self._problems:
            self._applied()
        ledger.start()
        await self._roster.configure(specs)
        self._keep(asyncio.create_task(self._roster.run()))
        self._keep(asyncio.create_task(leading.run()))
        self._keep(asyncio.create_task(self._watch(site)))
        clock.on_beat = self._feel_lag()
        self._keep(asyncio.create_task(self._persistence.recall()))
        self._keep(asyncio.create_task(gpus.run()))
        self._keep(asyncio.create_task(diagnosis.run()))
        self._keep(asyncio.create_task(self._persistence.save_often()))
        self._keep(asyncio.create_task(self._grafana.run()))
        gc.collect()
        gc.freeze()  # what is there now stays: the collector need not walk it while stamps are taken
        gc.set_threshold(50_000, 20, 20)
        site.ready = True
        pages = self._pages(web)
        log.info("probing %s%s, %s", counted(len(specs.targets), "target"), _found(specs), pages)
        if shard.count > 1:
            log.info("shard %s has %d of them", shard, len(self._fleet.runners))
        await self._stopping.wait()
        log.info("stopping: no new probes, up to %g s for those under way", self._options.drain_s)
        site.ready = False
        for task in list(self._tasks):
            task.cancel()
        await self._roster.close()
        await self._sweeps.close()
        await leading.close()  # when nothing is under way any more, so that others need not wait for its end
        await self._fleet.stop(self._options.drain_s)
        await ledger.close()
        await self._persistence.close()
        if self._serving is not None:
            await self._serving.cleanup()
        clock.close()

    async def reload(self) -> str | None:
        """Take the configuration file over; a file with mistakes changes nothing. The mistakes, or None."""
        return await self._reload(asked=True)

    async def _reload(self, *, asked: bool) -> str | None:
        """The same. asked: mistakes are logged even if they are those of before."""
        async with self._reloading:
            self._file.mark_read()
            try:
                specs = _read_whatever(self._options.config_file)
            except ConfigError as problem:
                self._not_taken(str(problem).splitlines(), asked=asked)
                return str(problem)
            self._trust.max_lag_s = min(spec.max_send_lag_s for spec in specs.kinds)
            self._drift.configure(specs.drift)
            self._persistence.prometheus_url = self._sweeps.prometheus_url = specs.prometheus_url
            self._grafana.configure(specs.grafana)
            await self._roster.configure(specs)
            await self._fleet.settled()
            self._applied()
            if specs.storage_path and specs.storage_path != self._storage_path and not self._options.storage_path:
                log.warning("storage.path %s: is taken when the prober starts, not by a reload", specs.storage_path)
            _warn(specs)
            log.info("configuration taken over: %s%s", counted(len(specs.targets), "target"), _found(specs))
            return None

    def _first(self) -> Specs:
        """The configuration to begin with; none where it has mistakes and the prober is to keep running."""
        try:
            return _read_whatever(self._options.config_file)
        except ConfigError as problem:
            if not self._options.keep_running:
                raise
            self._not_taken(str(problem).splitlines(), asked=True)
            return nothing()

    def _stored(self, path: str | None, kinds: Sequence[str]) -> tuple[Store | None, list[dict[str, bytes]]]:
        """The store, and what it has of each kind."""
        if path is None:
            return None, [{} for _ in kinds]
        try:
            store = Store(path)
            return store, [store.load(kind, time.time() - KEPT_S) for kind in kinds]
        except (OSError, sqlite3.Error) as problem:
            if not self._options.keep_running:
                raise
            said = str(problem) if isinstance(problem, OSError) else f"--storage.path {path}: {problem}; mend the file"
            self._refused("storage", "state is in memory only until the prober restarts", [said])
            return None, [{} for _ in kinds]

    async def _listen(self, site: Site) -> None:
        """Serve the pages; where the address cannot be used, and the prober is to keep running, as soon as it can."""
        try:
            self._serving = await serve(site, self._options.listen_address)
        except OSError as problem:
            if not self._options.keep_running:
                raise
            self._refused("address", "no pages are served, the address is tried again and again", [str(problem)])
            self._keep(asyncio.create_task(self._listen_again(site)))

    async def _listen_again(self, site: Site) -> None:
        wait_s = LISTEN_AGAIN_S
        while self._serving is None:
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, LISTEN_AGAIN_AT_MOST_S)
            with contextlib.suppress(OSError):
                self._serving = await serve(site, self._options.listen_address)
        self._mended("address")
        log.info("%s", self._pages(site.guard.file))

    def _pages(self, web: WebFile) -> str:
        """What is served where, for the log."""
        if self._serving is None:
            return "no pages yet"
        what, how = ("health", "locked") if web.problem else ("pages", web.now.config.words)
        return f"{what} on {self._options.listen_address} ({how})"

    def _not_taken(self, mistakes: Sequence[str], *, asked: bool) -> None:
        kept = "the old one goes on" if self._configured else "nothing is probed until it is mended"
        self._refused("configuration", f"configuration not taken over, {kept}", mistakes, asked=asked)

    def _refused(self, part: str, headline: str, mistakes: Sequence[str], *, asked: bool = True) -> None:
        """Say what is not in effect: in the log, on the page and by a series, until `_mended`. asked: even if it is known."""
        problem = Problem(headline, tuple(mistakes))
        if asked or self._problems.get(part) != problem:
            log.error("%s", headline)
            for line in mistakes:
                log.error("%s", line)
        self._problems[part] = problem
        self._family(own_series.RELOAD_OK.name).value().value = 0.0

    def _mended(self, part: str) -> None:
        self._problems.pop(part, None)
        self._family(own_series.RELOAD_OK.name).value().value = float(not self._problems)

    def _applied(self) -> None:
        self._configured = True
        self._mended("configuration")
        self._family(own_series.RELOAD_TIME.name).value().value = time.time()

    async def _watch(self, site: Site) -> None:
        looks = 0
        while True:
            await asyncio.sleep(WATCH_S)
            looks += 1
            if "web" in self._problems:
                await self._look_at_web(site)
            match self._file.poll():
                case "changed":
                    await self._reload(asked=self._configured)
                case "gone" if self._configured:
                    mistake = f"--config.file {self._options.config_file}: is not there any more; put it back"
                    self._not_taken([mistake], asked=True)
                case _ if not self._configured and looks % round(READ_AGAIN_S / WATCH_S) == 0:
                    await self._reload(asked=False)

    async def _look_at_web(self, site: Site) -> None:
        """The pages are locked, or actions off: is the web configuration mended?"""
        file = site.guard.file
        loaded = await file.fresh()
        if loaded.is_locked:
            return
        why = unguarded(self._options.listen_address, loaded) if self._options.admin_api else ""
        site.admin = self._options.admin_api and not why
        if why:
            self._refused("web", "actions stay off", [why], asked=False)
        else:
            self._mended("web")

    def _feel_lag(self) -> Callable[[int, float], None]:
        lags = self._family(own_series.LOOP_LAG.name).histogram(COARSE)
        trusted = self._family(own_series.TRUSTED.name).value()

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
