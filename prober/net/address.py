"""Refused addresses: link-local ones and cloud metadata services, which hand out credentials (`config.hosts`).

The check runs when the socket is opened, after name resolution, so that DNS rebinding does not bypass it. With a proxy the proxy
resolves names, and only a literal address can be refused here.
"""

import errno

from prober.config.hosts import refused_kind


class Forbidden(OSError):
    """A refused address; the message has the address and the remedy."""


def check(address: str, *, allow_link_local: bool = False) -> None:
    """Raise Forbidden for a link-local or metadata service address. Names pass: their addresses are checked later."""
    if not allow_link_local and (kind := refused_kind(address)):
        message = f"{address} is {kind}: refused, nothing was sent; to allow it set `allow_link_local: true`"
        raise Forbidden(errno.EACCES, message)
