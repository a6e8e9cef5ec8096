"""The mock's HTTP server: the routes of vLLM, and `/mock/fault` to change faults at run time."""

import asyncio
import ssl
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from http import HTTPStatus
from random import Random

import orjson
from aiohttp import web

from prober.mock.completion_request import (
    MAX_MODEL_LEN,
    RequestRefused,
    bad_request,
    error_body,
    parse_completion_request,
)
from prober.mock.drawn import DrawnService
from prober.mock.faults import SIMULATED, Fault, Schedule, check, parse_fault
from prober.mock.generation import HEADERS, Generation, send_response
from prober.mock.record import Record, TruthFile
from prober.mock.service import Service, Settings
from prober.mock.simulated import SimulatedService
from prober.net.clock import Clock

MAX_BODY_BYTES = 1 << 26
_PIECE_BYTES = 1 << 16
_NOT_SERVING = {"starting": "Loading model", "draining": "Server is shutting down"}


class Mock:
    """State and handlers of one mock server, for the running loop. Raises OSError if the truth file cannot be opened."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self._settings, self._clock = settings, clock
        self._rng = Random(settings.seed)
        self._schedule = Schedule(settings.faults, clock.now_ns())
        self._truth = TruthFile(settings.truth) if settings.truth else None
        engine = settings.behaviour, settings.model, settings.seed, clock
        self._service: Service = (
            SimulatedService(*engine, settings.simulation) if settings.simulation else DrawnService(*engine)
        )
        self._service.schedule(self._schedule)

    async def close(self, _: web.Application) -> None:
        """End the background load and complete the truth file, when the application ends."""
        await self._service.stop()
        if self._truth:
            await asyncio.to_thread(self._truth.close)

    async def models(self, request: web.Request) -> web.Response:
        """The list of models, in vLLM's format."""
        if refusal := self._not_serving(self._scheduled()) or self._not_allowed(request):
            return refusal
        name = self._settings.model
        model = {"id": name, "object": "model", "created": int(self._service.page.started_unix_s), "owned_by": "vllm"}
        model |= {"root": name, "parent": None, "max_model_len": MAX_MODEL_LEN}
        return _json(200, orjson.dumps({"object": "list", "data": [model]}))

    async def health(self, request: web.Request) -> web.Response:
        """Answer 200, or 503 while starting or draining."""
        return self._not_serving(self._scheduled()) or web.Response(headers=HEADERS)

    async def version(self, request: web.Request) -> web.Response:
        """The version of vLLM that the mock imitates."""
        return _json(200, orjson.dumps({"version": self._settings.version}))

    async def metrics(self, request: web.Request) -> web.Response:
        """The metrics page; 404 with the fault `no_page`."""
        if (fault := self._scheduled()) and fault.name == "no_page":
            return web.Response(status=404, headers=HEADERS)
        page = self._service.render(self._clock.now_ns())
        kind = "text/plain; version=0.0.4; charset=utf-8"
        return web.Response(body=page.encode(), headers=HEADERS | {"Content-Type": kind})

    async def read_faults(self, request: web.Request) -> web.Response:
        """The schedule of faults, and the active fault."""
        fault = self._scheduled()
        document = {"faults": self._schedule.faults, "in_force": fault.name if fault else None}
        return _json(200, orjson.dumps(document))

    async def set_faults(self, request: web.Request) -> web.Response:
        """Set the schedule, such as `{"faults": ["stall:3@0s-10s"]}`. Times count from now; an empty list clears it."""
        try:
            faults = tuple(parse_fault(text) for text in orjson.loads(await request.read())["faults"])
            check(faults, simulated=self._settings.simulation is not None)
        except (ValueError, KeyError, TypeError, AttributeError) as problem:
            return _json(400, error_body(f'{problem}; send {{"faults": ["http:500@0s-10s"]}}', "BadRequestError", 400))
        self._schedule = Schedule(faults, self._clock.now_ns())
        self._service.schedule(self._schedule)
        return await self.read_faults(request)

    async def generate(self, request: web.Request) -> web.StreamResponse:
        """Answer `/v1/chat/completions` and `/v1/completions`."""
        received_ns = self._clock.now_ns()
        record = Record(request.headers.get("X-Request-Id") or uuid.uuid4().hex[:16], received_ns)
        try:
            try:
                return await self._answer(request, record)
            except RequestRefused as refusal:
                return await send_response(_json(refusal.status, refusal.body), request, record, self._clock)
        except ConnectionError:
            return web.Response()  # aiohttp notices by itself that the client left
        finally:
            if record.end_ns is None:
                record.end_ns = self._clock.now_ns()
            if self._truth:
                self._truth.add(record)

    async def _answer(self, request: web.Request, record: Record) -> web.StreamResponse:
        fault = self._requested_fault(request) or self._schedule.at(record.received_ns)
        if fault and fault.share < 1 and self._rng.random() >= fault.share:
            fault = None
        record.fault = fault.name if fault else None
        body = await _read(request, fault)
        refusal = self._not_serving(fault) or self._not_allowed(request) or await _fault_response(fault)
        if refusal:
            return await send_response(refusal, request, record, self._clock)
        completion = parse_completion_request(
            body,
            chat=request.path.endswith("/chat/completions"),
            model=self._settings.model,
            tokenizer=self._settings.tokenizer,
        )
        return await Generation(self._service, self._settings.wire, request, record, fault).serve(completion)

    def _requested_fault(self, request: web.Request) -> Fault | None:
        text = request.headers.get("X-Mock-Fault")
        if text is None:
            return None
        try:
            fault = parse_fault(text)
        except ValueError as problem:
            raise bad_request(f"header X-Mock-Fault: {problem}") from None
        if fault.name in SIMULATED or (fault.name == "latency" and self._settings.simulation):
            raise bad_request(f"header X-Mock-Fault: {fault.name} is of the entire engine; schedule it") from None
        return fault

    def _scheduled(self) -> Fault | None:
        return self._schedule.at(self._clock.now_ns())

    def _not_serving(self, fault: Fault | None) -> web.Response | None:
        name = fault.name if fault else ""
        if name not in _NOT_SERVING:
            return None
        return _json(503, error_body(_NOT_SERVING[name], "unavailable_error", 503))

    def _not_allowed(self, request: web.Request) -> web.Response | None:
        key = self._settings.api_key
        if key is None or request.headers.get("Authorization") == f"Bearer {key}":
            return None
        return _json(401, b'{"error":"Unauthorized"}')


