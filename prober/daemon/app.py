"""The composition root: creates the parts of the daemon and connects them."""

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sqlite3
import time
import uuid
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from prober import __version__
from prober.config.configuration import Configuration
from prober.config.hosts import is_loopback
from prober.config.problems import ConfigError
from prober.config.target import estimate_per_day
from prober.config.units import counted
from prober.daemon import series as own_series
from prober.daemon.configuration_file import memory_excess, read_config_safely
from prober.daemon.registry import FEATURES, registry
from prober.daemon.state_persistence import ANSWERED, EVENTS, MAX_STATE_AGE_S, AnsweredTargets, StatePersistence
from prober.daemon.target_facts import read_facts
from prober.exposition.buckets import COARSE, FINE
from prober.features.budget.monitor import Ledger
from prober.features.capacity.monitor import Sweeps
from prober.features.discovery.desired_targets import DesiredTargets
from prober.features.engines.page_reader import PageReader
from prober.features.grafana.sync import Grafana
from prober.features.replicas import series as replicas_series
from prober.features.replicas.leadership import LeaseOptions, leadership
from prober.features.slo.firing import firing_checks
from prober.net.clock import Clock
from prober.probing.feature import Monitor, Shared, Stateful
from prober.probing.fleet import Fleet
from prober.probing.history import EventLog
from prober.probing.replicas import Shard
from prober.probing.supervisor import Supervisor
from prober.probing.target_runner import RunnerContext
from prober.storage.saved_rows import SavedRows
from prober.storage.store import FILE_NAME, Store, UnusableStore, network_file_system
from prober.storage.watched_file import WatchedFile
from prober.web.access_control import missing_authentication
from prober.web.server import PageServer
from prober.web.site import Site
from prober.web.targets import Problem
from prober.web.views import Snapshots
from prober.web.web_config import Loaded, WebFile

WATCH_INTERVAL_S = 2.0
# A file with mistakes is read again even if unchanged: a file that it names may have appeared or become readable.
RETRY_CONFIG_S, RETRY_CHANGE_S = 10.0, 60.0  # without any configuration; with an old one in use
MIN_RETRY_LISTEN_S, MAX_RETRY_LISTEN_S = 1.0, 30.0
MIN_RETRY_STORAGE_S, MAX_RETRY_STORAGE_S = 2.0, 60.0
NO_STORE = (
    "no --storage.path: drift baselines and the counts of SLOs are in memory only, and begin again after a restart"
)
NO_LEASE = (
    "sweeps and writes to Grafana are one at a time in this prober only, and a second one with this shard would do them too; "
    "give all of a shard the same lease"
)
KINDS = (ANSWERED, EVENTS, *(feature.saved for feature in FEATURES if feature.saved))  # kinds of rows in the store
END_NOTICE_S = 10.0  # between the end of one container of a pod and another's hook: up to 6 s on a busy node
POD_END_LIMIT_S = 3600.0  # longer than any grace period of a pod
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Options:
    """Options of the command line. config_text: text of the configuration; if given, config_file only names it"""

    config_file: str
    listen_address: str = ":9742"  # "": no pages are served
    external_url: str = ""
    grafana_url: str = ""  # for the page's links
    route_prefix: str = ""
    storage_path: str | None = None
    history_limit: int = 100
    admin_api: bool = False
    web_config_file: str | None = None
    drain_s: float = 20.0
    shard: Shard = Shard()
    vantage: str = ""
    lease: LeaseOptions = LeaseOptions()
    keep_running: bool = False
    storage_max_bytes: int | None = None
    config_text: str | None = None


def _warn(specs: Configuration) -> None:
    """Log warnings about a valid configuration, such as an alert that cannot fire or a secret that may be shown."""
    for warning in specs.warnings:
        log.warning("%s", warning)
    for slo, uses in specs.uses().items():
        for check in firing_checks(slo, uses):
            if check.problem:
                log.warning(
                    "%s: target=%s: an alert that cannot fire: %s", check.place, check.use.target, check.problem
                )


