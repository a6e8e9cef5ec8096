"""Client of the Kubernetes API for the calls of discovery and leases, each with a time and size limit.

The service account's token and the cluster's CA are read again when their files change, since both rotate. The token is sent
only to the configured server, never through a redirect or proxy, and over plain HTTP only to loopback. It is redacted in
messages.
"""

import os
import ssl
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast
from urllib.parse import urlsplit

import aiohttp
import orjson

from prober import __version__
from prober.config.hosts import is_loopback
from prober.config.server import server_problem
from prober.measure.printable import mask_secrets
from prober.net.certificates import trusting_context
from prober.net.exchange import requested_pause_s
from prober.net.redaction import Redactor
from prober.storage.watched_file import Secret, Stamp, stamp

Json = dict[str, Any]
Params = Mapping[str, str]
Kind = Literal["ADDED", "MODIFIED", "DELETED", "BOOKMARK"]

ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
TIMEOUT_S = 10.0
WATCH_S = 60.0  # then the watch is renewed, so that a silently dead connection is noticed
WATCH_GRACE_S = 10.0  # the server ends a watch itself; a longer one is dead
PAGE_SIZE = 50  # objects per response: parsing must not delay probes
MAX_OBJECTS = 100_000  # in a list
MAX_RESPONSE_BYTES = 16 << 20
MAX_VALUES = 500_000  # in a response: an object has some hundreds, and a value takes up to 60 bytes of memory
MAX_EVENT_BYTES = 4 << 20  # etcd holds no object above 1.5 MiB
# API servers ask for pauses of a second; an hour would stop discovery and leases for as long.
MAX_RETRY_AFTER_S = 30.0
MAX_MESSAGE_CHARS = 500  # of a server's error message
_PIECE_BYTES = 1 << 16
_KINDS = ("ADDED", "MODIFIED", "DELETED", "BOOKMARK")


class Unreachable(Exception):
    """The API server gave no usable answer; the message has the address and the reason."""


class KubernetesApiError(Exception):
    """The API server refused the request.

    status: HTTP status; reason: name that Kubernetes gives, such as Conflict
    retry_after_s: pause that the server asks for, at most MAX_RETRY_AFTER_S; 0 without one
    """

    def __init__(self, status: int, reason: str, message: str, retry_after_s: float = 0.0) -> None:
        super().__init__(f"HTTP {status} {reason}: {message}")
        self.status, self.reason, self.message, self.retry_after_s = status, reason, message, retry_after_s

    @property
    def gone(self) -> bool:
        """True if the resourceVersion is too old, or too new for a restored etcd: the objects must be listed again."""
        return self.status == 410 or (self.status == 504 and "Too large resource version" in self.message)


@dataclass(frozen=True, slots=True)
class Event:
    """A watch event. The object of a BOOKMARK has only a resourceVersion, up to which all events were sent."""

    kind: Kind
    object: Json

    @property
    def version(self) -> str:
        """The resourceVersion from which a watch can continue."""
        metadata = self.object.get("metadata")
        return str(metadata.get("resourceVersion") or "") if isinstance(metadata, dict) else ""


