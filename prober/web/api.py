"""`/api/v1`: handlers, declared as operations of the OpenAPI 3.1 document. Only those that are actions change a target.

Schemas of the document are generated from the types of the answers.
"""

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, wraps
from typing import Any, Literal

from aiohttp import web
from pydantic import TypeAdapter

from prober import __version__
from prober.config.problems import no_such
from prober.features.capacity.actions import Refused
from prober.features.capacity.monitor import Sweeps
from prober.measure.result import ProbeResult
from prober.probing.fleet import Fleet
from prober.probing.history import TargetHistory
from prober.probing.target_runner import TargetRunner
from prober.results.result_file import to_json
from prober.web.answers import Pieces
from prober.web.api_types import (
    Answer,
    BegunAnswer,
    EventAnswer,
    PausedAnswer,
    ProbeAnswer,
    SweepAnswer,
    dumped,
)
from prober.web.on_demand import OnRequest
from prober.web.page.view import ProbeFilter
from prober.web.targets import TargetAnswer
from prober.web.views import Views, last_probes

Json = dict[str, Any]
Method = Literal["GET", "POST", "PUT", "DELETE"]


def parameter(
    name: str, text: str, place: Literal["query", "path"] = "query", *, required: bool = False, **schema: Any
) -> Json:
    """A parameter in the query or in the path. schema: keys of the JSON Schema of its value; without any, the value is a string"""
    return {
        "name": name,
        "in": place,
        "description": text,
        "required": required or place == "path",
        "schema": schema or {"type": "string"},
    }