def _discovered(specs: Configuration) -> str:
    """Names of the discovery sources for a log line."""
    return f", and those of discovery {', '.join(source.name for source in specs.discovery)}" if specs.discovery else ""


def _dashboards() -> Iterable[dict[str, Any]]:
    from prober.daemon.dashboards import documents  # large, and only needed with a Grafana

    return documents().values()


Work = Callable[[], Awaitable[None]]
M = TypeVar("M", bound=Monitor)


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the daemon. work: runs until the daemon ends, and is restarted after a failure; name: label `task` of its failures"""

    name: str
    start: Work | None = None
    work: Work | None = None
    close: Callable[[], Awaitable[None] | None] | None = None


class App:
    """The daemon.

    watch: takes snapshots of all targets; probing ends when it returns. Storage, Grafana and sweeps are then off, because another
    prober may run with the same configuration
    stopped_by: the signal that ended probing, if any
    pod_ends: set by `prober drain`
    """

    def __init__(
        self,
        options: Options,
        make_clock: Callable[[], Clock] = Clock,
        watch: Callable[[Snapshots], Awaitable[None]] | None = None,
    ) -> None:
        self.stopped_by: signal.Signals | None = None
        self.pod_ends = False
        self._options, self._make_clock, self._watching = options, make_clock, watch
        self._families = registry(options.vantage, time.time)
        self._supervisor = Supervisor(self._families)
        self._stopping = asyncio.Event()
        self._reloading = asyncio.Lock()
        self._file = WatchedFile(options.config_file)
        self._problems: dict[str, Problem] = {}  # settings not in effect, by part
        self._configured = False  # a configuration is in effect
        self._next_reading_s = 0.0  # next reading of a configuration with mistakes, on the loop's clock
        self._serving: PageServer | None = None
        self._mended: tuple[Store, dict[str, SavedRows]] | None = None  # a store that could not be used at first
        self._tasks: set[asyncio.Task[Any]] = set()

    @property
    def should_restart(self) -> bool:
        """True if the process must restart: the store has become usable, and no signal asked for the end."""
        return self._mended is not None and self.stopped_by is None

    async def run(self) -> None:
        """Probe until SIGTERM or SIGINT, or until `should_restart`; then drain. Raises ConfigError, OSError (address in use).

        With `keep_running` only mistakes in options are raised: neither a changed file nor another process can fix them.
        """
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop, number)
        await self._reloading.acquire()  # handle a SIGHUP during the start after it
        loop.add_signal_handler(signal.SIGHUP, lambda: self._start(asyncio.create_task(self.reload())))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM, signal.SIGHUP))
        log.info("llm-slo-prober %s, configuration %s", __version__, self._options.config_file)
        self._file.mark_read()
        specs = self._initial_config()
        web, admin = self._web_config()
        _warn(specs)
        parts = self._parts(specs, web)
        self._site.api.admin = admin
        for part in parts:
            if part.start is not None:
                await part.start()
        self._reloading.release()
        self._tasks |= {self._supervisor.start(part.name, part.work) for part in parts if part.work is not None}
        self._start(asyncio.create_task(self._watch_targets()))
        loop.add_signal_handler(signal.SIGUSR1, self._pod_ends)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGUSR1,))
        self._site.ready = True
        self._log_start(specs)
        await self._stopping.wait()
        log.info("stopping: no new probes, up to %g s for those in flight", self._options.drain_s)
        self._site.ready = False
        for task in list(self._tasks):
            task.cancel()
        for part in reversed(parts):
            if part.close is not None and (ending := part.close()) is not None:
                await ending

    def _web_config(self) -> tuple[WebFile, bool]:
        """(web configuration, True if actions are allowed). Raises ConfigError."""
        options = self._options
        web = WebFile(options.web_config_file, keep_running=options.keep_running)
        if web.problem:
            headline = (
                "web configuration not applied, only /-/healthy, /-/ready and /health/ are served until it is fixed"
            )
            self._refused("web", headline, web.problem.splitlines())
        elif options.web_config_file and not (web.now.tls or web.now.authenticates):
            log.warning(
                "%s: %s: anyone who reaches the pages can read them",
                options.web_config_file,
                web.now.words,
            )
        why = self._why_no_actions(web.now)
        if why and not (options.keep_running and options.web_config_file):
            raise ConfigError(why)
        if why and not web.problem:
            self._refused("web", "actions stay off", [why])
        return web, options.admin_api and not why

    def _why_no_actions(self, web: Loaded) -> str:
        return missing_authentication(self._options.listen_address, web) if self._options.admin_api else ""

    def _parts(self, specs: Configuration, web: WebFile) -> list[Part]:
        """Create all parts and connect them. Raises ConfigError, UnusableStore."""
        options, families = self._options, self._families
        clock = self._clock = self._make_clock()
        instance = os.environ.get("POD_NAME") or f"{socket.gethostname()}-{uuid.uuid4().hex[:8]}"
        supervisor = self._supervisor
        path = self._storage_path = options.storage_path or specs.storage.path
        store, rows = self._stored(path)
        events = EventLog(rows[EVENTS])
        if path and store and (kind := network_file_system(Path(path))):
            log.warning(
                "--storage.path %s: is on %s, where SQLite's locks cannot be relied on: one prober only", path, kind
            )
        leading = leadership(options.lease, options.shard, instance, families)
        if options.shard.count > 1 and not leading.where:
            log.warning("--shard %s without --lease.name: %s", options.shard, NO_LEASE)
        shared = Shared(
            families,
            events,
            clock,
            specs,
            rows,
            store,
            lambda: self._fleet.runners.values(),
            leading,
            PageReader,
            read_facts,
            instance,
            options.history_limit,
        )
        answered = AnsweredTargets(lambda: (runner.target for runner in self._fleet.runners.values()), rows[ANSWERED])
        saved: dict[str, Stateful] = {ANSWERED: answered, EVENTS: events}
        self._monitors = list[Monitor]()
        for feature in FEATURES:
            monitors = list(feature.monitors(shared))
            self._monitors += monitors
            if feature.saved:
                saved[feature.saved] = monitors[0]
        self._ledger, self._sweeps = self._monitor(Ledger), self._monitor(Sweeps)
        self._context = RunnerContext(
            clock,
            events,
            [monitor.observe for monitor in self._monitors],
            families.remove,
            instance,
            self._ledger,
            supervisor,
            END_NOTICE_S if os.environ.get("KUBERNETES_SERVICE_HOST") else 0.0,
            answered.take,
        )
        self._fleet = Fleet(self._context, options.shard)
        self._desired_targets = DesiredTargets(families, lambda targets: self._fleet.change(targets, options.drain_s))
        failures = families.value(own_series.STORAGE_FAILURES)
        self._persistence = StatePersistence(saved, store, failures, clock)
        self._grafana = Grafana(
            families,
            events,
            self._sweeps.results,
            clock,
            lambda: leading.held() is not None,
            _dashboards if options.shard.index == 0 else None,
        )
        self._set_up(specs)
        self._site = Site(
            self._fleet,
            self._sweeps,
            families,
            self.reload,
            options.external_url,
            options.route_prefix,
            web,
        )
        self._site.knows_targets = lambda: self._configured and self._desired_targets.is_applied
        self._site.views.grafana_url = options.grafana_url
        self._site.views.problems = self._problems
        families.value(own_series.BUILD_INFO, __version__).value = 1.0
        families.value(replicas_series.SHARD_INFO, str(options.shard.index), str(options.shard.count)).value = 1.0
        families.value(replicas_series.SHARDS).value = float(options.shard.count)

        async def begin() -> None:
            if "configuration" not in self._problems:
                self._applied()
            await self._desired_targets.configure(specs)
            clock.on_beat = self._beat_recorder(self._site.views.receive_delays)

        # In order of start; they end in reverse order, after all work is cancelled.
        return [
            Part("clock", close=clock.close),
            Part("pages", start=self._listen, close=lambda: self._serving.close() if self._serving else None),
            Part("storage", work=partial(self._retry_storage, path), close=self._keep_learnt),
            Part("states", work=self._persistence.save_often, close=self._persistence.close),
            *(
                Part(part.saving_task, work=partial(self._persistence.save_changes, kind))
                for kind, part in saved.items()
                if part.saving_task
            ),
            Part("fleet", close=lambda: self._fleet.stop(options.drain_s)),
            # Released after the last sweep, so that other replicas need not wait until the lease expires.
            Part("leases", work=leading.run, close=leading.close),
            Part("sweeps", close=self._sweeps.close),
            Part("targets", start=begin, work=self._desired_targets.run, close=self._desired_targets.close),
            Part("configuration", work=self._watch),
            *(Part(monitor.task, work=monitor.run) for monitor in self._monitors if monitor.task),
            Part("grafana", work=self._grafana.run),
        ]

    def _monitor(self, kind: type[M]) -> M:
        return next(monitor for monitor in self._monitors if isinstance(monitor, kind))

    def _set_up(self, specs: Configuration) -> None:
        """Apply the settings that do not concern a single target."""
        for monitor in self._monitors:
            monitor.configured(specs)
        self._grafana.configure(specs.grafana)

    def _log_start(self, specs: Configuration) -> None:
        log.info("probing %s%s, %s", counted(len(specs.probed), "target"), _discovered(specs), self._pages())
        used = sum(estimate_per_day(spec).tokens for spec in specs.probed)
        log.info(
            "the probes use %s tokens a day; a lower `rate` or a `budget` uses less, `prober check` lists it",
            f"{used:,.0f}",
        )
        if self._options.shard.count > 1:
            log.info("shard %s has %d of them", self._options.shard, len(self._fleet.runners))

    def _stop(self, number: signal.Signals) -> None:
        self.stopped_by = self.stopped_by or number
        self._stopping.set()

    def _pod_ends(self) -> None:
        """Stop probing targets in the prober's own pod, which is ending; resume after POD_END_LIMIT_S if it still runs."""
        self.pod_ends = True
        log.info("the pod is being ended: no more probes of %s", counted(self._end_own_targets(), "target"))
        asyncio.get_running_loop().call_later(POD_END_LIMIT_S, self._pod_stays)

    def _end_own_targets(self) -> int:
        """Stop sending to targets in the prober's own pod. Returns the number of these targets."""
        own = [runner for runner in self._fleet.runners.values() if is_loopback(runner.target.endpoint.host)]
        for runner in own:
            runner.end(True)
        return len(own)

    def _pod_stays(self) -> None:
        self.pod_ends = False
        ending = [runner for runner in self._fleet.runners.values() if runner.target.is_ending]
        log.warning("the pod has not ended: probing %s again", counted(len(ending), "target"))
        for runner in ending:
            runner.end(False)

    async def reload(self) -> str | None:
        """Apply the configuration file. Returns its mistakes, without applying anything, or None."""
        return await self._reload(is_requested=True)

    async def _reload(self, *, is_requested: bool) -> str | None:
        """Apply the configuration file. is_requested: log mistakes even if unchanged."""
        async with self._reloading:
            self._file.mark_read()
            try:
                options = self._options
                read = await asyncio.to_thread(
                    read_config_safely, options.config_file, options.config_text, is_regular=True
                )
                specs = self._used(read)
            except ConfigError as problem:
                self._not_taken(str(problem).splitlines(), is_requested=is_requested)
                retry_s = RETRY_CHANGE_S if self._configured else RETRY_CONFIG_S
                self._next_reading_s = asyncio.get_running_loop().time() + retry_s
                return str(problem)
            self._set_up(specs)
            await self._desired_targets.configure(specs)
            await self._fleet.wait_until_stopped()
            if self.pod_ends:
                self._end_own_targets()
            self._applied()
            if specs.storage.path and specs.storage.path != self._storage_path and not self._options.storage_path:
                log.warning("storage.path %s: is taken when the prober starts, not by a reload", specs.storage.path)
            _warn(specs)
            log.info("configuration applied: %s%s", counted(len(specs.probed), "target"), _discovered(specs))
            return None

    def _initial_config(self) -> Configuration:
        """The configuration at the start; an empty one if it has mistakes and the prober must keep running."""
        try:
            options = self._options
            return self._used(
                read_config_safely(options.config_file, options.config_text, is_regular=options.keep_running)
            )
        except ConfigError as problem:
            if not self._options.keep_running:
                raise
            self._not_taken(str(problem).splitlines(), is_requested=True)
            return Configuration()

    def _used(self, specs: Configuration) -> Configuration:
        """Return the configuration to apply. Raises ConfigError if it exceeds the memory limit and the prober must keep running."""
        if self._options.keep_running and (mistake := memory_excess(len(specs.probed))):
            raise ConfigError(f"{self._options.config_file}: {mistake}")
        return specs.for_watching() if self._watching is not None else specs

    def _stored(self, path: str | None) -> tuple[Store | None, dict[str, SavedRows]]:
        """(store, its rows by kind). The store is None if state is only in memory."""
        if path is None:
            log.warning(NO_STORE)
        else:
            try:
                return self._opened(path)
            except UnusableStore as problem:
                if not self._options.keep_running:
                    raise
                self._refused("storage", "state is in memory only, the storage is tried again", [str(problem)])
        return None, {kind: SavedRows() for kind in KINDS}

    def _opened(self, path: str) -> tuple[Store, dict[str, SavedRows]]:
        """Open the store and load its rows. Returns (store, rows by kind). Raises UnusableStore."""
        store = Store(path, self._options.storage_max_bytes)
        try:
            now_unix_s = self._clock.unix_s()
            if (ahead_s := store.last_unix_s - now_unix_s) > 1.0:
                log.warning(
                    "--storage.path %s: was saved %.0f s after this clock's time, and counts as saved now; check the clock of this "
                    "machine",
                    path,
                    ahead_s,
                )
            since_unix_s = store.since(MAX_STATE_AGE_S, now_unix_s)
            return store, {kind: SavedRows.of(store, kind, since_unix_s) for kind in KINDS}
        except sqlite3.Error as problem:
            store.close()
            text = f"--storage.path {path}: cannot be read: {problem}; repair the disk, or move {FILE_NAME} away"
            raise UnusableStore(text) from None

    async def _retry_storage(self, path: str | None) -> None:
        """Retry to open the store, and stop probing once it is usable, because rows are only read at the start.

        No attempt is made during a sweep or while the pod ends, because a restarted process would not know of it.
        """
        if path is None or "storage" not in self._problems:
            return
        wait_s = MIN_RETRY_STORAGE_S
        while self._mended is None:
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, MAX_RETRY_STORAGE_S)
            if self._sweeps.under_way or any(runner.target.is_ending for runner in self._fleet.runners.values()):
                continue
            with contextlib.suppress(UnusableStore):
                self._mended = await asyncio.to_thread(self._opened, path)
        log.info("--storage.path %s: can be used now; the prober begins again with it", path)
        self._stopping.set()

    async def _keep_learnt(self) -> None:
        """Save budgets and learned state in a store that has become usable."""
        if self._mended is None:
            return
        store, rows = self._mended
        try:
            self._ledger.merge(rows["budget"])
            await self._persistence.put(store, "budget", self._ledger.states())
            await self._persistence.add(store)
        except sqlite3.Error as problem:
            log.error("what was learnt without --storage.path is lost, it cannot be saved: %s", problem)
        store.close()

    async def _listen(self) -> None:
        """Serve the pages. If the address cannot be used and the prober must keep running, retry until it can."""
        address = self._options.listen_address
        if not address:
            return
        try:
            self._serving = await self._site.serve(address)
        except OSError as problem:
            if not self._options.keep_running:
                raise
            self._refused("address", "no pages are served, the address is tried again", [str(problem)])
            self._start(self._supervisor.start("pages", partial(self._retry_listening, address)))

    async def _retry_listening(self, address: str) -> None:
        wait_s = MIN_RETRY_LISTEN_S
        while self._serving is None:
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, MAX_RETRY_LISTEN_S)
            with contextlib.suppress(OSError):
                self._serving = await self._site.serve(address)
        self._fixed("address")
        log.info("%s", self._pages())

    def _pages(self) -> str:
        """Text on the pages' address and protection, for the log."""
        web = self._site.access.file
        if not self._options.listen_address:
            return "no pages"
        if self._serving is None:
            return "no pages yet"
        pages, protection = ("health", "locked") if web.problem else ("pages", web.now.words)
        users = f", for users {self._options.external_url}" if self._options.external_url else ""
        return f"{pages} on {self._options.listen_address}{users} ({protection})"

    def _not_taken(self, mistakes: Sequence[str], *, is_requested: bool) -> None:
        consequence = "the old one stays in use" if self._configured else "nothing is probed until it is fixed"
        self._refused("configuration", f"configuration not applied, {consequence}", mistakes, is_requested=is_requested)

    def _refused(self, part: str, headline: str, mistakes: Sequence[str], *, is_requested: bool = True) -> None:
        """Report settings that are not in effect in the log, on the page and by a series, until `_fixed` is called.

        part: part of the configuration; is_requested: log the mistakes even if unchanged
        """
        problem = Problem(headline=headline, mistakes=list(mistakes))
        if is_requested or self._problems.get(part) != problem:
            log.error("%s", headline)
            for line in mistakes:
                log.error("%s", line)
        self._problems[part] = problem
        self._families.value(own_series.RELOAD_OK).value = 0.0

    def _fixed(self, part: str) -> None:
        self._problems.pop(part, None)
        self._families.value(own_series.RELOAD_OK).value = float(not self._problems)

    def _applied(self) -> None:
        self._configured = True
        self._fixed("configuration")
        self._families.value(own_series.RELOAD_TIME).value = self._clock.unix_s()

    async def _watch_targets(self) -> None:
        """Pass snapshots to `watch`, if given; probing ends when it returns."""
        if self._watching is None:
            return
        try:
            await self._watching(Snapshots(self._site.views, self._context))
        except Exception:
            log.exception("the snapshots can no longer be written; please report this")
        self._stopping.set()

    async def _watch(self) -> None:
        now_s = asyncio.get_running_loop().time
        self._next_reading_s = now_s() + RETRY_CONFIG_S
        while True:
            await asyncio.sleep(WATCH_INTERVAL_S)
            if "web" in self._problems:
                await self._check_web_config()
            if self._options.config_text is None and self._file.poll():
                await self._reload(is_requested=self._configured)
            elif "configuration" in self._problems and now_s() >= self._next_reading_s:
                await self._reload(is_requested=False)

    async def _check_web_config(self) -> None:
        """Check whether a web configuration that locks the pages has been fixed."""
        loaded = await self._site.access.file.current()
        if loaded.is_locked:
            return
        why = self._why_no_actions(loaded)
        self._site.api.admin = self._options.admin_api and not why
        if why:
            self._refused("web", "actions stay off", [why], is_requested=False)
        else:
            self._fixed("web")

    def _beat_recorder(self, latest_delays: deque[float]) -> Callable[[float], None]:
        """Return a function that records, at each beat of the clock, its lateness and the receive delays since the last beat."""
        lags = self._families.histogram(own_series.LOOP_LAG, COARSE)
        delays = self._families.histogram(own_series.RECEIVE_DELAY, FINE)
        by_kernel, by_process = (self._families.value(own_series.STAMPS, source) for source in ("kernel", "process"))
        stamps = self._clock.stamps

        def beat(late_s: float) -> None:
            lags.observe(late_s)
            delays_s = [delay_ns / 1e9 for delay_ns in stamps.take_delays()]
            latest_delays.extend(delays_s)
            delays.observe(*delays_s)
            by_kernel.value, by_process.value = stamps.kernel, stamps.process

        return beat

    def _start(self, task: asyncio.Task[Any]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