class Api:
    """Client of one API server; create, use and close it in the same event loop."""

    def __init__(
        self, url: str, *, token_file: str | None = None, ca_file: str | None = None, namespace: str = "default"
    ) -> None:
        """Configure the client. Raises ValueError for an invalid URL, and for plain HTTP with a token to another machine."""
        if problem := server_problem(url, "https://host:6443"):
            raise ValueError(f"{mask_secrets(url)!r} {problem}")
        parts = urlsplit(url)
        if parts.scheme == "http" and token_file is not None and not is_loopback(parts.hostname or ""):
            raise ValueError(f"{url}: a token must not be sent over plain HTTP; use https")
        self.url, self.namespace, self.redactor = url.rstrip("/"), namespace, Redactor()
        self._token = Secret(token_file) if token_file else None
        self._ca_file = ca_file
        self._context: ssl.SSLContext | None = None
        self._context_of: Stamp | None = None
        self._session: aiohttp.ClientSession | None = None

    @classmethod
    def in_cluster(cls) -> "Api":
        """Client of the cluster that this pod runs in, with its service account. Raises Unreachable outside a pod."""
        host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
        if not host:
            raise Unreachable(
                "KUBERNETES_SERVICE_HOST is not set: this process does not run in a pod; configure the API server's URL"
            )
        try:
            with open(f"{ACCOUNT}/namespace", encoding="utf-8") as file:
                namespace = file.read().strip()
        except OSError:
            namespace = os.environ.get("POD_NAMESPACE", "default")
        host = f"[{host}]" if ":" in host else host
        return cls(
            f"https://{host}:{port}", token_file=f"{ACCOUNT}/token", ca_file=f"{ACCOUNT}/ca.crt", namespace=namespace
        )

    async def get(self, path: str, params: Params | None = None, *, timeout_s: float = TIMEOUT_S) -> Json:
        """GET the object or list at `path`. Raises KubernetesApiError, Unreachable."""
        return await self._ask("GET", path, params, None, timeout_s)

    async def create(self, path: str, body: Json, *, timeout_s: float = TIMEOUT_S) -> Json:
        """POST a new object; return it as stored. Raises KubernetesApiError (409: it exists), Unreachable."""
        return await self._ask("POST", path, None, body, timeout_s)

    async def replace(self, path: str, body: Json, *, timeout_s: float = TIMEOUT_S) -> Json:
        """PUT an object, with the resourceVersion that it replaces. Raises KubernetesApiError (409: it was changed), Unreachable."""
        return await self._ask("PUT", path, None, body, timeout_s)

    async def list(
        self, path: str, take: Callable[[Json], None], params: Params | None = None, *, timeout_s: float = TIMEOUT_S
    ) -> str:
        """Call `take` with each object of a collection, and return the resourceVersion of the collection.

        Objects are read in pages, one page in memory at a time; timeout_s is per page. Raises KubernetesApiError (`gone`: the
        pages expired meanwhile), and Unreachable, also for more than MAX_OBJECTS.
        """
        query = {**(params or {}), "limit": str(PAGE_SIZE)}
        for _ in range(MAX_OBJECTS // PAGE_SIZE):
            page = await self.get(path, query, timeout_s=timeout_s)
            items, metadata = page.get("items"), page.get("metadata")
            if not isinstance(items or [], list) or not isinstance(metadata, dict):
                raise self._unreachable(path, "not a list of a Kubernetes API")
            for item in items or ():
                if isinstance(item, dict):
                    take(item)
            if not metadata.get("continue"):
                return str(metadata.get("resourceVersion") or "")
            query["continue"] = str(metadata["continue"])
        raise self._unreachable(path, f"more than {MAX_OBJECTS:,} objects; list fewer, by namespaces or a selector")

    async def watch(
        self, path: str, params: Params | None = None, *, version: str = "", watch_s: float = WATCH_S
    ) -> AsyncIterator[Event]:
        """Yield changes of a collection after `version` until the server ends the watch normally.

        Raises KubernetesApiError (`gone`: list again), Unreachable.
        """
        query = {
            **(params or {}),
            "watch": "true",
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(max(1, round(watch_s))),
            **({"resourceVersion": version} if version else {}),
        }
        timeout = aiohttp.ClientTimeout(total=watch_s + WATCH_GRACE_S, sock_connect=TIMEOUT_S)
        try:
            async with self._request("GET", path, query, None, timeout) as answer:
                await self._accept(answer, path)
                rest = b""
                async for piece in answer.content.iter_any():
                    *lines, rest = (rest + piece).split(b"\n")
                    for line in lines:
                        if line.strip():
                            yield self._event(line, path)
                    if len(rest) > MAX_EVENT_BYTES:
                        raise self._unreachable(path, f"an event longer than {MAX_EVENT_BYTES:,} bytes")
        except TimeoutError:
            raise self._unreachable(path, "the watch did not end in time; the connection is dead") from None
        except (aiohttp.ClientError, OSError) as problem:
            raise self._unreachable(path, str(problem) or type(problem).__name__) from None

    async def close(self) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _ask(self, method: str, path: str, params: Params | None, body: Json | None, timeout_s: float) -> Json:
        timeout = aiohttp.ClientTimeout(total=timeout_s, ceil_threshold=timeout_s + 1)
        try:
            async with self._request(method, path, params, body, timeout) as answer:
                await self._accept(answer, path)
                document = self._loaded(await self._body(answer, path), path)
        except TimeoutError:
            raise self._unreachable(path, f"no answer within {timeout_s:g} s") from None
        except (aiohttp.ClientError, OSError, ValueError) as problem:
            raise self._unreachable(path, str(problem) or type(problem).__name__) from None
        if not isinstance(document, dict):
            raise self._unreachable(path, "not an object of a Kubernetes API")
        return document

    def _request(
        self, method: str, path: str, params: Params | None, body: Json | None, timeout: aiohttp.ClientTimeout
    ) -> Any:
        if self._session is None:
            self._session = aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar())
        headers = {
            "Accept": "application/json",
            "Accept-Encoding": "identity",
            "User-Agent": f"llm-slo-prober/{__version__}",
        }
        token = self._token.read() if self._token else None
        if self._token is not None and token is None:
            raise Unreachable(f"{self.url}: no token: {self._token.problem}")
        if token is not None:
            self.redactor.add_rotating(token)
            headers["Authorization"] = f"Bearer {token}"
        if body is not None:
            headers["Content-Type"] = "application/json"
        return self._session.request(
            method,
            f"{self.url}{path}",
            params=dict(params or {}),
            data=None if body is None else orjson.dumps(body),
            headers=headers,
            ssl=self._tls(),
            timeout=timeout,
            allow_redirects=False,
        )

    def _tls(self) -> ssl.SSLContext:
        """The TLS context, made again when the CA file changes."""
        now = stamp(self._ca_file) if self._ca_file else None
        if self._context is None or now != self._context_of:
            try:
                self._context = trusting_context(self._ca_file)
                self._context_of = now
            except (OSError, ssl.SSLError) as problem:
                if self._context is None:
                    raise Unreachable(f"{self.url}: CA file {self._ca_file}: {problem}") from None
        return self._context

    async def _accept(self, answer: aiohttp.ClientResponse, path: str) -> None:
        """Raise KubernetesApiError with the server's message unless the status is a success."""
        if answer.status < 300:
            return
        try:
            status = self._loaded(await self._body(answer, path), path)
        except ValueError:
            status = None
        retry_after_s = requested_pause_s(answer.headers, time.time()) or 0.0
        raise self._api_error(status, answer.status, answer.reason or "", retry_after_s)

    async def _body(self, answer: aiohttp.ClientResponse, path: str) -> bytes:
        body = bytearray()
        async for piece in answer.content.iter_chunked(_PIECE_BYTES):
            body += piece
            if len(body) > MAX_RESPONSE_BYTES:
                raise self._unreachable(path, f"longer than {MAX_RESPONSE_BYTES:,} bytes")
        return bytes(body)

    def _loaded(self, body: bytes, path: str) -> Any:
        """Decode the JSON of a body. Raises ValueError, and Unreachable for more than MAX_VALUES values."""
        if sum(map(body.count, b"[{,")) > MAX_VALUES:
            raise self._unreachable(path, f"more than {MAX_VALUES:,} values")
        return orjson.loads(body)

    def _event(self, line: bytes, path: str) -> Event:
        try:
            document = self._loaded(line, path)
        except ValueError as problem:
            raise self._unreachable(path, f"not an event: {problem}") from None
        kind, metadata = (document.get("type"), document.get("object")) if isinstance(document, dict) else (None, None)
        if kind == "ERROR":
            raise self._api_error(metadata, 500, "", 0.0)
        if kind not in _KINDS or not isinstance(metadata, dict):
            raise self._unreachable(path, f"an event of type {str(kind)[:40]!r} without an object")
        return Event(cast(Kind, kind), metadata)

    def _unreachable(self, path: str, why: str) -> Unreachable:
        return Unreachable(f"{self.url}{path}: {self.redactor.redact(why[:MAX_MESSAGE_CHARS])}")

    def _api_error(self, document: Any, status: int, reason: str, retry_after_s: float) -> KubernetesApiError:
        """The error that a Status object describes; without one, an error from the HTTP status."""
        metadata = document if isinstance(document, dict) else {}
        code, details = metadata.get("code"), metadata.get("details")
        requested_s = details.get("retryAfterSeconds") if isinstance(details, dict) else None
        if isinstance(requested_s, int):
            retry_after_s = max(retry_after_s, requested_s)
        return KubernetesApiError(
            code if isinstance(code, int) else status,
            self.redactor.redact(str(metadata.get("reason") or reason)[:100]),
            self.redactor.redact(str(metadata.get("message") or "no message")[:MAX_MESSAGE_CHARS]),
            min(retry_after_s, MAX_RETRY_AFTER_S),
        )
