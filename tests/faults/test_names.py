"""Names and certificates that come and go: a real resolver's answers, and real handshakes."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import trustme

from tests.faults.conftest import absent_if_impossible
from tests.faults.endpoint import Endpoint
from tests.faults.names import NAME, NXDOMAIN, SERVFAIL, Resolver, certified, own_names
from tests.faults.rig import patient, probes, recovered, seen
from tests.processes import Daemon, until


@pytest.fixture
def resolver(tmp_path: Path) -> Iterator[Resolver]:
    """The daemon started meanwhile asks it and nobody else."""
    with absent_if_impossible(), own_names(tmp_path) as names:
        yield names


def test_a_name_that_flaps_is_dns_and_one_that_moves_is_followed(tmp_path: Path, resolver: Resolver) -> None:
    """Each probe asks anew: not found and a failing server are `dns`, an address that changes is used at once."""
    with (
        Endpoint() as first,
        Endpoint("127.0.0.2", first.port) as second,
        Daemon(tmp_path, patient(f"http://{NAME}:{first.port}")) as daemon,
    ):
        until(lambda: seen(daemon).outcomes["ok"] >= 3, "good probes")
        before = seen(daemon)
        for code in (NXDOMAIN, SERVFAIL):
            count = seen(daemon).outcomes["dns"]
            resolver.says = code
            until(lambda: seen(daemon).outcomes["dns"] >= count + 3, "dns")  # noqa: B023
            recovered(daemon, lambda: setattr(resolver, "says", "127.0.0.1"))
        request_count = second.requests[4]
        resolver.says = "127.0.0.2"
        until(lambda: second.requests[4] >= request_count + 3, "probes at its new address")
        seen_since = seen(daemon).since(before)
        assert set(seen_since.outcomes) == {"ok", "dns"}


def test_a_bad_certificate_is_tls_and_says_what_is_wrong_with_it(tmp_path: Path) -> None:
    """Expired, not yet valid, of another host, of nobody that is known; a good one is taken at once, and its end is told."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    bad = {
        "expired": certified(authority, begins=-2, ends=-1),
        "not yet valid": certified(authority, begins=1, ends=2),
        "IP address mismatch": certified(authority, name="127.0.0.9"),
        "unable to get local issuer": certified(trustme.CA()),
    }
    with Endpoint(tls=certified(authority)) as endpoint:
        text = patient(f"https://127.0.0.1:{endpoint.port}", more=f"tls: {{ca_file: {tmp_path}/ca.pem}}")
        with Daemon(tmp_path, text) as daemon:
            until(lambda: seen(daemon).outcomes["ok"] >= 3, "good probes")
            before = seen(daemon)
            for message, certificate in bad.items():
                endpoint.tls(certificate)
                until(partial(has_logged, daemon, message), message)
                recovered(daemon, lambda: endpoint.tls(certified(authority)))
            assert set(seen(daemon).since(before).outcomes) == {"ok", "tls"}
            assert daemon.value("llmslo_tls_cert_expiry_timestamp_seconds") > 0


def has_logged(daemon: Daemon, message: str) -> bool:
    """A probe ended so for the sake of a certificate."""
    return any(message in str(probe["detail"]) for probe in probes(daemon) if probe["outcome"] == "tls")
