"""Connection to a server: address, proxy, headers, authentication and certificates. Secrets need not be in the configuration.

Values can contain `${NAME}`, an environment variable with a secret; plain secrets cause a warning.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, Literal, Self
from urllib.parse import quote, urlsplit

from pydantic import AfterValidator, Field, ValidationInfo, model_validator

from prober.config.fields import Block, Mistakes, mistake
from prober.config.problems import path_of
from prober.measure.api import APIS, Api
from prober.measure.printable import mask_secrets

OWN_HEADERS = re.compile(
    "accept|accept-encoding|connection|content-length|content-type|expect|host|transfer-encoding|upgrade|user-agent|x-request-id"
)


SECRET_HEADERS = frozenset(("authorization", "proxy-authorization", "cookie", "x-api-key", "api-key", "x-auth-token"))
_NAME = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_REMEDY = "stands in the configuration itself; write ${NAME}, and set NAME in the environment"
_UNSENDABLE = (
    "has a blank, a control character or a character outside ASCII; remove it or percent-encode it, a blank as %20"
)
EXPANDED_URLS = (("metrics", "url"), ("prometheus", "url"), ("http", "url"))
FREE_TEXTS = (("sampling",), ("golden",), ("relabel",))
_API_VERSION = re.compile(r"api-version=[A-Za-z0-9._-]+")
# URL of an API itself, such as http://host/v1/messages: base URL and path of the API.
_API_URL = re.compile(rf"([a-zA-Z]+://[^/?#]+[^?#]*?)/({'|'.join(api.path for api in APIS.values())})/*")


class Auth(Block):
    """A secret in a file: a bearer token, or a key with its own header."""

    bearer_token_file: str | None = Field(None, description="file with the token; read again when it changes")
    header: str | None = Field(None, description="targets only: header for the key of `key_file`, such as x-api-key")
    key_file: str | None = Field(None, description="targets only: file with the key; read again when it changes")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.header is None and self.key_file is None:
            if self.bearer_token_file is None:
                raise mistake("needed, but not given", "bearer_token_file")
        elif self.bearer_token_file is not None:
            raise mistake("is one of two ways; remove it, or header and key_file", "bearer_token_file")
        elif self.header is None or self.key_file is None:
            raise mistake("needs header and key_file together; add the other one")
        elif problem := header_problem(self.header, "", auth_header=""):
            raise mistake(problem, "header")
        return self

    @property
    def secret_key(self) -> Literal["bearer_token_file", "key_file"]:
        """Key of the setting that names the file."""
        return "bearer_token_file" if self.bearer_token_file is not None else "key_file"

    @property
    def secret_file(self) -> str:
        """Path of the file with the secret."""
        return self.bearer_token_file or self.key_file or ""

    def credential(self, secret: str) -> tuple[str, str]:
        """(name, value) of the request header."""
        return (self.header, secret) if self.header is not None else ("Authorization", f"Bearer {secret}")


class TlsSpec(Block):
    """TLS settings for the connection to a server. ca_file: None: the system's CAs"""

    ca_file: str | None = Field(None, description="certificate authorities to trust instead of those of the system")
    insecure_skip_verify: bool = Field(False, description="accept any certificate, for tests only")
    cert_file: str | None = Field(
        None, description="client certificate, PEM with its chain; read again when it changes"
    )
    key_file: str | None = Field(None, description="key of the client certificate, not encrypted")
    server_name: str | None = Field(None, description="name in the server's certificate, if not the URL's host")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if bool(self.cert_file) != bool(self.key_file):
            raise mistake("needs cert_file and key_file together; add the other one, or remove both")
        return self


def server_tls(tls: TlsSpec | None) -> TlsSpec | None:
    """Validate the TLS settings of a server that is no target. Raises a mistake for settings that only targets support."""
    if tls is not None and tls.server_name:
        raise mistake("is for targets only; give the url the name in the certificate", "server_name")
    return tls


def server_auth(auth: Auth) -> Auth:
    """Validate the authentication at a server that is no target. Raises a mistake for settings that only targets support."""
    if auth.header is not None:
        raise mistake("is for targets only; use bearer_token_file", "header")
    return auth


def environment(info: ValidationInfo) -> Mapping[str, str] | None:
    """Environment variables for a validated file; None if code builds the model."""
    return info.context.environment if info.context else None


def http_url(text: str, info: ValidationInfo, example: str, *schemes: str) -> str:
    """Validate a URL and expand its variables, which may be secrets. schemes: default http and https. Raises ValueError."""
    url = expand_url(text, environment(info))
    if not _is_sendable(url):
        raise ValueError(f"{mask_secrets(text)!r} {_UNSENDABLE}")
    try:
        parts = urlsplit(url)
        is_valid = parts.scheme in (schemes or ("http", "https")) and parts.hostname and parts.port != 0
    except ValueError:  # not shown: it may contain a password
        is_valid = False
    if not is_valid:
        raise ValueError(
            f"{mask_secrets(text)!r} is not an {' or '.join(schemes) or 'http or https'} URL; write {example}"
        )
    return url


def _is_sendable(url: str) -> bool:
    """True if a request can carry the URL. The host may be an international name; a query is percent-encoded on sending."""
    address, _, query = url.partition("?")
    _, _, path = address.partition("://")[2].partition("/")
    return url == url.strip() and (address + query).isprintable() and " " not in address and path.isascii()


