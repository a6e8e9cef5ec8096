"""Loads `--web.config.file` and the files it names, and reloads them on change; an invalid change is logged and has no effect."""

import asyncio
import logging
import math
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prober.config.hosts import ip_address
from prober.config.problems import ConfigError
from prober.config.units import counted
from prober.net.certificates import BadCertificate, load_pair
from prober.storage.watched_file import Stamp, read_regular, stamp

if TYPE_CHECKING:
    from prober.config.web import TlsServer, WebConfig

MAX_FILE_BYTES = 1 << 20
RETRY_S = 5.0  # after an error: a missing file may appear
_VERSIONS = {"TLS12": ssl.TLSVersion.TLSv1_2, "TLS13": ssl.TLSVersion.TLSv1_3}
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Loaded:
    """A loaded web configuration.

    config: None without a file; tls: None for plain HTTP; is_locked: the file is unusable, so only health checks are served
    """

    config: "WebConfig | None" = None
    tls: ssl.SSLContext | None = None
    is_locked: bool = False

    @property
    def authenticates(self) -> bool:
        """True if clients must authenticate."""
        config = self.config
        return config is not None and (bool(config.basic_auth_users) or config.tls_server_config.certificate_required)

    @property
    def words(self) -> str:
        """Short text on how the pages are protected."""
        users = (
            counted(len(self.config.basic_auth_users), "user") if self.config and self.config.basic_auth_users else ""
        )
        if not (self.config and self.config.tls_server_config.is_configured):
            return f"{users}, no TLS" if users else "neither TLS nor users"
        certificates = "required client certificates" if self.config.tls_server_config.certificate_required else ""
        listed = ", ".join(filter(None, ("TLS", certificates, users)))
        return listed if self.authenticates else f"{listed}, no users"

    def admits(self, certificate: Mapping[str, Any] | None) -> bool:
        """True if a client certificate, in Python's form, has an allowed name."""
        allowed = self.config and self.config.tls_server_config.client_allowed_sans
        if allowed is None:
            return True
        names = {  # in Go's form
            str(ip_address(name.strip()) or name) if kind == "IP Address" else name
            for kind, name in (certificate or {}).get("subjectAltName", ())
        }
        return not names.isdisjoint(allowed)


def read(path: str) -> Loaded:
    """Load the file and the files it names. Raises ConfigError."""
    from prober.config.web import load_web  # here, because most probers have no such file

    try:
        config = load_web(read_regular(path, MAX_FILE_BYTES).decode(), path)
    except (OSError, UnicodeDecodeError, BadCertificate) as problem:
        why = getattr(problem, "strerror", None) or "is no UTF-8, or too long"
        raise ConfigError(f"--web.config.file {path}: {why}; give a YAML file") from None
    tls = config.tls_server_config
    try:
        return Loaded(config, _context(tls, Path(path).parent) if tls.is_configured else None)
    except (OSError, ssl.SSLError, BadCertificate) as problem:
        raise ConfigError(f"{path}: tls_server_config: {problem}") from None


class WebFile:
    """The web configuration file. path: None without a file

    keep_running: if the file is unusable at the start, lock the pages until it is usable; otherwise ConfigError is raised
    """

    def __init__(self, path: str | None, *, keep_running: bool = False) -> None:
        self._path, self._logged, self.now = path, "", Loaded()
        self._stamps: tuple[Stamp | None, ...] = ()
        self._retry_s = math.inf  # on the monotonic clock
        if path is None:
            return
        try:
            self.now = read(path)
        except ConfigError as problem:
            if not keep_running:
                raise
            self.now, self._logged, self._retry_s = Loaded(is_locked=True), str(problem), time.monotonic() + RETRY_S
        self._stamps = self._stamped()

    @property
    def problem(self) -> str:
        """Reason why the site is locked; "" if it is not."""
        return self._logged if self.now.is_locked else ""

    async def current(self) -> Loaded:
        """The current configuration. Reloaded if a file changed, and every RETRY_S after a mistake, until when the last one stays."""
        if self._path is None or (self._stamped() == self._stamps and time.monotonic() < self._retry_s):
            return self.now
        self._stamps, self._retry_s = self._stamped(), time.monotonic() + RETRY_S
        try:
            loaded = await asyncio.to_thread(read, self._path)
            if (loaded.tls is None) != (self.now.tls is None) and not self.now.is_locked:
                switched = "off" if loaded.tls is None else "on"
                raise ConfigError(f"{self._path}: turns TLS {switched}; this needs a restart of the prober")
            if self.now.authenticates and not loaded.authenticates:
                raise ConfigError(f"{self._path}: removes all authentication; this needs a restart of the prober")
        except ConfigError as problem:
            if str(problem) != self._logged:
                effect = "the pages stay locked" if self.now.is_locked else "the old one stays in use"
                log.error("web configuration not applied, %s", effect)
                for line in str(problem).splitlines():
                    log.error("%s", line)
            self._logged = str(problem)
            return self.now
        self.now, self._logged, self._retry_s = loaded, "", math.inf
        self._stamps = self._stamped()  # also of the files that this one names
        log.info("web configuration applied")
        return self.now

    def _stamped(self) -> tuple[Stamp | None, ...]:
        assert self._path is not None
        stamps = [stamp(self._path)]
        if self.now.config:
            tls = self.now.config.tls_server_config
            files = filter(None, (tls.cert_file, tls.key_file, tls.client_ca_file))
            stamps += (stamp(str(Path(self._path).parent / file)) for file in files)
        return tuple(stamps)


def _context(tls: "TlsServer", folder: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version, context.maximum_version = _VERSIONS[tls.min_version], _VERSIONS[tls.max_version]
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(["http/1.1"])
    certificate = tls.cert.encode() or _read_file("cert_file", folder / tls.cert_file)
    load_pair(context, certificate, tls.key.encode() or _read_file("key_file", folder / tls.key_file))
    if tls.client_ca or tls.client_ca_file:
        authority = tls.client_ca.encode() or _read_file("client_ca_file", folder / tls.client_ca_file)
        try:
            context.load_verify_locations(cadata=authority.decode("ascii", "ignore"))  # comments may have other letters
        except (ssl.SSLError, ValueError):
            raise BadCertificate(f"client_ca_file {tls.client_ca_file}: contains no PEM certificates") from None
        context.verify_mode = ssl.CERT_REQUIRED if tls.certificate_required else ssl.CERT_OPTIONAL
    return context


def _read_file(key: str, path: Path) -> bytes:
    """Content of a file named by a key. Raises BadCertificate."""
    try:
        return read_regular(path, MAX_FILE_BYTES)
    except OSError as problem:
        why = problem.strerror or problem
        raise BadCertificate(
            f"{key} {path}: {why}; give a readable PEM file, relative to the folder of this file"
        ) from None
