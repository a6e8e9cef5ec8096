"""A Kubernetes API server, through the few calls that discovery and leases need: each bounded in time and in size.

The service account's token and the cluster's CA are read again when their files change, as both rotate. A token is sent to the
configured server only, never through a redirect or a proxy, and over plain HTTP to this machine only. Should the server say it
back, it is hidden in what is said of that.
"""

import ipaddress
import os
import ssl
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast
from urllib.parse import urlsplit

import aiohttp
import orjson

from prober import __version__
from prober.config.problems import shown
from prober.net.redaction import Veil
from prober.storage.watched_file import Secret, Stamp, stamp

Json = dict[str, Any]
Params = Mapping[str, str]
Kind = Literal["ADDED", "MODIFIED", "DELETED", "BOOKMARK"]

ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
TIMEOUT_S = 10.0
WATCH_S = 60.0  # then begun anew where it was: a connection that died without a word is noticed this soon
GRACE_S = 10.0  # the server ends a watch itself; one that goes on after that is dead
PAGE = 50  # objects of one answer: what is parsed at once must not keep a stamp waiting
LIMIT_BYTES = 16 << 20
LINE_BYTES = 4 << 20  # of one event; etcd holds no object above 1.5 MiB
SAID = 500  # characters of what the server says
_PIECE = 1 << 16
_KINDS = ("ADDED", "MODIFIED", "DELETED", "BOOKMARK")


class Unreachable(Exception):
    """No answer of an API server, or none that can be used; the message names the address and says why."""


class Refused(Exception):
    """The server said no. status: of HTTP; reason: as Kubernetes names it, such as Conflict; retry_after_s: what it asks for."""

    def __init__(self, status: int, reason: str, message: str, retry_after_s: float = 0.0) -> None:
        super().__init__(f"HTTP {status} {reason}: {message}")
        self.status, self.reason, self.message, self.retry_after_s = status, reason, message, retry_after_s

    @property
    def gone(self) -> bool:
        """The resourceVersion is too old: only a new list helps."""
        return self.status == 410


@dataclass(frozen=True, slots=True)
class Event:
    """Something happened to an object. A BOOKMARK's object has its resourceVersion only: nothing is missing up to there."""

    kind: Kind
    object: Json

    @property
    def version(self) -> str:
        """Where a watch may go on from."""
        return str((self.object.get("metadata") or {}).get("resourceVersion") or "")


@dataclass(frozen=True, slots=True)
class Listed:
    """All objects of a list at one time, and the resourceVersion of that time."""

    items: list[Json]
    version: str


