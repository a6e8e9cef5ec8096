"""Which addresses nobody is sent to: link-local ones and the metadata services of clouds, which give credentials to who asks.

Looked at as the socket is opened, after the name is resolved, so that a name which points elsewhere a moment later (DNS
rebinding) gets round nothing. Behind a proxy the proxy resolves, and only an address that is written out can be refused here.
"""

import errno
import ipaddress
import socket
import ssl
import sys
from typing import Any

import aiohttp

LINK_LOCAL = tuple(map(ipaddress.ip_network, ("169.254.0.0/16", "fe80::/10")))
METADATA = tuple(
    map(
        ipaddress.ip_network,
        (
            "fd00:ec2::/32",  # AWS
            "fd20:ce::/32",  # Google Cloud
            "100.100.100.200/32",  # Alibaba Cloud
            "168.63.129.16/32",  # Azure
            "192.0.0.192/32",  # Oracle Cloud
        ),
    )
)
NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class Forbidden(OSError):
    """An address that is not connected to; the message names it and says what to do."""


def check(address: str, *, allow_link_local: bool = False) -> None:
    """Raises Forbidden for a link-local address or one of a metadata service; names pass, as they are resolved first."""
    if allow_link_local:
        return
    try:
        at: Address = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return
    at = _inner(at)
    for kind, networks in (("link-local", LINK_LOCAL), ("that of a cloud's metadata service", METADATA)):
        if any(at in network for network in networks):
            said = f"{address} is {kind}: refused, nothing was sent; if it is meant, set `allow_link_local: true`"
            raise Forbidden(errno.EACCES, said)


def connector(*, tls: ssl.SSLContext | None = None, allow_link_local: bool = False) -> aiohttp.TCPConnector:
    """For a client session: each address is checked as its socket is opened, and a connection serves one request."""

    def opened(found: Any) -> socket.socket:
        family, kind, protocol, _, at = found
        check(str(at[0]), allow_link_local=allow_link_local)
        return socket.socket(family, kind, protocol)

    return aiohttp.TCPConnector(force_close=True, ssl=tls if tls is not None else True, socket_factory=opened)


def refuse_link_local() -> None:
    """In all of this process, and for good: for one whose library opens its sockets itself. The resolver is left alone."""

    def heard(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "socket.connect" and arguments[0].type & socket.SOCK_STREAM and isinstance(arguments[1], tuple):
            check(str(arguments[1][0]))

    sys.addaudithook(heard)


def _inner(at: Address) -> Address:
    """The IPv4 address that an IPv6 one carries, as a kernel or a NAT64 would take it; else the address itself."""
    if isinstance(at, ipaddress.IPv6Address):
        if at.ipv4_mapped is not None:
            return at.ipv4_mapped
        if at.sixtofour is not None:
            return at.sixtofour
        if at in NAT64:
            return ipaddress.IPv4Address(int(at) & 0xFFFFFFFF)
    return at
