"""Readers of the pages who want to blind the prober, use up its memory, or have the kubelet kill it."""

import asyncio
import gzip
import os
import socket
import tracemalloc
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest

from prober.web import access_control, answers
from prober.web.server import client
from prober.web.site import Site
from prober.web.views import RANKING_S, Ranking
from tests.processes import HANG_S
from tests.security.test_web import served

# What RFC 9110, 7.2 and RFC 3986, 3.2 do not allow.
MALFORMED_HOSTS = (b"[", b"]", b"[::1", b"[::1]x", b"a b", b"a:b:c", b"\xff\xfe", b"a/b", b"a@b", b"a:999999999")


async def answer_to(port: int, head: bytes) -> bytes:
    """The whole answer to a request."""
    async with asyncio.timeout(HANG_S):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(head)
        answer = await reader.read()
        writer.close()
        return answer


# --- who counts as one client


@pytest.mark.parametrize(
    ("first", "second", "is_one"),
    [
        ("2001:db8:1:1::5", "2001:db8:1:1:ffff::9", True),  # a machine of the internet has a /64
        ("2001:db8:1:1::5", "2001:db8:1:2::5", False),
        ("fd00:10:244::5", "fd00:10:244::9", False),  # pods of a cluster with unique local addresses
        ("fd00:10:244::5", "fd00:10:244::5", True),
        ("fe80::1%eth0", "fe80::2%eth0", False),
        ("::ffff:192.0.2.1", "192.0.2.1", True),  # a socket for both families
        ("::ffff:192.0.2.1", "::ffff:192.0.2.2", False),
    ],
)
def test_pods_are_clients_of_their_own_and_a_machine_of_the_internet_is_one(
    first: str, second: str, is_one: bool
) -> None:
    """Pods of a node share a /64 with each other; a limit of one must not be used up by its neighbour."""
    assert (client(first) == client(second)) is is_one


# --- odd requests


@pytest.mark.parametrize("path", ["/", "/metrics", "/api/v1/targets", "/static/page.css", "/probe?target=a"])
async def test_a_malformed_host_is_refused_with_400_on_every_page(path: str) -> None:
    """And no exception, with browsers' headers too; a health check, whose Host nobody chooses with care, is answered."""
    async with served(None) as site:
        for host in MALFORMED_HOSTS:
            for wanted, status, more in (
                (path, b"400", ""),
                (path, b"400", "Sec-Fetch-Site: same-origin\r\n"),
                (path, b"400", "Origin: http://[\r\n"),
                ("/-/healthy", b"200", ""),
            ):
                head = f"GET {wanted} HTTP/1.1\r\nConnection: close\r\n{more}Host: ".encode() + host + b"\r\n\r\n"
                answer = await answer_to(site.port, head)
                assert answer.split()[1] == status, (host, answer[:80])
        assert await site.status("/") == 200


@pytest.mark.parametrize(
    "head",
    [
        b"GET http://[/metrics HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET /?\xff HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\r\n\r\n",
    ],
)
async def test_what_is_no_request_is_refused_without_a_trace(head: bytes, caplog: pytest.LogCaptureFixture) -> None:
    """Fifty a second would fill the log. A fault of the prober's own is still logged with its trace."""
    async with served(None) as site:
        assert b" 400 " in (await answer_to(site.port, head)).partition(b"\r\n")[0]
        assert caplog.text == ""
        site.site._pieces = None  # type: ignore[assignment, method-assign]
        assert await site.status() == 500
        assert "TypeError" in caplog.text


@pytest.mark.parametrize("expected", [b"\xff", b"100-continue", b"x" * 3000, b"200-ok"])
async def test_what_a_reader_expects_is_ignored(expected: bytes, caplog: pytest.LogCaptureFixture) -> None:
    """No operation needs a body, so that the answer follows at once; bytes that are no text are no fault of the prober."""
    async with served(None) as site:
        for path, status in ((b"/", b" 200 "), (b"/-/healthy", b" 200 "), (b"/nothing", b" 404 ")):
            head = (
                b"GET "
                + path
                + b" HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nExpect: "
                + expected
                + b"\r\n\r\n"
            )
            assert status in (await answer_to(site.port, head)).partition(b"\r\n")[0]
        assert caplog.text == ""


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/?q=" + "a" * 200, 200),
        ("/?q=" + "a" * 201, 400),
        ("/?q=" + "a+" * 100, 200),
        ("/?page=" + "9" * 3000, 200),  # the first page, as for any text that is no number
        ("/?page=" + "9" * 5000, 414),
        ("/?page=-1", 200),
        ("/api/v1/probes?limit=" + "9" * 3000, 200),
        ("/api/v1/probes?limit=-5", 200),
        ("/" + "a" * 5000, 414),
    ],
)
async def test_long_addresses_and_filters_are_refused_in_words(path: str, status: int) -> None:
    """What is not refused is answered at the cost of a plain view."""
    async with served(None) as site:
        assert await site.status(path) == status
        assert await site.status("/") == 200


