"""A stand-in for Grafana after the documentation of its HTTP API: only the calls that the prober makes, with strict checks of bodies.

What is not in the documentation of a call is refused with 400, and so is a token that is not the one. It keeps dashboards with
their versions, folders, data sources and annotations, and can be told to fail in the ways that servers and proxies do.
"""

import base64
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests import scripted
from tests.scripted import threaded
from tests.wire.case import Step
from tests.wire.heads import body as answer_of

TOKEN = "glsa_standIn0123456789_abcdef01"
USER, PASSWORD = "admin", "hunter2-hunter2"
LOGIN = "<!DOCTYPE html><html><title>Sign in</title><body>Please sign in</body></html>"
PROMETHEUS = {"id": 1, "uid": "prom-1", "name": "Prometheus", "type": "prometheus", "isDefault": True}
LOKI = {"id": 2, "uid": "loki-1", "name": "Loki", "type": "loki", "isDefault": False}

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Fault:
    """A faulty response, `times` times (None: always) after `after` correct ones. lost: the request is executed, without a response."""

    status: int = 500
    body: str = '{"message": "Internal server error"}'
    kind: str = "application/json"
    location: str = ""
    slow_s: float = 0.0
    lost: bool = False
    after: int = 0
    times: int | None = None


@dataclass(slots=True)
class _Kept:
    document: Json
    folder_uid: str
    versions: list[Json]
    provisioned: bool = False


@dataclass(slots=True)
class Asked:
    """One request."""

    method: str
    path: str
    body: Any