@dataclass(frozen=True, slots=True)
class Reply:
    """A response. data: type of `data` in the envelope; body: schema of a body without envelope; neither: a sentence as text."""

    status: int
    text: str
    data: Any = None
    body: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation of the API. name: of the handler, and id of the operation; writes: needs --web.enable-admin-api"""

    method: Method
    path: str
    name: str
    text: str
    replies: Sequence[Reply]
    parameters: Sequence[Json] = ()
    writes: bool = False


def document(operations: Sequence[Operation], description: str, version: str) -> Json:
    """The OpenAPI document as JSON values."""
    types = {repr(reply.data): reply.data for operation in operations for reply in operation.replies if reply.data}
    references, definitions = TypeAdapter.json_schemas(
        [(name, "serialization", TypeAdapter(kind)) for name, kind in types.items()],
        ref_template="#/components/schemas/{model}",
    )
    paths: dict[str, Json] = {}
    for operation in operations:
        responses: Json = {}
        for reply in operation.replies:
            response = responses[str(reply.status)] = {"description": reply.text}
            if reply.data is not None:
                envelope = {
                    "type": "object",
                    "properties": {
                        "status": {"const": "success"},
                        "data": references[repr(reply.data), "serialization"],
                    },
                    "required": ["status", "data"],
                }
                response["content"] = {"application/json": {"schema": envelope}}
            elif reply.body is not None:
                response["content"] = {"application/json": {"schema": dict(reply.body)}}
            elif reply.status >= 300:
                response["content"] = {"text/plain": {"schema": {"type": "string"}}}
        paths.setdefault(operation.path, {})[operation.method.lower()] = {
            "operationId": operation.name,
            "summary": operation.text,
            "tags": ["write" if operation.writes else "read"],
            "responses": responses,
            **({"parameters": list(operation.parameters)} if operation.parameters else {}),
        }
    return {
        "openapi": "3.1.0",
        "info": {"title": "llm-slo-prober", "description": description, "version": version},
        "servers": [{"url": "../..", "description": "relative to this document, so that any prefix is kept"}],
        "paths": paths,
        "components": {"schemas": definitions.get("$defs", {})},
    }


MAX_PROBES = 1_000_000  # in one answer; more than are kept
HEAD = b'{"status": "success", "data": '
ADMIN_OFF = "actions on request are off; start the prober with --web.enable-admin-api\n"
DESCRIPTION = (
    "Data and actions of the prober's page. Answers are JSON with `status` and `data`; an error is a sentence as text. "
    "Actions need `--web.enable-admin-api`; browsers may send them from the prober's own page only. Every request may be "
    "answered with 401 (a password is needed), 413 (it has a body) and 429 (too often)."
)
OPERATIONS: list[Operation] = []
Handler = Callable[["Api", web.Request], Awaitable[web.StreamResponse]]

_TARGET = parameter("target", "the name of a target, for its values only")
_WHICH = parameter("target", "the target's name", required=True)
_OFF = Reply(403, "actions are off, or the request comes from a page of another site")
_OFTEN = Reply(429, "too often; `Retry-After` has the seconds to wait")
_NO_TARGET = Reply(404, "no such target; the sentence names the known targets")


def _operation(
    method: Method, path: str, *replies: Reply, parameters: Sequence[Json] = (), writes: bool = False
) -> Callable[[Handler], Handler]:
    """Declare a handler as an operation, with the name and docstring of the handler."""

    def declare(handler: Handler) -> Handler:
        text = " ".join((handler.__doc__ or "").split())
        OPERATIONS.append(Operation(method, path, handler.__name__, text, replies, parameters, writes))
        return handler

    return declare


def _action(method: Method, path: str, *replies: Reply) -> Callable[[Handler], Handler]:
    """Declare a handler as an operation that changes a target. It is refused unless actions are allowed."""

    def declare(handler: Handler) -> Handler:
        @wraps(handler)
        async def guarded(api: "Api", request: web.Request) -> web.StreamResponse:
            return await handler(api, request) if api.admin else web.Response(status=403, text=ADMIN_OFF)

        return _operation(method, path, *replies, _OFF, _OFTEN, parameters=[_WHICH], writes=True)(guarded)

    return declare


@cache
def openapi() -> Json:
    """The OpenAPI document."""
    return document(OPERATIONS, DESCRIPTION, __version__)


class Api:
    """The handlers of the API. admin: actions are allowed"""

    def __init__(
        self,
        fleet: Fleet,
        sweeps: Sweeps,
        views: Views,
        reload: Callable[[], Awaitable[str | None]],
        external_url: str,
    ) -> None:
        self.admin = False
        self._servers = {"servers": [{"url": external_url}]} if external_url else {}
        self.on_request = OnRequest(fleet)
        self._fleet, self._sweeps, self._views, self._reload = fleet, sweeps, views, reload

    def routes(self) -> list[tuple[str, str, Callable[[web.Request], Awaitable[web.StreamResponse]]]]:
        """(method, path, handler) of all OPERATIONS."""
        return [(operation.method, operation.path, getattr(self, operation.name)) for operation in OPERATIONS]

    @_operation("GET", "/api/v1/targets", Reply(200, "the targets", list[TargetAnswer]))
    async def targets(self, request: web.Request) -> web.StreamResponse:
        """All targets."""
        return _list(TargetAnswer, await self._views.targets())

    @_operation(
        "GET",
        "/api/v1/probes",
        Reply(200, "the probes", list[ProbeAnswer]),
        Reply(400, "limit is not an integer, or the outcome is not known"),
        _NO_TARGET,
        parameters=[
            _TARGET,
            parameter("outcome", "an outcome, or `failed` for all that count against the target"),
            parameter("workload", "the name of a workload"),
            parameter("limit", "the largest number of probes", type="integer", default=100),
        ],
    )
    async def probes(self, request: web.Request) -> web.StreamResponse:
        """The last probes, latest first."""
        try:
            limit = int(request.query.get("limit", "100"))
        except ValueError:
            return web.Response(status=400, text="limit must be an integer, such as ?limit=100\n")
        try:
            probe_filter = ProbeFilter.of_query(request.query)
        except ValueError as problem:
            return web.Response(status=400, text=f"{problem}\n")
        if request.query.get("target") is None:
            histories = list(self._fleet.observers(TargetHistory))
        else:
            history = self._runner(request).find(TargetHistory)
            histories = [history] if history is not None else []
        return _list(ProbeAnswer, last_probes(histories, probe_filter, min(max(0, limit), MAX_PROBES)))

    @_action(
        "POST",
        "/api/v1/probes",
        Reply(200, "the probe, however it ended", ProbeAnswer),
        _NO_TARGET,
        Reply(409, "nothing was sent: the target is paused, loading or draining"),
        Reply(504, "the probe did not end within the timeouts of the target; a request may have been sent"),
    )
    async def probe_now(self, request: web.Request) -> web.Response:
        """Send one probe now, and wait for its end. It counts in no SLI and takes no slot of the schedule."""
        name = request.query.get("target", "")
        try:
            runner, result = await self.probe_once(request, None)
        except TimeoutError:
            text = f"the probe of target {name!r} did not end within its timeouts; a request may have been sent\n"
            return web.Response(status=504, text=text)
        if result is None:
            return web.Response(status=409, text=f"nothing was sent: target {name!r} is {runner.target.state}\n")
        runner = self._fleet.runners.get(runner.spec.key, runner)  # a reload may have replaced it
        result = replace(result, target=runner.name or result.target, on_request=True)
        if (history := runner.find(TargetHistory)) is not None:
            history.add(result)
        return _success(dumped(ProbeAnswer.model_validate(result)))

    @_operation("GET", "/api/v1/events", Reply(200, "the events", list[EventAnswer]), parameters=[_TARGET])
    async def events(self, request: web.Request) -> web.StreamResponse:
        """Events, latest first: changes of state, of the engine and of its answers, drift, diagnoses, sweeps, pauses, changed SLOs."""
        return _list(EventAnswer, self._fleet.context.events.folded(request.query.get("target")))

    @_action("POST", "/api/v1/pauses", Reply(200, "the target is paused", PausedAnswer), _NO_TARGET)
    async def pause(self, request: web.Request) -> web.Response:
        """Send nothing more to a target until it is resumed or the prober restarts; a sweep of it ends."""
        return self._paused(request, self._fleet.context.clock.unix_s())

    @_action("DELETE", "/api/v1/pauses", Reply(200, "the target is probed", PausedAnswer), _NO_TARGET)
    async def resume(self, request: web.Request) -> web.Response:
        """Probe a target again."""
        return self._paused(request, None)

    @_operation("GET", "/api/v1/sweeps", Reply(200, "the results", list[SweepAnswer]), parameters=[_TARGET])
    async def sweeps(self, request: web.Request) -> web.StreamResponse:
        """Results of sweeps, latest first, without their requests and stages."""
        name = request.query.get("target")
        await self._sweeps.read(name)
        return _list(SweepAnswer, self._sweeps.results(name))

    @_action(
        "POST",
        "/api/v1/sweeps",
        Reply(202, "the sweep starts", BegunAnswer),
        Reply(404, "the target has no `sweep:` in the configuration"),
        Reply(409, "no sweep can start now; the sentence begins with the reason"),
    )
    async def begin_sweep(self, request: web.Request) -> web.Response:
        """Start a sweep of a target now."""
        try:
            identity = self._sweeps.start(request.query.get("target", ""))
        except Refused as refusal:
            status = 404 if refusal.reason == "not_configured" else 409
            return web.Response(status=status, text=f"{refusal.reason}: {refusal}\n")
        return _success(dumped(BegunAnswer(id=identity)), 202)

    @_action("DELETE", "/api/v1/sweeps", Reply(200, "the sweep ends"), Reply(404, "no sweep of the target is running"))
    async def end_sweep(self, request: web.Request) -> web.Response:
        """End the sweep of a target, with the result of its measurements so far."""
        name = request.query.get("target", "")
        if not self._sweeps.stop(name):
            return web.Response(status=404, text=f"no sweep of target {name!r} is under way\n")
        return web.Response()

    @_operation(
        "GET",
        "/api/v1/sweeps/{id}",
        Reply(200, "the result's file", body={"type": "object", "required": ["llm_slo_prober"]}),
        Reply(404, "no such result"),
        parameters=[parameter("id", "as /api/v1/sweeps lists it", "path")],
    )
    async def sweep(self, request: web.Request) -> web.Response:
        """A result without its requests, which `prober report` reads."""
        identity = request.match_info["id"]
        result = await self._sweeps.result(identity)
        if result is None:
            return web.Response(status=404, text=f"no sweep {identity!r}; /api/v1/sweeps lists them\n")
        return web.Response(text=to_json(result), content_type="application/json")

    @_operation(
        "GET",
        "/api/v1/openapi.json",
        Reply(200, "the document", body={"type": "object", "required": ["openapi", "paths"]}),
    )
    async def openapi(self, request: web.Request) -> web.Response:
        """This document."""
        return web.json_response(openapi() | self._servers)

    @_operation(
        "POST",
        "/-/reload",
        Reply(200, "the configuration was loaded"),
        Reply(403, "the client may not reload, or the request comes from a page of another site"),
        _OFTEN,
        Reply(500, "all mistakes; nothing changed"),
    )
    async def reload(self, request: web.Request) -> web.Response:
        """Load the configuration file again. Allowed from the prober's own machine, with authentication by `--web.config.file`,
        and with --web.enable-admin-api.
        """
        mistakes = await self._reload()
        return web.Response() if mistakes is None else web.Response(status=500, text=mistakes + "\n")

    async def probe_once(
        self, request: web.Request, limit_s: float | None, module: str = ""
    ) -> tuple[TargetRunner, ProbeResult | None]:
        """Send one probe to the target that the HTTP request names. The result is None if nothing was sent.

        module: name of the workload, "" for the target's first. Raises HTTPNotFound, HTTPBadRequest for an unknown module, HTTPConflict
            if the target is paused, and as `OnRequest.probe`.
        """
        runner, name = self._runner(request), request.query.get("target", "")
        probes = {probe.workload.name: probe for probe in runner.target.spec.probes}
        if not probes:
            raise self._no_target(name)
        if module and module not in probes:
            text = f"{no_such('module', module, probes)}; a module is a workload of the target\n"
            raise web.HTTPBadRequest(text=text)
        if runner.target.paused_unix_s is not None:
            raise web.HTTPConflict(text=f"nothing was sent: target {name!r} is paused\n")
        return runner, await self.on_request.probe(runner, probes[module or next(iter(probes))], limit_s)

    def _paused(self, request: web.Request, unix_s: float | None) -> web.Response:
        runner = self._runner(request)
        runner.pause(unix_s)
        name = request.query.get("target", "")
        return _success(dumped(PausedAnswer(name=name, paused=runner.target.paused_unix_s)))

    def _runner(self, request: web.Request) -> TargetRunner:
        """The runner of the target that the HTTP request names. Raises HTTPNotFound."""
        name = request.query.get("target", "")
        runner = self._fleet.find(name)
        if runner is None:
            raise self._no_target(name)
        return runner

    def _no_target(self, name: str) -> web.HTTPNotFound:
        """HTTP 404 for an unknown target, with the names of the known ones."""
        if other := self._fleet.elsewhere(name):
            text = f"target {name!r} is configured, but shard {other} has it, and this is {self._fleet.shard}\n"
        else:
            names = ", ".join(sorted(runner.name or "" for runner in self._fleet.runners.values())) or "none"
            text = f"target {name!r} is not configured; known: {names}\n"
        return web.HTTPNotFound(text=text)


def _list(kind: type[Answer], values: Iterable[object]) -> Pieces:
    """A response with the values as a list of answers, which are made when it is rendered."""
    return Pieces(_listed(kind, values), {"Content-Type": "application/json; charset=utf-8"})


def _listed(kind: type[Answer], values: Iterable[object]) -> Iterator[bytes]:
    separator = HEAD + b"["
    for value in values:
        yield separator + dumped(kind.model_validate(value))
        separator = b", "
    yield b"]}" if separator == b", " else separator + b"]}"


def _success(data: bytes, status: int = 200) -> web.Response:
    body = HEAD + data + b"}"
    return web.Response(status=status, body=body, content_type="application/json", charset="utf-8")