@pytest.mark.parametrize(
    "target",
    ["/x/../probe", "/./probe", "//probe", "/probe/", "/%70robe", "/x/%2e%2e/probe", "/probe;a", "http://a/probe", "/x/..%2fprobe"],
)  # fmt: skip
async def test_no_spelling_of_a_path_leads_past_the_checks(target: str) -> None:
    """The access control checks what the site then serves: a page of another site sends no probe, however it writes the path."""
    async with served(None) as site:
        head = f"GET {target}?target=a HTTP/1.1\r\nHost: evil.example\r\nSec-Fetch-Site: cross-site\r\nConnection: close\r\n\r\n"
        assert (await answer_to(site.port, head.encode())).split()[1] in (b"403", b"404")


# --- slow readers, and many

PAGE_BYTES = 12 << 20  # about that of 500 targets


class LargePage:
    """A metrics page of some PAGE_BYTES; the values on it say how often it has been rendered."""

    def __init__(self, site: Site, page_bytes: int = PAGE_BYTES) -> None:
        self.rendered = 0
        lines = (f'llmslo_itl_seconds_bucket{{target="silent-00000",le="{number}.0"}} 000.0\n' for number in range(400))
        self._piece = "".join(lines).encode()
        self._count = page_bytes // len(self._piece)
        site._pieces = self._pieces  # type: ignore[method-assign]

    def _pieces(self, form: object) -> Iterator[bytes]:
        self.rendered += 1
        return self._written(self.rendered)

    def _written(self, rendered: int) -> Iterator[bytes]:
        for number in range(self._count):
            yield self._piece.replace(b"00000", b"%05d" % number).replace(b"000.0", b"%03d.0" % rendered)

    def whole(self, rendered: int) -> bytes:
        """The page as it was written then."""
        return b"".join(self._written(rendered))


