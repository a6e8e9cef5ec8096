"""Pushes the dashboards to one Grafana: creates missing ones, replaces its own older ones, leaves all others unchanged.

Each save has a version message with a fingerprint of what was sent. If someone else saves the dashboard, its newest version has
another message or none, so the history shows the edit. The content would not, because newer releases of Grafana migrate it.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Literal

from grafana_client import GrafanaApi
from grafana_client.client import GrafanaException

from prober import __version__
from prober.config.problems import no_such
from prober.features.grafana import GrafanaError
from prober.features.grafana.client import reason_of

Json = dict[str, Any]
State = Literal["unchanged", "created", "updated", "overwritten", "edited", "provisioned", "failed"]
SENT: frozenset[State] = frozenset(("created", "updated", "overwritten"))  # in a dry run: would be sent
NOT_REPLACED: frozenset[State] = frozenset(("edited", "provisioned", "failed"))
_MESSAGE = re.compile(r"llm-slo-prober \S+ ([0-9a-f]{16})")
_UID = re.compile(r"[a-zA-Z0-9_-]{1,40}")


@dataclass(frozen=True, slots=True)
class PushResult:
    """Result for one dashboard. detail: why it was not replaced"""

    uid: str
    title: str
    state: State
    detail: str = ""


def push(
    api: GrafanaApi,
    documents: Iterable[Json],
    folder: str,
    datasource: str | None = None,
    *,
    force: bool = False,
    dry_run: bool = False,
) -> list[PushResult]:
    """Create missing dashboards and replace outdated ones. Edited ones are replaced only with `force`.

    folder: title or uid. datasource: name or uid of the preselected data source; None: Grafana chooses. A dashboard that is
    refused does not affect the others. Raises GrafanaError if Grafana lacks the data source, and the library's errors if it does not
    answer or refuses the token.
    """
    source = _source(api, datasource) if datasource else None
    folder_uid = cache(partial(_folder_uid, api, folder, dry_run=dry_run))  # called once a dashboard needs it
    results = []
    for document in documents:
        generated = _with_source(document, source) if source else document
        try:
            state, detail = _push(api, generated, folder_uid, force=force, dry_run=dry_run)
        except GrafanaException as error:
            if error.status_code in (0, 401):
                raise
            state, detail = "failed", reason_of(error)
        results.append(PushResult(generated["uid"], generated["title"], state, detail))
    return results


def message_of(document: Json) -> str:
    """Version message for the history of the dashboard, with a fingerprint of the content."""
    text = json.dumps(document, sort_keys=True, separators=(",", ":"))
    return f"llm-slo-prober {__version__} {hashlib.sha256(text.encode()).hexdigest()[:16]}"


def _push(
    api: GrafanaApi, generated: Json, folder_uid: Callable[[], str], *, force: bool, dry_run: bool
) -> tuple[State, str]:
    """Push one dashboard. Returns its state, and why it was not replaced."""
    uid, message = generated["uid"], message_of(generated)
    present = _readable(api.dashboard.get_dashboard, uid)
    state: State = "created"
    version, into = 0, None
    if present is not None:
        # Not the library's own method, which sends the limit in the body of a GET. A list before Grafana 11.6.
        answer = _readable(api.client.GET, f"/dashboards/uid/{uid}/versions?limit=10")
        versions = answer.get("versions") or [] if isinstance(answer, dict) else answer or []
        newest: Json = max(versions, key=lambda version: version["version"], default={})
        ours = _MESSAGE.fullmatch(str(newest.get("message") or ""))
        if ours and message.endswith(ours[1]):
            return "unchanged", ""
        if present["meta"].get("provisioned"):
            return "provisioned", "Grafana reads it from a file; change it there"
        if not (ours or force):
            reason = "its history cannot be read" if not newest else "somebody else saved it since, or created it"
            return "edited", f"{reason}; left alone, --force overwrites it"
        state, version = "updated" if ours else "overwritten", present["dashboard"]["version"]
        into = present["meta"].get("folderUid")  # a dashboard that was moved stays there
    if into is None or force:
        into = folder_uid()
    if not dry_run:
        body = {
            "dashboard": generated | {"id": None, "version": version},
            "message": message,
            "overwrite": state == "overwritten",
        }
        try:
            api.dashboard.update_dashboard(body | ({"folderUid": into} if into else {}))
        except GrafanaException as error:
            if error.status_code not in (409, 412):  # 412: the version is no longer the newest one
                raise
            return (
                "edited",
                f"{reason_of(error)}: somebody saved it at the same time, or it exists and the token may not read it",
            )
    return state, ""


def _readable(call: Callable[..., Any], *arguments: Any) -> Any:
    """Call Grafana; return None if the object does not exist or may not be read, which some releases do not distinguish."""
    try:
        return call(*arguments)
    except GrafanaException as error:
        if error.status_code in (403, 404):
            return None
        raise


def _folder_uid(api: GrafanaApi, folder: str, *, dry_run: bool) -> str:
    """uid of the folder with this title or uid. A missing folder is created; its uid, made from the title, survives a rename."""
    for item in _readable(api.folder.get_all_folders) or ():
        if folder in (item["title"], item["uid"]):
            return str(item["uid"])
    uid = re.sub(r"[^a-z0-9]+", "-", folder.lower()).strip("-")[:40] or "llm-slo-prober"
    for candidate in (folder, uid):  # the list of folders has a thousand at most
        if _UID.fullmatch(candidate) and _readable(api.folder.get_folder, candidate) is not None:
            return candidate
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


def _with_source(document: Json, source: Json) -> Json:
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
