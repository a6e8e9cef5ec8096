"""The HTTP site of the daemon: metrics, health checks, pages and API."""

import asyncio
import math
import re
from collections.abc import Awaitable, Callable, Iterator
from hashlib import sha256
from importlib import import_module
from typing import Any
from urllib.parse import urlsplit

from aiohttp import web
from prometheus_client import CollectorRegistry, Gauge, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.exposition import generate_latest as text_page
from prometheus_client.openmetrics.exposition import generate_latest as openmetrics_page
from yarl import URL

from prober.config.configuration import url_problem
from prober.exposition import protobuf
from prober.exposition.families import AnySeries, Family, Form, Registry, Series, choose_form, page
from prober.features.capacity.monitor import Sweeps
from prober.features.health.health import Health, HealthVerdict
from prober.features.health.monitor import TargetHealth
from prober.measure.outcome import Outcome
from prober.measure.printable import mask_secrets
from prober.measure.timeline import Timeline
from prober.probing.fleet import Fleet
from prober.storage.watched_file import asset, runbooks
from prober.web.access_control import AccessControl, host_name
from prober.web.answers import Answers, Pieces
from prober.web.api import Api
from prober.web.page.view import ProbeFilter
from prober.web.server import PageServer, is_reachable, listening_sockets
from prober.web.views import Views
from prober.web.web_config import WebFile

SCRAPE_TIMEOUT = "X-Prometheus-Scrape-Timeout-Seconds"
PROBE_MARGIN_S = 0.5  # subtracted from Prometheus's timeout, so that the answer arrives; half of a shorter one
MAX_PORT = 65_535
MAX_FILTER_CHARS = 200
_PAGE_NUMBER = re.compile(r"[0-9]{1,9}")
_SECONDS = re.compile(r"[0-9]*\.?[0-9]+([eE][+-]?[0-9]+)?")
NOT_STORED = {"Cache-Control": "no-store"}
ASSETS = {"page.css": "text/css", "page.js": "text/javascript", "icon.svg": "image/svg+xml"}


