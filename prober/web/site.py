"""The HTTP site of the daemon: metrics, health checks, pages and API."""

import asyncio
import re
import socket
import zlib
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from hashlib import sha256
from math import inf
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
from prober.measure.timeline import Timeline
from prober.probing.fleet import Fleet
from prober.storage.watched_file import asset, runbooks
from prober.web.access_control import SAFE_METHODS, AccessControl, Handler, host_name, origin_of, too_many_requests
from prober.web.api import Api
from prober.web.front import Front
from prober.web.front_process import FrontProcess, Settings, take
from prober.web.listener import Limits, listening_sockets
from prober.web.page import layout
from prober.web.pieces import PiecewiseResponse
from prober.web.recent_probes import ProbeFilter
from prober.web.token_bucket import TooMany
from prober.web.views import Views
from prober.web.web_config import WebFile

MIN_GZIP_BYTES = 1 << 12
BATCH_BYTES = 1 << 19  # that are compressed at once
SCRAPE_TIMEOUT = "X-Prometheus-Scrape-Timeout-Seconds"
PROBE_MARGIN_S = 0.5  # of Prometheus's timeout, for the answer to arrive; half of a shorter one
MAX_PORT = 65_535
MAX_FILTER_CHARS = 200
GZIP_BITS = 31  # of zlib: the largest window, in the format of gzip
_PAGE_NUMBER = re.compile(r"[0-9]{1,9}")
_SECONDS = re.compile(r"[0-9]*\.?[0-9]+([eE][+-]?[0-9]+)?")
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
        self.on_change: Callable[[], None] = lambda: None  # of `ready` or `admin`
        self._ready = False
        self.external_url = external_url
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
    def ready(self) -> bool:
        """Whether probing has begun and is not being stopped."""
        return self._ready

    @ready.setter
    def ready(self, is_ready: bool) -> None:
        self._ready = is_ready
        self.on_change()

    @property
    def admin(self) -> bool:
        """Whether actions are allowed."""
        return self._api.admin

    @admin.setter
    def admin(self, allowed: bool) -> None:
        self._api.admin = allowed
        self.on_change()

    def routes(self) -> list[web.RouteDef]:
        """All routes, below the prefix."""
        get = {
            "/": self.status,
            "/metrics": self.metrics,
            "/probe": self.probe,
            "/runbooks/{alert}": self.runbook,
            "/static/{name}": self.static,
        }
        routes = [web.get(self.prefix + path, handler) for path, handler in get.items()]
        if self.prefix:
            routes.append(web.get(self.prefix, self.slash))
        return [*routes, web.put(f"{self.prefix}/-/reload", self._api.reload), *self._api.routes(self.prefix)]

    def application(self) -> web.Application:
        """The application for the front, which controls access."""
        app = web.Application(middlewares=[self._handled])
        app.add_routes(self.routes())
        return app

    @web.middleware
    async def _handled(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            return await handler(request)
        except TooMany as refusal:
            return too_many_requests(refusal.wait_s, str(refusal))
        finally:
            if request.method not in SAFE_METHODS:
                self.views.forget()  # whoever acts sees what it did

    async def metrics(self, request: web.Request) -> web.StreamResponse:
        """The metrics page, written in pieces, so that no timestamp is delayed."""
        form = choose_form(",".join(request.headers.getall("Accept", ())))
        return await _answer(request, self._pieces(form), {"Content-Type": form.value})

    def _pieces(self, form: Form) -> Iterator[bytes]:
        families = list(self._families.values())
        if form is Form.PROTOBUF:
            yield from protobuf.page(families)
            yield from protobuf.page(_families(self._process))
        else:
            yield from page(families, openmetrics=form is Form.OPENMETRICS)
            # The library's page ends with the `# EOF` that OpenMetrics requires.
            yield (openmetrics_page if form is Form.OPENMETRICS else text_page)(self._process)

    async def probe(self, request: web.Request) -> web.Response:
        """Send a probe now, as blackbox_exporter does; it counts in no SLI."""
        header, timeout_s = request.headers.get(SCRAPE_TIMEOUT), None
        if header is not None:
            timeout_s = float(header) if _SECONDS.fullmatch(header) else 0.0
            if not 0 < timeout_s < inf:
                remedy = "send a number of seconds above 0, or leave the header out"
                raise web.HTTPBadRequest(text=f"{SCRAPE_TIMEOUT}: {header!r} is no timeout; {remedy}\n")
            timeout_s -= min(PROBE_MARGIN_S, timeout_s / 2)
        now_ns, result = self._fleet.context.clock.now_ns, None
        began_ns = now_ns()
        try:
            runner, result = await self._api.probe_once(request, timeout_s, request.query.get("module", ""))
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
        """The status page, written in pieces."""
        query = request.query
        if len(query.get("q", "")) > MAX_FILTER_CHARS:
            return web.Response(status=400, text=f"q has more than {MAX_FILTER_CHARS} characters\n")
        try:
            probe_filter = ProbeFilter.of_query(query)
        except ValueError as problem:
            return web.Response(status=400, text=f"{problem}\n")
        number, target = query.get("page", "1"), query.get("target", "")
        page_number = int(number) if _PAGE_NUMBER.fullmatch(number) else 1
        view = await self.views.page(query.get("q", ""), page_number, target, probe_filter, admin=self.admin)
        if view is None:
            text = layout.no_such(target, self.views.known()[: layout.NAMED], self._stamp)
            return web.Response(status=404, text=text, content_type="text/html")
        pieces = map(str.encode, layout.page(view, self._stamp, await self.views.charts(view)))
        headers = {"Content-Type": "text/html; charset=utf-8", "Cache-Control": "no-store"}
        return await _answer(request, pieces, headers)

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
        return web.Response(
            text=await asyncio.to_thread(layout.runbook_page, name, text, self._stamp), content_type="text/html"
        )


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
    """A site that listens. addresses: those of a front in this process"""

    def __init__(self, front: Front | FrontProcess, runner: web.AppRunner, addresses: Sequence[Any] = ()) -> None:
        self._front, self._runner, self.addresses = front, runner, addresses

    async def cleanup(self) -> None:
        """Stop listening and close all connections."""
        await self._front.close()
        await self._runner.cleanup()


def host_and_port(address: str) -> tuple[str | None, int]:
    """Host and port of `host:port` or `:port`; the host is None for all addresses. Raises ValueError."""
    host, colon, port = address.rpartition(":")
    if not colon or not re.fullmatch("[0-9]{1,5}", port) or int(port) > MAX_PORT:
        meant = f"host:{address} or :{address}" if address.isdecimal() else "host:port or :port"
        raise ValueError(f"{address!r}: write {meant}, with a port up to {MAX_PORT}")
    return host.strip("[]") or None, int(port)


async def bound(address: str) -> list[socket.socket]:
    """Sockets that listen on `host:port` or `:port`. Raises OSError with the remedy if the address cannot be used."""
    try:
        return await listening_sockets(*host_and_port(address))
    except OSError as problem:
        raise OSError(
            f"--web.listen-address {address}: {problem.strerror or problem}; choose another address"
        ) from None


async def backend(site: Site) -> web.AppRunner:
    """The site for a front: `take` gives it connections."""
    runner = web.AppRunner(site.application(), access_log=None, shutdown_timeout=1.0, handle_signals=False)
    await runner.setup()
    return runner


async def serve(site: Site, address: str, limits: Limits | None = None) -> Serving:
    """Listen on `host:port` or `:port`, in this process. Raises OSError with the remedy if the address cannot be used."""
    sockets = await bound(address)
    runner = await backend(site)
    front = Front(site.access, site.prefix, lambda connected: take(runner, connected.dup()))
    site.access.names.add(host_name(host_and_port(address)[0] or "") or "")
    return Serving(front, runner, (await front.start(sockets, limits)).addresses)


async def serve_apart(site: Site, address: str, front: FrontProcess, web_config_file: str | None) -> Serving:
    """Listen on `host:port` or `:port`, in the process of a front. Raises OSError with the remedy if the address cannot be used."""
    sockets = await bound(address)
    runner = await backend(site)
    settings = Settings(host_and_port(address)[0], site.prefix, site.external_url, web_config_file)
    front.start(settings, sockets, runner, lambda: {"ready": site.ready, "admin": site.admin})
    site.on_change = front.tell
    return Serving(front, runner)


async def _answer(request: web.Request, pieces: Iterable[bytes], headers: dict[str, str]) -> PiecewiseResponse:
    """A page written in pieces, so that no timestamp is delayed, and compressed meanwhile: a large one is never held as text."""
    gzip = "gzip" in request.headers.get("Accept-Encoding", "")
    compressor = zlib.compressobj(1, wbits=GZIP_BITS)
    body, batch, size = list[bytes](), list[bytes](), 0
    for piece in pieces:
        batch.append(piece)
        size += len(piece)
        if gzip and size >= BATCH_BYTES:
            body += await asyncio.to_thread(_compressed, compressor, batch)
            batch, size = [], 0
        else:
            await asyncio.sleep(0)
    if not body and not (gzip and size >= MIN_GZIP_BYTES):
        return PiecewiseResponse(batch, headers=headers)
    body += await asyncio.to_thread(_compressed, compressor, batch)
    return PiecewiseResponse([*body, compressor.flush()], headers=headers | {"Content-Encoding": "gzip"})


def _compressed(compressor: Any, pieces: Sequence[bytes]) -> list[bytes]:
    return [part for part in map(compressor.compress, pieces) if part]
