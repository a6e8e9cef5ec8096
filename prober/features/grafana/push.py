"""Pushes the dashboards to one Grafana: creates missing ones, replaces outdated ones, and leaves edited ones alone."""

import difflib
import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from prober import __version__
from prober.config.problems import no_such
from prober.features.grafana.server import ExistingDashboard, GrafanaError, Server, Source

Json = dict[str, Any]

_ASSIGNED_BY_GRAFANA = frozenset(("id", "version", "iteration"))
_MESSAGE = re.compile(r"^llm-slo-prober \S+ ([0-9a-f]{16})$")
_MAX_DIFF_LINES = 40
_MAX_LINE_CHARS = 160


def fingerprint(document: Json) -> str:
    """16 hexadecimal digits of a hash of the dashboard."""
    text = json.dumps(_without_assigned(document), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def message_of(document: Json) -> str:
    """Version message for the history of the dashboard, with the fingerprint.

    If anybody else saves the dashboard, the new version has another message or none, so the newest message shows an edit. A mark inside
    the dashboard would be copied by such a save. The content shows no edit, as newer releases of Grafana migrate it.
    """
    return f"llm-slo-prober {__version__} {fingerprint(document)}"


def fingerprint_in(message: str | None) -> str | None:
    """Fingerprint in a version message of the prober; None in any other message."""
    match = _MESSAGE.match(message or "")
    return match[1] if match else None


def same(present: Json, generated: Json) -> bool:
    """True if the dashboards are equal after normalisation."""
    return normalized(present) == normalized(generated)


def normalized(document: Json) -> Json:
    """The dashboard without numbers that Grafana assigns, empty values and built-in annotations."""
    parts: Json = _without_empty(_without_assigned(document))
    match parts.pop("annotations", None):
        case {"list": [*annotations]}:
            if own := [annotation for annotation in annotations if not annotation.get("builtIn")]:
                parts["annotations"] = {"list": own}
    return parts


def difference(present: Json, generated: Json) -> list[str]:
    """Unified diff of two dashboards, of at most _MAX_DIFF_LINES lines of _MAX_LINE_CHARS characters."""
    one, two = (
        json.dumps(normalized(document), indent=1, sort_keys=True, ensure_ascii=False)
        for document in (present, generated)
    )
    lines = list(difflib.unified_diff(one.splitlines(), two.splitlines(), "in Grafana", "to be sent", lineterm="", n=2))
    excerpt = [
        line if len(line) <= _MAX_LINE_CHARS else line[: _MAX_LINE_CHARS - 1] + "…" for line in lines[:_MAX_DIFF_LINES]
    ]
    hidden = len(lines) - len(excerpt)
    return excerpt + ([f"… {hidden} lines more"] if hidden else [])


def _without_assigned(document: Json) -> Json:
    return {key: value for key, value in document.items() if key not in _ASSIGNED_BY_GRAFANA}


def _without_empty(value: Any) -> Any:
    """`value` without keys that are null, false or empty."""
    if isinstance(value, dict):
        parts = {key: _without_empty(part) for key, part in value.items()}
        return {key: part for key, part in parts.items() if part not in (None, "", [], {}) and part is not False}
    return [_without_empty(part) for part in value] if isinstance(value, list) else value


LISTED_TYPE = "prometheus"  # type that the dashboards' variable lists
PROMQL_TYPES = (
    LISTED_TYPE,
    "grafana-amazonprometheus-datasource",
    "grafana-azureprometheus-datasource",
    "victoriametrics-metrics-datasource",
    "victoriametrics-datasource",
)


def choose(server: Server, identity: str | None) -> tuple[Source | None, str]:
    """(data source to preselect on the dashboards, note for people); the source is None to leave the choice to Grafana.

    identity: configured name or uid. Raises GrafanaError if no data source supports PromQL, or if `identity` does not.
    """
    try:
        sources = server.sources()
    except GrafanaError as error:
        if error.status != 403 or identity is not None:
            raise
        return None, "data source: not checked, the token may not read data sources (datasources:read)"
    supported = [source for source in sources if source.type in PROMQL_TYPES]
    if identity is not None:
        return (chosen := _find(server, sources, supported, identity)), f"data source: {_describe(chosen)}"
    if not supported:
        raise GrafanaError(
            f"{server.url}: no data source supports PromQL (there are: {_list(sources)}); add the Prometheus that scrapes the "
            "prober"
        )
    listed = [source for source in supported if source.type == LISTED_TYPE]
    if listed:
        first = next((source for source in listed if source.default), listed[0])
        hint = f"; {len(listed) - 1} more can be chosen on the dashboards" if len(listed) > 1 else ""
        return None, f"data source: Grafana's choice, most likely {_describe(first)}{hint}"
    first = next((source for source in supported if source.default), supported[0])
    return first, f"data source: {_describe(first)}, as there is none of type {LISTED_TYPE}"


def with_source(document: dict[str, Any], source: Source | None) -> dict[str, Any]:
    """The dashboard with its data source variable set to `source` and its queries of that type."""
    if source is None:
        return document
    changed: dict[str, Any] = _with_type(document, source.type)
    for variable in changed["templating"]["list"]:
        if variable["type"] == "datasource":
            variable["query"] = source.type
            variable["current"] = {"selected": True, "text": source.name, "value": source.uid}
    return changed


def _find(server: Server, sources: list[Source], supported: list[Source], identity: str) -> Source:
    by_uid = {source.uid: source for source in sources}
    by_name = {source.name: source for source in sources}
    chosen = by_uid.get(identity) or by_name.get(identity)
    if chosen is None:
        raise GrafanaError(f"{server.url}: {no_such('data source', identity, [source.name for source in supported])}")
    if chosen not in supported:
        raise GrafanaError(
            f"{server.url}: data source {chosen.name!r} is of type {chosen.type!r}, which does not support PromQL; "
            f"those that do: {_list(supported)}"
        )
    return chosen


def _with_type(value: Any, kind: str) -> Any:
    if isinstance(value, list):
        return [_with_type(part, kind) for part in value]
    if not isinstance(value, dict):
        return value
    if value.get("type") == LISTED_TYPE and str(value.get("uid", "")).startswith("${"):
        return {**value, "type": kind}
    return {key: _with_type(part, kind) for key, part in value.items()}


def _describe(source: Source) -> str:
    return f"{source.name!r} ({source.type}, uid {source.uid})"


def _list(sources: list[Source]) -> str:
    return ", ".join(f"{source.name} of type {source.type}" for source in sources) or "none"


State = Literal["unchanged", "created", "updated", "overwritten", "edited", "provisioned", "failed"]
SENT: frozenset[State] = frozenset(("created", "updated", "overwritten"))  # in a dry run: would be sent
NOT_REPLACED: frozenset[State] = frozenset(("edited", "provisioned", "failed"))
_CONFLICT = "somebody saved it at the same time, or it exists and the token may not read it"
_UID = re.compile(r"[a-zA-Z0-9_-]{1,40}")


@dataclass(frozen=True, slots=True)
class PushOptions:
    """Options of a push. folder: title or uid; datasource: name or uid, None to choose one"""

    folder: str
    datasource: str | None = None
    force: bool = False
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class PushResult:
    """Result for one dashboard. detail: why it was not replaced; difference: unified diff against the dashboard in Grafana"""

    uid: str
    title: str
    state: State
    detail: str = ""
    difference: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Report:
    """Results of all dashboards. notes: on Grafana, data source and folder."""

    dashboards: tuple[PushResult, ...]
    notes: tuple[str, ...]

    @property
    def not_replaced(self) -> list[PushResult]:
        """Dashboards that differ and were not replaced."""
        return [result for result in self.dashboards if result.state in NOT_REPLACED]


def push(server: Server, documents: Iterable[dict[str, Any]], options: PushOptions) -> Report:
    """Create missing dashboards, replace outdated ones and leave edited ones alone.

    A dashboard that fails does not affect the others, unless Grafana does not answer or refuses the token. Raises GrafanaError if no
    dashboard can be pushed: no Grafana, no valid token, no data source.
    """
    version = server.version()
    source, source_note = choose(server, options.datasource)
    pusher = _Pusher(server, options)
    results: list[PushResult] = []
    unavailable = ""
    for document in documents:
        generated = with_source(document, source)
        try:
            if unavailable:
                raise GrafanaError(unavailable)
            results.append(pusher.push(generated))
        except GrafanaError as error:
            results.append(PushResult(generated["uid"], generated["title"], "failed", str(error)))
            if error.status in (0, 401) and not unavailable:
                unavailable = f"not tried: {error}"
    about = f"{server.url}: Grafana {version}".rstrip()
    return Report(tuple(results), (about, source_note, *pusher.notes))


class _Pusher:
    """A push of several dashboards. The folder is looked up when the first dashboard needs it."""

    def __init__(self, server: Server, options: PushOptions) -> None:
        self.notes: list[str] = []
        self._server, self._options = server, options
        self._folder_uid: str | None = None

    def push(self, generated: dict[str, Any]) -> PushResult:
        """Push one dashboard. Raises GrafanaError."""
        present = self._server.dashboard(generated["uid"])
        if present is None:
            return self._send(generated, None, "created")
        message = self._server.latest_message(generated["uid"])
        if fingerprint_in(message) == fingerprint(generated) or same(present.document, generated):
            return PushResult(generated["uid"], generated["title"], "unchanged")
        if present.provisioned:
            return self._leave(generated, present, "provisioned", "Grafana reads it from a file; change it there")
        if fingerprint_in(message) is not None:
            return self._send(generated, present, "updated")
        if self._options.force:
            return self._send(generated, present, "overwritten")
        reason = "its history cannot be read" if message is None else "somebody else saved it since, or created it"
        return self._leave(generated, present, "edited", f"{reason}; left alone, --force overwrites it")

    def _leave(self, generated: dict[str, Any], present: ExistingDashboard, state: State, reason: str) -> PushResult:
        differs = tuple(difference(present.document, generated))
        return PushResult(generated["uid"], generated["title"], state, reason, differs)

    def _send(self, generated: dict[str, Any], present: ExistingDashboard | None, state: State) -> PushResult:
        differs = tuple(difference(present.document, generated)) if present is not None else ()
        moves = present is None or present.folder_uid is None or self._options.force
        folder = self._folder() if moves or present is None else present.folder_uid or ""
        if not self._options.dry_run:
            try:
                self._server.save(
                    generated,
                    folder_uid=folder,
                    message=message_of(generated),
                    overwrite=state == "overwritten",
                    version=present.version if present is not None else None,
                )
            except GrafanaError as error:
                if "provisioned" in str(error):
                    return PushResult(generated["uid"], generated["title"], "provisioned", str(error))
                if error.status in (409, 412):
                    return PushResult(generated["uid"], generated["title"], "edited", f"{error}: {_CONFLICT}")
                raise error
        return PushResult(generated["uid"], generated["title"], state, difference=differs)

    def _folder(self) -> str:
        """uid of the folder that the options name. A missing one is created, with a uid made from its title, which a rename keeps."""
        if self._folder_uid is None:
            self._folder_uid = self._find_folder(self._options.folder) or self._create_folder(self._options.folder)
        return self._folder_uid

    def _find_folder(self, folder: str) -> str | None:
        title = self._server.folder(folder) if _UID.fullmatch(folder) else None
        uid = folder
        if title is None and (uid := self._server.folders().get(folder, "")):
            title = folder
        if title is None:
            uid = _uid(folder)
            title = self._server.folder(uid)
        if title is None:
            return None
        self.notes.append(f"folder: {title!r} (uid {uid})")
        return uid

    def _create_folder(self, title: str) -> str:
        uid = _uid(title)
        if not self._options.dry_run:
            self._server.create_folder(uid, title)
        self.notes.append(
            f"folder: {title!r} (uid {uid}), {'would be created' if self._options.dry_run else 'created'}"
        )
        return uid


def _uid(title: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")[:40] or "llm-slo-prober"