class Site:
    """The handlers of all routes.

    ready: True from the start of probing until the prober stops
    knows_targets: True if a configuration is in effect and every source of targets has answered
    api: handlers of the API; its `admin` says whether actions are allowed
    external_url: address for users, as `external_address` returns it; "" if it is the listen address
    route_prefix: path prefix of all routes; "": the prefix of the external URL, and also none, as a proxy may remove it
    file: web configuration
    """

    def __init__(
        self,
        fleet: Fleet,
        sweeps: Sweeps,
        families: Registry,
        reload: Callable[[], Awaitable[str | None]],
        external_url: str,
        route_prefix: str,
        file: WebFile | None = None,
    ) -> None:
        self.ready = False
        self.knows_targets: Callable[[], bool] = lambda: True
        prefix = (route_prefix or urlsplit(external_url).path).strip("/")
        self.prefix = f"/{prefix}" if prefix else ""
        self._prefixes = {self.prefix} if route_prefix else {self.prefix, ""}
        self.views = Views(fleet, sweeps)
        self.api = Api(fleet, sweeps, self.views, reload, external_url)
        self._fleet, self._families = fleet, families
        self.access = AccessControl(
            file or WebFile(None),
            self.prefix,
            external_url,
            lambda: self.api.admin,
            lambda: self.ready,
            self.target_health,
        )
        self._assets = {name: asset(name) for name in ASSETS}
        self._assets["page.css"] += asset("chart.css")
        self._stamp = sha256(b"".join(self._assets.values())).hexdigest()[:12]
        self._process = CollectorRegistry()
        ProcessCollector(registry=self._process)
        PlatformCollector(registry=self._process)
        GCCollector(registry=self._process)

    def routes(self) -> list[web.RouteDef]:
        """All routes, each below every prefix."""
        handlers = [
            ("GET", "/", self.status),
            ("GET", "/metrics", self.metrics),
            ("GET", "/probe", self.probe),
            ("GET", "/runbooks", self.slash),
            ("GET", "/runbooks/", self.runbook),
            ("GET", "/runbooks/{alert}", self.runbook),
            ("GET", "/static/{name}", self.static),
            ("PUT", "/-/reload", self.api.reload),
            *self.api.routes(),
        ]
        routes = [web.route(method, at + path, handler) for at in self._prefixes for method, path, handler in handlers]
        return [*routes, web.get(self.prefix, self.slash)] if self.prefix else routes

    def application(self, *middlewares: Any) -> web.Application:
        """The routes as an application. One of the middlewares must render the responses."""
        app = web.Application(middlewares=middlewares)
        app.add_routes(self.routes())
        return app

    async def serve(self, address: str) -> PageServer:
        """Listen on `host:port` or `:port`, with access control.

        Raises OSError with the remedy if the address cannot be used.
        """
        host, port = host_and_port(address)
        try:
            sockets = await listening_sockets(host, port)
        except OSError as problem:
            why, _, _ = (problem.strerror or str(problem)).partition(" (while attempting")
            raise OSError(f"--web.listen-address {address}: {why}; choose another address") from None
        self.access.names.add(host_name(host or "") or "")
        self.access.is_local = not any(is_reachable(listening.getsockname()[0]) for listening in sockets)
        app = self.application(self.access.middleware, Answers(self.prefix, self.views.forget).middleware)
        app.on_cleanup.append(self.access.close)
        server = PageServer(app, self.access.file, sockets)
        await server.start()
        return server

    def target_health(self, name: str) -> web.Response:
        """The health of a target, judged by its probes so far.

        The reason phrase is for HAProxy's agent-check: `up`, `down`, or another word, which HAProxy ignores.
        """
        runner = self._fleet.find(name)
        health, headers, is_up = runner.find(TargetHealth) if runner is not None else None, dict[str, str](), True
        if runner is not None and health is not None:
            verdict = health.verdict
            is_open = verdict.state is Health.UNKNOWN and runner.spec.health.fail_open
            is_up = verdict.state is Health.HEALTHY or is_open
            headers = {} if is_up else {"Retry-After": str(math.ceil(health.gap_s))}
        elif shard := self._fleet.elsewhere(name):
            verdict = HealthVerdict(Health.UNKNOWN, f"shard {shard} probes it, and this is {self._fleet.shard}")
        elif not self.ready or not self.knows_targets() or self._fleet.is_awaited(name):
            verdict = HealthVerdict(Health.UNKNOWN, "the prober does not know all of its targets yet")
        else:
            return web.Response(status=404, text="no target of this name is configured\n", headers=NOT_STORED)
        phrase = "up" if verdict.state is Health.HEALTHY else "OK" if is_up else "down"
        headers |= NOT_STORED | {"Prober-Health": verdict.state.value}
        text = f"{verdict.state}: {verdict.reason}\n"
        return web.Response(status=200 if is_up else 503, reason=phrase, text=text, headers=headers)

    async def metrics(self, request: web.Request) -> web.StreamResponse:
        """The metrics page."""
        form = choose_form(",".join(request.headers.getall("Accept", ())))
        return Pieces(self._pieces(form), {"Content-Type": form.value})

    def _pieces(self, form: Form) -> Iterator[bytes]:
        families = list(self._families.values())
        if form is Form.PROTOBUF:
            yield from protobuf.page(families)
            yield from protobuf.page(_families(self._process))
        else:
            yield from page(families, openmetrics=form is Form.OPENMETRICS)
            # The library's page ends with the `# EOF` that OpenMetrics needs.
            yield (openmetrics_page if form is Form.OPENMETRICS else text_page)(self._process)

    async def probe(self, request: web.Request) -> web.Response:
        """Send a probe now, like blackbox_exporter's `/probe`; it counts in no SLI."""
        header, timeout_s = request.headers.get(SCRAPE_TIMEOUT), None
        if header is not None:
            timeout_s = float(header) if _SECONDS.fullmatch(header) else 0.0
            if not 0 < timeout_s < math.inf:
                remedy = "send a number of seconds above 0, or leave the header out"
                raise web.HTTPBadRequest(text=f"{SCRAPE_TIMEOUT}: {header!r} is no timeout; {remedy}\n")
            timeout_s -= min(PROBE_MARGIN_S, timeout_s / 2)
        now_ns, result = self._fleet.context.clock.now_ns, None
        began_ns = now_ns()
        try:
            runner, result = await self.api.probe_once(request, timeout_s, request.query.get("module", ""))
            outcome = str(result.outcome if result is not None else runner.target.state)
        except TimeoutError:
            outcome = Outcome.TIMEOUT_TOTAL.value
        duration_s = (now_ns() - began_ns) / 1e9
        registry = CollectorRegistry()
        timeline = result.timeline if result is not None else Timeline(0)
        duration_s = duration_s if timeline.e2e_s is None else timeline.e2e_s
        tokens = timeline.usage.completion_tokens if timeline.usage is not None else None
        for name, text, value in (
            ("probe_success", "1 if the answer ended properly.", outcome == Outcome.OK),
            (
                "probe_duration_seconds",
                "End of the answer minus intended time; else how long the prober tried.",
                duration_s,
            ),
            ("probe_ttft_seconds", "First content minus intended time.", timeline.ttft_s),
            ("probe_tpot_seconds", "Time per output token.", timeline.tpot_s),
            ("probe_completion_tokens", "Tokens as the server counts them.", tokens),
        ):
            if value is not None:
                Gauge(name, text, registry=registry).set(value)
        Gauge("probe_outcome", "1 for how the probe ended.", ["outcome"], registry=registry).labels(outcome).set(1)
        page_text = text_page(registry)
        return web.Response(body=page_text, headers={"Content-Type": Form.TEXT.value})

    async def status(self, request: web.Request) -> web.StreamResponse:
        """The status page."""
        query = request.query
        if len(query.get("q", "")) > MAX_FILTER_CHARS:
            return web.Response(status=400, text=f"q has more than {MAX_FILTER_CHARS} characters\n")
        try:
            probe_filter = ProbeFilter.of_query(query)
        except ValueError as problem:
            return web.Response(status=400, text=f"{problem}\n")
        number, target = query.get("page", "1"), query.get("target", "")
        page_number = int(number) if _PAGE_NUMBER.fullmatch(number) else 1
        view = await self.views.page(query.get("q", ""), page_number, target, probe_filter, admin=self.api.admin)
        layout = await _layout()
        if view is None:
            text = layout.no_such(target, list(self._fleet.runners)[: layout.NAMED], self._stamp)
            return web.Response(status=404, text=text, content_type="text/html")
        text = layout.page(view, self._stamp, self.views.charts(view))
        return Pieces([text.encode()], {"Content-Type": "text/html; charset=utf-8"} | NOT_STORED)

    async def static(self, request: web.Request) -> web.Response:
        """Style sheet, script and icon of the pages; their URLs change with their content."""
        name = request.match_info["name"]
        if name not in ASSETS:
            return web.Response(status=404, text=f"no file {name!r}\n")
        fresh = request.query_string == self._stamp
        headers = {"Cache-Control": "public, max-age=31536000, immutable" if fresh else "no-cache"}
        body = self._assets[name]
        return web.Response(body=body, content_type=ASSETS[name], charset="utf-8", headers=headers)

    async def slash(self, request: web.Request) -> web.Response:
        """Redirect from a folder to its path with a slash."""
        return web.Response(status=308, headers={"Location": request.path.rpartition("/")[2] + "/"})

    async def runbook(self, request: web.Request) -> web.Response:
        """The runbook of an alert, or the list of all."""
        name = request.match_info.get("alert", "").removesuffix(".md")  # runbooks link to each other with this suffix
        paths = runbooks()
        if name not in paths:
            return web.Response(status=404, text=f"no alert {name!r}; there are {', '.join(filter(None, paths))}\n")
        layout = await _layout()
        text = layout.runbook_page(name or "Runbooks", paths[name].read_text(encoding="utf-8"), self._stamp)
        return web.Response(text=text, content_type="text/html")


