"""`--web.config.file` in the format of Prometheus's exporter-toolkit: TLS, passwords and headers of the prober's site.

What Python's TLS cannot do as Go's does is refused by its name, never left out quietly. A secret is repeated in no message.
"""

import re
from typing import Annotated, Any

from pydantic import Field, ValidationError

from prober.config.document import BadYaml, parse
from prober.config.fields import Block, Document, Duration
from prober.config.load import ConfigError
from prober.config.problems import Problems, fields_of, meant
from prober.config.units import counted

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
CURVES = {"CurveP256": "prime256v1", "CurveP384": "secp384r1", "CurveP521": "secp521r1", "X25519": "X25519"}
OF_TLS13 = ("TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256")  # always on
_CIPHERS = (
    "AES_128_GCM_SHA256",
    "AES_256_GCM_SHA384",
    "CHACHA20_POLY1305_SHA256",
    "AES_128_CBC_SHA",
    "AES_256_CBC_SHA",
)
CIPHERS = {  # Go's name: OpenSSL's
    f"TLS_ECDHE_{kind}_WITH_{cipher}": f"ECDHE-{kind}-"
    + cipher.replace("AES_", "AES").replace("_CBC", "").replace("POLY1305_SHA256", "POLY1305").replace("_", "-")
    for kind in ("ECDSA", "RSA")
    for cipher in _CIPHERS
}


class TlsServer(Block):
    """`tls_server_config`. Files as written, relative to the folder of the configuration."""

    cert: str = ""
    key: str = Field(default="", repr=False)
    client_ca: str = ""
    cert_file: str = ""
    key_file: str = ""
    client_ca_file: str = ""
    client_auth_type: str = ""
    client_allowed_sans: list[str] | None = None
    min_version: str = "TLS12"
    max_version: str = "TLS13"
    cipher_suites: list[str] = Field(default_factory=list)
    prefer_server_cipher_suites: bool = True
    curve_preferences: list[str] = Field(default_factory=list)

    @property
    def wanted(self) -> bool:
        """Whether TLS is configured, possibly incompletely."""
        given = (self.cert, self.cert_file, self.key, self.key_file, self.client_ca, self.client_ca_file)
        return any(given) or bool(self.client_auth_type)

    @property
    def certificate_required(self) -> bool:
        """Whether clients need a certificate of a configured CA."""
        return self.client_auth_type == "RequireAndVerifyClientCert"


class HttpServer(Block):
    """`http_server_config`. HTTP/2 is not supported, whatever is configured; clients fall back to HTTP/1.1."""

    http2: bool = True
    headers: dict[str, str] = Field(default_factory=dict)


class RateLimit(Block):
    """`rate_limit` of all requests together: a token bucket. interval: seconds a request, 0 for no limit."""

    interval: Duration = 0.0
    burst: Annotated[int, Field(ge=0)] = 0


class WebConfig(Block):
    """The complete file."""

    tls_server_config: TlsServer = TlsServer()
    http_server_config: HttpServer = HttpServer()
    basic_auth_users: dict[str, str] = Field(default_factory=dict, repr=False)
    rate_limit: RateLimit = RateLimit()

    @property
    def authenticates(self) -> bool:
        """Whether clients must authenticate."""
        return bool(self.basic_auth_users) or self.tls_server_config.certificate_required

    @property
    def words(self) -> str:
        """Short description of the protection."""
        users = counted(len(self.basic_auth_users), "user") if self.basic_auth_users else ""
        if not self.tls_server_config.wanted:
            return f"{users}, no TLS" if users else "neither TLS nor users"
        who = "required client certificates" if self.tls_server_config.certificate_required else ""
        return ", ".join(["TLS", *filter(None, (who, users))]) + ("" if self.authenticates else ", no users")


def load_web(text: str, source: str) -> WebConfig:
    """Parse the file. Raises ConfigError with all errors."""
    problems = Problems(source)
    try:
        raw = parse(text)
        config = WebConfig.model_validate({} if raw is None else raw, context=Document((), {}, str))
    except BadYaml as problem:
        raise ConfigError(f"{source}: {problem}") from None
    except ValidationError as error:
        for item in error.errors(include_url=False, include_input=False):
            problems.add(".".join(map(str, item["loc"])), _explained(item))
        raise ConfigError("\n".join(problems.lines)) from None
    if config.tls_server_config.wanted:
        _check_tls(config.tls_server_config, problems)
    _check_headers(config.http_server_config.headers, problems)
    for name, hashed in config.basic_auth_users.items():
        _check_user(name, hashed, problems)
    if config.rate_limit.interval and not config.rate_limit.burst:
        problems.add("rate_limit.burst", "is 0, so that no request passes; write 1 or more")
    if problems.lines:
        raise ConfigError("\n".join(problems.lines))
    return config


