"""A stand-in for kube-apiserver and its etcd, as their documentation describes them: three kinds of object, and nothing else.

It keeps resourceVersions over all kinds, pages lists of one moment, watches with bookmarks, forgets its past on request (410),
refuses what is stale (409), and selects by labels; `leases` are checked as the real one checks them. Each client has
an address of its own (`url("a")`), so that one can be delayed, dropped, refused or cut off while the others go on:

    async with ApiServer() as server:
        server.put("pods", pod)
        api = Api(server.url("a"))
        server.faults("a").cut = "answers"  # what it asks is done, and it hears nothing
"""

import asyncio
import base64
import json
import re
import threading
import uuid
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

from aiohttp import web
from jsonschema import Draft202012Validator

from tests.processes import until
from tests.serving import serving

Json = dict[str, Any]
Key = tuple[str, str, str]  # resource, namespace, name

GROUPS = {"pods": "/api/v1", "endpointslices": "/apis/discovery.k8s.io/v1", "leases": "/apis/coordination.k8s.io/v1"}
KINDS = {"pods": "Pod", "endpointslices": "EndpointSlice", "leases": "Lease"}
_PATH = re.compile(
    r"/as/(?P<client>[^/]+)(?P<group>/api/v1|/apis/[^/]+/v1)(/namespaces/(?P<namespace>[^/]+))?"
    r"/(?P<resource>[a-z]+)(/(?P<name>[^/]+))?"
)


@dataclass(slots=True)
class Faults:
    """What one client meets. cut: its requests get lost, or the answers to them, and its watches fall silent.

    drop: the next so many requests are answered by a closed connection; refuse: by that status; broken_watches: that many
    watches end in the middle of an event.
    """

    delay_s: float = 0.0
    cut: Literal["", "requests", "answers"] = ""
    drop: int = 0
    refuse: list[int] = field(default_factory=list)
    retry_after: int | None = None
    broken_watches: int = 0


@dataclass(frozen=True, slots=True)
class Change:
    """One step of the history. before: None where it was added."""

    version: int
    key: Key
    before: Json | None
    after: Json | None


