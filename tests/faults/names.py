"""Names and certificates that come and go: a name server that says what it is told to, and certificates of any age."""

import datetime
import os
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import trustme

from tests.faults.rig import Impossible

NAME = "engine.faults.example"
NXDOMAIN, SERVFAIL = 3, 2
DAY = datetime.timedelta(days=1)


class Resolver:
    """A name server on loopback that knows one name, or answers as it is told. says: an address, or a code of RFC 1035."""

    def __init__(self) -> None:
        self.says: str | int = "127.0.0.1"
        self.address = f"127.1.{os.getpid() >> 8 & 255}.{os.getpid() & 255}"  # another one for each process
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            self._socket.bind((self.address, 53))
        except OSError as problem:
            self._socket.close()
            raise Impossible(f"no name server on loopback: {problem}") from None
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        self._socket.close()

    def _serve(self) -> None:
        while True:
            try:
                query, asker = self._socket.recvfrom(512)
            except OSError:
                return
            end = query.index(b"\0", 12) + 5
            wants_a = query[end - 4 : end - 2] == b"\0\1"
            code = 0 if isinstance(self.says, str) else self.says
            record = b""
            if wants_a and isinstance(self.says, str):
                record = b"\xc0\x0c\0\1\0\1\0\0\0\0\0\4" + socket.inet_aton(self.says)
            counts = b"\0\1" + (b"\0\1" if record else b"\0\0") + b"\0\0\0\0"
            flags = bytes((0x81, 0x80 | code))
            self._socket.sendto(query[:2] + flags + counts + query[12:end] + record, asker)


@contextmanager
def own_names(folder: Path) -> Iterator[Resolver]:
    """Daemons started meanwhile ask it and nobody else: they have their own /etc/resolv.conf. Raises Impossible."""
    if os.geteuid() != 0 or subprocess.run(["unshare", "-m", "true"], check=False, capture_output=True).returncode:
        raise Impossible("a process with its own name server takes root")
    python = folder / "python"
    own = f"mount --bind {folder}/resolv.conf /etc/resolv.conf && exec {sys.executable}"
    python.write_text(f'#!/bin/sh\nexec unshare -m sh -c \'{own} "$@"\' - "$@"\n')
    python.chmod(0o755)
    resolver = Resolver()
    (folder / "resolv.conf").write_text(f"nameserver {resolver.address}\noptions timeout:1 attempts:1\n")
    try:
        with patch.object(sys, "executable", str(python)):
            yield resolver
    finally:
        resolver.close()


def certified(authority: trustme.CA, name: str = "127.0.0.1", begins: float = -1, ends: float = 1) -> ssl.SSLContext:
    """Of a server whose certificate is good from so many days from now to so many."""
    now = datetime.datetime.now(datetime.UTC)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(name, not_before=now + begins * DAY, not_after=now + ends * DAY).configure_cert(context)
    return context
