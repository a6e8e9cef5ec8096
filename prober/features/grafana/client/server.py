"""HTTP API of one Grafana through the library grafana-client. docs/guides/dashboards.md lists every call.

Three settings of the library's session are changed: redirects are refused (a login page of a proxy is one, and the token must not be
sent elsewhere), QUIC is off, and certificate revocation is not checked over the network (a closed network cannot). Two of its methods
are not used: `health.check` requests a page for signed-in browsers, and `get_dashboard_versions` sends its limit in the body of a GET.
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
USER_AGENT = f"llm-slo-prober/{__version__}"
_MAX_MESSAGE_CHARS = 300  # of Grafana's error message
_MAX_VERSIONS = 10
_MAX_ANNOTATIONS = 1_000

T = TypeVar("T")
Credential = str | tuple[str, str]  # token of a service account, or user and password


class GrafanaError(Exception):
    """A call failed. The message has address, call and remedy, never the token. status: of HTTP; 0 without a response."""

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
class ExistingDashboard:
    """A dashboard in Grafana. folder_uid: empty for the root; None if the response has none."""

    document: dict[str, Any]
    version: int
    folder_uid: str | None
    provisioned: bool


class Server:
    """Calls to one Grafana. Every method raises GrafanaError. `with` closes the connections."""

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
        """Configure the client; nothing is sent.

        ca_file: certificate authorities instead of those of the system.
        insecure: accept any certificate.
        pair: files of the client certificate and its key.
        """
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
        session.headers["User-Agent"] = USER_AGENT
        session.headers["Accept-Encoding"] = "identity"
        session.cert = pair
        session.max_redirects = 0
        self._api.client.s = session

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._api.client.s.close()

    def version(self) -> str:
        """Version of Grafana; empty if it does not report one."""
        health = self._call("GET /api/health", lambda: self._api.client.GET("/health"), dict)
        if "database" not in health:
            raise GrafanaError(
                f"{self.url}: the server is not a Grafana; give the base address of Grafana with its path"
            )
        return str(health.get("version", ""))

    def sources(self) -> list[Source]:
        """Data sources that the token may read, ordered by name."""
        items = self._call("GET /api/datasources", self._api.datasource.list_datasources, list, "datasources:read")
        sources = [Source(item["uid"], item["name"], item["type"], bool(item.get("isDefault"))) for item in items]
        return sorted(sources, key=lambda source: source.name)

    def folder(self, uid: str) -> str | None:
        """Title of a folder; None if it does not exist or may not be read, which some releases answer alike."""
        return self._readable(
            lambda: self._call(
                f"GET /api/folders/{uid}", lambda: self._api.folder.get_folder(uid), dict, "folders:read"
            )["title"]
        )

    def folders(self) -> dict[str, str]:
        """uid by title of the top-level folders that the token may read."""
        folders = self._readable(
            lambda: self._call("GET /api/folders", self._api.folder.get_all_folders, list, "folders:read")
        )
        return {folder["title"]: folder["uid"] for folder in folders or ()}

    def create_folder(self, uid: str, title: str) -> None:
        """Create a top-level folder."""
        self._call("POST /api/folders", lambda: self._api.folder.create_folder(title, uid), dict, "folders:create")

    def dashboard(self, uid: str) -> ExistingDashboard | None:
        """A dashboard; None if it does not exist or may not be read."""
        answer = self._readable(
            lambda: self._call(
                f"GET /api/dashboards/uid/{uid}",
                lambda: self._api.dashboard.get_dashboard(uid),
                dict,
                "dashboards:read",
            )
        )
        if answer is None:
            return None
        document, meta = answer.get("dashboard"), answer.get("meta") or {}
        if not isinstance(document, dict):
            raise GrafanaError(f"{self.url}: GET /api/dashboards/uid/{uid}: the response has no dashboard")
        return ExistingDashboard(
            document, int(document.get("version") or 0), meta.get("folderUid"), bool(meta.get("provisioned", False))
        )

    def latest_message(self, uid: str) -> str | None:
        """Message of the newest version of a dashboard; None if the history may not be read."""
        path = f"/dashboards/uid/{uid}/versions?limit={_MAX_VERSIONS}"
        try:
            answer = self._call(f"GET /api{path}", lambda: self._api.client.GET(path), (dict, list), "dashboards:write")
        except GrafanaError as error:
            if error.status in (403, 404):
                return None
            raise
        versions = answer.get("versions") or [] if isinstance(answer, dict) else answer  # a list before Grafana 11.6
        if not versions:
            return None
        newest = max(versions, key=lambda version: (version.get("version") or 0, version.get("id") or 0))
        return str(newest.get("message") or "")

    def save(
        self, document: dict[str, Any], *, folder_uid: str, message: str, overwrite: bool, version: int | None
    ) -> None:
        """Save a dashboard.

        folder_uid: empty for the root.
        version: the version that is replaced; None for a new dashboard. Grafana answers 412 if it is no longer the newest one, unless
            `overwrite`.
        """
        body: dict[str, Any] = {
            "dashboard": {**document, "id": None, "version": version or 0},
            "message": message,
            "overwrite": overwrite,
        }
        if folder_uid:
            body["folderUid"] = folder_uid
        needs = "dashboards:create and dashboards:write"
        self._call("POST /api/dashboards/db", lambda: self._api.dashboard.update_dashboard(body), dict, needs)

    def annotations(self, from_ms: int, to_ms: int, tag: str) -> list[dict[str, Any]]:
        """Annotations with the tag that overlap the time range."""
        annotations: list[dict[str, Any]] = self._call(
            "GET /api/annotations",
            lambda: self._api.annotations.find_annotations(
                time_from=from_ms, time_to=to_ms, ann_type="annotation", tags=[tag], limit=_MAX_ANNOTATIONS
            ),
            list,
            "annotations:read",
        )
        return annotations

    def annotate(self, time_ms: int, end_ms: int | None, tags: list[str], text: str) -> None:
        """Create an annotation of the organisation, without a dashboard; end_ms: None for a point in time."""
        needs = "annotations:create on annotations:type:organization"
        self._call(
            "POST /api/annotations",
            lambda: self._api.annotations.add_annotation(time_from=time_ms, time_to=end_ms, tags=tags, text=text),
            dict,
            needs,
        )

    def _readable(self, call: Callable[[], T]) -> T | None:
        """Result of the call; None for 403 and 404."""
        try:
            return call()
        except GrafanaError as error:
            if error.status in (403, 404):
                return None
            raise

    def _call(self, name: str, call: Callable[[], Any], kind: type | tuple[type, ...], needs: str = "") -> Any:
        """Response of one call, of type `kind`. needs: permission, for the error message. Raises GrafanaError."""
        try:
            answer = call()
        except (GrafanaTimeoutError, niquests.exceptions.Timeout):
            reason = f"no response within {self._timeout_s:g} s; Grafana is overloaded or the address is wrong"
            raise self._error(name, reason) from None
        except GrafanaException as error:
            status = error.status_code
            raise self._error(name, _explain(status, _message(error.response), needs), status) from None
        except niquests.exceptions.TooManyRedirects:
            raise self._error(name, "the response is a redirect; give the final address, behind any login") from None
        except niquests.exceptions.SSLError as error:
            reason = f"its certificate is not trusted: {_cause(error)}; give the file of its certificate authority"
            raise self._error(name, reason) from None
        except niquests.exceptions.InvalidJSONError:
            raise self._error(
                name, "the response is not JSON; check that the address is Grafana's base address"
            ) from None
        except (niquests.exceptions.RequestException, OSError, ValueError) as error:
            raise self._error(name, f"cannot be reached: {_cause(error)}") from None
        if not isinstance(answer, kind):
            page = "a web page" if isinstance(answer, str) else "other data"
            raise self._error(
                name, f"the response is {page}, not JSON of the API; check for a login or a proxy in between"
            )
        return answer

    def _error(self, name: str, reason: str, status: int = 0) -> GrafanaError:
        message = f"{self.url}: {name}: {reason}"
        return GrafanaError(message.replace(self._secret, "…") if self._secret else message, status)


def _message(response: object) -> str:
    """Error message in a response of Grafana."""
    message = response.get("message") if isinstance(response, dict) else None
    return str(message)[:_MAX_MESSAGE_CHARS] if message else ""


def _cause(error: Exception) -> str:
    """Innermost reason, without the object names that the library puts around it."""
    return str(error).rpartition(">: ")[2].rstrip("'\")")[:_MAX_MESSAGE_CHARS] or type(error).__name__


def _explain(status: int, message: str, needs: str) -> str:
    """Meaning of a status and the remedy. message: from Grafana; needs: permission."""
    quoted = f" ({message})" if message else ""
    match status:
        case 401:
            return f"HTTP 401{quoted}: the token is not valid or has expired; create a new one for the service account"
        case 403:
            permission = f"; the role Editor has the permission, or give it {needs}" if needs else ""
            return f"HTTP 403{quoted}: the token may not do this{permission}"
        case 404:
            return f"HTTP 404{quoted}: not found; check that the address is Grafana's base address with its path"
        case 409 | 412:
            return f"HTTP {status}{quoted}"
        case _ if status >= 500:
            return f"HTTP {status}{quoted}: Grafana or a proxy in front of it failed; see its log"
        case _:
            return f"HTTP {status}{quoted}"
