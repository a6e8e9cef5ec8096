"""HTTP API of one Grafana through the library grafana-client. docs/guides/dashboards.md lists every call.

Settings of the library's session are changed: redirects are refused (a login page of a proxy is one, and the token must not be sent
elsewhere), QUIC is off, and certificate revocation is not checked over the network (a closed network cannot). Two of its methods are
not used: `health.check` requests a page for signed-in browsers, and `get_dashboard_versions` sends its limit in the body of a GET.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from threading import Event
from typing import Any, Self, TypeVar
from urllib.parse import urlsplit

import niquests
from grafana_client import GrafanaApi
from grafana_client.client import GrafanaException, GrafanaTimeoutError
from niquests.packages.urllib3.contrib.resolver.system import SystemResolver  # type: ignore[import-not-found]  # an alias made at run time

from prober import __version__
from prober.config.hosts import check
from prober.config.server import TlsSpec

TIMEOUT_S = 15.0  # of a connection, and of each read
MAX_BODY_S = 30.0  # of a response that trickles
USER_AGENT = f"llm-slo-prober/{__version__}"
MAX_RESPONSE_BYTES = 4 << 20
MAX_PAGE_BYTES = 64 << 10  # of an error, and of a response that is not JSON; the rest is cut
MAX_VALUES = 300_000  # of a response: a value takes up to 60 bytes of memory
_PIECE_BYTES = 64 << 10
_MAX_MESSAGE_CHARS = 300  # of Grafana's error message
_MAX_VERSIONS = 10
_MAX_ANNOTATIONS = 1_000

T = TypeVar("T")
Credential = str | tuple[str, str]  # token of a service account, or user and password


class GrafanaError(Exception):
    """A call to Grafana failed. The message has address, call and remedy, never the token. status: HTTP status; 0 without a response"""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class Source:
    """A data source of Grafana."""

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


class _Resolver(SystemResolver):  # type: ignore[misc]
    """Resolves names as the system does, but refuses addresses of services that hand out credentials."""

    def getaddrinfo(self, *arguments: Any, **options: Any) -> Any:
        """Like socket.getaddrinfo. Raises Forbidden for an address of such a service."""
        records = super().getaddrinfo(*arguments, **options)
        for record in records:
            check(str(record[4][0]))
        return records


class _Session(niquests.Session):
    """An HTTP session without redirects. It refuses compressed or long responses, which could use up the prober's memory."""

    def request(self, method: str, url: str, *arguments: Any, **options: Any) -> niquests.Response:
        """Like the method of niquests.Session. Raises RequestException for what it refuses."""
        options |= {"stream": True, "allow_redirects": False}
        response = super().request(method, url, *arguments, **options)
        with response:
            if response.is_redirect:
                raise niquests.exceptions.TooManyRedirects
            if response.headers.get("Content-Encoding", "identity") != "identity":
                raise niquests.exceptions.ContentDecodingError(
                    "the response is compressed, although identity was asked"
                )
            is_json = response.ok and "json" in response.headers.get("Content-Type", "")
            max_bytes = MAX_RESPONSE_BYTES if is_json else MAX_PAGE_BYTES
            body, end_s = bytearray(), time.monotonic() + MAX_BODY_S
            for piece in response.iter_content(_PIECE_BYTES):
                body += piece
                if len(body) > max_bytes:
                    break
                if time.monotonic() > end_s:
                    raise niquests.exceptions.ContentDecodingError(f"the response takes longer than {MAX_BODY_S:g} s")
            if is_json and (len(body) > max_bytes or sum(map(body.count, b"[{,")) > MAX_VALUES):
                raise niquests.exceptions.ContentDecodingError(
                    f"the response has more than {MAX_RESPONSE_BYTES:,} bytes or {MAX_VALUES:,} values"
                )
            response._content = bytes(body[:max_bytes])
            response.encoding = response.encoding or "utf-8"  # else the library guesses, which takes seconds
        return response