SHAPES = {
    "dict_type": "must be a mapping; write it as name: value",
    "model_type": "must be a mapping of keys; write it as key: value",
    "string_type": "must be text; put it in quotes",
    "bool_type": "must be true or false",
    "list_type": "must be a list; write it as [a, b]",
    "int_type": "must be a whole number",
}


def _explained(item: Any) -> str:
    """Error message from a model's error, without the value."""
    if item["type"] == "extra_forbidden":
        *before, last = item["loc"]
        return f"unknown key; remove it; {meant(str(last), fields_of(WebConfig, before))}"
    said: str = SHAPES.get(item["type"], item["msg"])
    return said.replace("Input should be", "must be", 1)


def _check_tls(tls: TlsServer, problems: Problems) -> None:
    at = "tls_server_config"
    for name in ("cert", "key"):
        inline, file = getattr(tls, name), getattr(tls, f"{name}_file")
        if bool(inline) == bool(file):
            problems.add(f"{at}.{name}_file", f"needed: one of {name}_file and {name}")
    if tls.client_auth_type in UNVOUCHED:
        said = f"{tls.client_auth_type} takes certificates that nobody vouches for, which is not offered here"
        problems.add(f"{at}.client_auth_type", f"{said}; write RequireAndVerifyClientCert")
    elif tls.client_auth_type not in ("", *VOUCHED):
        problems.add(f"{at}.client_auth_type", f"{tls.client_auth_type!r} is not one of {', '.join(VOUCHED)}")
    asks = tls.client_auth_type in ("VerifyClientCertIfGiven", "RequireAndVerifyClientCert")
    authority = bool(tls.client_ca) + bool(tls.client_ca_file)
    if asks and authority != 1:
        problems.add(
            f"{at}.client_ca_file", "needed: one of client_ca_file and client_ca, whose certificates are taken"
        )
    if authority and not asks and tls.client_auth_type not in UNVOUCHED:
        problems.add(f"{at}.client_auth_type", "needed with a client CA; write RequireAndVerifyClientCert")
    if tls.client_allowed_sans is not None and not tls.certificate_required:
        problems.add(f"{at}.client_allowed_sans", "needs client_auth_type: RequireAndVerifyClientCert")
    _check_protocol(tls, at, problems)


def _check_protocol(tls: TlsServer, at: str, problems: Problems) -> None:
    for key in ("min_version", "max_version"):
        if getattr(tls, key) not in VERSIONS:
            problems.add(f"{at}.{key}", f"{getattr(tls, key)!r} is not offered; write one of {', '.join(VERSIONS)}")
    if tls.min_version > tls.max_version:
        problems.add(f"{at}.min_version", f"is above max_version {tls.max_version}; no client could connect")
    for cipher in tls.cipher_suites:
        if cipher not in CIPHERS and cipher not in OF_TLS13:
            problems.add(f"{at}.cipher_suites", f"{cipher!r} is not offered; take from {', '.join(CIPHERS)}")
    for curve in tls.curve_preferences:
        if curve not in CURVES:
            problems.add(f"{at}.curve_preferences", f"{curve!r} is not offered; take one of {', '.join(CURVES)}")
    if len(tls.curve_preferences) > 1:
        problems.add(f"{at}.curve_preferences", "has more than one, which Python cannot order; keep one, or none")


def _check_headers(headers: dict[str, str], problems: Problems) -> None:
    for name, value in headers.items():
        at = f"http_server_config.headers.{name}"
        if name not in HEADERS:
            problems.add(at, f"cannot be set; these can: {', '.join(HEADERS)}")
        elif value and HEADERS[name] and value.lower() not in HEADERS[name]:
            problems.add(at, f"{value!r} is not one of {', '.join(HEADERS[name])}")
        elif not value.isascii() or not value.isprintable():
            problems.add(at, "has a character that no header may have; remove it")


def _check_user(name: str, hashed: str, problems: Problems) -> None:
    at = f"basic_auth_users.{name}"
    found = HASH.fullmatch(hashed)
    if not name or ":" in name:
        problems.add(at, "is no name that can be sent; leave ':' out")
    if found is None:
        made = (
            'make one with `htpasswd -nBC 10 ""` of apache2-utils, or with Python\'s bcrypt as docs/security.md shows'
        )
        problems.add(at, f"is no bcrypt hash, which begins with $2y$ or $2b$; {made}")
    elif not 4 <= int(found[1]) <= HIGHEST_COST:
        problems.add(
            at, f"has cost {int(found[1])}, with which a login takes seconds of a core; use 10 to {HIGHEST_COST}"
        )
