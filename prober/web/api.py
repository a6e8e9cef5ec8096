"""`/api/v1`: the handlers, which `static/openapi.json` documents. Only actions change a target."""

import json
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import replace

from aiohttp import web

from prober.config.problems import no_such
from prober.features.capacity.actions import Refused
from prober.features.capacity.monitor import Sweeps
from prober.measure.result import ProbeResult
from prober.probing.fleet import Fleet
from prober.probing.history import TargetHistory
from prober.probing.target_runner import TargetRunner
from prober.results.result_file import to_json
from prober.storage.watched_file import asset
from prober.web.answers import Handler, Pieces
from prober.web.api_types import Answer, BegunAnswer, EventAnswer, PausedAnswer, ProbeAnswer, SweepAnswer, dumped
from prober.web.on_demand import OnRequest
from prober.web.page.view import ProbeFilter
from prober.web.targets import TargetAnswer
from prober.web.views import Views, last_probes

MAX_PROBES = 1_000_000  # more than are stored
HEAD = b'{"status": "success", "data": '
ADMIN_OFF = "actions on request are off; start the prober with --web.enable-admin-api\n"


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

    def routes(self) -> list[tuple[str, str, Handler]]:
        """(method, path, handler) of all operations of the document."""
        actions = [
            ("POST", "/api/v1/probes", self.probe_now),
            ("POST", "/api/v1/pauses", self.pause),
            ("DELETE", "/api/v1/pauses", self.resume),
            ("POST", "/api/v1/sweeps", self.begin_sweep),
            ("DELETE", "/api/v1/sweeps", self.end_sweep),
        ]
        return [
            ("GET", "/api/v1/targets", self.targets),
            ("GET", "/api/v1/probes", self.probes),
            ("GET", "/api/v1/events", self.events),
            ("GET", "/api/v1/sweeps", self.sweeps),
            ("GET", "/api/v1/sweeps/{id}", self.sweep),
            ("GET", "/api/v1/openapi.json", self.openapi),
            ("POST", "/-/reload", self.reload),
            *((method, path, self._if_allowed(handler)) for method, path, handler in actions),
        ]

    def _if_allowed(self, action: Handler) -> Handler:
        async def guarded(request: web.Request) -> web.StreamResponse:
            return await action(request) if self.admin else web.Response(status=403, text=ADMIN_OFF)

        return guarded

    async def targets(self, request: web.Request) -> web.StreamResponse:
        """All targets."""
        return _list(TargetAnswer, await self._views.targets())

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

    async def probe_now(self, request: web.Request) -> web.Response:
        """Send one probe now and wait for its end. It counts in no SLI and delays no scheduled probe."""
        name = request.query.get("target", "")
        try:
            runner, result = await self.probe_once(request, None)
        except TimeoutError:
            text = f"the probe of target {name!r} did not end within its timeouts; a request may have been sent\n"
            return web.Response(status=504, text=text)
        if result is None:
            return web.Response(status=409, text=f"nothing was sent: target {name!r} is {runner.target.state}\n")
        runner = self._fleet.runners.get(runner.spec.key, runner)  # a reload may have replaced it
        result = replace(result, target=runner.name, on_request=True)
        if (history := runner.find(TargetHistory)) is not None:
            history.add(result)
        return _success(dumped(ProbeAnswer.model_validate(result)))

    async def events(self, request: web.Request) -> web.StreamResponse:
        """Events, latest first: changes of state, of the engine and of its answers, drift, diagnoses, sweeps, pauses, changed SLOs."""
        return _list(EventAnswer, self._fleet.context.events.folded(request.query.get("target")))

    async def pause(self, request: web.Request) -> web.Response:
        """Stop probing a target, and end its sweep, until it is resumed or the prober restarts."""
        return self._paused(request, self._fleet.context.clock.unix_s())

    async def resume(self, request: web.Request) -> web.Response:
        """Probe a target again."""
        return self._paused(request, None)

    async def sweeps(self, request: web.Request) -> web.StreamResponse:
        """Results of sweeps, latest first, without their requests and stages."""
        name = request.query.get("target")
        await self._sweeps.read(name)
        return _list(SweepAnswer, self._sweeps.results(name))

    async def begin_sweep(self, request: web.Request) -> web.Response:
        """Start a sweep of a target now."""
        try:
            identity = self._sweeps.start(request.query.get("target", ""))
        except Refused as refusal:
            status = 404 if refusal.reason == "not_configured" else 409
            return web.Response(status=status, text=f"{refusal.reason}: {refusal}\n")
        return _success(dumped(BegunAnswer(id=identity)), 202)

    async def end_sweep(self, request: web.Request) -> web.Response:
        """End the sweep of a target and store its measurements so far."""
        name = request.query.get("target", "")
        if not self._sweeps.stop(name):
            return web.Response(status=404, text=f"no sweep of target {name!r} is under way\n")
        return web.Response()

    async def sweep(self, request: web.Request) -> web.Response:
        """A sweep's result without its requests; `prober report` reads it."""
        identity = request.match_info["id"]
        result = await self._sweeps.result(identity)
        if result is None:
            return web.Response(status=404, text=f"no sweep {identity!r}; /api/v1/sweeps lists them\n")
        return web.Response(text=to_json(result), content_type="application/json")

    async def openapi(self, request: web.Request) -> web.Response:
        """The OpenAPI document."""
        return web.json_response(json.loads(asset("openapi.json")) | self._servers)

    async def reload(self, request: web.Request) -> web.Response:
        """Load the configuration file again. Allowed from the prober's own machine, with authentication by `--web.config.file`, and
        with --web.enable-admin-api.
        """
        mistakes = await self._reload()
        return web.Response() if mistakes is None else web.Response(status=500, text=mistakes + "\n")

    async def probe_once(
        self, request: web.Request, limit_s: float | None, module: str = ""
    ) -> tuple[TargetRunner, ProbeResult | None]:
        """Send one probe to the target that the HTTP request names. The result is None if nothing was sent.

        module: name of the workload, "" for the target's first. Raises HTTPNotFound, HTTPBadRequest for an unknown module, HTTPConflict
            if the target is paused, and the errors of `OnRequest.probe`.
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
        """HTTP 404 for an unknown target; the text lists known targets."""
        if other := self._fleet.elsewhere(name):
            text = f"target {name!r} is configured, but shard {other} has it, and this is {self._fleet.shard}\n"
        else:
            names = ", ".join(sorted(self._fleet.runners)) or "none"
            text = f"target {name!r} is not configured; known: {names}\n"
        return web.HTTPNotFound(text=text)


def _list(kind: type[Answer], values: Iterable[object]) -> Pieces:
    """A response with a JSON list of answers, which are made during rendering."""
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