async def connection(port: int, address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection for which the kernel of the client buffers next to nothing."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.setblocking(False)
    sock.bind((address, 0))
    await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
    return await asyncio.open_connection(sock=sock, limit=1)


async def slow_reader(port: int, address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """One that has asked for the metrics page and reads next to nothing of it."""
    reader, writer = await connection(port, address)
    writer.write(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
    await reader.read(1)
    return reader, writer


@asynccontextmanager
async def traced_memory() -> AsyncIterator[None]:
    """Trace allocations."""
    tracemalloc.start()
    try:
        yield
    finally:
        tracemalloc.stop()


async def test_slow_readers_hold_less_than_one_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sixty-four take less memory than one page, and not 64 pages; one who reads gets it at once."""
    monkeypatch.setattr(answers, "STALL_S", 60.0)
    monkeypatch.setattr(answers, "FRESH_S", 60.0)  # a page that is being made meanwhile takes memory too
    async with traced_memory(), served(None) as site:
        page = LargePage(site.site)
        assert await site.status() == 200
        before = page.rendered
        memory, _ = tracemalloc.get_traced_memory()
        readers = await asyncio.gather(*(slow_reader(site.port, "127.0.0.2") for _ in range(64)))
        # A slice of text for each, what unpacks it, and in this test also the client's side.
        assert tracemalloc.get_traced_memory()[0] - memory < PAGE_BYTES * 3 / 4
        assert page.rendered - before == 0
        answer = await answer_to(site.port, b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert answer.partition(b"\r\n\r\n")[2] == page.whole(page.rendered)
        for _, writer in readers:
            writer.transport.abort()


async def test_readers_that_stall_hold_no_connection_beyond_the_end_of_the_pages() -> None:
    """They get what is on its way, and then the end, as nobody is left to write the rest."""
    async with served(None) as site:
        LargePage(site.site)
        readers = await asyncio.gather(*(slow_reader(site.port, "127.0.0.2") for _ in range(3)))
    for reader, writer in readers:
        async with asyncio.timeout(HANG_S):
            assert len(await reader.read()) < PAGE_BYTES
        writer.close()


async def test_a_reader_that_stalls_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one beside it that reads gets its page."""
    monkeypatch.setattr(answers, "STALL_S", 3.0)  # the other one reads within this on a busy machine
    async with served(None) as site:
        page = LargePage(site.site)
        _, writer = await slow_reader(site.port, "127.0.0.2")
        answer = await answer_to(site.port, b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert answer.partition(b"\r\n\r\n")[2] == page.whole(page.rendered)
        async with asyncio.timeout(HANG_S):
            while site.server.open_connections:  # noqa: ASYNC110 - a number has no event
                await asyncio.sleep(0.05)
        writer.transport.abort()


@pytest.mark.parametrize("version", ["1.0", "1.1"])
async def test_a_slow_reader_gets_one_page_whole_while_others_get_a_newer_one(
    version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With and without gzip, of which only one is kept: of all values none is of the other rendering."""
    monkeypatch.setattr(answers, "STALL_S", 60.0)
    monkeypatch.setattr(access_control, "WRITE_TIMEOUT_S", 60.0)
    async with served(None) as site:
        page, go_on = LargePage(site.site, 1 << 20), asyncio.Event()

        async def read(encoding: str, *, slowly: bool) -> bytes:
            reader, writer = await connection(site.port, "127.0.0.1")
            head = f"GET /metrics HTTP/{version}\r\nHost: a\r\nAccept-Encoding: {encoding}\r\nConnection: close\r\n\r\n"
            writer.write(head.encode())
            answer = await reader.readexactly(5000)
            if slowly:
                await go_on.wait()
            while data := await reader.read(5000 if slowly else 1 << 20):
                answer += data
            writer.close()
            said, _, body = answer.partition(b"\r\n\r\n")
            assert f"Content-Length: {len(body)}".encode() in said
            assert (b"Content-Encoding: gzip" in said) is (encoding == "gzip")
            return gzip.decompress(body) if encoding == "gzip" else body

        async with asyncio.timeout(HANG_S), asyncio.TaskGroup() as group:
            slow = [group.create_task(read(encoding, slowly=True)) for encoding in ("identity", "gzip")]
            while page.rendered < 2:
                await read("identity", slowly=False)
            for encoding in ("identity", "gzip"):
                assert await read(encoding, slowly=False) == page.whole(page.rendered)
            go_on.set()
        assert [reader.result() for reader in slow] == [page.whole(1)] * 2


@pytest.mark.parametrize(
    ("accept", "is_gzip"),
    [
        *((text, True) for text in ("gzip", "deflate, gzip;q=0.5", "GZIP ; q=1", "x-gzip", "br, gzip")),
        *((text, False) for text in ("", "identity", "gzip;q=0", "gzip; q=0.000", "gzipped", "*;q=0", "deflate")),
    ],
)
async def test_compression_is_the_clients_choice(accept: str, is_gzip: bool) -> None:
    """By RFC 9110, 12.5.3; HEAD has the headers of GET and no body."""
    async with served(None) as site:
        page = LargePage(site.site, 1 << 18)
        heads = []
        for method in ("GET", "HEAD"):
            answer = await answer_to(
                site.port,
                f"{method} /metrics HTTP/1.1\r\nHost: a\r\nAccept-Encoding: {accept}\r\nConnection: close\r\n\r\n".encode(),
            )
            head, _, body = answer.partition(b"\r\n\r\n")
            assert (b"Content-Encoding: gzip" in head) is is_gzip
            text = gzip.decompress(body) if is_gzip and body else body
            assert text == (page.whole(page.rendered) if method == "GET" else b"")
            heads.append({line for line in head.split(b"\r\n") if not line.startswith((b"Date", b"Content-Length"))})
            assert b"Content-Length: " in head
        assert heads[0] == heads[1]


async def test_an_answer_without_bounds_is_refused_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """The list of all probes may have a hundred megabytes: nobody holds it."""
    monkeypatch.setattr(answers, "MAX_ANSWER_BYTES", 1 << 18)
    async with served(None) as site:
        site.site._pieces = lambda form: iter([os.urandom(1 << 20)])  # type: ignore[method-assign]
        answer = await answer_to(site.port, b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert (answer.split()[1], b"limit=" in answer) == (b"413", True)
        assert await site.status("/api/v1/probes") == 200


async def test_many_views_rank_all_targets_once() -> None:
    """Views with filters that differ read the state of all targets once a second; after an action it is read again."""
    async with served(None, admin=True) as site:
        views, reads = site.site.views, 0
        read = views._rank

        async def counted(now_s: float) -> Ranking:
            nonlocal reads
            reads += 1
            return await read(now_s)

        views._rank = counted  # type: ignore[method-assign]
        begin_s = asyncio.get_running_loop().time()
        for number in range(10):
            assert await site.status(f"/?q=a{number}") == 200
        assert reads <= 2 + (asyncio.get_running_loop().time() - begin_s) / RANKING_S
        assert "Pause" in (await site.answer("/?target=a"))[2]
        assert await site.status("/api/v1/pauses?target=a", "POST") == 200
        assert "Resume" in (await site.answer("/?target=a"))[2]