async def _layout() -> Any:
    """Import the module that renders the pages. This takes 0.2 s of processor time, and most probers never need it."""
    return await asyncio.to_thread(import_module, "prober.web.page.layout")


def _families(registry: CollectorRegistry) -> list[Family]:
    """Convert the counters and gauges of a prometheus-client registry to families of this prober."""
    families: dict[str, Family] = {}
    for metric in registry.collect():
        for sample in metric.samples:
            if metric.type in ("counter", "gauge") and not sample.name.endswith("_created"):
                declared: AnySeries = Series(sample.name, metric.type, metric.documentation, tuple(sample.labels))
                family = families.setdefault(sample.name, Family(declared))
                family.value(*sample.labels.values()).value = sample.value
    return list(families.values())


def host_and_port(address: str) -> tuple[str | None, int]:
    """Host and port of `host:port` or `:port`; the host is None for all addresses. Raises ValueError."""
    host, colon, port = address.rpartition(":")
    if not colon or not re.fullmatch("[0-9]{1,5}", port) or int(port) > MAX_PORT:
        meant = f"host:{address} or :{address}" if address.isdecimal() else "host:port or :port"
        raise ValueError(f"{address!r}: write {meant}, with a port up to {MAX_PORT}")
    return host.strip("[]") or None, int(port)


def external_address(text: str) -> str:
    """The URL of the site for users, normalised as browsers do and without a trailing slash. Raises ValueError."""
    if problem := url_problem(text, "https://prober.example.org"):
        raise ValueError(f"{mask_secrets(text)!r} {problem}")
    url = URL(text)
    return str(url.with_port(None) if url.is_default_port() else url).rstrip("/")
