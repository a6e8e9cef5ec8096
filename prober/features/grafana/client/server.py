"""One Grafana, asked over its HTTP API through the library grafana-client. Every call is listed in docs/guides/dashboards.md.

Of the library's own session three things are changed: redirects are refused (a proxy's login page is one, and a token has no
business elsewhere), QUIC is never tried, and certificates are not looked up at their authority (a closed network has no way
to it). Two of its methods are gone round: `health.check` asks for what only a signed-in browser needs, and
`get_dashboard_versions` writes its limit into the body of a GET.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self, TypeVar
from urllib.parse import urlsplit

import niquests
from grafana_client import GrafanaApi
from grafana_client.client import GrafanaException, GrafanaTimeoutError

from prober import __version__

TIMEOUT_S = 15.0
AGENT = f"llm-slo-prober/{__version__}"
_TOLD = 300  # characters of Grafana's own words that are passed on
_HISTORY = 10
_ANNOTATIONS = 1_000

T = TypeVar("T")
Credential = str | tuple[str, str]  # a service account's token, or user and password


class GrafanaError(Exception):
    """Grafana did not do it. The message has the address, what was asked and what to do, never the token; status: of HTTP,
    0 without an answer."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class Source:
    """A data source."""

    uid: str
    name: str
    type: str
    default: bool


@dataclass(frozen=True, slots=True)
class Held:
    """A dashboard as Grafana has it. folder_uid: empty for the root; None where the answer does not say."""

    document: dict[str, Any]
    version: int
    folder_uid: str | None
    provisioned: bool