class Api:
    """One API server. To be made, used and closed in one event loop."""

    def __init__(
        self, url: str, *, token_file: str | None = None, ca_file: str | None = None, namespace: str = "default"
    ) -> None:
        """Raises ValueError for an address that a token must not be sent to."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{shown(url)!r} is not an http or https URL; write https://host:6443")
        if parts.username or parts.password:
            raise ValueError(f"{shown(url)}: has a user or password in it; give a token as a file")
        if parts.scheme == "http" and token_file is not None and not _is_loopback(parts.hostname):
            raise ValueError(f"{url}: a token over plain HTTP can be read on the way; use https")
        self.url, self.namespace, self.veil = url.rstrip("/"), namespace, Veil()
        self._token = Secret(token_file) if token_file else None
        self._ca_file = ca_file
        self._context: ssl.SSLContext | None = None
        self._context_of: Stamp | None = None
        self._session: aiohttp.ClientSession | None = None

    @classmethod
    def in_cluster(cls) -> "Api":
        """The server of the cluster that this process runs in, with its pod's service account. Raises Unreachable outside."""
        host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
        if not host:
            raise Unreachable("KUBERNETES_SERVICE_HOST is not set, so this is no pod; name the API server instead")
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
        """The object or list at `path`. Raises Refused, Unreachable."""
        return await self._ask("GET", path, params, None, timeout_s)

    async def create(self, path: str, body: Json, *, timeout_s: float = TIMEOUT_S) -> Json:
        """POST a new object to its collection; the object as it is kept. Raises Refused (409: it exists), Unreachable."""
        return await self._ask("POST", path, None, body, timeout_s)

    async def replace(self, path: str, body: Json, *, timeout_s: float = TIMEOUT_S) -> Json:
        """PUT an object in place of the one with its resourceVersion. Raises Refused (409: it is another one), Unreachable."""
        return await self._ask("PUT", path, None, body, timeout_s)

    async def list(self, path: str, params: Params | None = None, *, timeout_s: float = TIMEOUT_S) -> Listed:
        """Every object of a collection, page by page of one resourceVersion; timeout_s: of a page.

        Raises Refused (`gone`: the pages expired while they were read), Unreachable.
        """
        found: list[Json] = []
        asked = {**(params or {}), "limit": str(PAGE)}
        while True:
            page = await self.get(path, asked, timeout_s=timeout_s)
            items, about = page.get("items"), page.get("metadata")
            if not isinstance(items or [], list) or not isinstance(about, dict):
                raise self._unreachable(path, "not a list of a Kubernetes API")
            found += [item for item in items or () if isinstance(item, dict)]
            if not about.get("continue"):
                return Listed(found, str(about.get("resourceVersion") or ""))
            asked["continue"] = str(about["continue"])

    async def watch(
        self, path: str, params: Params | None = None, *, version: str = "", watch_s: float = WATCH_S
    ) -> AsyncIterator[Event]:
        """What happens to a collection after `version`, until the server ends the watch, which is no error.

        Raises Refused (`gone`: list again), Unreachable.
        """
        asked = {
            **(params or {}),
            "watch": "true",
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(max(1, round(watch_s))),
            **({"resourceVersion": version} if version else {}),
        }
        timeout = aiohttp.ClientTimeout(total=watch_s + GRACE_S, sock_connect=TIMEOUT_S)
        try:
            async with self._request("GET", path, asked, None, timeout) as answer:
                await self._accept(answer, path)
                rest = b""
                async for piece in answer.content.iter_any():
                    *lines, rest = (rest + piece).split(b"\n")
                    for line in lines:
                        if line.strip():
                            yield self._event(line, path)
                    if len(rest) > LINE_BYTES:
                        raise self._unreachable(path, f"an event longer than {LINE_BYTES:,} bytes")
        except TimeoutError:
            raise self._unreachable(path, "the watch did not end when it should; the connection is dead") from None
        except (aiohttp.ClientError, OSError) as problem:
            raise self._unreachable(path, str(problem) or type(problem).__name__) from None

    async def close(self) -> None:
        """End every connection."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _ask(self, method: str, path: str, params: Params | None, body: Json | None, timeout_s: float) -> Json:
        timeout = aiohttp.ClientTimeout(total=timeout_s, ceil_threshold=timeout_s + 1)
        try:
            async with self._request(method, path, params, body, timeout) as answer:
                await self._accept(answer, path)
                document = orjson.loads(await self._body(answer, path))
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
            self.veil.hide(token)
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
        """Made again when the CA's file is another one."""
        now = stamp(self._ca_file) if self._ca_file else None
        if self._context is None or now != self._context_of:
            try:
                self._context = ssl.create_default_context(cafile=self._ca_file)
                self._context_of = now
            except (OSError, ssl.SSLError) as problem:
                if self._context is None:
                    raise Unreachable(f"{self.url}: CA file {self._ca_file}: {problem}") from None
        return self._context

    async def _accept(self, answer: aiohttp.ClientResponse, path: str) -> None:
        """Raises Refused for anything but success, with what the server says."""
        if answer.status < 300:
            return
        try:
            said = orjson.loads(await self._body(answer, path))
        except ValueError:
            said = None
        retry = answer.headers.get("Retry-After", "")
        raise self._refused(said, answer.status, answer.reason or "", float(retry) if retry.isdecimal() else 0.0)

    async def _body(self, answer: aiohttp.ClientResponse, path: str) -> bytes:
        body = bytearray()
        async for piece in answer.content.iter_chunked(_PIECE):
            body += piece
            if len(body) > LIMIT_BYTES:
                raise self._unreachable(path, f"longer than {LIMIT_BYTES:,} bytes")
        return bytes(body)

    def _event(self, line: bytes, path: str) -> Event:
        try:
            said = orjson.loads(line)
        except ValueError as problem:
            raise self._unreachable(path, f"not an event: {problem}") from None
        kind, about = (said.get("type"), said.get("object")) if isinstance(said, dict) else (None, None)
        if kind == "ERROR":
            raise self._refused(about, 500, "", 0.0)
        if kind not in _KINDS or not isinstance(about, dict):
            raise self._unreachable(path, f"an event of type {str(kind)[:40]!r} without an object")
        return Event(cast(Kind, kind), about)

    def _unreachable(self, path: str, why: str) -> Unreachable:
        return Unreachable(f"{self.url}{path}: {self.veil.over(why[:SAID])}")

    def _refused(self, said: Any, status: int, reason: str, retry_after_s: float) -> Refused:
        """From a Status object, or what HTTP says without one."""
        about = said if isinstance(said, dict) else {}
        code, details = about.get("code"), about.get("details")
        if isinstance(details, dict) and isinstance(details.get("retryAfterSeconds"), int):
            retry_after_s = max(retry_after_s, details["retryAfterSeconds"])
        return Refused(
            code if isinstance(code, int) else status,
            self.veil.over(str(about.get("reason") or reason)[:100]),
            self.veil.over(str(about.get("message") or "no more was said")[:SAID]),
            retry_after_s,
        )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
