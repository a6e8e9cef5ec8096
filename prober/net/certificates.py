"""TLS contexts from certificates in memory, and client certificates that follow rotation."""

import logging
import os
import ssl
import time
import weakref
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from prober.measure.printable import shown_path
from prober.storage.watched_file import Stamp, read_regular, stamp

if TYPE_CHECKING:
    from prober.config.server import TlsSpec

CHECK_INTERVAL_S = 1.0
MAX_PEM_BYTES = 1 << 20
log = logging.getLogger(__name__)


class BadCertificate(ValueError):
    """A certificate or key that cannot be used; the message has the reason, never the key."""


def load_pair(context: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    """Load `certificate` (PEM, followed by its chain) and `key` (PEM, not encrypted) into `context`. Raises BadCertificate.

    Python loads these only from paths, so they are passed through a memfd: no key is written to disk.
    """
    memory = os.memfd_create("certificate", os.MFD_CLOEXEC)
    try:
        os.write(memory, certificate.rstrip() + b"\n" + key)
        context.load_cert_chain(f"/proc/self/fd/{memory}", password="")  # an empty password avoids a prompt
    except (OSError, ssl.SSLError, ValueError) as problem:
        why = getattr(problem, "reason", None) or problem.__class__.__name__
        raise BadCertificate(f"{why}; give a PEM certificate and its own key, not encrypted") from None
    finally:
        os.close(memory)


def trusting_context(ca_file: str | None) -> ssl.SSLContext:
    """Client context that trusts the CAs of a file, or those of the system.

    Raises OSError (also for a pipe or device, from which reading could block for ever) and ssl.SSLError.
    """
    if not ca_file:
        return ssl.create_default_context()
    pem = read_regular(ca_file, MAX_PEM_BYTES).decode("ascii", "ignore")  # comments may have other letters
    if not pem.strip():
        raise ssl.SSLError("contains no certificate")
    return ssl.create_default_context(cadata=pem)


@dataclass(slots=True, weakref_slot=True)
class ClientTls:
    """Client TLS settings, read again when their files change. An invalid new file changes nothing and sets `problem`.

    Raises BadCertificate if the initial files cannot be used.
    """

    spec: "TlsSpec"
    problem: str = ""
    _context: ssl.SSLContext = field(init=False, repr=False)
    _stamps: tuple[Stamp | None, ...] = ()
    _checked_s: float = 0.0

    def __post_init__(self) -> None:
        self._stamps = self._current_stamps()
        self._context = self._make_context()
        self._checked_s = time.monotonic()

    def context(self) -> ssl.SSLContext:
        """The TLS context for the next connection. Checks the files for changes at most once a second."""
        now_s = time.monotonic()
        if now_s - self._checked_s > CHECK_INTERVAL_S:
            self._checked_s = now_s
            stamps = self._current_stamps()
            if stamps != self._stamps:
                self._stamps = stamps
                try:
                    # The system's CAs are not read again, as that is slow and a probe may be due.
                    if self.spec.ca_file:
                        self._context = self._make_context()
                    elif pair := self._pair():
                        load_pair(
                            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), *pair
                        )  # check before changing the one in use
                        load_pair(self._context, *pair)
                    self.problem = ""
                except BadCertificate as problem:
                    self.problem = f"{problem}; the previous certificates stay in use"
                    log.error("certificates not reloaded: %s", self.problem)
        return self._context

    def _current_stamps(self) -> tuple[Stamp | None, ...]:
        files = (self.spec.ca_file, self.spec.cert_file, self.spec.key_file)
        return tuple(stamp(file) if file else None for file in files)

    def _make_context(self) -> ssl.SSLContext:
        spec = self.spec
        try:
            context = trusting_context(spec.ca_file)
        except (OSError, ssl.SSLError) as problem:
            why = getattr(problem, "strerror", None) or problem
            raise BadCertificate(f"tls.ca_file {spec.ca_file}: {why}; give a file of PEM certificates") from None
        context.options |= ssl.OP_NO_RENEGOTIATION  # refuse a server's request to renegotiate
        if spec.insecure_skip_verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if pair := self._pair():
            try:
                load_pair(context, *pair)
            except BadCertificate as problem:
                raise BadCertificate(
                    f"tls.cert_file {spec.cert_file}, key_file {shown_path(str(spec.key_file))}: {problem}"
                ) from None
        return context

    def _pair(self) -> tuple[bytes, bytes] | None:
        if not self.spec.cert_file or not self.spec.key_file:
            return None
        return _content("cert_file", self.spec.cert_file), _content("key_file", self.spec.key_file)


def _content(key: str, path: str) -> bytes:
    try:
        return read_regular(path, MAX_PEM_BYTES)
    except OSError as problem:
        raise BadCertificate(
            f"tls.{key} {shown_path(path)}: {problem.strerror or problem}; give a readable file"
        ) from None


_shared: "weakref.WeakValueDictionary[TlsSpec, ClientTls]" = weakref.WeakValueDictionary()


def client_tls(spec: "TlsSpec") -> ClientTls:
    """TLS settings, shared by targets with equal specs, as a context with the system's CAs takes a megabyte. Raises BadCertificate."""
    settings = _shared.get(spec)
    if settings is None:
        settings = _shared[spec] = ClientTls(spec)
    return settings
