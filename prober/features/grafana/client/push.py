"""Push of the dashboards to one Grafana: missing ones are created, outdated ones replaced, edited ones left alone."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from prober.features.grafana.client.compare import difference, fingerprint, fingerprint_in, message_of, same
from prober.features.grafana.client.server import ExistingDashboard, GrafanaError, Server
from prober.features.grafana.client.sources import choose, with_source

State = Literal["unchanged", "created", "updated", "overwritten", "edited", "provisioned", "failed"]
SENT: frozenset[State] = frozenset(("created", "updated", "overwritten"))  # in a dry run: would be sent
NOT_REPLACED: frozenset[State] = frozenset(("edited", "provisioned", "failed"))
_CONFLICT = "somebody saved it at the same time, or it exists and the token may not read it"
_UID = re.compile(r"[a-zA-Z0-9_-]{1,40}")


@dataclass(frozen=True, slots=True)
class PushOptions:
    """Options of a push. folder: title or uid; datasource: name or uid, None for Grafana's choice."""

    folder: str
    datasource: str | None = None
    force: bool = False
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class PushResult:
    """Result for one dashboard. detail: why it was not replaced; difference: unified diff to the dashboard in Grafana."""

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
                return self._not_saved(generated, error)
        return PushResult(generated["uid"], generated["title"], state, difference=differs)

    def _not_saved(self, generated: dict[str, Any], error: GrafanaError) -> PushResult:
        if "provisioned" in str(error):
            return PushResult(generated["uid"], generated["title"], "provisioned", str(error))
        if error.status in (409, 412):
            return PushResult(generated["uid"], generated["title"], "edited", f"{error}: {_CONFLICT}")
        raise error

    def _folder(self) -> str:
        """uid of the folder: by uid, by title, else of a new folder with a uid from its title, by which it is found when renamed."""
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
