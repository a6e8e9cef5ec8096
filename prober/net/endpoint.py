"""Where a target is: address, proxy, certificates, and the request head that never changes."""

import ipaddress
import ssl
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

from prober import __version__
from prober.config.specs import TargetSpec, TlsSpec
from prober.net.certificates import BadCertificate, ClientTls, client_tls
from prober.net.redaction import Veil, basic
from prober.storage.watched_file import Secret


class BadEndpoint(ValueError):
    """The endpoint cannot be used as configured; the message names the key and what to do."""


@dataclass(slots=True)
class Endpoint:
    """One server. `trust` is None for http, server_name: that of its certificate; `proxy` is (host, port) of a forward proxy."""

    scheme: str
    host: str
    port: int
    base_path: str
    headers: tuple[tuple[str, str], ...] = ()
    trust: ClientTls | None = None
    server_name: str = ""
    proxy: tuple[str, int] | None = None
    proxy_authorization: str = ""
    secret: Secret | None = None
    allow_link_local: bool = False
    veil: Veil = field(default_factory=Veil)
    authority: str = field(init=False)

    def __post_init__(self) -> None:
        host = f"[{self.host}]" if ":" in self.host else self.host
        default = 443 if self.scheme == "https" else 80
        self.authority = host if self.port == default else f"{host}:{self.port}"

    @property
    def tls(self) -> ssl.SSLContext | None:
        """For the next connection; None for http."""
        return self.trust.context() if self.trust else None

    def token(self) -> str | None:
        """The bearer token as it is now; None without one. What is said from now on hides it."""
        token = self.secret.read() if self.secret else None
        if token is not None:
            self.veil.hide(token)
        return token

    def head(self, method: str, path: str, *, length: int, request_id: str, token: str | None) -> bytes:
        """Request line and headers. Every request has a connection of its own, closed after it."""
        target = path
        extra = ""
        if self.proxy and self.scheme == "http":
            target = f"http://{self.authority}{path}"
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
        if method == "POST":
            lines += ["Content-Type: application/json", f"Content-Length: {length}"]
        if token is not None:
            lines.append(f"Authorization: Bearer {token}")
        lines += [f"{name}: {value}" for name, value in self.headers]
        return ("\r\n".join(lines) + f"\r\n{extra}\r\n").encode()


def endpoint(spec: TargetSpec) -> Endpoint:
    """The endpoint of a target. Raises BadEndpoint for certificates that cannot be used."""
    parts = urlsplit(spec.url)
    proxy, authorization = None, ""
    veil = Veil()
    for _, value in spec.headers:
        veil.keep(value)
    if spec.metrics and spec.metrics.url:
        veil.keep_of(spec.metrics.url)
    if spec.proxy_url:
        veil.keep_of(spec.proxy_url)
        through = urlsplit(spec.proxy_url)
        proxy = (through.hostname or "", through.port or 3128)
        if through.username:
            pair = basic(unquote(through.username), unquote(through.password or ""))
            authorization = f"Proxy-Authorization: Basic {pair}\r\n"
    try:
        trust = client_tls(spec.tls or TlsSpec(None, insecure_skip_verify=False)) if parts.scheme == "https" else None
    except BadCertificate as problem:
        raise BadEndpoint(f"{spec.url}: {problem}") from None
    return Endpoint(
        parts.scheme,
        parts.hostname or "",
        parts.port or (443 if parts.scheme == "https" else 80),
        parts.path.rstrip("/"),
        spec.headers,
        trust,
        (spec.tls.server_name if spec.tls else None) or parts.hostname or "",
        proxy,
        authorization,
        Secret(spec.bearer_token_file) if spec.bearer_token_file else None,
        spec.allow_link_local,
        veil,
    )


def is_address(host: str) -> bool:
    """`host` is an IP address, so that no name has to be resolved."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
