"""Readers of the pages who want to blind the prober, use up its memory, or have the kubelet kill it."""

import asyncio

import pytest

from prober.web.listener import client
from tests.security.test_web import served

# What RFC 9110, 7.2 and RFC 3986, 3.2 do not allow.
MALFORMED_HOSTS = (b"[", b"]", b"[::1", b"[::1]x", b"a b", b"a:b:c", b"\xff\xfe", b"a/b", b"a@b", b"a:999999999")


async def answer_to(port: int, head: bytes) -> bytes:
    """The whole answer to a request."""
    async with asyncio.timeout(10):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(head)
        answer = await reader.read()
        writer.close()
        return answer


# --- who counts as one client


@pytest.mark.parametrize(
    ("first", "second", "reached", "is_one"),
    [
        ("2001:db8:1:1::5", "2001:db8:1:1:ffff::9", "2001:db8:7::1", True),  # a machine of the internet has a /64
        ("2001:db8:1:1::5", "2001:db8:1:2::5", "2001:db8:7::1", False),
        ("2001:db8:7::5", "2001:db8:7::9", "2001:db8:7::1", False),  # pods, in the /64 of the prober's own
        ("fd00:10:244::5", "fd00:10:244::9", "2001:db8:7::1", False),  # pods of a cluster with unique local addresses
        ("fd00:10:244::5", "fd00:10:244::5", "fd00:10:244::1", True),
        ("fe80::1%eth0", "fe80::2%eth0", "fe80::9%eth0", False),
        ("::ffff:192.0.2.1", "192.0.2.1", "::ffff:192.0.2.9", True),  # a socket for both families
        ("::ffff:192.0.2.1", "::ffff:192.0.2.2", "::ffff:192.0.2.9", False),
        ("2001:db8:1:1::5", "2001:db8:1:1::9", "192.0.2.9", True),
    ],
)
def test_pods_are_clients_of_their_own_and_a_machine_of_the_internet_is_one(
    first: str, second: str, reached: str, is_one: bool
) -> None:
    """Pods of a node share a /64 with each other and with the prober; a limit of one must not be used up by its neighbour."""
    assert (client(first, reached) == client(second, reached)) is is_one


# --- odd requests


@pytest.mark.parametrize("path", ["/", "/metrics", "/api/v1/targets", "/static/page.css", "/probe?target=a"])
async def test_a_malformed_host_is_refused_with_400_on_every_page(path: str) -> None:
    """And no exception; a health check, whose Host nobody chooses with care, is answered."""
    async with served(None) as site:
        for host in MALFORMED_HOSTS:
            for wanted, status in ((path, b"400"), ("/-/healthy", b"200")):
                head = f"GET {wanted} HTTP/1.1\r\nConnection: close\r\nHost: ".encode() + host + b"\r\n\r\n"
                answer = await answer_to(site.port, head)
                assert answer.split()[1] == status, (host, answer[:80])
        assert await site.status("/") == 200
