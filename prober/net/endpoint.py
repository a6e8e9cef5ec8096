"""Endpoint of a target: address, proxy, certificates and request head."""

import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

from prober import __version__
from prober.config.server import SECRET_HEADERS, Auth, TlsSpec
from prober.config.target import TargetSpec
from prober.measure.api import APIS
from prober.net.certificates import BadCertificate, client_tls
from prober.net.redaction import Redactor, basic
from prober.storage.watched_file import Secret


class BadEndpoint(ValueError):
    """The endpoint cannot be used as configured; the message has the key and the remedy."""


@dataclass(slots=True)
class Endpoint:
    """The server of a target.

    headers: headers of every request: the target's own, then the API's where the target sets none
    query: query string of every request, with its question mark; "" without one
    auth: how the secret is sent; None without one.
    trust: returns the TLS context for the next connection; None for http.
    server_name: expected name in the certificate.
    proxy: (host, port) of a forward proxy.
    """

    scheme: str
    host: str
    port: int
    base_path: str
    headers: tuple[tuple[str, str], ...] = ()
    trust: Callable[[], ssl.SSLContext] | None = None
    server_name: str = ""
    proxy: tuple[str, int] | None = None
    proxy_authorization: str = ""
    query: str = ""
    auth: Auth | None = None
    secret: Secret | None = None
    allow_link_local: bool = False
    redactor: Redactor = field(default_factory=Redactor)
    authority: str = field(init=False)

    def __post_init__(self) -> None:
        host = f"[{self.host}]" if ":" in self.host else self.host
        default = 443 if self.scheme == "https" else 80
        self.authority = host if self.port == default else f"{host}:{self.port}"

    @property
    def tls(self) -> ssl.SSLContext | None:
        """TLS context for the next connection; None for http."""
        return self.trust() if self.trust else None

    def token(self) -> str | None:
        """The current token or key; None if none is configured. It is registered for redaction."""
        token = self.secret.read() if self.secret else None
        if token is not None:
            self.redactor.add_rotating(token)
        return token

    @property
    def key_setting(self) -> str:
        """Configuration key of the token or key that requests carry; "" without one."""
        if self.auth is not None:
            return f"auth.{self.auth.secret_key}"
        return next((f"headers.{name}" for name, _ in self.headers if name.lower() in SECRET_HEADERS), "")

    def credential(self, token: str | None) -> dict[str, str]:
        """The header that carries the token or key; empty without one."""
        return dict((self.auth.credential(token),)) if self.auth is not None and token is not None else {}

    @property
    def has_own_trace(self) -> bool:
        """True if the configuration sets `traceparent` itself."""
        return any(name.lower() == "traceparent" for name, _ in self.headers)

    def head(
        self, method: str, path: str, *, length: int, request_id: str, token: str | None, traceparent: str = ""
    ) -> bytes:
        """Request line and headers. Every request uses a new connection, which is closed afterwards."""
        target = path + self.query
        extra = ""
        if self.proxy and self.scheme == "http":
            target = f"http://{self.authority}{target}"
            extra = self.proxy_authorization
        lines = [
            f"{method} {target} HTTP/1.1",
            f"Host: {self.authority}",
            f"User-Agent: llm-slo-prober/{__version__}",
            f"X-Request-Id: {request_id}",
            "Accept: */*",
            "Accept-Encoding: identity",
            "Connection: close",
        ]
        lines += [f"traceparent: {traceparent}"] if traceparent else []
        if method == "POST":
            lines += ["Content-Type: application/json", f"Content-Length: {length}"]
        lines += [f"{name}: {value}" for name, value in (*self.credential(token).items(), *self.headers)]
        return ("\r\n".join(lines) + f"\r\n{extra}\r\n").encode()


def endpoint(spec: TargetSpec) -> Endpoint:
    """Endpoint of a target. Raises BadEndpoint for unusable certificates."""
    parts = urlsplit(spec.url)
    proxy, authorization = proxy_of(spec.proxy_url) if spec.proxy_url else (None, "")
    redactor = Redactor()
    for value in spec.headers.values():
        redactor.add(value)
    for url in (spec.metrics and spec.metrics.url, spec.proxy_url):
        redactor.add_url(url or "")
    try:
        trust = client_tls(spec.tls or TlsSpec()).context if parts.scheme == "https" else None
    except BadCertificate as problem:
        raise BadEndpoint(f"{spec.url}: {problem}") from None
    return Endpoint(
        parts.scheme,
        parts.hostname or "",
        parts.port or (443 if parts.scheme == "https" else 80),
        parts.path.rstrip("/"),
        (*(own for own in APIS[spec.api].headers if own[0] not in map(str.lower, spec.headers)), *spec.headers.items()),
        trust,
        (spec.tls.server_name if spec.tls else None) or parts.hostname or "",
        proxy,
        authorization,
        f"?{parts.query}" if parts.query else "",
        spec.auth,
        Secret(spec.auth.secret_file, key=f"auth.{spec.auth.secret_key}") if spec.auth else None,
        spec.allow_link_local,
        redactor,
    )


def proxy_of(url: str) -> tuple[tuple[str, int], str]:
    """(host, port) of a forward proxy, and the Proxy-Authorization header line for its user."""
    parts, authorization = urlsplit(url), ""
    if parts.username:
        pair = basic(unquote(parts.username), unquote(parts.password or ""))
        authorization = f"Proxy-Authorization: Basic {pair}\r\n"
    return (parts.hostname or "", parts.port or 3128), authorization
