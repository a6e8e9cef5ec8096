"""Classifies hosts in URLs: this machine, and addresses that are only contacted if a person configures it."""

import errno
import ipaddress
from collections.abc import Iterator
from functools import lru_cache

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

# Cloud metadata services hand out credentials. Nearly all of them have link-local addresses.
REFUSED = {
    ipaddress.ip_network(network): kind
    for network, kind in {
        "169.254.0.0/16": "a link-local address",  # RFC 3927
        "fe80::/10": "a link-local address",  # RFC 4291
        # EC2 user guide, "Access instance metadata"; EKS Pod Identity and AWS's DNS are in the same network
        "fd00:ec2::/32": "a metadata service of AWS",
        "fd20:ce::/32": "the metadata service of Google Cloud",  # its documentation of IPv6-only instances
        "100.100.100.200/32": "the metadata service of Alibaba Cloud",  # ECS user guide, "View instance metadata"
        "fd00:100::100:200/128": "the metadata service of Alibaba Cloud",  # the same
        "168.63.129.16/32": "the platform service of Azure",  # "What is IP address 168.63.129.16?"
        "192.0.0.192/32": "the metadata service of Oracle Cloud",  # Oracle Cloud Infrastructure Classic
        "fd00:c1::a9fe:a9fe/128": "the metadata service of Oracle Cloud",  # oci-python-sdk, instance principals
        "fd00:42::42/128": "the metadata service of Scaleway",  # cloud-init, datasource Scaleway
        "fd00:a9fe:a9fe::1/128": "the metadata service of Akamai",  # Linode's documentation of its metadata service
    }.items()
}
NAT64 = ipaddress.IPv6Network("64:ff9b::/96")  # RFC 6052
NAT64_LOCAL = ipaddress.IPv6Network("64:ff9b:1::/48")  # RFC 8215
COMPATIBLE = ipaddress.IPv6Network("::/96")  # RFC 4291, 2.5.5.1


@lru_cache(maxsize=4096)  # called for every connection
def ip_address(host: str) -> Address | None:
    """The IP address, without its zone; None for a host name."""
    try:
        return ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return None


def is_loopback(host: str) -> bool:
    """True if the host is this machine: a loopback address, or `localhost` and names below it, which RFC 6761 reserves.

    A name such as 127.example.com belongs to another machine.
    """
    at = ip_address(host)
    if at is None:
        return host == "localhost" or host.endswith(".localhost")
    return (getattr(at, "ipv4_mapped", None) or at).is_loopback


@lru_cache(maxsize=4096)  # probes connect to few addresses
def refused_kind(address: str) -> str:
    """Kind of an address that is not contacted unless configured; "" for other addresses and for names."""
    at = ip_address(address)
    if at is None:
        return ""
    return next((kind for inner in _embedded(at) for network, kind in REFUSED.items() if inner in network), "")


def _embedded(at: Address) -> Iterator[Address]:
    """Yield the address, and for IPv6 the IPv4 addresses to which a gateway or the kernel may translate it."""
    yield at
    if isinstance(at, ipaddress.IPv4Address):
        return
    yield from filter(None, (at.ipv4_mapped, at.sixtofour, *(at.teredo or ())))
    if at in NAT64 or at in COMPATIBLE:
        yield ipaddress.IPv4Address(at.packed[12:])
    if at in NAT64_LOCAL:  # the network's prefix has 48 to 96 bits; bits 64 to 71 are unused (RFC 6052, 2.2)
        octets = at.packed[:8] + at.packed[9:]
        yield from (ipaddress.IPv4Address(octets[start : start + 4]) for start in (6, 7, 8, 11))


class Forbidden(OSError):
    """An address is refused. The message has the address and the remedy."""


def check(address: str, *, allow_link_local: bool = False) -> None:
    """Raise Forbidden for a link-local or metadata service address. Names pass; their addresses are checked later.

    Called when the socket is opened, after name resolution, so that DNS rebinding cannot bypass it. With a proxy, which
    resolves names itself, only a literal address can be refused here.
    """
    if not allow_link_local and (kind := refused_kind(address)):
        message = f"{address} is {kind}: refused, nothing was sent; to allow it set `allow_link_local: true`"
        raise Forbidden(errno.EACCES, message)
