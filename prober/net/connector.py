"""Connector of aiohttp's client sessions. `address`, which every probe needs, loads without aiohttp."""

import socket
import ssl
from typing import Any

import aiohttp

from prober.net.address import check


def connector(*, tls: ssl.SSLContext | None = None, allow_link_local: bool = False) -> aiohttp.TCPConnector:
    """Connector of a client session that checks each address when its socket opens; one request per connection."""

    def open_socket(address_info: Any) -> socket.socket:
        family, kind, protocol, _, at = address_info
        check(str(at[0]), allow_link_local=allow_link_local)
        return socket.socket(family, kind, protocol)

    return aiohttp.TCPConnector(force_close=True, ssl=tls if tls is not None else True, socket_factory=open_socket)
