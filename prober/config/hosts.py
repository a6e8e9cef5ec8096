"""Hosts in URLs."""

import ipaddress


def is_loopback(host: str) -> bool:
    """Whether the host is this machine: a loopback address, or `localhost` with what is below it, which RFC 6761 reserves for it.

    A name such as 127.example.com belongs to others.
    """
    try:
        at = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
    return (getattr(at, "ipv4_mapped", None) or at).is_loopback
