"""Parses `--web.config.file`, in the format of Prometheus's exporter-toolkit: TLS, passwords and headers of the prober's web server.

A setting that Python's TLS lacks is refused by name, never ignored silently. No message repeats a secret.
"""

import re
from typing import Annotated, Self

from pydantic import Field, field_validator, model_validator

from prober.config.document import Problems
from prober.config.fields import Block, Document, Items, Mistakes, OptionalDuration, mistake

HIGHEST_COST = 14
HASH = re.compile(r"\$2[abxy]?\$(\d\d)\$[./A-Za-z0-9]{53}")
HEADERS: dict[str, tuple[str, ...]] = {  # allowed values; empty: any
    "Content-Security-Policy": (),
    "X-Frame-Options": ("deny", "sameorigin"),
    "X-Content-Type-Options": ("nosniff",),
    "X-XSS-Protection": (),
    "Strict-Transport-Security": (),
}
UNVOUCHED = ("RequestClientCert", "RequireAnyClientCert", "RequireClientCert")
VOUCHED = ("NoClientCert", "VerifyClientCertIfGiven", "RequireAndVerifyClientCert")
VERSIONS = ("TLS12", "TLS13")


class TlsServer(Block):
    """`tls_server_config`. Paths are as written, relative to the configuration's folder."""

    cert: str = ""
    key: str = Field("", repr=False)
    client_ca: str = ""
    cert_file: str = ""
    key_file: str = ""
    client_ca_file: str = ""
    client_auth_type: str = ""
    client_allowed_sans: Items[str] | None = None
    min_version: str = "TLS12"
    max_version: str = "TLS13"

    @property
    def is_configured(self) -> bool:
        """True if TLS is configured, even if incompletely."""
        files = (self.cert, self.cert_file, self.key, self.key_file, self.client_ca, self.client_ca_file)
        return any(files) or bool(self.client_auth_type)

    @property
    def certificate_required(self) -> bool:
        """True if clients need a certificate from a configured CA."""
        return self.client_auth_type == "RequireAndVerifyClientCert"

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.is_configured:
            with Mistakes() as mistakes:
                self._check_certificates(mistakes)
                for key, version in (("min_version", self.min_version), ("max_version", self.max_version)):
                    if version not in VERSIONS:
                        mistakes.add(key, f"{version!r} is not offered; take from {', '.join(VERSIONS)}")
                if self.min_version > self.max_version:
                    mistakes.add("min_version", f"is above max_version {self.max_version}; no client could connect")
        return self

    def _check_certificates(self, mistakes: Mistakes) -> None:
        for name in ("cert", "key"):
            inline, file = getattr(self, name), getattr(self, f"{name}_file")
            if bool(inline) == bool(file):
                mistakes.add(f"{name}_file", f"needed: one of {name}_file and {name}")
        if self.client_auth_type in UNVOUCHED:
            mistakes.add(
                "client_auth_type",
                f"{self.client_auth_type} takes certificates that nobody vouches for, which is not offered here; "
                "write RequireAndVerifyClientCert",
            )
        elif self.client_auth_type not in ("", *VOUCHED):
            mistakes.add("client_auth_type", f"{self.client_auth_type!r} is not one of {', '.join(VOUCHED)}")
        verifies = self.client_auth_type in ("VerifyClientCertIfGiven", "RequireAndVerifyClientCert")
        authorities = bool(self.client_ca) + bool(self.client_ca_file)
        if verifies and authorities != 1:
            mistakes.add("client_ca_file", "needed: one of client_ca_file and client_ca, whose certificates are taken")
        if authorities and not verifies and self.client_auth_type not in UNVOUCHED:
            mistakes.add("client_auth_type", "needed with a client CA; write RequireAndVerifyClientCert")
        if self.client_allowed_sans is not None and not self.certificate_required:
            mistakes.add("client_allowed_sans", "needs client_auth_type: RequireAndVerifyClientCert")


class HttpServer(Block):
    """`http_server_config`. HTTP/2 is not supported, even if configured; clients use HTTP/1.1 instead."""

    http2: bool = True
    headers: dict[str, str] = Field(default_factory=dict)

    @field_validator("headers")
    @classmethod
    def _check_headers(cls, headers: dict[str, str]) -> dict[str, str]:
        with Mistakes() as mistakes:
            for name, value in headers.items():
                if name not in HEADERS:
                    mistakes.add(name, f"cannot be set; these can: {', '.join(HEADERS)}")
                elif value and HEADERS[name] and value.lower() not in HEADERS[name]:
                    mistakes.add(name, f"{value!r} is not one of {', '.join(HEADERS[name])}")
                elif not value.isascii() or not value.isprintable():
                    mistakes.add(name, "has a character that no header may have; remove it")
        return headers


class RateLimit(Block):
    """`rate_limit` for all requests together, by a token bucket. interval: seconds per request, 0 for no limit"""

    interval: OptionalDuration = 0.0
    burst: Annotated[int, Field(ge=0)] = 0

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.interval and not self.burst:
            raise mistake("is 0, so that no request passes; write 1 or more", "burst")
        return self


class WebConfig(Block):
    """A web configuration file."""

    tls_server_config: TlsServer = TlsServer()
    http_server_config: HttpServer = HttpServer()
    basic_auth_users: dict[str, str] = Field(default_factory=dict, repr=False)
    rate_limit: RateLimit = RateLimit()

    @field_validator("basic_auth_users")
    @classmethod
    def _check_users(cls, users: dict[str, str]) -> dict[str, str]:
        with Mistakes() as mistakes:
            for name, password_hash in users.items():
                match = HASH.fullmatch(password_hash)
                if not name or ":" in name:
                    mistakes.add(f".{name}", "is no name that can be sent; leave ':' out")
                if match is None:
                    mistakes.add(
                        f".{name}",
                        'is no bcrypt hash, which begins with $2y$ or $2b$; make one with `htpasswd -nBC 10 ""` of '
                        "apache2-utils, or with Python's bcrypt as docs/security.md shows",
                    )
                elif not 4 <= int(match[1]) <= HIGHEST_COST:
                    mistakes.add(
                        f".{name}",
                        f"has cost {int(match[1])}, with which a login takes seconds of a core; use 10 to {HIGHEST_COST}",
                    )
        return users


def load_web(text: str, source: str) -> WebConfig:
    """Parse a web configuration file. Raises ConfigError with all errors."""
    problems = Problems(source, text)
    raw = problems.parse()
    config = problems.validated(WebConfig, {} if raw is None else raw, "", Document((), {}, str), is_secret=True)
    problems.end()
    assert config is not None, "else there are problems"
    return config
