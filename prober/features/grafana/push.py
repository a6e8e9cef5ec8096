"""Pushes the dashboards to one Grafana: creates missing ones, replaces outdated ones, and leaves edited ones alone."""

import difflib
import hashlib
import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Literal

from grafana_client import GrafanaApi

from prober import __version__
from prober.config.problems import no_such
from prober.features.grafana import GrafanaError

Json = dict[str, Any]
State = Literal["unchanged", "created", "updated", "overwritten", "edited", "provisioned", "failed"]
SENT: frozenset[State] = frozenset(("created", "updated", "overwritten"))  # in a dry run: would be sent
NOT_REPLACED: frozenset[State] = frozenset(("edited", "provisioned", "failed"))

_ASSIGNED_BY_GRAFANA = ("id", "version", "iteration")
_MESSAGE = re.compile(r"llm-slo-prober \S+ ([0-9a-f]{16})")
_UID = re.compile(r"[a-zA-Z0-9_-]{1,40}")
_MAX_DIFF_LINES = 40
_MAX_LINE_CHARS = 160


@dataclass(frozen=True, slots=True)
class PushResult:
    """Result for one dashboard. detail: why it was not replaced; difference: unified diff against the dashboard in Grafana"""

    uid: str
    title: str
    state: State
    detail: str = ""
    difference: tuple[str, ...] = ()


def push(
    api: GrafanaApi,
    documents: Iterable[Json],
    folder: str,
    datasource: str | None = None,
    *,
    force: bool = False,
    dry_run: bool = False,
) -> list[PushResult]:
    """Create missing dashboards, replace outdated ones and leave edited ones alone, unless `force`.

    folder: title or uid. datasource: name or uid of the one to preselect; None to leave the choice to Grafana. A dashboard that is
    refused does not affect the others. Raises GrafanaError if Grafana does not answer, refuses the token, or lacks the data source.
    """
    source = _source(api, datasource) if datasource else None
    folder_uid = cache(partial(_folder_uid, api, folder, dry_run=dry_run))  # when a dashboard needs it
    results = []
    for document in documents:
        generated = with_source(document, source) if source else document
        try:
            state, detail, differs = _push(api, generated, folder_uid, force=force, dry_run=dry_run)
        except GrafanaError as error:
            if error.status in (0, 401):
                raise
            state, detail, differs = "failed", str(error), ()
        results.append(PushResult(generated["uid"], generated["title"], state, detail, differs))
    return results


def _push(
    api: GrafanaApi, generated: Json, folder_uid: Callable[[], str], *, force: bool, dry_run: bool
) -> tuple[State, str, tuple[str, ...]]:
    """Push one dashboard. Returns the fields of its result."""
    found = _readable(api.dashboard.get_dashboard, generated["uid"]) or {}
    present, meta = found.get("dashboard"), found.get("meta") or {}
    state: State = "created"
    differs: tuple[str, ...] = ()
    if present is not None:
        message = _latest_message(api, generated["uid"])
        is_ours = (match := _MESSAGE.fullmatch(message or "")) is not None
        differs = () if match and match[1] == fingerprint(generated) else difference(present, generated)
        if not differs:
            return "unchanged", "", ()
        if meta.get("provisioned"):
            return "provisioned", "Grafana reads it from a file; change it there", differs
        if not (is_ours or force):
            reason = "its history cannot be read" if message is None else "somebody else saved it since, or created it"
            return "edited", f"{reason}; left alone, --force overwrites it", differs
        state = "updated" if is_ours else "overwritten"
    into = meta.get("folderUid")
    if into is None or force:
        into = folder_uid()
    if not dry_run:
        body = {
            "dashboard": generated | {"id": None, "version": present["version"] if present else 0},
            "message": message_of(generated),
            "overwrite": state == "overwritten",
        }
        try:
            api.dashboard.update_dashboard(body | ({"folderUid": into} if into else {}))
        except GrafanaError as error:
            if error.status not in (409, 412):  # 412: the version is no longer the newest one
                raise
            why = "somebody saved it at the same time, or it exists and the token may not read it"
            return "edited", f"{error}: {why}", ()
    return state, "", differs


def _readable(call: Callable[..., Any], *arguments: Any) -> Any:
    """The answer of a call; None for what does not exist or may not be read, which some releases answer alike."""
    try:
        return call(*arguments)
    except GrafanaError as error:
        if error.status in (403, 404):
            return None
        raise


