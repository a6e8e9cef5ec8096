"""`/api/v1`: every operation declared once, with its handler. Reading changes nothing; writing must be allowed."""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from typing import Any, TypeVar

import orjson
from aiohttp import web

from prober import __version__
from prober.features.capacity.monitor import Refused, Sweeps
from prober.measure.result import ProbeResult
from prober.probing.fleet import Fleet
from prober.probing.history import TargetHistory, latest_first
from prober.results.result_file import to_json
from prober.web.access_control import later
from prober.web.api_types import (
    BegunAnswer,
    EventAnswer,
    PausedAnswer,
    ProbeAnswer,
    SweepAnswer,
    TargetAnswer,
    of_event,
    of_probe,
    of_sweep,
    of_target,
)
from prober.web.on_demand import OnRequest, TooMany
from prober.web.openapi import Json, Operation, Parameter, Reply, document
from prober.web.views import Views

SLICE_S = 0.001  # after so long others run
ADMIN_OFF = "actions on request are off; start the prober with --web.enable-admin-api\n"
DESCRIPTION = (
    "What the prober's own page shows, and the actions on it. Answers are JSON with `status` and `data`; an error is a "
    "sentence as text. Actions need `--web.enable-admin-api`, and a browser may ask for them from the prober's own page only. "
    "Everything may also be answered with 401 (a password is needed), 413 (a body: none is taken) and 429 (too often)."
)
T = TypeVar("T")

_TARGET = Parameter("target", "only of this target, by its name")
_WHICH = Parameter("target", "the target's name", required=True)
_OFF = Reply(403, "actions are off, or another site's page asked for it")
_OFTEN = Reply(429, "asked for too often; `Retry-After` has the seconds to wait")
_NO_TARGET = Reply(404, "there is no such target; the sentence names those that there are")
OPERATIONS = (
    Operation("GET", "/api/v1/targets", "targets", "All targets.", [Reply(200, "the targets", list[TargetAnswer])]),
    Operation(
        "GET",
        "/api/v1/probes",
        "probes",
        "The last probes, latest first.",
        [Reply(200, "the probes", list[ProbeAnswer]), Reply(400, "limit is no whole number")],
        [_TARGET, Parameter("limit", "at most so many", schema={"type": "integer", "default": 100})],
    ),
    Operation(
        "POST",
        "/api/v1/probes",
        "probe_now",
        "Send one probe now, and wait for its end. It counts in no SLI and takes no slot of the schedule.",
        [
            Reply(200, "the probe, however it ended", ProbeAnswer),
            _OFF,
            _NO_TARGET,
            _OFTEN,
            Reply(409, "nothing was sent: the target is paused, loading or draining"),
        ],
        [_WHICH],
        writes=True,
    ),
    Operation(
        "GET",
        "/api/v1/events",
        "events",
        "What happened, latest first: changes of state and of the engine, drift, diagnoses, sweeps, pauses.",
        [Reply(200, "the events", list[EventAnswer])],
        [_TARGET],
    ),
    Operation(
        "POST",
        "/api/v1/pauses",
        "pause",
        "Send nothing more to a target until it is resumed or the prober restarts; a sweep of it ends.",
        [Reply(200, "the target is paused", PausedAnswer), _OFF, _NO_TARGET, _OFTEN],
        [_WHICH],
        writes=True,
    ),
    Operation(
        "DELETE",
        "/api/v1/pauses",
        "resume",
        "Probe a target again.",
        [Reply(200, "the target is probed", PausedAnswer), _OFF, _NO_TARGET, _OFTEN],
        [_WHICH],
        writes=True,
    ),
    Operation(
        "GET",
        "/api/v1/sweeps",
        "sweeps",
        "Results of sweeps, latest first, without their requests and stages.",
        [Reply(200, "the results", list[SweepAnswer])],
        [_TARGET],
    ),
    Operation(
        "POST",
        "/api/v1/sweeps",
        "begin_sweep",
        "Begin a sweep of a target now.",
        [
            Reply(202, "it begins", BegunAnswer),
            _OFF,
            _OFTEN,
            Reply(404, "the target has no `sweep:` in the configuration"),
            Reply(409, "not now; the sentence begins with the reason"),
        ],
        [_WHICH],
        writes=True,
    ),
    Operation(
        "DELETE",
        "/api/v1/sweeps",
        "end_sweep",
        "End the sweep of a target, keeping what was measured.",
        [Reply(200, "it ends"), _OFF, _OFTEN, Reply(404, "no sweep of it is under way")],
        [_WHICH],
        writes=True,
    ),
    Operation(
        "GET",
        "/api/v1/sweeps/{id}",
        "sweep",
        "One result, without its requests: what `prober report` reads.",
        [
            Reply(200, "the result's file", whole={"type": "object", "required": ["llm_slo_prober"]}),
            Reply(404, "there is no such result"),
        ],
        [Parameter("id", "as /api/v1/sweeps lists it", "path")],
    ),
    Operation(
        "GET",
        "/api/v1/openapi.json",
        "openapi",
        "This document.",
        [Reply(200, "the document", whole={"type": "object", "required": ["openapi", "paths"]})],
    ),
    Operation(
        "POST",
        "/-/reload",
        "reload",
        "Read the configuration file again: from the prober's own machine, by whoever `--web.config.file` knows, or with "
        "--web.enable-admin-api.",
        [
            Reply(200, "taken over"),
            Reply(403, "not from there, or another site's page asked for it"),
            _OFTEN,
            Reply(500, "every mistake; nothing changed"),
        ],
    ),
)