def header_problem(name: str, value: str, *, auth_header: str) -> str:
    """Error in a header; empty if it is valid. auth_header: name of the header that `auth` sets; empty for none"""
    if OWN_HEADERS.fullmatch(name.lower()) or name.lower() == auth_header.lower() != "":
        return "is set by the prober itself; remove it"
    if not name or not all(c.isalnum() or c in "!#$%&'*+-.^_`|~" for c in name) or not name.isascii():
        return f"{name!r} is not a header name"
    if not value.isascii() or not value.replace("\t", " ").isprintable():
        return "has a control character, such as a line break, or a character outside ASCII in its value; remove it"
    return ""


def _expanded_headers(headers: Mapping[str, str], info: ValidationInfo) -> dict[str, str]:
    """Expand the variables in header values. Errors are raised as mistakes at the header's name."""
    auth: Auth | None = info.data.get("auth")
    auth_header = auth.credential("")[0] if auth is not None else ""
    expanded: dict[str, str] = {}
    with Mistakes() as mistakes:
        for name, text in headers.items():
            try:
                value = expanded[name] = expand(text, environment(info))
            except ValueError as unset:
                mistakes.add(name, str(unset))
                continue
            if problem := header_problem(name, value, auth_header=auth_header):
                mistakes.add(name, problem)
    return expanded


Headers = Annotated[dict[str, str], AfterValidator(_expanded_headers)]


def server_problem(url: str, example: str) -> str:
    """Error in the URL of a server, which must have no password; empty if it is valid. The error repeats no part of the URL."""
    if not _is_sendable(url):
        return _UNSENDABLE
    if _NAME.search(url):
        return "has a variable, which is not expanded here; write its value"
    try:
        parts = urlsplit(url)
        _ = parts.port, (parts.hostname or "").encode("idna")
    except ValueError:  # it may contain a password
        return f"is not a URL; write {example}"
    if parts.scheme not in ("http", "https") or not parts.hostname:
        return f"is not an http or https URL; write {example}"
    if parts.username or parts.password:
        return "has a user or password in it, which end up in logs; give the token as a file"
    return ""


def base_url(text: str) -> str:
    """The base URL, without trailing slash and API path; /v1 is added if there is no path. Raises a mistake.

    `?api-version=…` stays: Azure needs it in every request, and it is no secret. Other parameters may be secrets and are refused.
    """
    if problem := server_problem(text, "http://host:port"):
        raise mistake(f"{mask_secrets(text)!r} {problem}")
    parts = urlsplit(text)
    if (parts.query and not _API_VERSION.fullmatch(parts.query)) or parts.fragment:
        raise mistake("has a query or fragment; give the base address only")
    base, question, query = text.partition("?")
    api_url = _API_URL.fullmatch(base)
    path = (api_url[1] if api_url else base).rstrip("/") if parts.path.strip("/") else f"{base.rstrip('/')}/v1"
    return f"{path}{question if query else ''}{query}"


def api_of(url: object) -> Api | None:
    """The API whose path ends a URL; None for a base URL."""
    api_url = _API_URL.fullmatch(url.partition("?")[0]) if isinstance(url, str) else None
    return next((api for api in APIS.values() if api_url and api.path == api_url[2]), None)


def expand_url(url: str, environment: Mapping[str, str] | None) -> str:
    """Expand variables in a URL, percent-encoding their values. Raises ValueError."""
    return expand(url, environment, str if _NAME.fullmatch(url) else lambda value: quote(value, safe=""))


def expand(text: str, environment: Mapping[str, str] | None, write: Callable[[str], str] = str) -> str:
    """Expand variables in a text; without an environment return it unchanged. Raises ValueError for unset variables."""
    if environment is None:
        return text
    # The file of a Secret often ends with a line break.
    values = {name: environment.get(name, "").strip() for name in _NAME.findall(text)}
    if unset := [name for name, value in values.items() if not value]:
        raise ValueError(f"the environment has no {' and no '.join(unset)}, or an empty one; set it")
    return _NAME.sub(lambda match: write(values[match[1]]), text)


def texts(written: Any, *keys: Any) -> Iterator[tuple[tuple[Any, ...], str]]:
    """Yield (keys, text) for each text in a configuration as written."""
    if isinstance(written, str):
        yield keys, written
    items = written.items() if isinstance(written, dict) else enumerate(written) if isinstance(written, list) else ()
    for key, value in items:
        yield from texts(value, *keys, key)


def unexpanded_variables(written: Any) -> Iterator[tuple[tuple[Any, ...], str]]:
    """Yield (keys, error) for each text with a variable where variables are not expanded.

    Request fields, golden prompts and relabelling rules are excluded: `${NAME}` has another meaning there.
    """
    for keys, text in texts(written):
        is_expanded = keys[-1] == "proxy_url" or keys[-2:-1] == ("headers",) or keys[-2:] in EXPANDED_URLS
        if not is_expanded and keys[2:3] not in FREE_TEXTS and (match := _NAME.search(text)):
            yield keys, f"has {match[0]}, which is not expanded here; write its value"


def plain_secrets(written: Any) -> Iterator[tuple[str, str]]:
    """Yield (path, warning) for each secret that is plain text in a configuration."""
    for keys, text in texts(written):
        if keys[-2:-1] == ("headers",) and keys[-1].lower() in SECRET_HEADERS and not _NAME.search(text):
            yield path_of(keys), f"a secret {_REMEDY}"
        elif keys[-1] in ("url", "proxy_url") and _has_password(text):
            yield path_of(keys), f"a password {_REMEDY}"


def _has_password(text: str) -> bool:
    try:
        password = urlsplit(text).password
    except ValueError:  # reported elsewhere
        return False
    return bool(password) and not _NAME.search(password or "")
