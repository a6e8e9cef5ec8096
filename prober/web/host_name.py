"""Host headers and names that no other site can have; protects against DNS rebinding."""

import re

from prober.config.hosts import ip_address

# Names that cannot be registered publicly: reserved by RFC 6761, 6762 and 8375 or by ICANN, and `svc` of a cluster's short names.
PRIVATE = (".corp", ".home", ".home.arpa", ".internal", ".local", ".localhost", ".svc", ".test")
_HOST = re.compile(r"(?:\[(?P<ipv6>[0-9A-Fa-f:.]+)\]|(?P<name>[A-Za-z0-9._-]{1,253}))(?::[0-9]{0,5})?")


def host_name(header: str) -> str | None:
    """Name or address of a Host header, lower case, without port, brackets and trailing dot; None if malformed."""
    match = _HOST.fullmatch(header)
    if match is None:
        return None
    if match["ipv6"] is not None:
        return match["ipv6"].lower() if ":" in match["ipv6"] and ip_address(match["ipv6"]) else None
    return match["name"].lower().removesuffix(".") or None


def is_private(name: str) -> bool:
    """Whether it is an address, a name without a dot, or below PRIVATE: no public site can have it."""
    return "." not in name or name.endswith(PRIVATE) or ip_address(name) is not None
