"""HTTP GET of metrics and other pages, with time and size limits, on a new connection."""

import ssl
from dataclasses import dataclass
from urllib.parse import urlsplit

import aiohttp

from prober.config.problems import mask_secrets
from prober.net.address import check
from prober.net.connector import connector

MAX_BODY_BYTES = 8 << 20
_CHUNK_BYTES = 1 << 16


class UnreadablePage(Exception):
    """The page could not be read; the message has the address and the reason."""


class PageTooLong(UnreadablePage):
    """The page is beyond its limit of bytes."""


class _TooLong(ValueError):
    pass


@dataclass(frozen=True, slots=True)
class Fetched:
    """A fetched page. headers: names in lower case."""

    body: bytes
    headers: dict[str, str]


async def fetch(
    url: str,
    *,
    headers: dict[str, str],
    tls: ssl.SSLContext | None = None,
    proxy: str | None = None,
    timeout_s: float = 4.0,
    limit: int = MAX_BODY_BYTES,
    allow_link_local: bool = False,
) -> Fetched:
    """GET `url`. Redirects, compressed responses and refused addresses (also with a proxy) raise UnreadablePage, and more than
    `limit` bytes PageTooLong."""
    timeout = aiohttp.ClientTimeout(
        total=timeout_s, ceil_threshold=timeout_s + 1
    )  # otherwise rounded up to whole seconds
    headers = {**headers, "Accept-Encoding": "identity"}
    where = mask_secrets(url)
    try:
        check(urlsplit(url).hostname or "", allow_link_local=allow_link_local)
        async with (
            aiohttp.ClientSession(
                connector=connector(tls=tls, allow_link_local=allow_link_local), timeout=timeout, auto_decompress=False
            ) as session,
            session.get(url, headers=headers, proxy=proxy, allow_redirects=False) as answer,
        ):
            if 300 <= answer.status < 400:
                raise UnreadablePage(
                    f"{where}: HTTP {answer.status}: redirects are not followed; configure the final address"
                )
            if answer.status != 200:
                raise UnreadablePage(f"{where}: HTTP {answer.status}")
            body = await read_body(answer, limit)
            return Fetched(body, {name.lower(): value for name, value in answer.headers.items()})
    except TimeoutError:
        raise UnreadablePage(f"{where}: no answer within {timeout_s:g} s") from None
    except _TooLong as problem:
        raise PageTooLong(f"{where}: {problem}") from None
    except (aiohttp.ClientError, OSError, ValueError) as problem:
        raise UnreadablePage(f"{where}: {mask_secrets(str(problem)) or type(problem).__name__}") from None


async def read_body(answer: aiohttp.ClientResponse, limit: int) -> bytes:
    """Read a body of at most `limit` bytes. Compressed bodies are refused: they may unpack to any size. Raises ValueError."""
    coding = answer.headers.get("Content-Encoding", "identity").strip().lower()
    if coding not in ("", "identity"):
        raise ValueError(f"compressed ({coding[:20]!r}), although identity was requested")
    body = bytearray()
    async for piece in answer.content.iter_chunked(_CHUNK_BYTES):
        body += piece
        if len(body) > limit:
            raise _TooLong(f"longer than {limit:,} bytes")
    return bytes(body)