class Server:
    """Calls to one Grafana. Every method raises GrafanaError. `with` closes the connections."""

    def __init__(
        self,
        url: str,
        credential: Credential,
        tls: TlsSpec | None = None,
        *,
        timeout_s: float = TIMEOUT_S,
        stopping: Event | None = None,
    ) -> None:
        """Configure the client; nothing is sent. stopping: refuse further calls once it is set."""
        parts = urlsplit(url)
        path = parts.path.strip("/")
        host = parts.hostname or ""
        tls = tls or TlsSpec()
        self.url = url.rstrip("/")
        self._timeout_s = timeout_s
        self._stopping = stopping or Event()
        self._secret = credential if isinstance(credential, str) else credential[1]
        self._api = GrafanaApi(
            credential,
            host=f"[{host}]" if ":" in host else host,
            port=parts.port,
            url_path_prefix=f"{path}/" if path else "",
            protocol=parts.scheme,
            verify=False if tls.insecure_skip_verify else tls.ca_file or True,
            timeout=timeout_s,
        )
        session = _Session(resolver=_Resolver(), disable_http3=True, revocation_configuration=None)
        session.headers["User-Agent"] = USER_AGENT
        session.headers["Accept-Encoding"] = "identity"
        session.cert = (tls.cert_file, tls.key_file) if tls.cert_file and tls.key_file else None
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

        def read(items: Any) -> list[Source]:
            return [Source(item["uid"], item["name"], item["type"], bool(item.get("isDefault"))) for item in items]

        sources = self._call("GET /api/datasources", self._api.datasource.list_datasources, read, "datasources:read")
        return sorted(sources, key=lambda source: source.name)

    def folder(self, uid: str) -> str | None:
        """Title of a folder; None if it does not exist or may not be read, which some releases answer alike."""
        return self._call_readable(
            f"GET /api/folders/{uid}",
            lambda: self._api.folder.get_folder(uid),
            lambda folder: str(folder["title"]),
            "folders:read",
        )

    def folders(self) -> dict[str, str]:
        """{title: uid} of the top-level folders that the token may read."""
        folders = self._call_readable(
            "GET /api/folders",
            self._api.folder.get_all_folders,
            lambda items: {item["title"]: item["uid"] for item in items},
            "folders:read",
        )
        return folders or {}

    def create_folder(self, uid: str, title: str) -> None:
        """Create a top-level folder."""
        self._call("POST /api/folders", lambda: self._api.folder.create_folder(title, uid), dict, "folders:create")

    def dashboard(self, uid: str) -> ExistingDashboard | None:
        """A dashboard; None if it does not exist or may not be read."""

        def read(answer: Any) -> ExistingDashboard:
            document, meta = answer["dashboard"], answer.get("meta") or {}
            return ExistingDashboard(
                document, int(document.get("version") or 0), meta.get("folderUid"), bool(meta.get("provisioned", False))
            )

        name = f"GET /api/dashboards/uid/{uid}"
        return self._call_readable(name, lambda: self._api.dashboard.get_dashboard(uid), read, "dashboards:read")

    def latest_message(self, uid: str) -> str | None:
        """Message of the newest version of a dashboard; None if the history may not be read, or is empty."""

        def read(answer: Any) -> str | None:
            versions = (
                answer.get("versions") or [] if isinstance(answer, dict) else answer
            )  # a list before Grafana 11.6
            newest = max(
                versions, key=lambda version: (version.get("version") or 0, version.get("id") or 0), default=None
            )
            return None if newest is None else str(newest.get("message") or "")

        path = f"/dashboards/uid/{uid}/versions?limit={_MAX_VERSIONS}"
        return self._call_readable(f"GET /api{path}", lambda: self._api.client.GET(path), read, "dashboards:write")

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

    def annotations(self, from_ms: int, to_ms: int, tag: str) -> set[tuple[int, str]]:
        """(time in Unix milliseconds, text) of the annotations with the tag that overlap the time range."""
        return self._call(
            "GET /api/annotations",
            lambda: self._api.annotations.find_annotations(
                time_from=from_ms, time_to=to_ms, ann_type="annotation", tags=[tag], limit=_MAX_ANNOTATIONS
            ),
            lambda items: {(item.get("time"), item.get("text")) for item in items},
            "annotations:read",
        )

    def annotate(self, time_ms: int, end_ms: int | None, tags: list[str], text: str) -> None:
        """Create an annotation of the organisation, without a dashboard; end_ms: None for a point in time."""
        self._call(
            "POST /api/annotations",
            lambda: self._api.annotations.add_annotation(time_from=time_ms, time_to=end_ms, tags=tags, text=text),
            dict,
            "annotations:create on annotations:type:organization",
        )

    def _call_readable(self, name: str, call: Callable[[], Any], read: Callable[[Any], T], needs: str) -> T | None:
        """Result of a call as of `_call`; None for HTTP 403 and 404."""
        try:
            return self._call(name, call, read, needs)
        except GrafanaError as error:
            if error.status in (403, 404):
                return None
            raise

    def _call(self, name: str, call: Callable[[], Any], read: Callable[[Any], T], needs: str = "") -> T:
        """Response of one call, converted by `read`. needs: required permission, for the error message. Raises GrafanaError."""
        if self._stopping.is_set():
            raise self._error(name, "not tried, the synchronisation is stopped")
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
        except (niquests.exceptions.InvalidJSONError, RecursionError):
            raise self._error(
                name, "the response is not JSON; check that the address is Grafana's base address"
            ) from None
        except niquests.exceptions.ContentDecodingError as error:
            raise self._error(name, str(error)) from None
        except (niquests.exceptions.RequestException, OSError, ValueError) as error:
            raise self._error(name, f"cannot be reached: {_cause(error)}") from None
        try:
            return read(answer)
        except (LookupError, TypeError, ValueError, AttributeError):
            page = "a web page" if isinstance(answer, str) else "other data"
            reason = f"the response is {page}, not JSON of the API; check for a login or a proxy in between"
            raise self._error(name, reason) from None

    def _error(self, name: str, reason: str, status: int = 0) -> GrafanaError:
        message = f"{self.url}: {name}: {reason}"
        return GrafanaError(message.replace(self._secret, "…") if self._secret else message, status)


def _message(response: object) -> str:
    """Error message in a response of Grafana."""
    message = response.get("message") if isinstance(response, dict) else None
    return str(message)[:_MAX_MESSAGE_CHARS] if message else ""


def _cause(error: Exception) -> str:
    """Text of the innermost error, without the object names that the library puts around it."""
    return str(error).rpartition(">: ")[2].rstrip("'\")")[:_MAX_MESSAGE_CHARS] or type(error).__name__


def _explain(status: int, message: str, needs: str) -> str:
    """Text on the meaning of an HTTP status and the remedy. message: error from Grafana; needs: required permission"""
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
