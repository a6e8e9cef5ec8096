"""Where a target is: address, proxy, certificates, and the request head that never changes."""

import base64
import ipaddress
import ssl
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

from prober import __version__
from prober.config.specs import TargetSpec
from prober.edge.files import Secret


class BadEndpoint(ValueError):
    """The endpoint cannot be used as configured; the message names the key and what to do."""


@dataclass(slots=True)
class Endpoint:
    """One server. `tls` is None for http; `proxy` is (host, port) of a forward proxy."""

    scheme: str
    host: str
    port: int
    base_path: str
    headers: tuple[tuple[str, str], ...] = ()
    tls: ssl.SSLContext | None = None
    proxy: tuple[str, int] | None = None
    proxy_authorization: str = ""
    secret: Secret | None = None
    authority: str = field(init=False)

    def __post_init__(self) -> None:
        host = f"[{self.host}]" if ":" in self.host else self.host
        default = 443 if self.scheme == "https" else 80
        self.authority = host if self.port == default else f"{host}:{self.port}"

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
    """The endpoint of a target. Raises BadEndpoint for a CA file that cannot be used."""
    parts = urlsplit(spec.url)
    proxy, authorization = None, ""
    if spec.proxy_url:
        through = urlsplit(spec.proxy_url)
        proxy = (through.hostname or "", through.port or 3128)
        if through.username:
            pair = f"{unquote(through.username)}:{unquote(through.password or '')}"
            authorization = f"Proxy-Authorization: Basic {base64.b64encode(pair.encode()).decode()}\r\n"
    return Endpoint(
        parts.scheme,
        parts.hostname or "",
        parts.port or (443 if parts.scheme == "https" else 80),
        parts.path.rstrip("/"),
        spec.headers,
        _context(spec) if parts.scheme == "https" else None,
        proxy,
        authorization,
        Secret(spec.bearer_token_file) if spec.bearer_token_file else None,
    )


def is_address(host: str) -> bool:
    """`host` is an IP address, so that no name has to be resolved."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _context(spec: TargetSpec) -> ssl.SSLContext:
    ca_file = spec.tls.ca_file if spec.tls else None
    try:
        context = ssl.create_default_context(cafile=ca_file)
    except (OSError, ssl.SSLError) as problem:
        raise BadEndpoint(f"{spec.url}: tls.ca_file {ca_file}: {problem}; name a file of PEM certificates") from None
    if spec.tls and spec.tls.insecure_skip_verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
