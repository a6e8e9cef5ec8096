"""What stands before every page: who may come in, how often, with how much, and how long an answer may take to leave.

`/-/healthy` and `/-/ready` need no password, since a kubelet has none to send; each answers with one word that is no secret.
They are never refused either: clients behind a kubelet's address could make it kill the prober.
"""

import asyncio
import base64
import binascii
import socket
import time
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from urllib.parse import urlsplit

from aiohttp import web

from prober.config.web import HEADERS as SETTABLE
from prober.net.endpoint import is_address
from prober.web.host_name import host_name, is_private
from prober.web.listener import Listener, beyond_loopback, client
from prober.web.passwords import Busy, Passwords
from prober.web.token_bucket import Rates
from prober.web.web_config import Loaded, WebFile

SAFE = ("GET", "HEAD", "OPTIONS")
BODY_BYTES = 64 << 10  # no operation takes a body
WRITING_S = 30.0  # an answer that was not taken by then is not waited for
PAGES_PER_S, PAGES_AT_ONCE = 20.0, 200  # of one client
EVERYBODY = 5  # times that, of all clients together
ACTIONS_PER_S, ACTIONS_AT_ONCE = 5.0, 20  # of one client: `/probe` and what writes
WRONG_PER_S, WRONG_AT_ONCE = 0.2, 10  # passwords of one client
CHECKS_PER_S, CHECKS_AT_ONCE = 3.0, 20  # passwords of everybody
# Charts set their colours in `style` attributes; no text that comes from elsewhere is ever put into one.
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; style-src-attr 'unsafe-inline'; "
    "img-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}
NEEDS_AUTH = (
    "--web.enable-admin-api lets whoever reaches --web.listen-address {address} send probes and sweeps, and nobody is asked who "
    "they are; give --web.config.file passwords (basic_auth_users) or required client certificates, or listen on 127.0.0.1"
)
LOCKED = (
    "the prober's --web.config.file cannot be used, so only /-/healthy and /-/ready are served; its log says what is wrong, and "
    "the file is read again as soon as it changes\n"
)
RELOAD_OFF = (
    "a reload may be asked for from this machine, by who has shown who they are (--web.config.file), or with "
    "--web.enable-admin-api; a changed file is taken over by itself, and SIGHUP does it too\n"
)
FOREIGN_NAME = (
    "refused: asked for by the name {host!r}, which may be another site's (DNS rebinding); ask by the prober's IP address, or set "
    "--web.external-url to the address it is reached at\n"
)
FOREIGN_PAGE = (
    "refused: asked for by a page of {stranger}; only the prober's own page and programs may. "
    "If that is its address, set --web.external-url to it\n"
)
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def unguarded(listen_address: str, loaded: Loaded) -> str:
    """Why actions cannot be allowed there; "" if they can."""
    host = listen_address.rpartition(":")[0].strip("[]") or None
    open_to_all = beyond_loopback(host) and not loaded.config.authenticates
    return NEEDS_AUTH.format(address=listen_address) if open_to_all else ""


