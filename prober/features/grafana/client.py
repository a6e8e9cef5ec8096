"""Client of one Grafana: the library grafana-client, on an HTTP session with limits.

Redirects are refused (they may lead to a proxy's login page, and the token must not be sent elsewhere), QUIC is off, and certificates
are not checked for revocation over the network (which fails in a closed network).
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import niquests
from grafana_client import GrafanaApi
from grafana_client.client import GrafanaException
from niquests.packages.urllib3.contrib.resolver.system import SystemResolver  # type: ignore[import-not-found]  # an alias made at run time

from prober import __version__
from prober.config.hosts import check
from prober.config.server import TlsSpec
from prober.features.grafana import GrafanaError

TIMEOUT_S = 15.0  # to connect, and for each read
MAX_BODY_S = 30.0  # for a response that arrives slowly
MAX_RESPONSE_BYTES = 2 << 20  # 15 times the largest dashboard; JSON takes up to 25 times as much memory
_PIECE_BYTES = 64 << 10
_MAX_REASON_CHARS = 300
_REMEDIES = {
    401: ": the token is not valid or has expired; create a new one for the service account",
    403: ": the token may not do this; give its service account the role Editor",
    404: ": not found; check that the address is Grafana's base address with its path",
}

Credential = str | tuple[str, str]  # a service account's token, or user and password


@contextmanager
def connected(url: str, credential: Credential, tls: TlsSpec | None = None) -> Iterator[GrafanaApi]:
    """Connect the library to the Grafana at a base URL. Errors inside the context are raised as GrafanaError."""
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
        except GrafanaException as error:
            raise GrafanaError(f"{url}: {reason_of(error)}") from error
        except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
            reason = (
                f"an answer has not the form of Grafana's API ({type(error).__name__}); check for a proxy in between"
            )
            raise GrafanaError(f"{url}: {reason}") from error
        except (niquests.exceptions.RequestException, OSError) as error:
            # Keep only the innermost error's text, without the object names that the library adds.
            cause = str(error).rpartition(">: ")[2].rstrip("'\")")[:_MAX_REASON_CHARS] or type(error).__name__
            raise GrafanaError(f"{url}: cannot be reached: {cause}") from None


def reason_of(error: GrafanaException) -> str:
    """Explain why Grafana refused a call, with the remedy."""
    if not error.status_code:
        return f"cannot be reached: {error.message}"[:_MAX_REASON_CHARS]
    answer = error.response
    message = f" ({answer['message'][:_MAX_REASON_CHARS]})" if isinstance(answer, dict) and "message" in answer else ""
    failed = ": Grafana or a proxy in front of it failed; see its log" if error.status_code >= 500 else ""
    return f"HTTP {error.status_code}{message}{failed or _REMEDIES.get(error.status_code, '')}"


class _Resolver(SystemResolver):  # type: ignore[misc]
    """Resolves names as the system does, but refuses addresses of services that provide credentials."""

    def getaddrinfo(self, *arguments: Any, **options: Any) -> Any:
        """Like socket.getaddrinfo. Raises Forbidden for an address of such a service."""
        records = super().getaddrinfo(*arguments, **options)
        for record in records:
            check(str(record[4][0]))
        return records


class _Session(niquests.Session):
    """An HTTP session for an API. secret: removed from every response, in case the server repeats it"""

    def __init__(self, secret: str, tls: TlsSpec) -> None:
        super().__init__(resolver=_Resolver(), disable_http3=True, revocation_configuration=None)
        self.headers.update({"User-Agent": f"llm-slo-prober/{__version__}", "Accept-Encoding": "identity"})
        self.cert = (tls.cert_file, tls.key_file) if tls.cert_file and tls.key_file else None
        self._secret = secret.encode()

    def request(self, method: str, url: str, *arguments: Any, **options: Any) -> niquests.Response:
        """Like the method of niquests.Session. Raises GrafanaError if the response is too long or not that of an API."""
        try:
            return self._request(method, url, *arguments, **options)
        except niquests.exceptions.RequestException as error:  # may quote a response that is not HTTP
            words, secret = str(error), self._secret.decode()
            if not secret or secret not in words:
                raise
            raise niquests.exceptions.ConnectionError(words.replace(secret, "...")) from None

    def _request(self, method: str, url: str, *arguments: Any, **options: Any) -> niquests.Response:
        options |= {"stream": True, "allow_redirects": False}
        response: niquests.Response
        with super().request(method, url, *arguments, **options) as response:
            is_page = response.ok and "json" not in response.headers.get("Content-Type", "")
            if response.is_redirect or is_page:
                found = "a redirect" if response.is_redirect else "not JSON"
                raise GrafanaError(f"{url}: the response is {found}; give the final address, behind any login or proxy")
            if response.headers.get("Content-Encoding", "identity") != "identity":
                raise GrafanaError(f"{url}: the response is compressed, although identity was asked")
            body, end_s = bytearray(), time.monotonic() + MAX_BODY_S
            for piece in response.iter_content(_PIECE_BYTES):
                body += piece
                if len(body) > MAX_RESPONSE_BYTES or time.monotonic() > end_s:
                    limits = f"{MAX_RESPONSE_BYTES:,} bytes or {MAX_BODY_S:g} s"
                    raise GrafanaError(f"{url}: the response has more than {limits}")
        response._content = bytes(body.replace(self._secret, b"...") if self._secret else body)
        return response
