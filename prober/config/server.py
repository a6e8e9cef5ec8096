"""Connection to a server: address, proxy, headers, authentication and certificates."""

import re
from collections.abc import Mapping
from typing import Self
from urllib.parse import urlsplit

from pydantic import Field, ValidationInfo, model_validator

from prober.config.fields import Block, mistake
from prober.config.problems import mask_secrets
from prober.config.variables import expand_url

OWN_HEADERS = re.compile(
    "accept|accept-encoding|connection|content-length|content-type|expect|host|transfer-encoding|upgrade|user-agent|x-request-id"
)


class Auth(Block):
    bearer_token_file: str = Field(description="file with the token; read again when it changes")


class TlsSpec(Block):
    """TLS of the server and of the prober. ca_file: None for the authorities of the system."""

    ca_file: str | None = Field(None, description="certificate authorities to trust instead of those of the system")
    insecure_skip_verify: bool = Field(False, description="accept any certificate, for tests only")
    cert_file: str | None = Field(
        None, description="client certificate, PEM with its chain; read again when it changes"
    )
    key_file: str | None = Field(None, description="key of the client certificate, not encrypted")
    server_name: str | None = Field(
        None, description="name in the server's certificate, if it is not the host of the URL"
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if bool(self.cert_file) != bool(self.key_file):
            raise mistake("needs cert_file and key_file together; add the other one, or remove both")
        return self


def server_tls(tls: TlsSpec | None) -> TlsSpec | None:
    """TLS of a server that is no target. Raises a mistake for settings of targets only."""
    if tls is not None and tls.server_name:
        raise mistake("is for targets only; give the url the name in the certificate", "server_name")
    return tls


def environment(info: ValidationInfo) -> Mapping[str, str] | None:
    """Environment of the file that is validated; None in code."""
    return info.context.environment if info.context else None


def expand_field(url: str, info: ValidationInfo) -> str:
    """A URL with its variables expanded. Raises a mistake."""
    try:
        return expand_url(url, environment(info))
    except ValueError as problem:
        raise mistake(str(problem)) from None


def expand_proxy(text: str, info: ValidationInfo) -> str:
    """URL of a forward proxy with its variables expanded. Raises a mistake."""
    url = expand_field(text, info)
    try:
        parts = urlsplit(url)
        is_proxy = parts.scheme == "http" and bool(parts.hostname) and parts.port != 0
    except ValueError:  # not shown: it may contain a password
        is_proxy = False
    if not is_proxy:
        raise mistake(f"{mask_secrets(text)!r} is not an http proxy; write http://host:port")
    return url


def header_problem(name: str, value: str, *, has_token: bool) -> str:
    """Error in a header; empty if it is valid. has_token: the prober sends a bearer token."""
    if OWN_HEADERS.fullmatch(name.lower()) or (name.lower() == "authorization" and has_token):
        return "is set by the prober itself; remove it"
    if not name or not all(c.isalnum() or c in "!#$%&'*+-.^_`|~" for c in name) or not name.isascii():
        return f"{name!r} is not a header name"
    if any(c in value for c in "\r\n\0") or not value.isascii():
        return "has a line break or a character outside ASCII in its value; remove it"
    return ""


def base_url(text: str) -> str:
    """URL without a slash at its end; without a path, with /v1. Raises a mistake."""
    try:
        parts = urlsplit(text)
        _ = parts.port
    except ValueError as problem:
        why = "" if "@" in text else f" ({problem})"  # the message may contain a password
        raise mistake(f"{mask_secrets(text)!r} is not a URL{why}; write http://host:port") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise mistake(f"{mask_secrets(text)!r} is not an http or https URL; write http://host:port")
    if parts.username or parts.password:
        raise mistake("has credentials in it, which end up in logs; use auth.bearer_token_file")
    if parts.query or parts.fragment:
        raise mistake("has a query or fragment; give the base address only")
    base = text.rstrip("/")
    return base if parts.path.strip("/") else f"{base}/v1"
