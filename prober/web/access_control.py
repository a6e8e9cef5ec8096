"""Access control of the site: authentication, cross-site checks, rate limits, body size and write timeout.

`/-/healthy`, `/-/ready` and `/health/TARGET` need no password, since kubelets and proxies send none; without one the answer is one
word. They have no rate limit: a client with the kubelet's address could otherwise make the kubelet kill the prober or an engine. Each
request uses a new connection, so the limit of connections bounds their cost.
"""

import asyncio
import hmac
import os
import re
import secrets
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from urllib.parse import urlsplit

from aiohttp import BasicAuth, web

from prober.config.hosts import ip_address, is_loopback
from prober.web.answers import Handler
from prober.web.server import Connection, is_reachable
from prober.web.token_bucket import Rates, TooMany
from prober.web.web_config import Loaded, WebFile

MAX_WAITING = 8
MAX_BCRYPT_BYTES = 72  # bcrypt uses no more of a password
LOWEST_PRIORITY = 19


class Passwords:
    """Checks passwords against bcrypt hashes in a thread, one at a time, and remembers correct ones. `close` ends the thread.

    One check takes 50 ms of a core or more. So that guessing does not slow down the prober, the thread has the lowest priority, few
    checks may wait for it, and a correct password is recognised later by a keyed digest.
    """

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)
        self._correct: dict[str, bytes] = {}  # user → digest of the hash and its password
        self._waiting = 0
        self._thread = ThreadPoolExecutor(1, "passwords", initializer=_lower_priority)

    def is_known(self, users: dict[str, str], user: str, password: str) -> bool:
        """True if this password was correct before, for the user's present hash."""
        digest = self._digest(users.get(user, ""), password)
        return hmac.compare_digest(self._correct.get(user, b""), digest)

    async def is_correct(self, users: dict[str, str], user: str, password: str) -> bool:
        """True if the user has this password. The check takes as long for unknown users. Raises TooMany."""
        if self._waiting >= MAX_WAITING:
            raise TooMany(1.0, "too many password checks")
        hashed = users.get(user) or max(users.values(), key=lambda hashed: int(hashed.split("$")[2]))
        self._waiting += 1
        work = asyncio.get_running_loop().run_in_executor(self._thread, _matches, password, hashed)
        work.add_done_callback(self._done)
        is_correct = await asyncio.shield(work) and user in users
        if is_correct:
            self._correct[user] = self._digest(hashed, password)
        return is_correct

    def close(self) -> None:
        """End the thread after the current check."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _done(self, _: object) -> None:
        self._waiting -= 1

    def _digest(self, hashed: str, password: str) -> bytes:
        return hmac.digest(self._key, hashed.encode() + b"\0" + password.encode("utf-8", "surrogatepass"), "sha256")


def _matches(password: str, hashed: str) -> bool:
    """True if the password has this hash; the library compares in constant time."""
    import bcrypt  # here, because most probers have no passwords

    try:
        return bcrypt.checkpw(password.encode("utf-8", "surrogatepass")[:MAX_BCRYPT_BYTES], hashed.encode())
    except ValueError:  # the password contains NUL
        return False


def _lower_priority() -> None:
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), LOWEST_PRIORITY)


# Names that nobody can register publicly: reserved by RFC 6761, 6762 and 8375 or by ICANN, and `svc` of a cluster's short names.
PRIVATE = (".corp", ".home", ".home.arpa", ".internal", ".local", ".localhost", ".svc", ".test")
_HOST = re.compile(r"(?:\[(?P<ipv6>[0-9A-Fa-f:.]+)\]|(?P<name>[A-Za-z0-9._-]{1,253}))(?::[0-9]{0,5})?")


def host_name(header: str) -> str | None:
    """Name or address in a Host header, in lower case without port, brackets and trailing dot; None if the header is malformed."""
    match = _HOST.fullmatch(header)
    if match is None:
        return None
    if match["ipv6"] is not None:
        return match["ipv6"].lower() if ":" in match["ipv6"] and ip_address(match["ipv6"]) else None
    return match["name"].lower().removesuffix(".") or None


SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
HEALTHY, READY, TARGETS = "/-/healthy", "/-/ready", "/health/"
METRICS, PROBE, RELOAD = "/metrics", "/probe", "/-/reload"
MAX_BODY_BYTES = 64 << 10  # no operation takes a body
WRITE_TIMEOUT_S = 30.0  # for the client to read the response
PAGES_PER_S, PAGES_BURST = 20.0, 200  # per client
ACTIONS_PER_S, ACTIONS_BURST = 5.0, 20  # per client: `/probe` and writes
WRONG_PASSWORDS_PER_S, WRONG_PASSWORDS_BURST = 0.2, 10  # per client
# Charts set colours in `style` attributes, which never contain external text.
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; style-src-attr 'unsafe-inline'; "
    "img-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}
NEEDS_AUTH = (
    "--web.enable-admin-api would let anyone who reaches --web.listen-address {address} start probes and sweeps without "
    "authentication; add basic_auth_users or required client certificates to --web.config.file, or listen on 127.0.0.1"
)
LOCKED = (
    "the prober's --web.config.file cannot be used, so only /-/healthy, /-/ready and /health/ are served; its log has the error, and "
    "the file is read again when it changes\n"
)
RELOAD_OFF = (
    "a reload is allowed from this machine, with authentication (--web.config.file), or with --web.enable-admin-api; "
    "a changed file is also loaded automatically and on SIGHUP\n"
)
FOREIGN_NAME = (
    "refused: the Host {host!r} is not the prober's, and may belong to another site (DNS rebinding); use {own}, or set "
    "--web.external-url to the prober's address\n"
)
FOREIGN_PAGE = (
    "refused: the request comes from a page of {other_site}; only the prober's own page and programs are allowed. "
    "If this is the prober's address, set --web.external-url to it\n"
)


def missing_authentication(listen_address: str, loaded: Loaded) -> str:
    """Return an error if other machines could do actions without authentication, else ""."""
    host = listen_address.rpartition(":")[0].strip("[]") or None
    open_to_all = is_reachable(host) and not loaded.authenticates
    return NEEDS_AUTH.format(address=listen_address) if open_to_all else ""


class AccessControl:
    """Access control of one site; `middleware` runs before its handlers.

    prefix: path prefix, optional for health checks. external_url: address for users, "" without one
    admin: True if actions are allowed. ready: result of `/-/ready`.
    target_health: returns the answer to `/health/TARGET` for a name; clients that are not admitted get it only up to the colon
    now: returns the seconds of a clock. names: host names of the prober. is_local: only this machine can reach the listener
    """

    def __init__(
        self,
        file: WebFile,
        prefix: str,
        external_url: str,
        admin: Callable[[], bool],
        ready: Callable[[], bool],
        target_health: Callable[[str], web.Response],
    ) -> None:
        self.file = file
        self.now: Callable[[], float] = time.monotonic
        self.names = {socket.gethostname().lower(), urlsplit(external_url).hostname or ""}
        self.is_local = False
        self._prefix, self._external_url, self._target_health = prefix, external_url, target_health
        self._origins = {origin_of(external_url)} if external_url else set()
        self._admin, self._is_ready = admin, ready
        self._passwords = Passwords()
        self._pages = Rates(PAGES_PER_S, PAGES_BURST)
        self._actions = Rates(ACTIONS_PER_S, ACTIONS_BURST)
        self._wrong = Rates(WRONG_PASSWORDS_PER_S, WRONG_PASSWORDS_BURST)
        self._all: Rates | None = None

    async def close(self, _: web.Application) -> None:
        """Stop the thread that checks passwords."""
        self._passwords.close()

    @web.middleware
    async def middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Answer or refuse a request. A client that reads too slowly is disconnected after the write timeout."""
        connection = request.protocol
        assert isinstance(connection, Connection)
        connection.is_busy = True
        loaded = await self.file.current()
        try:
            answer = await self._answer(request, connection, loaded, handler)
        except web.HTTPException as refusal:  # raised by a handler, or by the router (unknown path or method)
            headers = {name: refusal.headers[name] for name in ("Allow", "WWW-Authenticate") if name in refusal.headers}
            answer = web.Response(status=refusal.status, text=refusal.text, headers=headers)
            if refusal.status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
                answer.force_close()
        except TooMany as refusal:
            headers = {"Retry-After": str(int(refusal.wait_s) + 1)}
            answer = web.Response(status=429, text=f"{refusal}; try again later\n", headers=headers)
            answer.force_close()  # a retry then needs a new connection, and their rate is limited
        for name in HEADERS:
            answer.headers.pop(name, None)
        # Headers of the web configuration have precedence, an empty value removes one, and the library's name and version are removed.
        headers = HEADERS | (loaded.config.http_server_config.headers if loaded.config else {})
        answer.headers.update({name: value for name, value in headers.items() if value} | {"Server": "llm-slo-prober"})
        try:
            async with asyncio.timeout(WRITE_TIMEOUT_S):
                await answer.prepare(request)
                await answer.write_eof()
        except ConnectionError:
            return answer  # the client has disconnected
        except TimeoutError:
            connection.abort()
        if answer.keep_alive is not False:
            connection.response_sent()
        return answer

    async def _answer(
        self, request: web.Request, connection: Connection, loaded: Loaded, handler: Handler
    ) -> web.StreamResponse:
        path, is_health = self._path(request), request.method in ("GET", "HEAD")
        if is_health and path == HEALTHY:
            health = web.Response(text="Healthy\n")
        elif is_health and path == READY:
            is_ready = self._is_ready()
            health = web.Response(status=200 if is_ready else 503, text="Ready\n" if is_ready else "Not ready\n")
        elif is_health and (name := path.removeprefix(TARGETS)) != path and name:
            health = self._target_health(name)
            if not await self._is_admitted(request, connection, loaded):
                health.text = str(health.text).partition(":")[0].rstrip() + "\n"
        else:
            await self._check(request, connection, loaded)
            return await handler(request)
        health.force_close()
        return health

    def _path(self, request: web.Request) -> str:
        return request.path.removeprefix(self._prefix)

    async def _check(self, request: web.Request, connection: Connection, loaded: Loaded) -> None:
        """Raise TooMany or HTTPException if the request is refused."""
        client_key, now_s, path = connection.client_key, self.now(), self._path(request)
        if wait_s := self._pages.take(client_key, now_s) or self._limited(loaded, now_s):
            raise TooMany(wait_s, "too many requests")
        if (size := request.content_length or 0) > MAX_BODY_BYTES:
            text = f"the body has more than {MAX_BODY_BYTES:,} bytes; no operation takes a body\n"
            raise web.HTTPRequestEntityTooLarge(MAX_BODY_BYTES, size, text=text)
        if loaded.is_locked:
            raise web.HTTPServiceUnavailable(text=LOCKED)
        await self._check_credentials(request, connection, loaded)
        hosts = request.headers.getall("Host", [])
        if len(hosts) > 1 or any(host_name(host) is None for host in hosts):
            raise web.HTTPBadRequest(text="the Host header is not a host name or address\n")
        if not loaded.authenticates and self._is_foreign(request):
            own = self._external_url or ("localhost" if self.is_local else "the prober's IP address")
            raise web.HTTPForbidden(text=FOREIGN_NAME.format(host=hosts[0], own=own))
        if request.method in SAFE_METHODS and path != PROBE:
            return
        if other_site := self._other_site(request):
            raise web.HTTPForbidden(text=FOREIGN_PAGE.format(other_site=other_site))
        if wait_s := self._actions.take(client_key, now_s):
            raise TooMany(wait_s, "too many probes and actions")
        is_allowed = loaded.authenticates or self._admin() or not is_reachable(request.remote or "")
        if path == RELOAD and not is_allowed:
            raise web.HTTPForbidden(text=RELOAD_OFF)

    def _is_foreign(self, request: web.Request) -> bool:
        """True if the Host may be another site's name that leads here (DNS rebinding). Browsers always send it.

        A prober that only this machine can reach accepts its own names; for metrics, probes and target health, which Prometheus
        and proxies request by names of theirs, also private ones, which no public site can have. A prober that others can reach
        accepts private names everywhere; for metrics and health every name, and for pages and API too if it has no external URL,
        as nothing tells it its own.
        Actions of browsers need the prober's own addresses or any IP address.
        """
        path, name = self._path(request), host_name(request.headers.get("Host", ""))
        if name is None or name in self.names or is_loopback(name):
            return False
        if request.method not in SAFE_METHODS and not request.headers.keys().isdisjoint(("Origin", "Sec-Fetch-Site")):
            return ip_address(name) is None
        is_private = "." not in name or name.endswith(PRIVATE) or ip_address(name) is not None
        if path == PROBE:
            return not is_private
        if path == METRICS or path.startswith(TARGETS):
            return self.is_local and not is_private
        return self.is_local or (bool(self._external_url) and not is_private)

    def _other_site(self, request: web.Request) -> str:
        """The other site whose page sent the request; "" if it did not come from another site.

        Browsers send `Sec-Fetch-Site` over TLS and to loopback, and an origin with every action; other programs send neither.
        """
        site, origin = request.headers.get("Sec-Fetch-Site", ""), request.headers.get("Origin", "")
        is_own = origin_of(origin) in self._origins or (bool(origin) and origin_of(origin)[1] == request.host)
        is_allowed = (
            site in ("same-origin", "none") or (not site and not origin) or (is_own and site in ("", "same-site"))
        )
        return "" if is_allowed else origin or "another site"

    def _limited(self, loaded: Loaded, now_s: float) -> float:
        """Seconds to wait because of the `rate_limit` in the web configuration; 0 if the request is within it."""
        limit = loaded.config and loaded.config.rate_limit
        if not (limit and limit.interval):
            return 0.0
        if self._all is None or (self._all.per_s, self._all.burst) != (1 / limit.interval, limit.burst):
            self._all = Rates(1 / limit.interval, limit.burst)
        return self._all.take("", now_s)

    async def _is_admitted(self, request: web.Request, connection: Connection, loaded: Loaded) -> bool:
        """True if the client may read the pages. TLS has checked its certificate before."""
        if loaded.is_locked or self._is_foreign(request):
            return False
        try:
            await self._check_credentials(request, connection, loaded)
        except (web.HTTPUnauthorized, TooMany):
            return False
        return True

    async def _check_credentials(self, request: web.Request, connection: Connection, loaded: Loaded) -> None:
        """Check user and password if the site has users. Raises HTTPUnauthorized or TooMany."""
        users = loaded.config.basic_auth_users if loaded.config is not None else {}
        if not users:
            return
        refusal = web.HTTPUnauthorized(text="Unauthorized\n", headers={"WWW-Authenticate": "Basic"})
        try:
            credentials = BasicAuth.decode(request.headers.get("Authorization", ""), "utf-8")[:2]
        except ValueError:
            raise refusal from None
        if self._passwords.is_known(users, *credentials):
            return
        if wait_s := self._wrong.take(connection.client_key, self.now()):
            raise TooMany(wait_s, "too many wrong passwords")
        if not await self._passwords.is_correct(users, *credentials):
            raise refusal


def origin_of(url: str) -> tuple[str, str]:
    """(scheme, authority) of a URL; both "" if it is invalid."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "", ""
    return parts.scheme, parts.netloc
