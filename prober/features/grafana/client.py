"""The client of one Grafana: the library grafana-client, on an HTTP session with limits and with errors that name the remedy.

Redirects are refused (a login page of a proxy is one, and the token must not be sent elsewhere), QUIC is off, and the revocation of
certificates is not checked over the network (a closed network cannot).
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import niquests
from grafana_client import GrafanaApi
from niquests.packages.urllib3.contrib.resolver.system import SystemResolver  # type: ignore[import-not-found]  # an alias made at run time

from prober import __version__
from prober.config.hosts import check
from prober.config.server import TlsSpec
from prober.features.grafana import GrafanaError

TIMEOUT_S = 15.0  # of a connection, and of each read
MAX_BODY_S = 30.0  # of a response that trickles
MAX_RESPONSE_BYTES = 2 << 20  # 15 times the largest dashboard; JSON takes up to 25 times as much memory
_PIECE_BYTES = 64 << 10
_MAX_REASON_CHARS = 300
_REMEDIES = {
    401: ": the token is not valid or has expired; create a new one for the service account",
    403: ": the token may not do this; give its service account the role Editor",
    404: ": not found; check that the address is Grafana's base address with its path",
}

Credential = str | tuple[str, str]  # token of a service account, or user and password


@contextmanager
def connected(url: str, credential: Credential, tls: TlsSpec | None = None) -> Iterator[GrafanaApi]:
    """The library's client of the Grafana at this base URL. Its calls, and answers that are not Grafana's, raise GrafanaError."""
    parts, tls = urlsplit(url), tls or TlsSpec()
    host, path = parts.hostname or "", parts.path.strip("/")
    api = GrafanaApi(
        credential,
        host=f"[{host}]" if ":" in host else host,
        port=parts.port,
        url_path_prefix=f"{path}/" if path else "",
        protocol=parts.scheme,
        verify=False if tls.insecure_skip_verify else tls.ca_file or True,
        timeout=TIMEOUT_S,
    )
    with _Session(credential if isinstance(credential, str) else credential[1], tls) as api.client.s:
        try:
            yield api
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            reason = f"an answer has not the form of Grafana's API ({error!r}); check for a proxy in between"
            raise GrafanaError(f"{url}: {reason}") from error


class _Resolver(SystemResolver):  # type: ignore[misc]
    """Resolves names as the system does, but refuses addresses of services that hand out credentials."""

    def getaddrinfo(self, *arguments: Any, **options: Any) -> Any:
        """Like socket.getaddrinfo. Raises Forbidden for an address of such a service."""
        records = super().getaddrinfo(*arguments, **options)
        for record in records:
            check(str(record[4][0]))
        return records


class _Session(niquests.Session):
    """An HTTP session that returns successful JSON responses, and raises GrafanaError for all else. secret: stands in no error"""

    def __init__(self, secret: str, tls: TlsSpec) -> None:
        super().__init__(resolver=_Resolver(), disable_http3=True, revocation_configuration=None)
        self.headers.update({"User-Agent": f"llm-slo-prober/{__version__}", "Accept-Encoding": "identity"})
        self.cert = (tls.cert_file, tls.key_file) if tls.cert_file and tls.key_file else None
        self._secret = secret

    def request(self, method: str, url: str, *arguments: Any, **options: Any) -> niquests.Response:
        """Like the method of niquests.Session. Raises GrafanaError."""
        options |= {"stream": True, "allow_redirects": False}
        response: niquests.Response
        try:
            with super().request(method, url, *arguments, **options) as response:
                response._content = _body(response)
            _check(response)
            return response
        except GrafanaError as error:
            failure = error
        except (niquests.exceptions.RequestException, OSError) as error:
            # The text of the innermost error, without the object names that the library puts around it.
            cause = str(error).rpartition(">: ")[2].rstrip("'\")")[:_MAX_REASON_CHARS] or type(error).__name__
            failure = GrafanaError(f"cannot be reached: {cause}")
        message = f"{method.upper()} {url}: {failure}"
        raise GrafanaError(message.replace(self._secret, "…") if self._secret else message, failure.status) from None


def _body(response: niquests.Response) -> bytes:
    """The body of a response, which could use up the prober's memory if it were read as a whole. Raises GrafanaError."""
    if response.is_redirect:
        raise GrafanaError("the response is a redirect; give the final address, behind any login")
    if response.headers.get("Content-Encoding", "identity") != "identity":
        raise GrafanaError("the response is compressed, although identity was asked")
    body, end_s = bytearray(), time.monotonic() + MAX_BODY_S
    for piece in response.iter_content(_PIECE_BYTES):
        body += piece
        if len(body) > MAX_RESPONSE_BYTES or time.monotonic() > end_s:
            raise GrafanaError(f"the response has more than {MAX_RESPONSE_BYTES:,} bytes or {MAX_BODY_S:g} s")
    return bytes(body)


def _check(response: niquests.Response) -> None:
    """Raise GrafanaError, with the remedy, unless the response is a successful one of an API."""
    try:
        # The library guesses the encoding of a page, which takes seconds.
        answer = response.json() if "json" in response.headers.get("Content-Type", "") else None
    except (ValueError, RecursionError):
        answer = None
    if not response.ok:
        status = response.status_code or 0
        message = str(answer["message"])[:_MAX_REASON_CHARS] if isinstance(answer, dict) and "message" in answer else ""
        remedy = (
            ": Grafana or a proxy in front of it failed; see its log" if status >= 500 else _REMEDIES.get(status, "")
        )
        raise GrafanaError(f"HTTP {status}{f' ({message})' if message else ''}{remedy}", status)
    if answer is None:
        raise GrafanaError(
            "the response is not JSON; check the base address, and check for a login or a proxy in between"
        )