class Refusal(Exception):
    """What the client is told instead."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.code, self.reason = code, reason

    def status(self) -> Json:
        return {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": str(self),
            "reason": self.reason,
            "code": self.code,
        }


class ApiServer:
    """bookmark_s: how often an idle watch is told that nothing happened."""

    def __init__(self, *, bookmark_s: float = 0.2) -> None:
        self.bookmark_s = bookmark_s
        self.objects: dict[Key, Json] = {}
        self.asked: Counter[str] = Counter()  # "METHOD resource", "LIST resource", "WATCH resource"
        self.watches: Counter[str] = Counter()  # open now, by client
        self.gone_as_status = False  # 410 by HTTP; else inside the watch, as the real one mostly does
        self.refuses_future = False  # a version that is not there yet: 504; else silence until it is
        self._version = 1
        self._history: list[Change] = []
        self._compacted = 0
        self._changed = asyncio.Event()
        self._healed = asyncio.Event()
        self._watching = asyncio.Event()
        self._faults: dict[str, Faults] = {}
        self._pages: dict[int, list[tuple[Key, Json]]] = {}
        self._port = 0

    async def __aenter__(self) -> "ApiServer":
        self._serving = serving(self._handle, self._port)
        self._port = int((await self._serving.__aenter__()).rpartition(":")[2])
        return self

    async def __aexit__(self, *_: object) -> None:
        for each in self._faults.values():
            each.cut = ""
        self._wake(self._healed)
        await self._serving.__aexit__(None, None, None)

    def url(self, client: str) -> str:
        """The address that `client` has to use."""
        return f"http://127.0.0.1:{self._port}/as/{client}"

    def faults(self, client: str) -> Faults:
        """What `client` meets; to be changed in place, and after a cut to be ended by `heal`."""
        return self._faults.setdefault(client, Faults())

    def heal(self, client: str) -> None:
        """Everything works for it again; what was held back while it was cut off is lost, its watches go on."""
        self._faults[client] = Faults()
        self._wake(self._healed)

    @property
    def version(self) -> str:
        """The resourceVersion of now."""
        return str(self._version)

    async def watched(self, client: str, watches: int = 1) -> None:
        """Wait until `client` has that many watches open."""
        while self.watches[client] < watches:
            await self._watching.wait()

    def compact(self) -> None:
        """Forget the past: whoever would go on from before now is told 410."""
        self._compacted = self._version
        self._history.clear()
        self._pages.clear()
        self._wake(self._changed)

    def restore(self) -> None:
        """Count from the beginning again, as after a backup of etcd was restored."""
        self._version, self._compacted = 1, 0
        self._history.clear()
        self._pages.clear()
        self._wake(self._changed)

    def put(self, resource: str, document: Json) -> Json:
        """Add or replace an object, whatever its resourceVersion; as it is kept."""
        about = document["metadata"]
        key = (resource, about.setdefault("namespace", "default"), about["name"])
        before = self.objects.get(key)
        kept = deepcopy(document)
        kept["metadata"]["uid"] = before["metadata"]["uid"] if before else str(uuid.uuid4())
        kept["metadata"]["creationTimestamp"] = (
            before["metadata"]["creationTimestamp"] if before else f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
        )
        if before is not None:
            kept["metadata"]["resourceVersion"] = before["metadata"]["resourceVersion"]
            if kept == before:
                return before  # as the real one: what changes nothing has no new version
        self._version += 1
        kept["metadata"]["resourceVersion"] = str(self._version)
        self.objects[key] = kept
        self._happened(Change(self._version, key, before, kept))
        return kept

    def delete(self, resource: str, namespace: str, name: str) -> None:
        """Remove an object. Raises KeyError."""
        before = self.objects.pop((resource, namespace, name))
        self._version += 1
        self._happened(Change(self._version, (resource, namespace, name), before, None))

    def _happened(self, change: Change) -> None:
        self._history.append(change)
        self._wake(self._changed)

    @staticmethod
    def _wake(event: asyncio.Event) -> None:
        event.set()
        event.clear()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        match = _PATH.fullmatch(request.path)
        if match is None or GROUPS.get(match["resource"]) != match["group"]:
            return self._refuse(Refusal(404, "NotFound", "the server could not find the requested resource"))
        faults = self.faults(match["client"])
        if faults.cut == "requests":
            return await self._never(request, match["client"])
        if faults.delay_s:
            await asyncio.sleep(faults.delay_s)
        if faults.drop > 0:
            faults.drop -= 1
            return _closed(request)
        if faults.refuse:
            code = faults.refuse.pop(0)
            reason = {429: "TooManyRequests", 500: "InternalError", 503: "ServiceUnavailable"}.get(code, "")
            headers = {"Retry-After": str(faults.retry_after)} if faults.retry_after is not None else {}
            return self._refuse(Refusal(code, reason, f"told to refuse with {code}"), headers)
        try:
            answer = await self._answer(request, match, faults)
        except Refusal as refusal:
            answer = self._refuse(refusal)
        if self.faults(match["client"]).cut and not answer.prepared:
            return await self._never(request, match["client"])
        return answer

    async def _never(self, request: web.Request, client: str) -> web.StreamResponse:
        while self.faults(client).cut:
            await self._healed.wait()
        return _closed(request)

    @staticmethod
    def _refuse(refusal: Refusal, headers: dict[str, str] | None = None) -> web.Response:
        return web.json_response(refusal.status(), status=refusal.code, headers=headers or {})

    async def _answer(self, request: web.Request, match: re.Match[str], faults: Faults) -> web.StreamResponse:
        resource, namespace, name = match["resource"], match["namespace"], match["name"]
        watched = name is None and request.query.get("watch") in ("true", "1")
        what = ("WATCH" if watched else "LIST") if name is None and request.method == "GET" else request.method
        self.asked[f"{what} {resource}"] += 1
        if watched:
            return await self._watch(request, resource, namespace, match["client"])
        if what == "LIST":
            return web.json_response(self._list(request, resource, namespace))
        if request.method == "POST" and name is None and namespace is not None:
            return web.json_response(self._create(resource, namespace, await request.json()), status=201)
        if name is None or namespace is None:
            raise Refusal(405, "MethodNotAllowed", "the server does not allow this method on the requested resource")
        key = (resource, namespace, name)
        if key not in self.objects:
            raise Refusal(404, "NotFound", f'{resource} "{name}" not found')
        match request.method:
            case "GET":
                return web.json_response(self.objects[key])
            case "PUT":
                return web.json_response(self._replace(key, await request.json()))
        raise Refusal(405, "MethodNotAllowed", "the server does not allow this method on the requested resource")

    def _create(self, resource: str, namespace: str, document: Json) -> Json:
        about = _checked(resource, document)
        if about.setdefault("namespace", namespace) != namespace:
            raise Refusal(400, "BadRequest", "the namespace of the provided object does not match the request")
        if about.get("resourceVersion"):
            raise Refusal(400, "BadRequest", "resourceVersion should not be set on objects to be created")
        if (resource, namespace, about["name"]) in self.objects:
            raise Refusal(409, "AlreadyExists", f'{resource} "{about["name"]}" already exists')
        return self.put(resource, document)

    def _replace(self, key: Key, document: Json) -> Json:
        about = _checked(key[0], document)
        if (about.setdefault("namespace", key[1]), about["name"]) != key[1:]:
            raise Refusal(400, "BadRequest", "the name of the object does not match the name on the URL")
        held = self.objects[key]["metadata"]
        if not about.get("resourceVersion"):
            raise Refusal(422, "Invalid", "metadata.resourceVersion: must be specified for an update")
        if about["resourceVersion"] != held["resourceVersion"] or about.get("uid", held["uid"]) != held["uid"]:
            said = "the object has been modified; please apply your changes to the latest version and try again"
            raise Refusal(409, "Conflict", f'Operation cannot be fulfilled on {key[0]} "{key[2]}": {said}')
        return self.put(key[0], document)

    def _list(self, request: web.Request, resource: str, namespace: str | None) -> Json:
        limit = int(request.query.get("limit", "0"))
        if token := request.query.get("continue"):
            version, start = json.loads(base64.urlsafe_b64decode(token))
            if version not in self._pages:
                raise Refusal(410, "Expired", "The provided continue parameter is too old")
            found = self._pages[version]
        else:
            fits = _selector(request)
            found = [
                (key, each)
                for key, each in sorted(self.objects.items())
                if key[0] == resource and namespace in (None, key[1]) and fits(each)
            ]
            version, start = self._version, 0
        end = start + limit if limit else len(found)
        about: Json = {"resourceVersion": str(version)}
        if end < len(found):
            self._pages[version] = found
            about["continue"] = base64.urlsafe_b64encode(json.dumps([version, end]).encode()).decode()
            about["remainingItemCount"] = len(found) - end
        return {
            "kind": f"{KINDS[resource]}List",
            "apiVersion": GROUPS[resource].removeprefix("/apis/").removeprefix("/api/"),
            "metadata": about,
            "items": [each for _, each in found[start:end]],
        }

    async def _watch(
        self, request: web.Request, resource: str, namespace: str | None, client: str
    ) -> web.StreamResponse:
        fits = _selector(request)
        asked = request.query.get("resourceVersion", "")
        gone = Refusal(410, "Expired", f"too old resource version: {asked} ({self._compacted})")
        stale = asked not in ("", "0") and int(asked) < self._compacted
        if stale and self.gone_as_status:
            raise gone
        if self.refuses_future and asked not in ("", "0") and int(asked) > self._version:
            raise Refusal(504, "Timeout", f"Too large resource version: {asked}, current: {self.version}")
        answer = web.StreamResponse(headers={"Content-Type": "application/json"})
        await answer.prepare(request)
        watch = _Watch(self, answer, client, resource, namespace, fits, lambda: _abort(request))
        self.watches[client] += 1
        self._wake(self._watching)
        try:
            if stale:
                await watch.send("ERROR", gone.status())
            else:
                bookmarks = request.query.get("allowWatchBookmarks") == "true"
                await watch.run(asked, float(request.query.get("timeoutSeconds", "1800")), bookmarks)
            await answer.write_eof()
        except (ConnectionError, OSError):
            pass  # the client went away, or the watch was told to break
        finally:
            self.watches[client] -= 1
        return answer

    def since(self, version: int) -> list[Change]:
        """What happened after it, in order."""
        return self._history[bisect_right(self._history, version, key=lambda change: change.version) :]

    @property
    def compacted(self) -> int:
        """Up to where the past is forgotten."""
        return self._compacted

    async def next_change(self, within_s: float) -> None:
        """Wait for one, or for that long."""
        try:
            async with asyncio.timeout(max(0.0, within_s)):
                await self._changed.wait()
        except TimeoutError:
            pass

    async def connected(self, client: str) -> None:
        """Wait until `client` is not cut off."""
        while self.faults(client).cut:
            await self._healed.wait()


class _Watch:
    """One stream of events."""

    def __init__(
        self,
        server: ApiServer,
        answer: web.StreamResponse,
        client: str,
        resource: str,
        namespace: str | None,
        fits: Callable[[Json], bool],
        abort: Callable[[], None],
    ) -> None:
        self._server, self._answer, self._client, self._abort = server, answer, client, abort
        self._resource, self._namespace, self._fits = resource, namespace, fits

    async def run(self, asked: str, timeout_s: float, bookmarks: bool) -> None:
        """Until the time is over, or its past is forgotten."""
        server, now = self._server, asyncio.get_running_loop().time
        at = int(asked) if asked not in ("", "0") else int(server.version)
        if asked in ("", "0"):
            for key, each in sorted(server.objects.items()):
                if key[0] == self._resource and self._namespace in (None, key[1]) and self._fits(each):
                    await self.send("ADDED", each)
        end, bookmark = now() + timeout_s, now() + server.bookmark_s
        while now() < end:
            if at < server.compacted:
                return
            for change in server.since(at):
                await self._tell(change)
                at = change.version
            if bookmarks and now() >= bookmark:
                await self._mark(at)
                bookmark = now() + server.bookmark_s
            if not server.since(at):
                await server.next_change(min(end, bookmark if bookmarks else end) - now())
        if bookmarks:
            await self._mark(at)

    async def _mark(self, at: int) -> None:
        """A bookmark, unless the watch is of a version that is not there yet."""
        if at <= int(self._server.version):
            about = {"resourceVersion": str(at), "creationTimestamp": None}
            await self.send("BOOKMARK", {"kind": KINDS[self._resource], "metadata": about})

    async def _tell(self, change: Change) -> None:
        if change.key[0] != self._resource or self._namespace not in (None, change.key[1]):
            return
        was = change.before is not None and self._fits(change.before)
        match (change.after is not None and self._fits(change.after), was):
            case (True, _):
                assert change.after is not None
                await self.send("MODIFIED" if was else "ADDED", change.after)
            case (False, True):
                last = deepcopy(change.after or change.before)
                assert last is not None
                last["metadata"]["resourceVersion"] = str(change.version)
                await self.send("DELETED", last)

    async def send(self, kind: str, document: Json) -> None:
        """Write one event, once the client can be reached. Raises ConnectionError where it is to break."""
        await self._server.connected(self._client)
        faults = self._server.faults(self._client)
        line = json.dumps({"type": kind, "object": document}).encode() + b"\n"
        if faults.broken_watches > 0:
            faults.broken_watches -= 1
            await self._answer.write(line[: len(line) // 2])
            self._abort()
            raise ConnectionResetError
        await self._answer.write(line)


def _abort(request: web.Request) -> None:
    if request.transport is not None:
        request.transport.abort()


def _closed(request: web.Request) -> web.Response:
    _abort(request)
    return web.Response()


def _checked(resource: str, document: Json) -> Json:
    """Its metadata. Raises Refusal for what the real server would not take."""
    about = document.get("metadata")
    if not isinstance(about, dict) or not re.fullmatch(
        r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?", about.get("name") or ""
    ):
        raise Refusal(422, "Invalid", "metadata.name: a lowercase RFC 1123 subdomain is needed")
    if document.get("kind", KINDS[resource]) != KINDS[resource]:
        raise Refusal(400, "BadRequest", f"{document['kind']} is not {KINDS[resource]}")
    if resource == "leases" and (error := next(LEASE.iter_errors(document.get("spec") or {}), None)):
        raise Refusal(422, "Invalid", f"spec: {error.message}")
    return about


TIME = {"type": ["string", "null"], "pattern": r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z$"}  # MicroTime
LEASE = Draft202012Validator({
    "additionalProperties": False,
    "properties": {
        "acquireTime": TIME, "renewTime": TIME, "holderIdentity": {"type": ["string", "null"], "minLength": 1},
        "leaseDurationSeconds": {"type": ["integer", "null"], "minimum": 1},
        "leaseTransitions": {"type": ["integer", "null"], "minimum": 0},
    },
})  # fmt: skip


def _selector(request: web.Request) -> Callable[[Json], bool]:
    """What the query's selectors let through. Raises Refusal."""
    labels = [_requirement(each) for each in _split(request.query.get("labelSelector", ""))]

    def fits(document: Json) -> bool:
        own = document["metadata"].get("labels") or {}
        return all(each(own) for each in labels)

    return fits


