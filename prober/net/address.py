"""Refused addresses: link-local ones and cloud metadata services, which hand out credentials.

The check runs when the socket is opened, after name resolution, so that DNS rebinding does not bypass it. With a proxy the proxy
resolves names, and only a literal address can be refused here.
"""

import errno
import ipaddress
import socket
import sys
from functools import lru_cache
from typing import Any

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
    """A refused address; the message has the address and the remedy."""


def check(address: str, *, allow_link_local: bool = False) -> None:
    """Raise Forbidden for a link-local or metadata service address. Names pass: their addresses are checked later."""
    if not allow_link_local and (kind := _refused_kind(address)):
        message = f"{address} is {kind}: refused, nothing was sent; to allow it set `allow_link_local: true`"
        raise Forbidden(errno.EACCES, message)


@lru_cache(maxsize=4096)  # every probe connects to the same few addresses
def _refused_kind(address: str) -> str:
    """The kind of a refused address; "" for others and for names."""
    try:
        at: Address = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return ""
    at = _inner(at)
    for kind, networks in (("a link-local address", LINK_LOCAL), ("a cloud metadata service", METADATA)):
        if any(at in network for network in networks):
            return kind
    return ""


def refuse_link_local() -> None:
    """Refuse such addresses in this whole process, permanently; for libraries that open their own sockets. DNS is not affected."""

    def audit(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "socket.connect" and arguments[0].type & socket.SOCK_STREAM and isinstance(arguments[1], tuple):
            check(str(arguments[1][0]))

    sys.addaudithook(audit)


def _inner(at: Address) -> Address:
    """The IPv4 address embedded in an IPv6 one (mapped, 6to4, NAT64); else the address itself."""
    if isinstance(at, ipaddress.IPv6Address):
        if at.ipv4_mapped is not None:
            return at.ipv4_mapped
        if at.sixtofour is not None:
            return at.sixtofour
        if at in NAT64:
            return ipaddress.IPv4Address(int(at) & 0xFFFFFFFF)
    return at