class Guard:
    """One site's. `middleware` stands before its handlers; listener: set once it listens; now: a clock in seconds.

    origins: (scheme, authority) of further addresses that are the site's own. admin: actions are allowed. ready: `/-/ready`
    says so. names: host names that are the prober's own.
    """

    def __init__(
        self,
        file: WebFile,
        prefix: str,
        origins: set[tuple[str, str]],
        admin: Callable[[], bool],
        ready: Callable[[], bool],
    ) -> None:
        self.file = file
        self.listener: Listener | None = None
        self.now: Callable[[], float] = time.monotonic
        self.names = {socket.gethostname().lower(), *(urlsplit(f"//{each}").hostname or "" for _, each in origins)}
        self._healthy, self._ready = f"{prefix}/-/healthy", f"{prefix}/-/ready"
        self._probe, self._reload = f"{prefix}/probe", f"{prefix}/-/reload"
        self._origins, self._admin, self._is_ready = origins, admin, ready
        self._passwords = Passwords()
        self._pages = Rates(PAGES_PER_S, PAGES_AT_ONCE)
        self._everybody = Rates(EVERYBODY * PAGES_PER_S, EVERYBODY * PAGES_AT_ONCE)
        self._actions = Rates(ACTIONS_PER_S, ACTIONS_AT_ONCE)
        self._wrong = Rates(WRONG_PER_S, WRONG_AT_ONCE)
        self._checks = Rates(CHECKS_PER_S, CHECKS_AT_ONCE)
        self._all: Rates | None = None

    def close(self) -> None:
        """End what it began."""
        self._passwords.close()

    @web.middleware
    async def middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """The answer, written whole, or a refusal."""
        connection = self.listener.of(request) if self.listener else None
        if connection:
            connection.asked()
        loaded = await self.file.fresh()
        try:
            answer = await self._answer(request, loaded, handler)
        except web.HTTPException as refusal:  # of the router: no such page, no such method
            allowed = {"Allow": refusal.headers["Allow"]} if "Allow" in refusal.headers else {}
            answer = web.Response(status=refusal.status, text=refusal.text, headers=allowed)
        _secure(answer, loaded)
        try:
            async with asyncio.timeout(WRITING_S):
                await answer.prepare(request)
                await answer.write_eof()
        except ConnectionError:
            return answer  # gone meanwhile
        except TimeoutError:
            if connection:
                connection.cut()
        if connection and answer.keep_alive is not False:
            connection.answered()
        return answer

    def health(self, path: str) -> tuple[int, str] | None:
        """Status and text of the answer to a health check; None for another path."""
        if path == self._healthy:
            return 200, "Healthy\n"
        if path == self._ready:
            return (200, "Ready\n") if self._is_ready() else (503, "Not ready\n")
        return None

    def overflow_answer(self, head: bytes) -> bytes:
        """The response to a request on a connection beyond the limits. Called in another thread."""
        method, _, rest = head.partition(b"\r\n")[0].decode("latin-1").partition(" ")
        path = rest.partition(" ")[0].partition("?")[0]
        health = self.health(path) if method in ("GET", "HEAD") else None
        status, text = health or (429, "too many connections; try again later\n")
        headers = {
            "Content-Type": "text/plain; charset=utf-8",
            "Content-Length": str(len(text)),
            "Connection": "close",
            **({} if health else {"Retry-After": "1"}),
            **_headers(self.file.now),
        }
        lines = [
            f"HTTP/1.1 {status} {HTTPStatus(status).phrase}",
            *(f"{name}: {value}" for name, value in headers.items()),
        ]
        return ("\r\n".join(lines) + "\r\n\r\n" + (text if method != "HEAD" else "")).encode()

    async def _answer(self, request: web.Request, loaded: Loaded, handler: Handler) -> web.StreamResponse:
        if request.method in ("GET", "HEAD") and self.health(request.path):
            answer = await handler(request)
            if self._too_often(request, loaded) or request.content_length:
                answer.force_close()  # the next one needs another connection, whose cost is bounded
            return answer
        return await self._refused(request, loaded) or await handler(request)

    def _too_often(self, request: web.Request, loaded: Loaded) -> float:
        """Seconds until this client may ask again; 0 if it may now, which is then counted."""
        who, now_s = client(request.remote or ""), self.now()
        return self._pages.take(who, now_s) or self._everybody.take("", now_s) or self._limited(loaded, now_s)

    async def _refused(self, request: web.Request, loaded: Loaded) -> web.Response | None:
        """None for who may go on."""
        who, now_s = client(request.remote or ""), self.now()
        if wait_s := self._too_often(request, loaded):
            return later(wait_s, "too many requests")
        if (request.content_length or 0) > BODY_BYTES:
            answer = web.Response(
                status=413, text=f"a body of more than {BODY_BYTES:,} bytes; no operation takes one\n"
            )
            answer.force_close()
            return answer
        if loaded.is_locked:
            return web.Response(status=503, text=LOCKED)
        admitted = loaded.config.tls_server_config.certificate_required
        if loaded.config.basic_auth_users and not self.health(request.path):
            if refusal := await self._identified(request, loaded.config.basic_auth_users, who, now_s):
                return refusal
            admitted = True
        return self._action_refused(request, who, now_s, admitted=admitted)

    def _action_refused(self, request: web.Request, who: str, now_s: float, *, admitted: bool) -> web.Response | None:
        """Of `/probe` and of what changes something, which is not for the pages of other sites."""
        if request.method in SAFE and request.path != self._probe:
            return None
        hosts = request.headers.getall("Host", [])
        if len(hosts) > 1 or any(host_name(host) is None for host in hosts):
            return web.Response(status=400, text="the Host header is no host name or address\n")
        if request.method in SAFE:
            if refusal := self._probe_refused(request, admitted=admitted):
                return web.Response(status=403, text=refusal)
        elif stranger := self._stranger(request, admitted=admitted):
            return web.Response(status=403, text=FOREIGN_PAGE.format(stranger=stranger))
        if wait_s := self._actions.take(who, now_s):
            return later(wait_s, "too many probes and actions")
        if request.path == self._reload and not (
            admitted or self._admin() or not beyond_loopback(request.remote or "")
        ):
            return web.Response(status=403, text=RELOAD_OFF)
        return None

    def _probe_refused(self, request: web.Request, *, admitted: bool) -> str:
        """Why `/probe` is not for who asks; "" if it is.

        Browsers tell where a request comes from only over TLS and to loopback, and not for an image of another site's page. What
        they always send is the host's name, which that site cannot choose: a name that only the prober's own network knows is no
        site's. A password or a client certificate is sent to its own host only.
        """
        site, origin = request.headers.get("Sec-Fetch-Site", ""), request.headers.get("Origin", "")
        if site in ("cross-site", "same-site"):
            return FOREIGN_PAGE.format(stranger=origin or "another site")
        if origin and not site and not self._own(origin, request.host):
            return FOREIGN_PAGE.format(stranger=origin)
        host = request.headers.get("Host")
        if admitted or host is None:  # a browser always sends it
            return ""
        name = host_name(host) or ""
        return "" if name in self.names or is_private(name) else FOREIGN_NAME.format(host=host)

    def _own(self, origin: str, host: str) -> bool:
        """The page is the site's own, by the address that this request came to or by the external one."""
        found = origin_of(origin)
        return found in self._origins or (bool(found[1]) and found[1] == host)

    def _limited(self, loaded: Loaded, now_s: float) -> float:
        """Seconds to wait by the file's own `rate_limit`."""
        limit = loaded.config.rate_limit
        if not limit.interval:
            return 0.0
        if self._all is None or (self._all.per_s, self._all.burst) != (1 / limit.interval, limit.burst):
            self._all = Rates(1 / limit.interval, limit.burst)
        return self._all.take("", now_s)

    async def _identified(
        self, request: web.Request, users: dict[str, str], who: str, now_s: float
    ) -> web.Response | None:
        """None for a user with the right password."""
        told = _credentials(request.headers.get("Authorization", ""))
        if told is None:
            return _unauthorised()
        if self._passwords.known(users, *told):
            return None
        if wait_s := self._wrong.take(who, now_s) or self._checks.take("", now_s):
            return later(wait_s, "too many wrong passwords")
        try:
            return None if await self._passwords.right(users, *told) else _unauthorised()
        except Busy:
            return later(1.0, "too many passwords to look at")

    def _stranger(self, request: web.Request, *, admitted: bool) -> str:
        """The other site whose page sent it, "" for none. Browsers say where a request comes from, programs do not.

        A site whose name leads to this machine for once (DNS rebinding) looks like the prober's own; its name gives it away.
        """
        site, origin = request.headers.get("Sec-Fetch-Site", ""), request.headers.get("Origin", "")
        if site in ("same-origin", "none") or (not site and not origin):
            known = (
                admitted or not site or _numeric(request.host) or request.host in {each for _, each in self._origins}
            )
            return "" if known else request.host
        named = admitted or _numeric(request.host)
        own = origin and ((named and origin_of(origin)[1] == request.host) or origin_of(origin) in self._origins)
        return "" if own and site in ("", "same-site") else origin or "another site"