def _split(text: str) -> list[str]:
    return [each.strip() for each in re.split(r",(?![^(]*\))", text) if each.strip()]


def _requirement(text: str) -> Callable[[Json], bool]:
    if found := re.fullmatch(r"(\S+)\s+(in|notin)\s+\(([^)]*)\)", text):
        key, values = found[1], {each.strip() for each in found[3].split(",")}
        if found[2] == "in":
            return lambda own: own.get(key) in values
        return lambda own: own.get(key) not in values
    if found := re.fullmatch(r"([\w./-]+)\s*(!=|==|=)\s*([\w.-]*)", text):
        key, value = found[1], found[3]
        if found[2] == "!=":
            return lambda own: own.get(key) != value
        return lambda own: own.get(key) == value
    if found := re.fullmatch(r"(!?)([\w./-]+)", text):
        key, absent = found[2], bool(found[1])
        return lambda own: (key in own) != absent
    raise Refusal(400, "BadRequest", f'unable to parse requirement: "{text}"')


@contextmanager
def threaded_api_server() -> Iterator[ApiServer]:
    """A server in a thread with an event loop of its own, for programs that are not asynchronous."""
    loop, servers, stop = asyncio.new_event_loop(), list[ApiServer](), threading.Event()

    async def serve() -> None:
        async with ApiServer() as server:
            servers.append(server)
            while not stop.is_set():  # noqa: ASYNC110 -- set by another thread
                await asyncio.sleep(0.02)

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    try:
        until(lambda: servers, "the API server")
        yield servers[0]
    finally:
        stop.set()
        thread.join(10)
        loop.close()
