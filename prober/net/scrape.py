"""HTTP GET of metrics and other pages, and POST of a form, on a new connection with time and size limits.

It uses `Exchange`, as probes do: no second HTTP client is needed, and a long page is read in small parts.
"""

import asyncio
import ssl
from dataclasses import dataclass
from functools import cache
from typing import cast
from urllib.parse import SplitResult, quote, unquote, urlsplit

from prober import __version__
from prober.config.server import TlsSpec
from prober.config.target import Timeouts
from prober.measure.printable import mask_secrets
from prober.net.certificates import BadCertificate, ClientTls, client_tls
from prober.net.clock import Clock, Stamps
from prober.net.connection import Broken, connect
from prober.net.endpoint import Endpoint, proxy_of
from prober.net.exchange import Exchange
from prober.net.redaction import basic

MAX_BODY_BYTES = 8 << 20
_UNQUOTED = "%/:@!$&'()*+,;=~"


class UnreadablePage(Exception):
    """The page could not be read; the message has the address and the reason."""


class NotAnswered(UnreadablePage):
    """No complete answer arrived. Another attempt may succeed."""


class Unusable(NotAnswered):
    """An answer with status 200 is incomplete or in a form that cannot be read, such as compressed."""


class PageTooLong(UnreadablePage):
    """The page exceeds its limit in bytes."""


@dataclass(frozen=True, slots=True)
class Fetched:
    """A fetched page. headers: names in lower case."""

    body: bytes
    headers: dict[str, str]


async def fetch(
    url: str,
    *,
    headers: dict[str, str],
    form: str = "",
    tls: ssl.SSLContext | None = None,
    proxy: str | None = None,
    timeout_s: float = 4.0,
    limit: int = MAX_BODY_BYTES,
    allow_link_local: bool = False,
) -> Fetched:
    """GET `url`, or POST `form`, which is already encoded. Raises PageTooLong for more than `limit` bytes, and UnreadablePage, also for
    redirects, compressed responses and refused addresses (even with a proxy).
    """
    where = mask_secrets(url)
    exchange = Exchange(None, cast(Clock, _LoopTime()), max_body_bytes=limit)
    try:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("not an http or https URL")
        host = parts.hostname if parts.hostname.isascii() else parts.hostname.encode("idna").decode()
        is_secured = parts.scheme == "https"
        through, authorization = proxy_of(proxy) if proxy else (None, "")
        endpoint = Endpoint(
            parts.scheme,
            host,
            parts.port or (443 if is_secured else 80),
            "",
            trust=((lambda: tls) if tls is not None else _system_trust().context) if is_secured else None,
            server_name=host,
            proxy=through,
            proxy_authorization=authorization,
            allow_link_local=allow_link_local,
        )
        request = _request(parts, endpoint, headers, form)
        await connect(endpoint, exchange, timeout_s)
        exchange.send(request, Timeouts(total=timeout_s))
        await exchange.ended
    except (Broken, BadCertificate, ValueError) as problem:
        raise NotAnswered(f"{where}: {mask_secrets(str(problem))}") from None
    finally:
        exchange.abort()
    status = exchange.status
    if status not in (None, 200):
        raise UnreadablePage(": ".join(filter(None, (where, f"HTTP {status}", mask_secrets(exchange.refusal)))))
    if exchange.is_too_long:
        raise PageTooLong(f"{where}: longer than {limit:,} bytes")
    if exchange.broken is not None:
        raise (Unusable if status == 200 else NotAnswered)(f"{where}: {mask_secrets(exchange.broken.detail)}")
    return Fetched(bytes(exchange.body), exchange.headers)


class _LoopTime:
    """A clock that reads the time of the event loop: exact enough for deadlines, as a page needs no timestamps."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.stamps = Stamps(self.now_ns, by_kernel=False)

    def now_ns(self) -> int:
        return round(self._loop.time() * 1e9)


@cache
def _system_trust() -> ClientTls:
    """TLS settings that trust the system's CAs; loaded once, as loading takes milliseconds."""
    return client_tls(TlsSpec())


def _request(parts: SplitResult, endpoint: Endpoint, headers: dict[str, str], form: str) -> bytes:
    """The request as bytes. User and password of the URL become a header. Raises ValueError."""
    target = quote(parts.path or "/", safe=_UNQUOTED)
    if parts.query:
        target += "?" + quote(parts.query, safe=_UNQUOTED + "?")
    proxy_authorization = ""
    if endpoint.proxy is not None and endpoint.tls is None:
        target = f"http://{endpoint.authority}{target}"
        proxy_authorization = endpoint.proxy_authorization
    sent = {"Host": endpoint.authority, "User-Agent": f"llm-slo-prober/{__version__}", "Accept": "*/*"}
    if form:
        sent |= {"Content-Type": "application/x-www-form-urlencoded", "Content-Length": str(len(form))}
    if parts.username is not None:
        sent["Authorization"] = f"Basic {basic(unquote(parts.username), unquote(parts.password or ''))}"
    replaced = {name.lower() for name in headers} | {"accept-encoding", "connection"}
    if "authorization" in replaced and parts.username is not None:
        raise ValueError("the URL has a user, and there is a header Authorization; remove one of them")
    lines = [(name, value) for name, value in sent.items() if name.lower() not in replaced]
    lines += [(name, value) for name, value in headers.items() if name.lower() not in ("accept-encoding", "connection")]
    lines += [("Accept-Encoding", "identity"), ("Connection", "close")]
    if any(sign in text for line in lines for text in line for sign in "\r\n\0"):
        raise ValueError("a header contains a line break or a NUL")
    text = "".join(f"{name}: {value}\r\n" for name, value in lines)
    return f"{'POST' if form else 'GET'} {target} HTTP/1.1\r\n{text}{proxy_authorization}\r\n{form}".encode()