def openapi() -> Json:
    """The API's document."""
    return document(OPERATIONS, DESCRIPTION, __version__)


class Api:
    """The handlers. admin: writing is allowed."""

    def __init__(self, fleet: Fleet, sweeps: Sweeps, views: Views, reload: Callable[[], Awaitable[str | None]]) -> None:
        self.admin = False
        self.on_request = OnRequest(fleet)
        self._fleet, self._sweeps, self._views, self._reload = fleet, sweeps, views, reload

    def routes(self, prefix: str) -> list[web.RouteDef]:
        """All of OPERATIONS, below the prefix."""
        return [web.route(each.method, prefix + each.path, self._allowed(each)) for each in OPERATIONS]

    def _allowed(self, operation: Operation) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        handler: Callable[[web.Request], Awaitable[web.StreamResponse]] = getattr(self, operation.name)
        if not operation.writes:
            return handler

        async def guarded(request: web.Request) -> web.StreamResponse:
            return await handler(request) if self.admin else web.Response(status=403, text=ADMIN_OFF)

        return guarded

    # --- reading

    async def targets(self, request: web.Request) -> web.Response:
        """All targets."""
        return await _list(await self._views.targets(), of_target)

    async def probes(self, request: web.Request) -> web.Response:
        """The last probes; `target` and `limit` narrow it down."""
        try:
            limit = int(request.query.get("limit", "100"))
        except ValueError:
            return web.Response(status=400, text="limit must be a whole number, such as ?limit=100\n")
        return await _list(self._probes(request.query.get("target"), limit), of_probe)

    async def events(self, request: web.Request) -> web.Response:
        """What happened, latest first; `target` narrows it down."""
        return await _list(self._fleet.context.events.latest(request.query.get("target")), of_event)

    async def sweeps(self, request: web.Request) -> web.Response:
        """Results of sweeps, latest first, without their requests and stages; `target` narrows it down."""
        name = request.query.get("target")
        await self._sweeps.read(name)
        return await _list(self._sweeps.results(name), of_sweep)

    async def sweep(self, request: web.Request) -> web.Response:
        """One result, without its requests: what `prober report` reads."""
        wanted = request.match_info["id"]
        found = await self._sweeps.result(wanted)
        if found is None:
            return web.Response(status=404, text=f"no sweep {wanted!r}; /api/v1/sweeps lists them\n")
        return web.Response(text=to_json(found), content_type="application/json")

    async def openapi(self, request: web.Request) -> web.Response:
        """The API's own description."""
        return web.json_response(openapi())

    # --- writing

    async def reload(self, request: web.Request) -> web.Response:
        """Read the configuration file again."""
        mistakes = await self._reload()
        return web.Response() if mistakes is None else web.Response(status=500, text=mistakes + "\n")

    async def probe_now(self, request: web.Request) -> web.Response:
        """One probe of `target`, remembered and shown, counted nowhere."""
        name = request.query.get("target", "")
        runner = self._fleet.find(name)
        if runner is None or not runner.target.spec.probes:
            return self.no_target(name)
        if runner.target.paused_unix_s is not None:
            return web.Response(status=409, text=f"nothing was sent: target {name!r} is paused\n")
        try:
            result = await self.on_request.probe(runner, None)
        except TooMany as refusal:
            return later(refusal.wait_s, str(refusal))
        if result is None:
            return web.Response(status=409, text=f"nothing was sent: target {name!r} is {runner.target.state}\n")
        runner = self._fleet.runners.get(runner.spec.key, runner)  # a reload may have replaced it meanwhile
        result = replace(result, target=runner.name or result.target, on_request=True)
        if (history := runner.find(TargetHistory)) is not None:
            history.add(result)
        return _json(of_probe(result))

    async def pause(self, request: web.Request) -> web.Response:
        """Send nothing more to `target`."""
        return self._paused(request, time.time())

    async def resume(self, request: web.Request) -> web.Response:
        """Probe `target` again."""
        return self._paused(request, None)

    async def begin_sweep(self, request: web.Request) -> web.Response:
        """Begin a sweep of `target` now."""
        try:
            identity = self._sweeps.ask(request.query.get("target", ""), "request")
        except Refused as refusal:
            status = 404 if refusal.reason == "not_configured" else 409
            return web.Response(status=status, text=f"{refusal.reason}: {refusal}\n")
        return _json({"id": identity}, 202)

    async def end_sweep(self, request: web.Request) -> web.Response:
        """End the sweep of `target`, keeping what was measured."""
        name = request.query.get("target", "")
        if not self._sweeps.stop(name):
            return web.Response(status=404, text=f"no sweep of target {name!r} is under way\n")
        return web.Response()

    # --- parts of them

    def _probes(self, name: str | None, limit: int) -> list[ProbeResult]:
        """The last probes of one target, or of all."""
        if name is None:
            histories = list(self._fleet.observers(TargetHistory))
        else:
            runner = self._fleet.find(name)
            history = runner.find(TargetHistory) if runner is not None else None
            histories = [history] if history is not None else []
        return latest_first(histories)[:limit]

    def no_target(self, name: str) -> web.Response:
        """A refusal that names the targets there are."""
        if other := self._fleet.elsewhere(name):
            text = f"target {name!r} is configured, but shard {other} has it, and this is {self._fleet.shard}\n"
            return web.Response(status=404, text=text)
        known = ", ".join(sorted(runner.name or "" for runner in self._fleet.runners.values())) or "none"
        return web.Response(status=404, text=f"target {name!r} is not configured; known: {known}\n")

    def _paused(self, request: web.Request, unix_s: float | None) -> web.Response:
        name = request.query.get("target", "")
        runner = self._fleet.find(name)
        if runner is None:
            return self.no_target(name)
        runner.pause(unix_s)
        return _json({"name": name, "paused": runner.target.paused_unix_s})


async def _list(values: Iterable[T], of: Callable[[T], Any]) -> web.Response:
    """Written one by one, so that nothing waits for all of them."""
    pieces, begun = list[bytes](), time.perf_counter()
    for value in values:
        pieces.append(_dumped(of(value)))
        if time.perf_counter() - begun > SLICE_S:
            await asyncio.sleep(0)
            begun = time.perf_counter()
    body = b'{"status": "success", "data": [' + b", ".join(pieces) + b"]}"
    return web.Response(body=body, content_type="application/json", charset="utf-8")


def _dumped(value: Any) -> bytes:
    try:
        return orjson.dumps(value)
    except TypeError:  # half a character, or a number beyond 64 bits, as a server may well send
        return json.dumps(value).encode()


def _json(value: Any, status: int = 200) -> web.Response:
    return web.json_response({"status": "success", "data": value}, status=status)
