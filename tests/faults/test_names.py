"""Names and certificates that come and go: a real resolver's answers, and real handshakes."""

import datetime
import os
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import trustme

from tests.faults.endpoint import Endpoint
from tests.faults.rig import config, probes, recovered, seen
from tests.processes import Daemon, until

NAME = "engine.faults.example"
DAY = datetime.timedelta(days=1)


class Resolver:
    """A name server on loopback that knows one name, or answers as it is told. says: an address, or a code of RFC 1035."""

    def __init__(self) -> None:
        self.says: str | int = "127.0.0.1"
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.53", 53))
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


@pytest.fixture
def resolver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Resolver]:
    """The daemon started meanwhile asks it and nobody else: it has its own /etc/resolv.conf."""
    if os.geteuid() != 0 or subprocess.run(["unshare", "-m", "true"], check=False, capture_output=True).returncode:
        pytest.skip("a process with its own name server takes root")
    (tmp_path / "resolv.conf").write_text("nameserver 127.0.0.53\noptions timeout:1 attempts:1\n")
    python = tmp_path / "python"
    own = f"mount --bind {tmp_path}/resolv.conf /etc/resolv.conf && exec {sys.executable}"
    python.write_text(f'#!/bin/sh\nexec unshare -m sh -c \'{own} "$@"\' - "$@"\n')
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    try:
        found = Resolver()
    except OSError as problem:
        pytest.skip(f"no name server on loopback: {problem}")
    yield found
    found.close()


def test_a_name_that_flaps_is_dns_and_one_that_moves_is_followed(tmp_path: Path, resolver: Resolver) -> None:
    """Each probe asks anew: not found and a failing server are `dns`, an address that changes is used at once."""
    with (
        Endpoint() as first,
        Endpoint("127.0.0.2", first.port) as second,
        Daemon(tmp_path, config(f"http://{NAME}:{first.port}", timeout="3s", total="4s")) as daemon,
    ):
        until(lambda: seen(daemon).outcomes["ok"] >= 3, "good probes")
        before = seen(daemon)
        for code in (3, 2):  # NXDOMAIN, SERVFAIL
            count = seen(daemon).outcomes["dns"]
            resolver.says = code
            until(lambda: seen(daemon).outcomes["dns"] >= count + 3, "dns")  # noqa: B023
            recovered(daemon, lambda: setattr(resolver, "says", "127.0.0.1"))
        asked = second.asked[4]
        resolver.says = "127.0.0.2"
        until(lambda: second.asked[4] >= asked + 3, "probes at its new address")
        found = seen(daemon).since(before)
        assert set(found.outcomes) == {"ok", "dns"}


def context(authority: trustme.CA, name: str = "127.0.0.1", begins: float = -1, ends: float = 1) -> ssl.SSLContext:
    """Of a server whose certificate is good from so many days from now to so many."""
    now = datetime.datetime.now(datetime.UTC)
    found = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(name, not_before=now + begins * DAY, not_after=now + ends * DAY).configure_cert(found)
    return found


# asyncio's server leaves a socket to the collector where a handshake is broken off.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_bad_certificate_is_tls_and_says_what_is_wrong_with_it(tmp_path: Path) -> None:
    """Expired, not yet valid, of another host, of nobody that is known; a good one is taken at once, and its end is told."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    bad = {
        "expired": context(authority, begins=-2, ends=-1),
        "not yet valid": context(authority, begins=1, ends=2),
        "IP address mismatch": context(authority, name="127.0.0.9"),
        "unable to get local issuer": context(trustme.CA()),
    }
    with Endpoint(tls=context(authority)) as endpoint:
        text = config(
            f"https://127.0.0.1:{endpoint.port}", more=f"tls: {{ca_file: {tmp_path}/ca.pem}}", timeout="3s", total="4s"
        )
        with Daemon(tmp_path, text) as daemon:
            until(lambda: seen(daemon).outcomes["ok"] >= 3, "good probes")
            before = seen(daemon)
            for said, certificate in bad.items():
                endpoint.tls(certificate)
                until(partial(told, daemon, said), said)
                recovered(daemon, lambda: endpoint.tls(context(authority)))
            outcomes = set(seen(daemon).since(before).outcomes)
            assert outcomes <= {"ok", "tls", "connect_refused", "connect_timeout", "reset"}, (
                "and what a restart of the server is"
            )
            assert daemon.value("llmslo_tls_cert_expiry_timestamp_seconds") > 0


def told(daemon: Daemon, said: str) -> bool:
    """A probe ended so for the sake of a certificate."""
    return any(said in str(each["detail"]) for each in probes(daemon) if each["outcome"] == "tls")
