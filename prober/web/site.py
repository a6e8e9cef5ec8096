"""The HTTP site of the daemon: metrics, health checks, pages and API."""

import asyncio
import gzip
import re
from collections.abc import Awaitable, Callable, Iterator
from hashlib import sha256
from typing import Any

from aiohttp import web
from prometheus_client import CollectorRegistry, Gauge, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.exposition import generate_latest as text_page
from prometheus_client.openmetrics.exposition import generate_latest as openmetrics_page

from prober.exposition import protobuf
from prober.exposition.families import AnySeries, Family, Registry, Series, page
from prober.exposition.form import Form, choose_form
from prober.features.capacity.monitor import Sweeps
from prober.features.experiments.report.svg_chart import STYLE
from prober.measure.outcome import Outcome
from prober.measure.result import ProbeResult
from prober.probing.fleet import Fleet
from prober.storage.watched_file import asset, runbooks
from prober.web.access_control import AccessControl, origin_of
from prober.web.api import Api
from prober.web.host_name import host_name
from prober.web.listener import IDLE_TIMEOUT_S, Limits, Listener
from prober.web.overflow import Overflow
from prober.web.page import layout
from prober.web.views import Views
from prober.web.web_config import WebFile

MIN_GZIP_BYTES = 1 << 15
PROBE_MARGIN_S = 0.5  # of Prometheus's timeout, for the answer to arrive
MAX_PORT = 65_535
LINGER_S = 1.0  # for the rest of a body that is not read
_PAGE_NUMBER = re.compile(r"[0-9]{1,9}")
ASSETS = {"page.css": "text/css", "page.js": "text/javascript", "icon.svg": "image/svg+xml"}