class Server:
    """Calls of one Grafana; each raises GrafanaError. `with` closes its connections."""

    def __init__(
        self,
        url: str,
        credential: Credential,
        *,
        ca_file: str | None = None,
        insecure: bool = False,
        pair: tuple[str, str] | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        """url: base address. ca_file: certificate authorities instead of the system's; insecure: any certificate is taken;
        pair: files of our own certificate and its key."""
        parts = urlsplit(url)
        path = parts.path.strip("/")
        host = parts.hostname or ""
        self.url = url.rstrip("/")
        self._timeout_s = timeout_s
        self._secret = credential if isinstance(credential, str) else credential[1]
        self._api = GrafanaApi(
            credential,
            host=f"[{host}]" if ":" in host else host,
            port=parts.port,
            url_path_prefix=f"{path}/" if path else "",
            protocol=parts.scheme,
            verify=False if insecure else ca_file or True,
            timeout=timeout_s,
        )
        session = niquests.Session(disable_http3=True, revocation_configuration=None)
        session.headers["User-Agent"] = AGENT
        session.headers["Accept-Encoding"] = "identity"
        session.cert = pair
        session.max_redirects = 0
        self._api.client.s = session

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._api.client.s.close()

    def version(self) -> str:
        """Its version, "" where it keeps that to itself."""
        told = self._ask("GET /api/health", lambda: self._api.client.GET("/health"), dict)
        if "database" not in told:
            raise GrafanaError(
                f"{self.url}: what answers there is no Grafana; give its base address, with the path it is under"
            )
        return str(told.get("version", ""))

    def sources(self) -> list[Source]:
        """Data sources that the token may see, by name."""
        told = self._ask("GET /api/datasources", self._api.datasource.list_datasources, list, "datasources:read")
        found = [Source(each["uid"], each["name"], each["type"], bool(each.get("isDefault"))) for each in told]
        return sorted(found, key=lambda source: source.name)

    def folder(self, uid: str) -> str | None:
        """The title of a folder; None where it is not there, or not to be seen, which some releases do not tell apart."""
        return self._seen(
            lambda: self._ask(
                f"GET /api/folders/{uid}", lambda: self._api.folder.get_folder(uid), dict, "folders:read"
            )["title"]
        )

    def folders(self) -> dict[str, str]:
        """uid by title, of the folders that are in no other and that the token may see."""
        told = self._seen(lambda: self._ask("GET /api/folders", self._api.folder.get_all_folders, list, "folders:read"))
        return {each["title"]: each["uid"] for each in told or ()}

    def make_folder(self, uid: str, title: str) -> None:
        """A new one at the root."""
        self._ask("POST /api/folders", lambda: self._api.folder.create_folder(title, uid), dict, "folders:create")

    def dashboard(self, uid: str) -> Held | None:
        """None where it is not there or not to be seen."""
        told = self._seen(
            lambda: self._ask(
                f"GET /api/dashboards/uid/{uid}",
                lambda: self._api.dashboard.get_dashboard(uid),
                dict,
                "dashboards:read",
            )
        )
        if told is None:
            return None
        document, meta = told.get("dashboard"), told.get("meta") or {}
        if not isinstance(document, dict):
            raise GrafanaError(f"{self.url}: GET /api/dashboards/uid/{uid}: the answer has no dashboard in it")
        return Held(
            document, int(document.get("version") or 0), meta.get("folderUid"), bool(meta.get("provisioned", False))
        )

    def latest_message(self, uid: str) -> str | None:
        """What was written to the newest version of a dashboard as it was saved; None where the history is not to be had."""
        path = f"/dashboards/uid/{uid}/versions?limit={_HISTORY}"
        try:
            told = self._ask(f"GET /api{path}", lambda: self._api.client.GET(path), (dict, list), "dashboards:write")
        except GrafanaError as refusal:
            if refusal.status in (403, 404):
                return None
            raise
        versions = told.get("versions") or [] if isinstance(told, dict) else told  # a list before Grafana 11.6
        if not versions:
            return None
        newest = max(versions, key=lambda each: (each.get("version") or 0, each.get("id") or 0))
        return str(newest.get("message") or "")

    def save(
        self, document: dict[str, Any], *, folder_uid: str, message: str, overwrite: bool, version: int | None
    ) -> None:
        """Keep a dashboard. version: the one that is replaced; Grafana refuses with 412 if that is not the newest any more,
        unless it is to overwrite. None: a new dashboard. folder_uid: "" for the root."""
        body: dict[str, Any] = {
            "dashboard": {**document, "id": None, "version": version or 0},
            "message": message,
            "overwrite": overwrite,
        }
        if folder_uid:
            body["folderUid"] = folder_uid
        needs = "dashboards:create and dashboards:write"
        self._ask("POST /api/dashboards/db", lambda: self._api.dashboard.update_dashboard(body), dict, needs)

    def annotations(self, from_ms: int, to_ms: int, tag: str) -> list[dict[str, Any]]:
        """Those with the tag that touch the span."""
        found: list[dict[str, Any]] = self._ask(
            "GET /api/annotations",
            lambda: self._api.annotations.find_annotations(
                time_from=from_ms, time_to=to_ms, ann_type="annotation", tags=[tag], limit=_ANNOTATIONS
            ),
            list,
            "annotations:read",
        )
        return found

    def annotate(self, time_ms: int, end_ms: int | None, tags: list[str], text: str) -> None:
        """Mark a moment or a span for the whole organisation, on no dashboard of its own."""
        needs = "annotations:create on annotations:type:organization"
        self._ask(
            "POST /api/annotations",
            lambda: self._api.annotations.add_annotation(time_from=time_ms, time_to=end_ms, tags=tags, text=text),
            dict,
            needs,
        )

    def _seen(self, ask: Callable[[], T]) -> T | None:
        try:
            return ask()
        except GrafanaError as refusal:
            if refusal.status in (403, 404):
                return None
            raise

    def _ask(self, what: str, call: Callable[[], Any], kind: type | tuple[type, ...], needs: str = "") -> Any:
        """The answer of one call, which must be of `kind`. Raises GrafanaError."""
        try:
            answer = call()
        except (GrafanaTimeoutError, niquests.exceptions.Timeout):
            why = f"no answer within {self._timeout_s:g} s; is it overloaded, or the address wrong?"
            raise self._refused(what, why) from None
        except GrafanaException as problem:
            status = problem.status_code
            raise self._refused(what, _words(status, _own_words(problem.response), needs), status) from None
        except niquests.exceptions.TooManyRedirects:
            raise self._refused(
                what, "answered by sending us elsewhere; give the final address, past any login"
            ) from None
        except niquests.exceptions.SSLError as problem:
            why = f"no trust in its certificate: {_cause(problem)}; name the file of its authority"
            raise self._refused(what, why) from None
        except niquests.exceptions.InvalidJSONError:
            raise self._refused(what, "the answer is no JSON; is it Grafana's base address?") from None
        except (niquests.exceptions.RequestException, OSError, ValueError) as problem:
            raise self._refused(what, f"cannot be reached: {_cause(problem)}") from None
        if not isinstance(answer, kind):
            page = "a page for people" if isinstance(answer, str) else "something else"
            raise self._refused(
                what, f"answered with {page}, not with the API's JSON; is a login or a proxy in between?"
            )
        return answer

    def _refused(self, what: str, why: str, status: int = 0) -> GrafanaError:
        said = f"{self.url}: {what}: {why}"
        return GrafanaError(said.replace(self._secret, "…") if self._secret else said, status)


def _own_words(response: object) -> str:
    told = response.get("message") if isinstance(response, dict) else None
    return _short(told) if told else ""


def _cause(problem: Exception) -> str:
    """The innermost reason, without the objects that the library names around it."""
    return _short(str(problem).rpartition(">: ")[2].rstrip("'\")")) or type(problem).__name__


def _short(told: object) -> str:
    return str(told)[:_TOLD]


def _words(status: int, own: str, needs: str) -> str:
    """What a status means here and what to do; own: Grafana's own words, needs: the permission."""
    said = f" ({own})" if own else ""
    match status:
        case 401:
            return f"HTTP 401{said}: the token is not valid, or not any more; make a new one for the service account"
        case 403:
            wanted = f"; the role Editor has it, or give it {needs}" if needs else ""
            return f"HTTP 403{said}: the token may not do this{wanted}"
        case 404:
            return f"HTTP 404{said}: not there; is this Grafana's base address, with the path it is under?"
        case 409 | 412:
            return f"HTTP {status}{said}"
        case _ if status >= 500:
            return f"HTTP {status}{said}: Grafana, or a proxy before it, failed; its log says more"
        case _:
            return f"HTTP {status}{said}"
