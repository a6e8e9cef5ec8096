"""Certificates with their keys: into a TLS context from memory, and a client's own ones, followed when they are rotated."""

import logging
import os
import ssl
import time
import weakref
from dataclasses import dataclass, field
from pathlib import Path

from prober.config.specs import TlsSpec
from prober.storage.watched_file import Stamp, stamp

LOOK_EVERY_S = 1.0
log = logging.getLogger(__name__)


class BadCertificate(ValueError):
    """A certificate or key that cannot be used; the message says why and never what is in the key."""


def load_pair(context: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    """Show `certificate` (PEM, its chain behind it) with its `key` (PEM, not encrypted). Raises BadCertificate.

    Python reads them from a path only; this one leads to memory, so that no key is written to a disk.
    """
    memory = os.memfd_create("certificate", os.MFD_CLOEXEC)
    try:
        os.write(memory, certificate.rstrip() + b"\n" + key)
        context.load_cert_chain(f"/proc/self/fd/{memory}", password="")  # empty: nobody is asked for one
    except (OSError, ssl.SSLError, ValueError) as problem:
        why = getattr(problem, "reason", None) or problem.__class__.__name__
        raise BadCertificate(f"{why}; give a PEM certificate and its own key, not encrypted") from None
    finally:
        os.close(memory)


def trusting(ca_file: str | None) -> ssl.SSLContext:
    """Of a client that trusts the authorities of a file, or the system's. Raises OSError, ssl.SSLError."""
    return ssl.create_default_context(cafile=ca_file)


@dataclass(slots=True, weakref_slot=True)
class ClientTls:
    """How the prober meets a server over TLS. `context()` follows the files: a bad new one changes nothing, `problem` says so.

    Raises BadCertificate where the first ones cannot be used.
    """

    spec: TlsSpec
    problem: str = ""
    _context: ssl.SSLContext = field(init=False, repr=False)
    _stamps: tuple[Stamp | None, ...] = ()
    _looked_s: float = 0.0

    def __post_init__(self) -> None:
        self._stamps = self._now()
        self._context = self._made()
        self._looked_s = time.monotonic()

    def context(self) -> ssl.SSLContext:
        """For the next connection. The files are looked at once a second at most."""
        now_s = time.monotonic()
        if now_s - self._looked_s > LOOK_EVERY_S:
            self._looked_s = now_s
            stamps = self._now()
            if stamps != self._stamps:
                self._stamps = stamps
                try:
                    self._renew(stamps)
                    self.problem = ""
                except BadCertificate as problem:
                    self.problem = f"{problem}; the ones before it stay in use"
                    log.error("certificates not taken over: %s", self.problem)
        return self._context

    def _now(self) -> tuple[Stamp | None, ...]:
        files = (self.spec.ca_file, self.spec.cert_file, self.spec.key_file)
        return tuple(stamp(file) if file else None for file in files)

    def _renew(self, stamps: tuple[Stamp | None, ...]) -> None:
        """The system's authorities are not read again: they are many, and a probe may be due."""
        if self.spec.ca_file:
            self._context = self._made()
        elif pair := self._pair():
            load_pair(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), *pair)  # a mistake must not reach the one in use
            load_pair(self._context, *pair)

    def _made(self) -> ssl.SSLContext:
        spec = self.spec
        try:
            context = trusting(spec.ca_file)
        except (OSError, ssl.SSLError) as problem:
            why = getattr(problem, "strerror", None) or problem
            raise BadCertificate(f"tls.ca_file {spec.ca_file}: {why}; name a file of PEM certificates") from None
        if spec.insecure_skip_verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if pair := self._pair():
            try:
                load_pair(context, *pair)
            except BadCertificate as problem:
                raise BadCertificate(f"tls.cert_file {spec.cert_file}, key_file {spec.key_file}: {problem}") from None
        return context

    def _pair(self) -> tuple[bytes, bytes] | None:
        if not self.spec.cert_file or not self.spec.key_file:
            return None
        try:
            return Path(self.spec.cert_file).read_bytes(), Path(self.spec.key_file).read_bytes()
        except OSError as problem:
            raise BadCertificate(f"tls.cert_file, tls.key_file: {problem}; name files that can be read") from None


_shared: weakref.WeakValueDictionary[TlsSpec, ClientTls] = weakref.WeakValueDictionary()


def client_tls(spec: TlsSpec) -> ClientTls:
    """One for all targets that are met in the same way: the system's authorities take a megabyte each time. Raises BadCertificate."""
    found = _shared.get(spec)
    if found is None:
        found = _shared[spec] = ClientTls(spec)
    return found
