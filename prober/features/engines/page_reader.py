"""Reads the metrics page of an engine at an interval of its own.

A page is parsed in a thread, because the largest takes half a second. After several failures the page is reported as unreadable, so
that old values are not shown as current.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from urllib.parse import urlsplit

import orjson

from prober.config.serving import MetricsSpec
from prober.exposition.parse import Page, PageTooLarge, Parser
from prober.features.engines.continuity import Continuity
from prober.features.engines.page_reading import MAX_VALUE, facts, needed_metrics, read_signals, recognise
from prober.measure.engine_signals import EngineChange, EngineSignals, EngineTable, PageReading
from prober.measure.engines import TABLES, tables
from prober.measure.printable import mask_secrets, one_line
from prober.net.clock import Clock
from prober.net.scrape import MAX_BODY_BYTES, Fetched, NotAnswered, PageTooLong, UnreadablePage, Unusable, fetch
from prober.probing.observer import PageListener
from prober.probing.target import Target

FACTS_EVERY_NS, FACTS_RETRY_NS = 600 * 10**9, 30 * 10**9
STALE_READINGS = 3
GAP_INTERVALS = 1.5  # between two readings: if longer, one is missing
MAX_LOGGED_TEXTS = 100  # per reader: a page may have a new mistake at each reading
MAX_FACTS_BYTES = 64 << 10  # per document
_SMALLER = "let `metrics.url` name the page of this engine alone, or have it write fewer series"
log = logging.getLogger(__name__)


class PageReader:
    """Reads the metrics page of one target's engine.

    spec: configured address and interval.
    name: returns the label of the target, for the log.
    continuity: state after earlier readings of this page; None without any.
    problem: why the last reading failed; "" if it succeeded
    """

    problem = ""

    def __init__(
        self,
        target: Target,
        spec: MetricsSpec,
        clock: Clock,
        listener: PageListener,
        name: Callable[[], str],
        continuity: Continuity | None = None,
    ) -> None:
        self._target, self._spec, self._clock, self._listener, self._name = target, spec, clock, listener, name
        self._timeout_s = min(4.0, spec.interval)
        self._parser = Parser()  # parses all names until the engine is known
        self._table: EngineTable | None = None
        self._tries, self._has_page = 0, False
        self._continuity = continuity or Continuity()
        self._facts: dict[str, str] = {}
        self._facts_ns: int | None = None
        self._read_ns: int | None = None
        self._logged: set[str] = set()

    async def run(self) -> None:
        """Read until cancelled, or until the engine is known to have no page."""
        due = self._clock.now_ns()
        while await self.read():
            due = max(due + round(self._spec.interval * 1e9), self._clock.now_ns())
            await self._clock.sleep_until(due)

    async def read(self) -> bool:
        """Read the page once. Returns False if the engine is known to have no page."""
        begun_ns = self._clock.now_ns()
        try:
            if not await self._once():
                if self._read_ns is not None:
                    self._listener.page_read(None)
                return False
        except UnreadablePage as error:
            if self._clock.stood_still(begun_ns):
                return True  # the prober stopped: the page is not at fault
            self._tries += 1
            self.problem = one_line(self._target.endpoint.redactor.redact(str(error)))
            if self._has_page or is_expected(self._spec, self._continuity):
                self._log_once(f"the engine's page cannot be read: {error}")
            elif self._tries == 1:
                text = "no metrics page of its engine is found: %s; `metrics: {url: none}` ends the search"
                log.info(f"target=%s {text}", self._name(), self.problem)
        stale_ns = STALE_READINGS * round(self._spec.interval * 1e9)
        if self._read_ns is None or self._clock.now_ns() - self._read_ns > stale_ns:
            self._listener.page_read(None)
        return True

    async def _once(self) -> bool:
        """Read the page. Returns False if the engine has no page. Raises UnreadablePage."""
        if self._spec.url is None and self._target.identity is None and self._target.spec.engine is None:
            return True  # the address of the page depends on the engine
        identity = self._target.identity
        candidates = tables(
            identity.dialect.name if identity else self._target.spec.engine or ""
        )  # empty for an unknown engine
        if candidates and not any(table.paths for table in candidates):
            self._log_once(f"{candidates[0].engine} has no page of its own: {candidates[0].note or 'nothing is read'}")
            return False
        at_ns = self._clock.now_ns()
        try:
            fetched = await fetch_of(self._target, self._url(candidates), self._timeout_s)
        except Unusable:
            self._has_page = True
            raise
        except PageTooLong as problem:
            self._has_page = True
            raise UnreadablePage(f"{problem}, and nothing of it is used; {_SMALLER}") from None
        self._has_page = True
        try:
            page = await asyncio.to_thread(self._parser.parse, fetched.body)
        except PageTooLarge as problem:
            where = mask_secrets(self._url(candidates))
            raise UnreadablePage(f"{where}: {problem}, and nothing of it is used; {_SMALLER}") from None
        table = self._table = self._recognise(page, candidates)
        if self._target.spec.rank is not None and not table.rank_label:
            raise UnreadablePage(f"`ranks` is configured, but {table.engine} lets no client choose a rank; remove it")
        await self._read_facts(table, at_ns)
        started = fetched.headers.get(table.start_time_header or "")
        reading = await asyncio.to_thread(
            read_signals,
            page,
            table,
            version=self._facts.get("version"),
            model=self._facts.get("model"),
            start_time_seconds=_number(started),
            rank=self._target.spec.rank,
        )
        for missing in reading.missing:
            release = f"{table.engine} {self._facts.get('version', '')}".rstrip()
            names = ", ".join(missing.names)
            self._log_once(f"{release} should have {missing.signal}: its page has no {names}")
        redact = self._target.endpoint.redactor.redact
        info = reading.signals.info
        is_flag = {fact.name for fact in table.facts if fact.is_setting}
        settings = {name: value for name, value in self._facts.items() if name in is_flag}
        signals = replace(reading.signals, info=replace(info, flags={**settings, **info.flags}).redacted(redact))
        capacity, context, slots = (
            _number(self._facts.get(name)) for name in ("capacity_tokens", "context_tokens", "requests_max")
        )
        capacity = signals.kv_cache_capacity_tokens or capacity
        sizes = replace(signals, kv_cache_capacity_tokens=capacity, context_tokens=context, requests_max=slots)
        self._accept(sizes, page, at_ns)
        return True

    def _recognise(self, page: Page, candidates: tuple[EngineTable, ...]) -> EngineTable:
        """Choose the engine table that fits the page. Done for each reading, as an upgrade may change names. Raises UnreadablePage."""
        if self._table is not None:
            candidates = tables(self._table.engine)
        table = recognise(page, candidates) or (recognise(page, TABLES) if self._table is None else None)
        if table is None:
            self._table, self._parser = None, Parser()
            hint = f"; {candidates[0].needs}" if candidates and candidates[0].needs else ""
            raise UnreadablePage(f"{mask_secrets(self._url(candidates))}: the page is of no known engine{hint}")
        if table != self._table:
            self._parser = Parser(needed_metrics(tables(table.engine)))
            if table.note:
                self._log_once(f"{table.engine}: {table.note}")
        return table

    def _accept(self, signals: EngineSignals, page: Page, at_ns: int) -> None:
        if self._read_ns is None or at_ns - self._read_ns > GAP_INTERVALS * self._spec.interval * 1e9:
            self._continuity.gap()
        continued = self._continuity.take(signals)
        if continued.refused:
            self._log_once(continued.refused)
        if continued.restarted:
            self._facts_ns = None
            self._listener.engine_changed(EngineChange("restart"))
        for change in continued.changes:
            self._listener.engine_changed(change)
        if page.broken:
            self._log_once(f"{page.broken} lines of the engine's page cannot be read, the first: {page.first_broken!r}")
        self.problem = continued.refused or ""
        if continued.signals is None:
            return
        self._read_ns = at_ns
        self._listener.page_read(PageReading(at_ns, self._continuity.epoch, continued.signals))

    def _url(self, candidates: tuple[EngineTable, ...]) -> str:
        """The configured address of the page, or the next one to try for this engine."""
        if self._spec.url is not None:
            return self._spec.url
        table = self._table or next((table for table in candidates if table.paths), None)
        if table is None:
            return root_of(self._target) + "/metrics"
        return root_of(self._target, table.port) + table.paths[self._tries % len(table.paths)]

    async def _read_facts(self, table: EngineTable, now_ns: int) -> None:
        """Read version, model and other facts from the engine's JSON endpoints every FACTS_EVERY_NS.

        If an endpoint does not answer, its facts stay, and all endpoints are read again after FACTS_RETRY_NS.
        """
        if self._facts_ns is not None and now_ns - self._facts_ns < FACTS_EVERY_NS:
            return
        self._facts_ns = now_ns
        earlier: dict[str, str] = {}
        answers: dict[str, object] = {}
        for path in dict.fromkeys(fact.path for fact in table.facts):
            try:
                url = root_of(self._target) + path
                fetched = await fetch_of(self._target, url, self._timeout_s, MAX_FACTS_BYTES)
                answers[path] = orjson.loads(fetched.body)
            except PageTooLong as problem:
                self._log_once(
                    f"facts of the engine are not known: {problem}; have the server answer that path as its engine does"
                )
            except NotAnswered:
                self._facts_ns, earlier = now_ns - FACTS_EVERY_NS + FACTS_RETRY_NS, self._facts
            except (UnreadablePage, ValueError):
                continue  # servers differ in their endpoints
        self._facts = earlier | {name: fact.value for name, fact in facts(table.facts, answers).items()}

    def _log_once(self, text: str) -> None:
        """Log a message unless it was logged before."""
        text = one_line(self._target.endpoint.redactor.redact(text))
        if text not in self._logged and len(self._logged) < MAX_LOGGED_TEXTS:
            self._logged.add(text)
            is_last = len(self._logged) == MAX_LOGGED_TEXTS
            log.warning("target=%s %s%s", self._name(), text, "; no more is logged of its page" if is_last else "")


def is_expected(spec: MetricsSpec | None, continuity: Continuity) -> bool:
    """True if a readable page is expected: it is configured, or was read before. Many servers have no page."""
    return spec is not None and (spec.url is not None or continuity.has_readings)


def root_of(target: Target, port: int | None = None) -> str:
    """Base URL of the target's server, without path and `/v1`. port: replaces the port of the URL"""
    endpoint = target.endpoint
    host = endpoint.authority if port is None else f"{endpoint.host}:{port}"
    return f"{endpoint.scheme}://{host}{endpoint.base_path.removesuffix('/v1')}"


async def fetch_of(target: Target, url: str, timeout_s: float, limit: int = MAX_BODY_BYTES) -> Fetched:
    """GET a page of the target's engine. Headers go only to the target's host, the token only to its scheme, host and port.

    Raises UnreadablePage, PageTooLong.
    """
    endpoint = target.endpoint
    headers = dict(endpoint.headers) if urlsplit(url).hostname == endpoint.host.lower() else {}
    if urlsplit(url)[:2] == urlsplit(root_of(target))[:2]:
        headers |= endpoint.credential(endpoint.token())
    return await fetch(
        url,
        headers=headers,
        tls=endpoint.tls,
        proxy=target.spec.proxy_url,
        timeout_s=timeout_s,
        limit=limit,
        allow_link_local=endpoint.allow_link_local,
    )


def _number(text: str | None) -> float | None:
    try:
        value = float(text) if text else None
    except ValueError:
        return None
    return value if value is not None and 0.0 <= value <= MAX_VALUE else None
