"""The dashboards into one Grafana: what is missing is made, what is old is replaced, what people edited is left alone."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from prober.features.grafana.client.compare import difference, fingerprint, message_of, same, sent
from prober.features.grafana.client.server import GrafanaError, Held, Server
from prober.features.grafana.client.sources import beginning_with, choose

# as it should be; or what was done (with a dry run: would be); or why nothing was
State = Literal["same", "made", "updated", "overwritten", "edited", "provisioned", "failed"]
SENT: frozenset[State] = frozenset(("made", "updated", "overwritten"))
LEFT: frozenset[State] = frozenset(("edited", "provisioned", "failed"))
_MEANWHILE = "somebody saved it meanwhile, or there is one that the token may not see"
_UID = re.compile(r"[a-zA-Z0-9_-]{1,40}")


@dataclass(frozen=True, slots=True)
class Wish:
    """How to push. folder: title or uid; datasource: name or uid, None to leave it to Grafana."""

    folder: str
    datasource: str | None = None
    force: bool = False
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class Pushed:
    """What became of one dashboard. detail: why it was left; difference: unified, of what is there and what is wanted."""

    uid: str
    title: str
    state: State
    detail: str = ""
    difference: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Report:
    """What became of all. said: on folder and data source."""

    dashboards: tuple[Pushed, ...]
    said: tuple[str, ...]

    @property
    def left(self) -> list[Pushed]:
        """Those that are not as they should be."""
        return [each for each in self.dashboards if each.state in LEFT]


def push(server: Server, documents: Iterable[dict[str, Any]], wish: Wish) -> Report:
    """Make Grafana hold the dashboards. One that fails does not keep back the others, unless nobody answers.

    Raises GrafanaError where nothing can be pushed at all: no Grafana, no valid token, no data source.
    """
    version = server.version()
    source, said = choose(server, wish.datasource)
    pushing = _Pushing(server, wish)
    found: list[Pushed] = []
    lost = ""
    for document in documents:
        wanted = beginning_with(document, source)
        try:
            if lost:
                raise GrafanaError(lost)
            found.append(pushing.one(wanted))
        except GrafanaError as refusal:
            found.append(Pushed(wanted["uid"], wanted["title"], "failed", str(refusal)))
            if refusal.status in (0, 401) and not lost:
                lost = f"not tried: {refusal}"
    about = f"{server.url}: Grafana {version}".rstrip()
    return Report(tuple(found), (about, said, *pushing.said))


class _Pushing:
    """One run. The folder is looked for when the first dashboard needs it."""

    def __init__(self, server: Server, wish: Wish) -> None:
        self.said: list[str] = []
        self._server, self._wish = server, wish
        self._folder_uid: str | None = None

    def one(self, wanted: dict[str, Any]) -> Pushed:
        """One dashboard. Raises GrafanaError."""
        held = self._server.dashboard(wanted["uid"])
        if held is None:
            return self._send(wanted, None, "made")
        message = self._server.latest_message(wanted["uid"])
        if sent(message) == fingerprint(wanted) or same(held.document, wanted):
            return Pushed(wanted["uid"], wanted["title"], "same")
        if held.provisioned:
            return self._left(wanted, held, "provisioned", "Grafana reads it from a file; change it there")
        if sent(message) is not None:
            return self._send(wanted, held, "updated")
        if self._wish.force:
            return self._send(wanted, held, "overwritten")
        whose = (
            "who saved it last cannot be read" if message is None else "somebody else has saved it since, or made it"
        )
        return self._left(wanted, held, "edited", f"{whose}; left alone, --force overwrites it")

    def _left(self, wanted: dict[str, Any], held: Held, state: State, why: str) -> Pushed:
        return Pushed(wanted["uid"], wanted["title"], state, why, tuple(difference(held.document, wanted)))

    def _send(self, wanted: dict[str, Any], held: Held | None, state: State) -> Pushed:
        differs = tuple(difference(held.document, wanted)) if held is not None else ()
        moves = held is None or held.folder_uid is None or self._wish.force
        folder = self._folder() if moves or held is None else held.folder_uid or ""
        if not self._wish.dry_run:
            try:
                self._server.save(
                    wanted,
                    folder_uid=folder,
                    message=message_of(wanted),
                    overwrite=state == "overwritten",
                    version=held.version if held is not None else None,
                )
            except GrafanaError as refusal:
                return self._unsaved(wanted, refusal)
        return Pushed(wanted["uid"], wanted["title"], state, difference=differs)

    def _unsaved(self, wanted: dict[str, Any], refusal: GrafanaError) -> Pushed:
        if "provisioned" in str(refusal):
            return Pushed(wanted["uid"], wanted["title"], "provisioned", str(refusal))
        if refusal.status in (409, 412):
            return Pushed(wanted["uid"], wanted["title"], "edited", f"{refusal}: {_MEANWHILE}")
        raise refusal

    def _folder(self) -> str:
        """The folder's uid: by uid, by title, else a new one whose uid comes from its title, so that it is found if renamed."""
        if self._folder_uid is None:
            self._folder_uid = self._found(self._wish.folder) or self._made(self._wish.folder)
        return self._folder_uid

    def _found(self, folder: str) -> str | None:
        title = self._server.folder(folder) if _UID.fullmatch(folder) else None
        uid = folder
        if title is None and (uid := self._server.folders().get(folder, "")):
            title = folder
        if title is None:
            uid = _uid(folder)
            title = self._server.folder(uid)
        if title is None:
            return None
        self.said.append(f"folder: {title!r} (uid {uid})")
        return uid

    def _made(self, title: str) -> str:
        uid = _uid(title)
        if not self._wish.dry_run:
            self._server.make_folder(uid, title)
        self.said.append(f"folder: {title!r} (uid {uid}), {'would be made' if self._wish.dry_run else 'made'}")
        return uid


def _uid(title: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")[:40] or "llm-slo-prober"