def _numeric(host: str) -> bool:
    """An address, or this machine's own name, neither of which another site can have."""
    name = host_name(host) or ""
    return name == "localhost" or is_address(name)


def origin_of(url: str) -> tuple[str, str]:
    """Scheme and authority; both empty for what is no URL."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "", ""
    return parts.scheme, parts.netloc


def _credentials(header: str) -> tuple[str, str] | None:
    """User and password of a Basic header; None where there are none."""
    scheme, _, told = header.partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        user, colon, password = base64.b64decode(told.strip(), validate=True).decode().partition(":")
    except (binascii.Error, ValueError):
        return None
    return (user, password) if colon else None


def _unauthorised() -> web.Response:
    return web.Response(status=401, text="Unauthorized\n", headers={"WWW-Authenticate": "Basic"})


def later(wait_s: float, why: str) -> web.Response:
    """Closes the connection: who tries again at once needs another, and gets only so many a second."""
    answer = web.Response(status=429, text=f"{why}; try again later\n", headers={"Retry-After": str(int(wait_s) + 1)})
    answer.force_close()
    return answer


def _secure(answer: web.StreamResponse, loaded: Loaded) -> None:
    for name in HEADERS:
        answer.headers.pop(name, None)
    answer.headers.update(_headers(loaded))


def _headers(loaded: Loaded) -> dict[str, str]:
    """The headers of every answer; the file's own go before, and a blank one leaves its header out."""
    chosen = loaded.config.http_server_config.headers
    found = HEADERS | {name: chosen[name] for name in SETTABLE if name in chosen}
    return {name: value for name, value in found.items() if value} | {
        "Server": "llm-slo-prober"
    }  # and not what it is made of
