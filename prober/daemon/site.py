"""The daemon's pages: for Prometheus, for Kubernetes, for people."""

import asyncio
import gzip
import json
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from aiohttp import web
from prometheus_client import CollectorRegistry, Gauge, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.exposition import generate_latest as text_page
from prometheus_client.openmetrics.exposition import generate_latest as openmetrics_page

from prober.daemon.fleet import Fleet, Line
from prober.daemon.sweeps import Refused, words
from prober.edge.files import runbook
from prober.exposition import protobuf
from prober.exposition.families import Family, Series, page
from prober.exposition.form import Form, wanted
from prober.generate.alerts import NAMES
from prober.generate.status import TargetView, runbook_page, status_page
from prober.measure.outcome import Outcome
from prober.measure.result import ProbeResult
from prober.probing.probe import run_probe
from prober.results.result import Result
from prober.results.stored import to_json
from prober.slo.events import events
from prober.slo.standing import Standing, standing
from prober.workload.workloads import Drawer

GZIP_ABOVE = 1 << 15
PROBE_MARGIN_S = 0.5
ADMIN_OFF = "sweeps on request are off; start the prober with --web.enable-admin-api\n"
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Site:
    """Handlers; `ready` is the prober's own readiness and does not wait for any engine, `admin`: sweeps may be asked for."""

    def __init__(
        self,
        fleet: Fleet,
        families: dict[str, Family],
        reload: Callable[[], Awaitable[str | None]],
        external_url: str,
        route_prefix: str,
    ) -> None:
        self.ready = self.admin = False
        self.prefix = "/" + route_prefix.strip("/") if route_prefix.strip("/") else ""
        self._fleet, self._families, self._reload = fleet, families, reload
        self._external_url = external_url.rstrip("/") or self.prefix
        self._process = CollectorRegistry()
        ProcessCollector(registry=self._process)
        PlatformCollector(registry=self._process)
        GCCollector(registry=self._process)

    def routes(self) -> list[web.RouteDef]:
        """All routes, below the prefix."""
        get = {
            "/": self.status,
            "/metrics": self.metrics,
            "/probe": self.probe,
            "/-/healthy": self.healthy,
            "/-/ready": self.is_ready,
            "/runbooks/{alert}": self.runbook,
            "/api/v1/targets": self.api_targets,
            "/api/v1/probes": self.api_probes,
            "/api/v1/events": self.api_events,
            "/api/v1/sweeps": self.api_sweeps,
            "/api/v1/sweeps/{id}": self.api_sweep,
        }
        found = [web.get(self.prefix + path, handler) for path, handler in get.items()]
        found += [method(f"{self.prefix}/-/reload", self.reload) for method in (web.post, web.put)]
        sweeps = f"{self.prefix}/api/v1/sweeps"
        return [*found, web.post(sweeps, self.begin_sweep), web.delete(sweeps, self.end_sweep)]

    async def metrics(self, request: web.Request) -> web.Response:
        """The page for Prometheus, written in pieces so that no stamp waits for it."""
        form = wanted(",".join(request.headers.getall("Accept", ())))
        pieces: list[bytes] = []
        for piece in self._pieces(form):
            pieces.append(piece)
            await asyncio.sleep(0)
        body = b"".join(pieces)
        headers = {"Content-Type": form.value}
        if len(body) > GZIP_ABOVE and "gzip" in request.headers.get("Accept-Encoding", ""):
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
            # The library's OpenMetrics page ends with `# EOF`, as the whole one must.
            yield (openmetrics_page if form is Form.OPENMETRICS else text_page)(self._process)

    async def healthy(self, request: web.Request) -> web.Response:
        """The process answers."""
        return web.Response(text="Healthy\n")

    async def is_ready(self, request: web.Request) -> web.Response:
        """Probing has begun and is not being stopped."""
        return web.Response(text="Ready\n") if self.ready else web.Response(status=503, text="Not ready\n")

    async def reload(self, request: web.Request) -> web.Response:
        """Read the configuration file again."""
        mistakes = await self._reload()
        return web.Response() if mistakes is None else web.Response(status=500, text=mistakes + "\n")

    async def probe(self, request: web.Request) -> web.Response:
        """One probe now, in the manner of the blackbox exporter; it is not counted in any SLI."""
        name = request.query.get("target", "")
        line = self._fleet.find(name)
        if line is None or not line.target.spec.probes:
            known = ", ".join(sorted(line.name or "" for line in self._fleet.lines.values()))
            return web.Response(status=404, text=f"target {name!r} is not configured; known: {known}\n")
        result = await self._probe_once(line, request.headers.get("X-Prometheus-Scrape-Timeout-Seconds", ""))
        return web.Response(body=_probe_page(result), headers={"Content-Type": Form.TEXT.value})

    async def _probe_once(self, line: Line, timeout: str) -> ProbeResult | None:
        target = line.target
        drawer = Drawer(target.spec.probes[0].workload, self._fleet.rng)
        due = self._fleet.clock.now_ns() + round(min(target.spec.connect_lead_s, 0.1) * 1e9)
        try:
            limit = float(timeout) - PROBE_MARGIN_S
        except ValueError:
            limit = target.spec.timeouts.total_s + target.spec.timeouts.connect_s
        try:
            return await asyncio.wait_for(run_probe(target, drawer, due), max(0.1, limit))
        except TimeoutError:
            return None

    async def status(self, request: web.Request) -> web.Response:
        """The page for people."""
        views = [self._view(line) for line in self._fleet.lines.values()]
        probes = self._fleet.history.probes()[:100]
        events = self._fleet.history.events()[:30]
        return web.Response(text=status_page(views, events, probes, self._external_url), content_type="text/html")

    async def runbook(self, request: web.Request) -> web.Response:
        """What an alert means, what to look at first, what to do."""
        name = request.match_info["alert"].removesuffix(".md")  # as the pages link to each other
        text = runbook(name) if name in NAMES else None
        if text is None:
            return web.Response(status=404, text=f"no alert {name!r}; there are {', '.join(NAMES)}\n")
        return web.Response(text=runbook_page(name, text), content_type="text/html")

    async def api_targets(self, request: web.Request) -> web.Response:
        """Targets with state, outcomes and quantiles."""
        return _json([view.as_json() for view in map(self._view, self._fleet.lines.values())])

    async def api_probes(self, request: web.Request) -> web.Response:
        """The last probes; `target` and `limit` narrow it down."""
        try:
            limit = int(request.query.get("limit", "100"))
        except ValueError:
            return web.Response(status=400, text="limit must be a whole number, such as ?limit=100\n")
        return _json([as_json(result) for result in self._fleet.history.probes(request.query.get("target"))[:limit]])

    async def api_events(self, request: web.Request) -> web.Response:
        """What happened, latest first: changes of state and engine, drift; `target` narrows it down."""
        return _json([asdict(event) for event in self._fleet.history.events(request.query.get("target"))])

    async def api_sweeps(self, request: web.Request) -> web.Response:
        """Results of sweeps, latest first, without their requests and stages; `target` narrows it down."""
        found = self._fleet.sweeps.results(request.query.get("target"))
        return _json([_summary(result) for result in found])

    async def api_sweep(self, request: web.Request) -> web.Response:
        """One result, whole: what `prober report` reads."""
        wanted = request.match_info["id"]
        found = next((result for result in self._fleet.sweeps.results() if result.id == wanted), None)
        if found is None:
            return web.Response(status=404, text=f"no sweep {wanted!r}; /api/v1/sweeps lists them\n")
        return web.Response(text=to_json(found), content_type="application/json")

    async def begin_sweep(self, request: web.Request) -> web.Response:
        """Begin a sweep of `target` now."""
        if not self.admin:
            return web.Response(status=403, text=ADMIN_OFF)
        try:
            identity = self._fleet.sweeps.ask(request.query.get("target", ""), "request")
        except Refused as refusal:
            status = 404 if refusal.reason == "not_configured" else 409
            return web.Response(status=status, text=f"{refusal.reason}: {refusal}\n")
        return web.json_response({"status": "success", "data": {"id": identity}}, status=202)

    async def end_sweep(self, request: web.Request) -> web.Response:
        """End the sweep of `target`, keeping what was measured."""
        if not self.admin:
            return web.Response(status=403, text=ADMIN_OFF)
        name = request.query.get("target", "")
        if not self._fleet.sweeps.stop(name):
            return web.Response(status=404, text=f"no sweep of target {name!r} is under way\n")
        return web.Response()

    def _standings(self, name: str, line: Line) -> list[Standing]:
        fleet = self._fleet
        now, probes = fleet.clock.now_ns(), fleet.history.probes(name)
        trusted = fleet.trust.trusted(now)
        counted = {(workload, slo): counts for workload, slo, *counts in fleet.recorder.slos(name)}
        found: list[Standing] = []
        for slo, use in line.target.spec.uses():
            seen, bad = counted.get((use.workload, slo), (0, 0))
            last = next(
                (p.timeline.intended_ns for p in probes if p.workload == use.workload and events(slo, p)[0]), None
            )
            quiet_s = None if last is None else (now - last) / 1e9
            found.append(standing(slo, use, seen, bad, trusted=trusted, quiet_s=quiet_s))
        return found

    def _capacity(self, name: str) -> str:
        """What the last sweep that found something said."""
        for result in self._fleet.sweeps.results(name):
            if any(each.estimate is not None for each in result.capacities):
                at = datetime.fromtimestamp(result.ended_unix_s, UTC)
                return f"{words(result.capacities)}, as of {at:%Y-%m-%d %H:%M} UTC"
        return ""

    def _view(self, line: Line) -> TargetView:
        name, identity = line.name or "(not found out yet)", line.target.identity
        return TargetView(
            name=name,
            url=line.target.spec.url,
            model=identity.model if identity else line.target.spec.model or "",
            engine=identity.dialect.name if identity else line.target.spec.engine or "",
            state=line.target.state,
            standings=self._standings(name, line),
            outcomes=self._fleet.history.outcomes(name),
            quantiles=self._fleet.history.quantiles(name),
            diagnosis=self._fleet.explanation.verdict(name),
            capacity=self._capacity(name),
        )