@dataclass
class Grafana:
    """Stored objects, received requests, and faults.

    old: answer as Grafana 10.
    hides: answer 403 instead of 404 for what does not exist, as some releases do for a uid outside the token's scope.
    """

    sources: list[Json] = field(default_factory=lambda: [dict(PROMETHEUS), dict(LOKI)])
    folders: dict[str, Json] = field(default_factory=dict)
    dashboards: dict[str, _Kept] = field(default_factory=dict)
    annotations: list[Json] = field(default_factory=list)
    asked: list[Asked] = field(default_factory=list)
    faults: dict[tuple[str, str], Fault] = field(default_factory=dict)
    old: bool = False
    hides: bool = False
    url: str = ""
    prefix: str = ""
    _counts: dict[tuple[str, str], int] = field(default_factory=dict)

    @property
    def writes(self) -> list[Asked]:
        """Requests that change something."""
        return [each for each in self.asked if each.method != "GET"]

    def edit(self, uid: str, message: str = "", **changes: Any) -> None:
        """Save a dashboard as a browser does."""
        kept = self.dashboards[uid]
        self._keep(uid, {**kept.document, **changes}, kept.folder_uid, message, "jane")

    def _keep(self, uid: str, document: Json, folder_uid: str, message: str, by: str) -> int:
        kept = self.dashboards.get(uid)
        version = kept.document["version"] + 1 if kept else 1
        number = kept.document["id"] if kept else len(self.dashboards) + 10
        document = {**deepcopy(document), "id": number, "uid": uid, "version": version}
        entry = {"version": version, "createdBy": by, "message": message}
        if kept is None:
            self.dashboards[uid] = _Kept(document, folder_uid, [entry])
        else:
            kept.document, kept.folder_uid = document, folder_uid
            kept.versions.append(entry)
        return version

    def reply(self, asked: scripted.Asked) -> Iterator[Step]:
        """The script of an answer: of a proxy's login beside the API, of a fault, or of the API."""
        parts = urlsplit(asked.path)
        path = parts.path.removeprefix(self.prefix)
        if not parts.path.startswith(self.prefix + "/api/"):
            yield from _answer(200, LOGIN, "text/html")
            return
        if asked.method == "GET" and asked.body:
            yield from _answer(400, '{"message": "a GET has no body"}')
            return
        content = asked.json if asked.body else None
        self.asked.append(Asked(asked.method, path, content))
        fault = self.fault(asked.method, path)
        if fault is not None and not fault.lost:
            yield fault.slow_s
            yield from _answer(fault.status, fault.body, fault.kind, fault.location)
        elif not _may_enter(asked.headers.get("authorization", "")):
            yield from _answer(401, '{"message": "Invalid API key"}')
        else:
            status, document = self.answer(asked.method, path, parse_qs(parts.query), content)
            if fault is None:
                yield from _answer(status, json.dumps(document))

    # --- the documented calls; each gives status and body

    def answer(self, method: str, path: str, query: dict[str, list[str]], body: Any) -> tuple[int, Any]:
        """Response of the API."""
        match method, path.strip("/").split("/"):
            case "GET", ["api", "datasources"]:
                return 200, self.sources
            case "GET", ["api", "folders"]:
                return 200, [{key: each[key] for key in ("id", "uid", "title")} for each in self.folders.values()]
            case "POST", ["api", "folders"]:
                return self._make_folder(body)
            case "GET", ["api", "folders", uid]:
                return (200, self.folders[uid]) if uid in self.folders else self._missing("folder not found")
            case "GET", ["api", "dashboards", "uid", uid]:
                return self._dashboard(uid)
            case "GET", ["api", "dashboards", "uid", uid, "versions"]:
                return self._versions(uid, query)
            case "POST", ["api", "dashboards", "db"]:
                return self._save(body)
            case "POST", ["api", "annotations"]:
                return self._annotate(body)
        return 404, {"message": "Not found"}

    def _missing(self, message: str) -> tuple[int, Json]:
        if self.hides:
            return 403, {
                "title": "Access denied",
                "message": "You'll need additional permissions to perform this action.",
            }
        return 404, {"message": message}

    def _make_folder(self, body: Any) -> tuple[int, Json]:
        if flaw := _flaw(body, {"uid": str, "title": str, "parentUid": str}, needed=("title",)):
            return 400, {"message": flaw}
        uid = body.get("uid") or f"f{len(self.folders)}"
        if len(uid) > 40:
            return 400, {"message": "uid too long, max 40 characters"}
        if uid in self.folders or any(each["title"] == body["title"] for each in self.folders.values()):
            return 409, {"message": "a folder with the same name already exists in the current location"}
        self.folders[uid] = {"id": len(self.folders) + 1, "uid": uid, "title": body["title"], "version": 1}
        return 200, self.folders[uid]

    def _dashboard(self, uid: str) -> tuple[int, Json]:
        kept = self.dashboards.get(uid)
        if kept is None:
            return self._missing("Dashboard not found")
        folder = self.folders.get(kept.folder_uid)
        meta = {
            **{"isStarred": False, "url": f"/d/{uid}/x", "slug": "x", "version": kept.document["version"]},
            **{"folderUid": kept.folder_uid, "folderTitle": folder["title"] if folder else "General"},
            **{"canSave": True, "canEdit": True, "provisioned": kept.provisioned},
        }
        return 200, {"dashboard": kept.document, "meta": meta}

    def _versions(self, uid: str, query: dict[str, list[str]]) -> tuple[int, Any]:
        if set(query) - {"limit", "start"}:
            return 400, {"message": f"unknown parameters in {query}"}
        if uid not in self.dashboards:
            return self._missing("Dashboard version not found")
        limit = int(query.get("limit", ["1000"])[0])
        listed = self.dashboards[uid].versions[::-1][:limit]
        return 200, listed if self.old else {"continueToken": "", "versions": listed}

    def _save(self, body: Any) -> tuple[int, Json]:
        fields = {"dashboard": dict, "folderUid": str, "overwrite": bool, "message": str}
        if flaw := _flaw(body, fields, needed=("dashboard",)):
            return 400, {"message": flaw}
        document = body["dashboard"]
        uid, title = document.get("uid"), document.get("title")
        if not title or not uid or len(uid) > 40 or document.get("id") is not None:
            return 400, {"message": "Dashboard title cannot be empty"}
        if len(body.get("message", "")) > 500:
            return 400, {"message": "message too long, max 500 characters"}
        folder_uid = body.get("folderUid", "")
        if folder_uid and folder_uid not in self.folders:
            return 400, {"message": "folder not found"}
        kept = self.dashboards.get(uid)
        if kept is not None and kept.provisioned:
            return 400, {"message": "Cannot save provisioned dashboard"}
        if kept is not None and document.get("version") != kept.document["version"] and not body.get("overwrite"):
            return 412, {"status": "version-mismatch", "message": "The dashboard has been changed by someone else"}
        version = self._keep(uid, document, folder_uid, body.get("message", ""), "sa-prober")
        return 200, {"id": 1, "uid": uid, "url": f"/d/{uid}/x", "status": "success", "version": version, "slug": "x"}

    def _annotate(self, body: Any) -> tuple[int, Json]:
        fields = {"dashboardUID": str, "panelId": int, "time": int, "timeEnd": int, "tags": list, "text": str}
        if flaw := _flaw(body, fields, needed=("text",)):
            return 400, {"message": flaw}
        if not body["text"] or any(not isinstance(tag, str) or len(tag) > 100 for tag in body.get("tags") or []):
            return 400, {"message": "Failed to save annotation"}
        begin = body.get("time") or round(time.time() * 1e3)
        number = len(self.annotations) + 1
        end = body.get("timeEnd") or begin
        self.annotations.append(
            {"id": number, "time": begin, "timeEnd": end, "tags": body["tags"], "text": body["text"]}
        )
        return 200, {"message": "Annotation added", "id": number}

    def fault(self, method: str, path: str) -> Fault | None:
        """Fault of this request; None for none."""
        for (wanted, beginning), fault in self.faults.items():
            if wanted == method and path.startswith(beginning):
                count = self._counts[wanted, beginning] = self._counts.get((wanted, beginning), 0) + 1
                within = fault.times is None or count <= fault.after + fault.times
                return fault if fault.after < count and within else None
        return None


def _flaw(body: Any, fields: dict[str, type], needed: tuple[str, ...]) -> str:
    """Problem of a body: a field that is undocumented or has another type; null counts as absent, as in Go."""
    if not isinstance(body, dict):
        return "bad request data"
    given = {key: value for key, value in body.items() if value is not None}
    wrong = [
        key
        for key, value in given.items()
        if key not in fields or not isinstance(value, fields[key]) or (fields[key] is int and isinstance(value, bool))
    ]
    missing = [key for key in needed if key not in given]
    return f"not documented or of another type: {wrong}; missing: {missing}" if wrong or missing else ""


def _answer(
    status: int, text: str, kind: str = "application/json; charset=UTF-8", location: str = ""
) -> tuple[Step, ...]:
    fields = (f"Content-Type: {kind}", "Connection: close", *([f"Location: {location}"] if location else []))
    return answer_of(f"{status} X", text, *fields)


def _may_enter(header: str) -> bool:
    basic = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
    return header in (f"Bearer {TOKEN}", f"Basic {basic}")


@contextmanager
def standing_in(grafana: Grafana, prefix: str = "") -> Iterator[Grafana]:
    """Serve it on a free port, under `prefix`, with its address in `url`."""
    grafana.prefix = prefix
    with threaded(grafana.reply) as url:
        grafana.url = url + prefix
        yield grafana
