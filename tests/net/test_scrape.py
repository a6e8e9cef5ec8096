"""The fetch of a page: what it sends, what it takes, and what it says of the rest."""

import base64
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

import pytest

from prober.net.scrape import UnreadablePage, fetch
from tests.scripted import Asked, scripted
from tests.wire.case import HOLD, Step

pytestmark = pytest.mark.virtual_time


@asynccontextmanager
async def server(answer: bytes, *, ends: bool = True) -> AsyncIterator[tuple[str, list[bytes]]]:
    """A server that gives every request this answer and then closes, or waits. Yields host:port and the requests."""
    requests: list[bytes] = []

    def reply(asked: Asked) -> Iterable[Step]:
        requests.append(asked.head)
        return (answer,) if ends else (answer, HOLD)

    async with scripted(reply) as url:
        yield url.removeprefix("http://"), requests


def page(body: bytes, *lines: str) -> bytes:
    return "\r\n".join(("HTTP/1.1 200 OK", f"Content-Length: {len(body)}", *lines, "", "")).encode() + body


def lines_of(request: bytes) -> dict[str, list[str]]:
    """Values of a request's headers by their names in lower case."""
    headers: dict[str, list[str]] = {}
    for line in request.decode().split("\r\n")[1:-2]:
        name, _, value = line.partition(": ")
        headers.setdefault(name.lower(), []).append(value)
    return headers


async def test_a_header_of_the_caller_replaces_the_usual_one_but_nothing_may_be_compressed() -> None:
    async with server(page(b"a 1\n", "Content-Type: text/plain")) as (address, requests):
        fetched = await fetch(f"http://{address}/m", headers={"accept": "text/plain", "Accept-encoding": "gzip"})
    headers = lines_of(requests[0])
    assert (headers["accept"], headers["accept-encoding"]) == (["text/plain"], ["identity"])
    assert (headers["host"], headers["connection"]) == ([address], ["close"])
    assert (fetched.body, fetched.headers["content-type"]) == (b"a 1\n", "text/plain")


async def test_the_path_is_sent_quoted_and_what_is_quoted_stays() -> None:
    """No sign of a URL ends the request line."""
    async with server(page(b"")) as (address, requests):
        await fetch(f'http://{address}/a b/%2Fc?match[]={{x="é"}}&y=1%20', headers={})
        await fetch(f"http://{address}", headers={})
    expected = b"GET /a%20b/%2Fc?match%5B%5D=%7Bx=%22%C3%A9%22%7D&y=1%20 HTTP/1.1"
    assert [request.partition(b"\r\n")[0] for request in requests] == [expected, b"GET / HTTP/1.1"]


async def test_a_user_of_the_url_is_sent_as_basic_authentication() -> None:
    """Not beside a header of the same name: which one is meant is unknown."""
    async with server(page(b"")) as (address, requests):
        await fetch(f"http://us%20er:p%40ss@{address}/", headers={})
        with pytest.raises(UnreadablePage, match="remove one of them") as refused:
            await fetch(f"http://user:p%40ss@{address}/", headers={"authorization": "Bearer x"})
    assert lines_of(requests[0])["authorization"] == [f"Basic {base64.b64encode(b'us er:p@ss').decode()}"]
    assert len(requests) == 1
    assert "p%40ss" not in str(refused.value)


@pytest.mark.parametrize("headers", [{"X-A": "b\r\nX-C: d"}, {"X-A": "b\nX-C: d"}, {"X-A\r\nX-C": "d"}, {"X-A": "b\0"}])
async def test_a_header_cannot_add_another(headers: dict[str, str]) -> None:
    async with server(page(b"")) as (address, requests):
        with pytest.raises(UnreadablePage, match="line break"):
            await fetch(f"http://{address}/", headers=headers)
        assert requests == []
        await fetch(f"http://{address}/", headers={"X-A": "b X-C: d"})
        assert lines_of(requests[0])["x-a"] == ["b X-C: d"]


async def test_a_proxy_gets_the_whole_address_and_its_own_user() -> None:
    async with server(page(b"by proxy")) as (address, requests):
        fetched = await fetch("http://engine.example/m?a=1", headers={}, proxy=f"http://user:pass@{address}")
    assert fetched.body == b"by proxy"
    assert requests[0].startswith(b"GET http://engine.example/m?a=1 HTTP/1.1\r\n")
    headers = lines_of(requests[0])
    assert headers["host"] == ["engine.example"]
    assert headers["proxy-authorization"] == [f"Basic {base64.b64encode(b'user:pass').decode()}"]


async def test_a_proxy_is_asked_for_a_tunnel_to_a_server_with_tls() -> None:
    """The proxy sees neither path nor headers."""
    async with server(b"HTTP/1.1 403 Forbidden\r\n\r\n") as (address, requests):
        with pytest.raises(UnreadablePage, match="403 to CONNECT"):
            await fetch("https://engine.example/m", headers={"X-Key": "secret"}, proxy=f"http://{address}")
    assert requests[0].startswith(b"CONNECT engine.example:443 HTTP/1.1\r\n")
    assert b"secret" not in requests[0]


async def test_a_page_may_be_as_long_as_its_limit() -> None:
    """One byte more is refused; so is a longer page in chunks, whose length nobody knows before."""
    for length, is_read in ((100_000, True), (100_001, False)):
        chunked = (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n" % length + b"x" * length + b"\r\n0\r\n\r\n"
        )
        for answer in (page(b"x" * length), chunked):
            async with server(answer) as (address, _):
                if is_read:
                    fetched = await fetch(f"http://{address}/", headers={}, limit=100_000)
                    assert len(fetched.body) == length
                else:
                    with pytest.raises(UnreadablePage, match="longer than 100,000 bytes"):
                        await fetch(f"http://{address}/", headers={}, limit=100_000)


async def test_a_page_may_be_longer_than_an_answer() -> None:
    """Pages of large engines have more than the 4 MiB of an answer that is no stream."""
    body = b"".join(b"metric_%d 1\n" % index for index in range(400_000))
    assert len(body) > 5 << 20
    async with server(page(body)) as (address, _):
        assert (await fetch(f"http://{address}/", headers={}, timeout_s=60)).body == body


async def test_a_refusal_without_an_end_is_told_by_its_status() -> None:
    """And a page without an end by the time that was waited."""
    async with server(b"HTTP/1.1 404 Not Found\r\nContent-Length: 9\r\n\r\n", ends=False) as (address, _):
        with pytest.raises(UnreadablePage, match="HTTP 404"):
            await fetch(f"http://{address}/", headers={}, timeout_s=0.2)
    async with server(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n", ends=False) as (address, _):
        with pytest.raises(UnreadablePage, match=r"no end after 0\.2 s"):
            await fetch(f"http://{address}/", headers={}, timeout_s=0.2)


@pytest.mark.parametrize("url", ["ftp://127.0.0.1/m", "http:///m", "http://[::1/m", "http://127.0.0.1:99999/m"])
async def test_what_is_no_address_is_an_unreadable_page(url: str) -> None:
    with pytest.raises(UnreadablePage):
        await fetch(url, headers={})
