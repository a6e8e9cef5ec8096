"""Other programs' pages, fetched: bounded in time and size, on a connection of their own."""

import ssl
from dataclasses import dataclass

import aiohttp

LIMIT_BYTES = 16 << 20
_PIECE = 1 << 16


class Unreadable(Exception):
    """There is no page; the message names the address and says why."""


@dataclass(frozen=True, slots=True)
class Fetched:
    """A page as it came. headers: names in lower case."""

    body: bytes
    headers: dict[str, str]


async def fetch(
    url: str,
    *,
    headers: dict[str, str],
    tls: ssl.SSLContext | None = None,
    proxy: str | None = None,
    timeout_s: float = 4.0,
    limit: int = LIMIT_BYTES,
) -> Fetched:
    """GET `url`, gzip taken and unpacked, redirects refused. Raises Unreadable."""
    timeout = aiohttp.ClientTimeout(total=timeout_s, ceil_threshold=timeout_s + 1)  # else rounded up to whole seconds
    connector = aiohttp.TCPConnector(force_close=True, ssl=tls if tls is not None else True)
    try:
        async with (
            aiohttp.ClientSession(connector=connector, timeout=timeout, auto_decompress=True) as session,
            session.get(url, headers=headers, proxy=proxy, allow_redirects=False) as answer,
        ):
            if answer.status != 200:
                raise Unreadable(f"{url}: HTTP {answer.status}")
            body = bytearray()
            async for piece in answer.content.iter_chunked(_PIECE):
                body += piece
                if len(body) > limit:
                    raise Unreadable(f"{url}: longer than {limit:,} bytes")
            return Fetched(bytes(body), {name.lower(): value for name, value in answer.headers.items()})
    except TimeoutError:
        raise Unreadable(f"{url}: no answer within {timeout_s:g} s") from None
    except (aiohttp.ClientError, OSError, ValueError) as problem:
        raise Unreadable(f"{url}: {str(problem) or type(problem).__name__}") from None