def create_app(settings: Settings, make_clock: Callable[[], Clock] = Clock) -> web.Application:
    """The mock as an aiohttp application of the running event loop. Raises OSError if the truth file cannot be opened."""
    app, mock = web.Application(client_max_size=MAX_BODY_BYTES), Mock(settings, make_clock())
    app.on_cleanup.append(mock.close)
    for method, path, handler in (
        ("GET", "/v1/models", mock.models),
        ("POST", "/v1/chat/completions", mock.generate),
        ("POST", "/v1/completions", mock.generate),
        ("GET", "/health", mock.health),
        ("GET", "/version", mock.version),
        ("GET", "/metrics", mock.metrics),
        ("GET", "/mock/fault", mock.read_faults),
        ("POST", "/mock/fault", mock.set_faults),
    ):
        app.router.add_route(method, path, handler)
    return app


@asynccontextmanager
async def running(
    settings: Settings,
    port: int = 0,
    *,
    host: str = "127.0.0.1",
    tls: ssl.SSLContext | None = None,
    make_clock: Callable[[], Clock] = Clock,
) -> AsyncIterator[str]:
    """Context in which a mock serves; yields its address, `http://127.0.0.1:PORT`. port: 0 for a free one

    Raises OSError if the port is taken or the truth file cannot be opened.
    """
    runner = web.AppRunner(
        create_app(settings, make_clock), access_log=None, handler_cancellation=True, shutdown_timeout=0.1
    )
    await runner.setup()
    try:
        site = web.TCPSite(runner, host, port, ssl_context=tls)
        await site.start()
        bound = runner.addresses[0][1]
        yield f"{'https' if tls else 'http'}://{host}:{bound}"
    finally:
        await runner.cleanup()


async def _read(request: web.Request, fault: Fault | None) -> bytes:
    """Read a request's body; with the fault `slow_read` in pieces, each after a pause."""
    if fault is None or fault.name != "slow_read":
        return await request.read()
    body = b""
    while True:
        await asyncio.sleep(fault.argument)
        piece = await request.content.read(_PIECE_BYTES)
        if not piece:
            return body
        body += piece


async def _fault_response(fault: Fault | None) -> web.Response | None:
    """The answer of a fault that replaces the engine's; None without such a fault; `hang` never returns."""
    match fault.name if fault else "":
        case "hang":
            await asyncio.get_running_loop().create_future()
        case "http_html":
            page = "<!DOCTYPE html><html><head><title>Welcome</title></head><body>It works.</body></html>"
            return web.Response(text=page, content_type="text/html")
        case "http":
            assert fault is not None
            try:
                kind = HTTPStatus(fault.count).phrase.replace(" ", "")
            except ValueError:
                kind = "Error"
            return _json(fault.count, error_body(f"mock fault http:{fault.count}", kind, fault.count))
    return None


def _json(status: int, body: bytes) -> web.Response:
    return web.Response(status=status, body=body, content_type="application/json", headers=HEADERS)