class Site:
    """Handlers of all routes.

    ready: readiness of the prober, independent of the engines
    admin: whether actions are allowed
    external_url: address for users, if it differs from the listen address
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
        self.prefix = "/" + route_prefix.strip("/") if route_prefix.strip("/") else ""
        self.views = Views(fleet, sweeps)
        self._api = Api(fleet, sweeps, self.views, reload)
        self._fleet, self._families = fleet, families
        origins = {origin_of(external_url)} if external_url else set()
        self.access = AccessControl(file or WebFile(None), self.prefix, origins, lambda: self.admin, lambda: self.ready)
        self._assets = {name: asset(name) for name in ASSETS}
        self._assets["page.css"] += STYLE.encode()
        self._stamp = sha256(b"".join(self._assets.values())).hexdigest()[:12]
        self._process = CollectorRegistry()
        ProcessCollector(registry=self._process)
        PlatformCollector(registry=self._process)
        GCCollector(registry=self._process)

    @property
    def admin(self) -> bool:
        """Whether actions are allowed."""
        return self._api.admin

    @admin.setter
    def admin(self, allowed: bool) -> None:
        self._api.admin = allowed

    def routes(self) -> list[web.RouteDef]:
        """All routes, below the prefix."""
        get = {
            "/": self.status,
            "/metrics": self.metrics,
            "/probe": self.probe,
            "/-/healthy": self.healthy,
            "/-/ready": self.is_ready,
            "/runbooks/{alert}": self.runbook,
            "/static/{name}": self.static,
        }
        routes = [web.get(self.prefix + path, handler) for path, handler in get.items()]
        if self.prefix:
            routes.append(web.get(self.prefix, self.slash))
        return [*routes, web.put(f"{self.prefix}/-/reload", self._api.reload), *self._api.routes(self.prefix)]

    def application(self) -> web.Application:
        """The application with access control."""
        app = web.Application(middlewares=[self.access.middleware])
        app.add_routes(self.routes())
        return app

    async def metrics(self, request: web.Request) -> web.Response:
        """The metrics page, written in pieces, so that no timestamp is delayed."""
        form = choose_form(",".join(request.headers.getall("Accept", ())))
        pieces: list[bytes] = []
        for piece in self._pieces(form):
            pieces.append(piece)
            await asyncio.sleep(0)
        body = b"".join(pieces)
        headers = {"Content-Type": form.value}
        if len(body) > MIN_GZIP_BYTES and "gzip" in request.headers.get("Accept-Encoding", ""):
            body = await asyncio.to_thread(gzip.compress, body, 1)
            headers["Content-Encoding"] = "gzip"
        return web.Response(body=body, headers=headers)

    def _pieces(self, form: Form) -> Iterator[bytes]:
        families = list(self._families.values())
        if form is Form.PROTOBUF:
            yield from protobuf.page(families)
            yield from protobuf.page(_families(self._process))
        else:
            yield from page(families, openmetrics=form is Form.OPENMETRICS)
            # The library's page ends with the `# EOF` that OpenMetrics requires.
            yield (openmetrics_page if form is Form.OPENMETRICS else text_page)(self._process)

    async def healthy(self, request: web.Request) -> web.Response:
        """Liveness: the process answers."""
        return self._health(request)

    async def is_ready(self, request: web.Request) -> web.Response:
        """Readiness: probing has begun and is not being stopped."""
        return self._health(request)

    def _health(self, request: web.Request) -> web.Response:
        status, text = self.access.health(request.path) or (404, "")
        return web.Response(status=status, text=text)

    async def probe(self, request: web.Request) -> web.Response:
        """Send a probe now, as the blackbox exporter does; it counts in no SLI."""
        try:
            limit: float | None = float(request.headers.get("X-Prometheus-Scrape-Timeout-Seconds", "")) - PROBE_MARGIN_S
        except ValueError:
            limit = None
        try:
            _, result = await self._api.probe_once(request, limit)
        except TimeoutError:
            result = None
        return web.Response(body=_probe_page(result), headers={"Content-Type": Form.TEXT.value})

    async def status(self, request: web.Request) -> web.Response:
        """The status page, written in pieces."""
        query = request.query
        number, target = query.get("page", "1"), query.get("target", "")
        page_number = int(number) if _PAGE_NUMBER.fullmatch(number) else 1
        view = await self.views.page(query.get("q", ""), page_number, target, admin=self.admin)
        if view is None:
            text = layout.no_such(target, self.views.known()[: layout.NAMED], self._stamp)
            return web.Response(status=404, text=text, content_type="text/html")
        pieces = []
        for piece in layout.page(view, self._stamp, await self.views.charts(view)):
            pieces.append(piece)
            await asyncio.sleep(0)
        body = "".join(pieces).encode()
        headers = {"Content-Type": "text/html; charset=utf-8", "Cache-Control": "no-store"}
        if "gzip" in request.headers.get("Accept-Encoding", ""):
            body = await asyncio.to_thread(gzip.compress, body, 1)
            headers["Content-Encoding"] = "gzip"
        return web.Response(body=body, headers=headers)

    async def static(self, request: web.Request) -> web.Response:
        """Style, script and icon of the pages; their URLs change with their content."""
        name = request.match_info["name"]
        if name not in ASSETS:
            return web.Response(status=404, text=f"no file {name!r}\n")
        fresh = request.query_string == self._stamp
        headers = {"Cache-Control": "public, max-age=31536000, immutable" if fresh else "no-cache"}
        body = self._assets[name]
        return web.Response(body=body, content_type=ASSETS[name], charset="utf-8", headers=headers)

    async def slash(self, request: web.Request) -> web.Response:
        """Redirect from the prefix to the prefix with a slash."""
        return web.Response(status=308, headers={"Location": self.prefix.rpartition("/")[2] + "/"})

    async def runbook(self, request: web.Request) -> web.Response:
        """The runbook of an alert."""
        name = request.match_info["alert"].removesuffix(".md")  # as the pages link to each other
        paths = runbooks()
        if name not in paths:
            return web.Response(status=404, text=f"no alert {name!r}; there are {', '.join(paths)}\n")
        text = paths[name].read_text(encoding="utf-8")
        return web.Response(text=layout.runbook_page(name, text, self._stamp), content_type="text/html")


def _families(registry: CollectorRegistry) -> list[Family]:
    """Counters and gauges of a prometheus-client registry."""
    families: dict[str, Family] = {}
    for metric in registry.collect():
        for sample in metric.samples:
            if metric.type in ("counter", "gauge") and not sample.name.endswith("_created"):
                declared: AnySeries = Series(sample.name, metric.type, metric.documentation, tuple(sample.labels))
                family = families.setdefault(sample.name, Family(declared))
                family.value(*sample.labels.values()).value = sample.value
    return list(families.values())


class Serving:
    """A site that listens."""

    def __init__(self, site: Site, runner: web.AppRunner, listener: Listener) -> None:
        self._site, self._runner, self._listener = site, runner, listener

    @property
    def addresses(self) -> list[Any]:
        """Listening addresses."""
        return self._listener.addresses

    async def cleanup(self) -> None:
        """Stop listening and close all connections."""
        await self._listener.close()
        await self._runner.cleanup()
        self._site.access.close()


def host_and_port(address: str) -> tuple[str | None, int]:
    """Host and port of `host:port` or `:port`; the host is None for all addresses. Raises ValueError."""
    host, colon, port = address.rpartition(":")
    if not colon or not re.fullmatch("[0-9]{1,5}", port) or int(port) > MAX_PORT:
        meant = f"host:{address} or :{address}" if address.isdecimal() else "host:port or :port"
        raise ValueError(f"{address!r}: write {meant}, with a port up to {MAX_PORT}")
    return host.strip("[]") or None, int(port)


async def serve(site: Site, address: str, limits: Limits | None = None) -> Serving:
    """Listen on `host:port` or `:port`. Raises OSError with the remedy if the address cannot be used."""
    host, port = host_and_port(address)
    runner = web.AppRunner(
        site.application(),
        access_log=None,
        shutdown_timeout=1.0,
        keepalive_timeout=IDLE_TIMEOUT_S,
        lingering_time=LINGER_S,
    )
    await runner.setup()
    assert runner.server is not None
    overflow = Overflow(site.access.overflow_answer)
    listener = Listener(site.access.file, runner.server, overflow, limits)
    try:
        await listener.start(host, port)
    except OSError as problem:
        overflow.close()
        await runner.cleanup()
        raise OSError(
            f"--web.listen-address {address}: {problem.strerror or problem}; choose another address"
        ) from None
    site.access.listener = listener
    site.access.names.add(host_name(host or "") or "")
    return Serving(site, runner, listener)


def _probe_page(result: ProbeResult | None) -> bytes:
    registry = CollectorRegistry()

    def gauge(name: str, text: str, value: float | None) -> None:
        if value is not None:
            Gauge(name, text, registry=registry).set(value)

    ok = result is not None and result.outcome is Outcome.OK
    gauge("probe_success", "1 if the answer ended properly.", float(ok))
    if result is not None:
        timeline = result.timeline
        gauge("probe_duration_seconds", "End of the answer minus intended time.", timeline.e2e_s)
        gauge("probe_ttft_seconds", "First content minus intended time.", timeline.ttft_s)
        gauge("probe_tpot_seconds", "Time per output token.", timeline.tpot_s)
        usage = timeline.usage
        gauge(
            "probe_completion_tokens", "Tokens as the server counts them.", usage.completion_tokens if usage else None
        )
        failed = Gauge("probe_outcome", "1 for how the probe ended.", ["outcome"], registry=registry)
        failed.labels(result.outcome.value).set(1)
    return text_page(registry)