def _latest_message(api: GrafanaApi, uid: str) -> str | None:
    """Message of the newest version of a dashboard; None if the history may not be read, or is empty.

    The library's own method sends its limit in the body of a GET.
    """
    answer = _readable(api.client.GET, f"/dashboards/uid/{uid}/versions?limit=10")
    versions = answer.get("versions") or [] if isinstance(answer, dict) else answer or []  # a list before Grafana 11.6
    newest = max(versions, key=lambda version: version["version"], default=None)
    return None if newest is None else str(newest.get("message") or "")


def _folder_uid(api: GrafanaApi, folder: str, *, dry_run: bool) -> str:
    """uid of the folder with this title or uid. A missing one is created, with a uid made from its title, which a rename keeps."""
    by_title = {item["title"]: str(item["uid"]) for item in _readable(api.folder.get_all_folders) or ()}
    uid = re.sub(r"[^a-z0-9]+", "-", folder.lower()).strip("-")[:40] or "llm-slo-prober"
    for candidate in (folder, uid):
        if _UID.fullmatch(candidate) and _readable(api.folder.get_folder, candidate) is not None:
            return candidate
        if folder in by_title:
            return by_title[folder]
    if not dry_run:
        api.folder.create_folder(folder, uid)
    return uid


def _source(api: GrafanaApi, identity: str) -> Json:
    """The data source with this uid or name. Raises GrafanaError."""
    sources = api.datasource.list_datasources()
    for key in ("uid", "name"):
        for source in sources:
            if source[key] == identity:
                return dict(source)
    raise GrafanaError(f"{api.client.url}: {no_such('data source', identity, [source['name'] for source in sources])}")


def with_source(document: Json, source: Json) -> Json:
    """The dashboard with its data source variable set to `source` and its queries of that type."""

    def of_type(value: Json) -> Json:
        is_reference = value.get("type") == "prometheus" and str(value.get("uid", "")).startswith("${")
        return value | {"type": source["type"]} if is_reference else value

    changed: Json = json.loads(json.dumps(document), object_hook=of_type)
    for variable in changed["templating"]["list"]:
        if variable["type"] == "datasource":
            variable["query"] = source["type"]
            variable["current"] = {"selected": True, "text": source["name"], "value": source["uid"]}
    return changed


def fingerprint(document: Json) -> str:
    """16 hexadecimal digits of a hash of the dashboard."""
    parts = {key: value for key, value in document.items() if key not in _ASSIGNED_BY_GRAFANA}
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def message_of(document: Json) -> str:
    """Version message for the history of the dashboard, with the fingerprint.

    If anybody else saves the dashboard, the new version has another message or none, so the newest message shows an edit. A mark inside
    the dashboard would be copied by such a save. The content shows no edit, as newer releases of Grafana migrate it.
    """
    return f"llm-slo-prober {__version__} {fingerprint(document)}"


def difference(present: Json, generated: Json) -> tuple[str, ...]:
    """Unified diff of two dashboards, limited in lines and in their lengths; () if people see no difference."""
    one, two = (
        json.dumps(_visible(document), indent=1, sort_keys=True, ensure_ascii=False).splitlines()
        for document in (present, generated)
    )
    lines = list(difflib.unified_diff(one, two, "in Grafana", "to be sent", lineterm="", n=2))
    excerpt = [
        line if len(line) <= _MAX_LINE_CHARS else line[: _MAX_LINE_CHARS - 1] + "…" for line in lines[:_MAX_DIFF_LINES]
    ]
    hidden = len(lines) - len(excerpt)
    return (*excerpt, f"… {hidden} lines more") if hidden else tuple(excerpt)


def _visible(document: Json) -> Json:
    """The dashboard without numbers that Grafana assigns, without annotations that are built in, and without empty values."""
    parts = {key: value for key, value in document.items() if key not in _ASSIGNED_BY_GRAFANA}
    annotations = (parts.pop("annotations", None) or {}).get("list", [])
    own = [annotation for annotation in annotations if not annotation.get("builtIn")]
    visible: Json = _without_empty(parts | {"annotations": {"list": own}})
    return visible


def _without_empty(value: Any) -> Any:
    """`value` without keys that are null, false or empty."""
    if isinstance(value, dict):
        parts = {key: _without_empty(part) for key, part in value.items()}
        return {key: part for key, part in parts.items() if part not in (None, "", [], {}) and part is not False}
    return [_without_empty(part) for part in value] if isinstance(value, list) else value