def _families(registry: CollectorRegistry) -> list[Family]:
    """The counters and gauges of a library's registry."""
    found: dict[str, Family] = {}
    for metric in registry.collect():
        for sample in metric.samples:
            if metric.type in ("counter", "gauge") and not sample.name.endswith("_created"):
                declared = Series(sample.name, metric.type, metric.documentation, tuple(sample.labels))
                family = found.setdefault(sample.name, Family(declared))
                family.value(*sample.labels.values()).value = sample.value
    return list(found.values())


async def serve(site: Site, address: str) -> web.AppRunner:
    """Listen on `host:port` or `:port`. Raises OSError with what to do if that is taken."""
    host, _, port = address.rpartition(":")
    if not port.isdigit():
        raise OSError(f"--web.listen-address {address!r}: write host:port or :port")
    app = web.Application()
    app.add_routes(site.routes())
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        await web.TCPSite(runner, host.strip("[]") or None, int(port)).start()
    except OSError as problem:
        await runner.cleanup()
        raise OSError(
            f"--web.listen-address {address}: {problem.strerror or problem}; choose another address"
        ) from None
    return runner


def as_json(result: ProbeResult) -> dict[str, Any]:
    """A probe for machines: stamps are nanoseconds of the prober's monotonic clock, quantities seconds."""
    timeline = result.timeline
    connection = timeline.connection
    return {
        "target": result.target,
        "workload": result.workload,
        "request_id": result.request_id,
        "time": round(result.unix_s, 3),
        "outcome": result.outcome.value,
        "detail": result.detail,
        "warm_up": result.warm_up,
        "cached": result.cached,
        "model": result.model,
        "engine": result.engine,
        "asked": {"prompt_tokens": result.asked_prompt_tokens, "output_tokens": result.asked_output_tokens},
        "usage": timeline.usage._asdict() if timeline.usage else None,
        "finish_reason": timeline.finish_reason,
        "content_chunks": len(timeline.content_ns),
        "ttft_s": timeline.ttft_s,
        "ttft_answer_s": timeline.ttft_answer_s,
        "tpot_s": timeline.tpot_s,
        "e2e_s": timeline.e2e_s,
        "send_lag_s": timeline.send_lag_s,
        "itl_s": timeline.itls_s,
        "chunk_gaps_s": timeline.chunk_gaps_s,
        "connect_s": {
            phase: getattr(connection, f"{phase}_s") if connection else None for phase in ("dns", "tcp", "proxy", "tls")
        },
        "stamps_ns": {
            "intended": timeline.intended_ns,
            "connect_start": connection.start_ns if connection else None,
            "connect_ready": connection.ready_ns if connection else None,
            "sent": timeline.sent_ns,
            "headers": timeline.headers_ns,
            "first_content": timeline.first_ns,
            "content": timeline.content_ns,
            "end": timeline.end_ns,
        },
        "text": result.text,
    }


def _summary(result: Result) -> dict[str, Any]:
    return {
        "id": result.id,
        "kind": result.kind,
        "target": result.target.url,
        "started": result.started_unix_s,
        "ended": result.ended_unix_s,
        "stop": result.stop,
        "stop_detail": result.stop_detail,
        "requests": len(result.requests),
        "capacities": [asdict(each) for each in result.capacities],
    }


def _json(value: Any) -> web.Response:
    return web.Response(text=json.dumps({"status": "success", "data": value}), content_type="application/json")


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
