"""Outgoing requests and limits of answers, against hostile servers on this machine."""

import asyncio
import base64
import contextlib
import gzip
import json
import logging
import socket
import socketserver
import ssl
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import pytest
import trustme

from prober.config.discovery import HttpSpec
from prober.config.hosts import REFUSED, Forbidden, check
from prober.config.load import load
from prober.config.problems import ConfigError
from prober.config.server import Auth, TlsSpec
from prober.config.serving import MetricsSpec
from prober.config.target import TargetSpec
from prober.features.discovery.discovered_targets import DiscoveredTargets
from prober.features.discovery.lists import Http
from prober.features.replicas.leadership import KubernetesLease
from prober.measure.engines import DIALECTS
from prober.measure.outcome import Outcome
from prober.measure.result import ProbeResult
from prober.mock.server import running
from prober.net import exchange as exchange
from prober.net.certificates import BadCertificate, ClientTls
from prober.net.endpoint import endpoint
from prober.net.kubernetes import Api, KubernetesApiError, Unreachable
from prober.net.prometheus import QueryFailed, instant
from prober.net.redaction import Redactor
from prober.net.scrape import UnreadablePage, fetch
from tests.probing.test_probe import PATIENT, QUICK, probe
from tests.scripted import Asked, scripted

METADATA = "169.254.169.254"
TOKEN, QUERY_SECRET = "s3cr3t-token-of-the-list", "asked-by-the-query"
MODELS = json.dumps({"data": [{"id": "m", "owned_by": "vllm"}]}).encode()
Answer = Callable[[bytes], Awaitable[list[bytes]]]


def spec(url: str, **changes: Any) -> TargetSpec:
    text = f"targets: [{{name: t, url: '{url}', model: m, connect_lead: 10ms}}]"
    target_spec = load(text, source="c", engines=DIALECTS, environment={}, read=lambda path: path).targets[0]
    return target_spec.model_copy(update={"timeouts": PATIENT} | changes)


def head(status: str = "200 OK", kind: str = "text/event-stream", *more: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Type: {kind}", "Connection: close", *more]
    return "\r\n".join(lines).encode() + b"\r\n\r\n"


@asynccontextmanager
async def hostile(*answer: bytes, forever: bytes = b"", listed: bool = True) -> AsyncIterator[tuple[str, list[bytes]]]:
    """A server that lists its model and answers all else so; `forever` is then sent until nobody takes it any more."""
    requests: list[bytes] = []

    def reply(asked: Asked) -> Iterable[bytes]:
        requests.append(asked.head)
        if listed and asked.path.endswith("/models"):
            return [head("200 OK", "application/json", f"Content-Length: {len(MODELS)}") + MODELS]
        return chain(answer, repeat(forever) if forever else ())

    async with scripted(reply) as url:
        yield url, requests


async def met(*answer: bytes, forever: bytes = b"", **changes: Any) -> ProbeResult:
    async with hostile(*answer, forever=forever) as (url, _):
        return await probe(spec(url, **changes))


# --- where to


@pytest.mark.parametrize(
    "address",
    ["169.254.169.254", "169.254.0.1", "fe80::1", "fe80::1%eth0", "febf::1", "::ffff:169.254.169.254", "64:ff9b::a9fe:a9fe",
     "2002:a9fe:a9fe::1", "2001:0:a9fe:a9fe::1", "2001:0:808:808:0:0:5601:5601", "::169.254.169.254", "64:ff9b:1::a9fe:a9fe",
     "64:ff9b:1:a9fe:a9:fe00::", "64:ff9b:1:0:a9:fea9:fe00:0", "::ffff:100.100.100.200", "64:ff9b::100.100.100.200",
     *map(str, (network[-1] for network in REFUSED))],
)  # fmt: skip
def test_link_local_and_metadata_addresses_are_refused(address: str) -> None:
    """However they are written; who means it says so."""
    with pytest.raises(Forbidden, match="allow_link_local: true"):
        check(address)
    check(address, allow_link_local=True)


@pytest.mark.parametrize(
    "address",
    ["127.0.0.1", "::1", "10.0.0.1", "192.168.0.1", "100.100.100.201", "8.8.8.8", "h", "fd00::1", "fd00:c1::a9fe:a9ff", "fd00:42::43",
     "fd00:100::100", "fd12:3456:789a::a9fe:a9fe", "64:ff9b::a00:1", "64:ff9b:1::a00:1", "2002:a00:1::1", "2001:db8::a9fe:a9fe"],
)  # fmt: skip
def test_other_addresses_are_not(address: str) -> None:
    """Those of clusters among them: unique local ones, and IPv4 ones behind NAT64."""
    check(address)


async def test_a_name_is_looked_at_after_it_is_resolved(monkeypatch: pytest.MonkeyPatch) -> None:
    """DNS rebinding does not bypass the check; the outcome is `rejected` and no request is sent."""

    def resolved(self: object, host: str, port: int, **more: object) -> Any:
        answer = asyncio.get_running_loop().create_future()
        answer.set_result([(socket.AF_INET, socket.SOCK_STREAM, 6, "", (METADATA, port))])
        return answer

    monkeypatch.setattr("asyncio.base_events.BaseEventLoop.getaddrinfo", resolved)
    result = await probe(spec("http://innocent.example"))
    assert result.outcome is Outcome.REJECTED
    assert METADATA in result.detail
    assert result.timeline.sent_ns is None
    with pytest.raises(UnreadablePage, match="link-local"):
        await fetch("http://innocent.example/metrics", headers={})
    with pytest.raises(QueryFailed, match="link-local"):
        await instant("http://innocent.example", "up")


NO_HOSTS = ["a..b", "a\u3002\u3002b", "x" * 64 + ".example", "ü" * 300]


@pytest.mark.parametrize("host", NO_HOSTS)
async def test_a_name_that_no_resolver_can_be_asked_for_is_a_fault_of_its_target(host: str) -> None:
    """Of a list of others, for one. The configuration refuses it; where it gets through, the probe says so and nothing fails."""
    with pytest.raises(ConfigError, match="is not a URL"):
        spec(f"http://{host}:8000")
    result = await probe(spec("http://good.example:8000", proxy_url=f"http://{host}:3128"))
    assert (result.outcome, "is not a host name" in result.detail) == (Outcome.DNS, True)
    async with hostile(b"") as (url, requests):
        tls = TlsSpec(insecure_skip_verify=True, server_name=host)
        result = await probe(spec(url.replace("http", "https"), tls=tls))
        assert (result.outcome, "is not a host name" in result.detail, requests) == (Outcome.TLS, True, [])
        await probe(spec(url))
        assert requests, "the same address by a good name"


async def test_an_address_is_refused_as_a_target_a_page_a_prometheus_and_a_proxy() -> None:
    """Written out, or as one number, which a resolver takes for an address."""
    for url in (f"http://{METADATA}", "http://2852039166", "http://[::ffff:169.254.169.254]"):
        assert (await probe(spec(url))).outcome is Outcome.REJECTED
    for through in (f"http://{METADATA}:3128",):
        assert (await probe(spec("http://127.0.0.1:1", proxy_url=through))).outcome is Outcome.REJECTED
        with pytest.raises(UnreadablePage, match="link-local"):
            await fetch("http://127.0.0.1:1/metrics", headers={}, proxy=through)
    async with hostile() as (proxy, requests):
        assert (await probe(spec(f"http://{METADATA}", proxy_url=proxy))).outcome is Outcome.REJECTED
        with pytest.raises(UnreadablePage, match="link-local"):
            await fetch(f"http://{METADATA}/metrics", headers={}, proxy=proxy)
        assert requests == []
    with pytest.raises(UnreadablePage, match="link-local"):
        await fetch(f"http://{METADATA}/metrics", headers={})
    with pytest.raises(QueryFailed, match="link-local"):
        await instant(f"http://{METADATA}", "up")


async def test_who_means_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    """`allow_link_local` of a target, or of all by `defaults`; here without a network, so that nothing is sent there."""

    async def nobody(self: object, sock: object, address: tuple[str, int]) -> None:
        raise ConnectionRefusedError(111, f"nobody at {address}")

    monkeypatch.setattr("asyncio.selector_events.BaseSelectorEventLoop.sock_connect", nobody)
    text = f"defaults: {{allow_link_local: true}}\ntargets: [{{name: t, url: 'http://{METADATA}', model: m}}]"
    target_spec = load(text, source="c", engines=DIALECTS, environment={}, read=lambda path: path).targets[0]
    assert target_spec.allow_link_local
    result = await probe(target_spec.model_copy(update={"connect_lead": 0.01}))
    assert (result.outcome, METADATA in result.detail) == (Outcome.CONNECT_REFUSED, True)
    refused = await probe(target_spec.model_copy(update={"allow_link_local": False, "connect_lead": 0.01}))
    assert (refused.outcome, "allow_link_local" in refused.detail) == (Outcome.REJECTED, True)


async def test_no_redirect_is_followed() -> None:
    """Neither by a probe, nor for a page, nor by the question to a Prometheus: the other server hears nothing."""
    async with hostile(listed=False) as (other, heard):
        moved = head(
            "307 Temporary Redirect", "text/plain", f"Location: {other}/v1/chat/completions", "Content-Length: 0"
        )
        result = await met(moved)
        assert result.outcome is Outcome.REJECTED
        assert "redirects are not followed" in result.detail
        async with hostile(moved, listed=False) as (url, _):
            with pytest.raises(UnreadablePage, match="redirects are not followed"):
                await fetch(url, headers={"Authorization": "Bearer x"})
            with pytest.raises(QueryFailed, match="redirects are not followed"):
                await instant(url, "up")
            unlisted = await probe(spec(url, model=None))
            assert unlisted.outcome is Outcome.REJECTED
        assert heard == []


# --- how much of an answer


EVENT = b'data: {"choices":[{"delta":{"content":"x"}}]}\n\n'


@pytest.mark.parametrize(
    ("answer", "forever", "message"),
    [
        ([b"HTTP/1.1 200 OK\r\n"], b"X-Filler: " + b"y" * 1000 + b"\r\n", "headers of more than 64 KiB"),
        ([b"HTTP/1.1 200 OK\r\nX-Filler: "], b"y" * 1000, "headers of more than 64 KiB"),
        ([], b"HTTP/1.1 100 Continue\r\n\r\n", "headers of more than 64 KiB"),
        ([head()], b"data: " + b"y" * 65536 + b"\n", "an event of more than 262144 bytes"),
        ([head("200 OK", "application/json"), b"["], b" " * 65536, "a line of more than 262144 bytes"),
        ([head(), gzip.compress(b"x" * 10_000_000)], b"", "gzip data"),
        (
            [head("200 OK", "text/event-stream", "Content-Encoding: gzip"), gzip.compress(EVENT)],
            b"",
            "compressed ('gzip')",
        ),
        ([head("200 OK", "text/event-stream", "Content-Encoding: br"), b"x"], b"", "compressed ('br')"),
    ],
)
async def test_an_answer_is_bounded_in_every_part(answer: list[bytes], forever: bytes, message: str) -> None:
    """With the reason; nothing is unpacked. tests/wire/cases_limits.py floods each part."""
    result = await met(*answer, forever=forever)
    assert result.outcome in {Outcome.MALFORMED, Outcome.TRUNCATED}, result.detail
    assert message in result.detail, result.detail


async def test_a_stream_and_a_plain_answer_have_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of one byte with all their framing, and JSON without an end."""
    monkeypatch.setattr(exchange, "MAX_STREAM_BYTES", 1 << 20)
    chunked = head("200 OK", "text/event-stream", "Transfer-Encoding: chunked")
    result = await met(chunked, forever=b"1;" + b"e" * 4000 + b"\r\n:\r\n")
    assert result.outcome is Outcome.MALFORMED
    result = await met(head("200 OK", "application/json"), forever=b" " * 65536, stream=False)
    assert (result.outcome, "the answer is longer than 4,096 KiB" in result.detail) == (Outcome.MALFORMED, True)
    async with hostile(head("200 OK", "application/json"), forever=b" " * 65536, listed=False) as (url, _):
        result = await probe(spec(url, model=None))  # the list of models
    assert (result.outcome, "the answer is longer than 256 KiB" in result.detail) == (Outcome.MALFORMED, True)


@pytest.mark.parametrize(
    ("answer", "forever", "message"),
    [
        ([head("200 OK", "text/plain")], b"a 1\n" * 10_000, "longer than 1,000,000 bytes"),
        (
            [head("200 OK", "text/plain", "Content-Encoding: gzip"), gzip.compress(b"a 1\n" * 10**6)],
            b"",
            "compressed ('gzip')",
        ),
        ([b"HTTP/1.1 200 OK\r\nX-Filler: "], b"y" * 1000, "http://"),
        ([head("200 OK", "text/plain", "Content-Length: 10"), b"a"], b"", "http://"),
        ([b"\x00\xff" * 100], b"", "http://"),
    ],
)
async def test_a_page_and_the_answer_of_a_prometheus_are_bounded(
    answer: list[bytes], forever: bytes, message: str
) -> None:
    """And read as they are; a page that is compressed though it was not asked for is refused."""
    async with hostile(*answer, forever=forever, listed=False) as (url, _):
        with pytest.raises(UnreadablePage) as unreadable:
            await fetch(url, headers={}, limit=1_000_000)
        assert message in str(unreadable.value)
        with pytest.raises(QueryFailed):
            await instant(url, "up")


# --- who we are


def wanting_certificates(authority: trustme.CA, name: str, version: ssl.TLSVersion) -> ssl.SSLContext:
    """Settings of a server that wants a certificate of this authority."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(name).configure_cert(context)
    authority.configure_trust(context)
    context.verify_mode = ssl.CERT_REQUIRED
    context.maximum_version = version
    return context


@asynccontextmanager
async def asking_for_certificates(
    authority: trustme.CA, name: str = "127.0.0.1", version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3
) -> AsyncIterator[str]:
    async with running(QUICK, tls=wanting_certificates(authority, name, version)) as url:
        yield url


@contextmanager
def refusing_certificates(authority: trustme.CA, version: ssl.TLSVersion) -> Iterator[str]:
    """A server that says why it ends a handshake, as OpenSSL does on a plain socket; servers on asyncio close without a word."""
    context = wanting_certificates(authority, "127.0.0.1", version)

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with self.request.dup() as plain, contextlib.suppress(OSError):
                with contextlib.suppress(ssl.SSLError):
                    context.wrap_socket(self.request, server_side=True)
                plain.shutdown(socket.SHUT_WR)
                while plain.recv(4096):
                    pass

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"https://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def certificate_files(folder: Path, authority: trustme.CA) -> TlsSpec:
    issued = authority.issue_cert("prober.example")
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    (folder / "tls.crt").write_bytes(b"".join(pem.bytes() for pem in issued.cert_chain_pems))
    (folder / "tls.key").write_bytes(issued.private_key_pem.bytes())
    return TlsSpec(ca_file=str(folder / "ca.pem"), cert_file=str(folder / "tls.crt"), key_file=str(folder / "tls.key"))


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_a_client_certificate_is_shown_to_the_target_and_to_its_page(
    tmp_path: Path, version: ssl.TLSVersion, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Without one, or with one of another authority, the outcome is `tls`: of the handshake, or in TLS 1.3 of the first read, which is
    not taken for the end of an idle connection.
    """
    monkeypatch.setattr("prober.probing.probe.MIN_IDLE_NS", 0)
    caplog.set_level(logging.INFO)
    authority = trustme.CA()
    (tmp_path / "other").mkdir()
    tls, other = certificate_files(tmp_path, authority), certificate_files(tmp_path / "other", trustme.CA())
    async with asking_for_certificates(authority, version=version) as url:
        result = await probe(spec(url, tls=tls, model=None))
        assert result.outcome is Outcome.OK, result.detail
        page = await fetch(f"{url}/metrics", headers={}, tls=ClientTls(tls).context())
        assert b"vllm" in page.body
    with refusing_certificates(authority, version) as url:
        for certificate, why in ((None, "certificate required; see `tls.cert_file`"), (other, "unknown ca")):
            files = {name: getattr(certificate, name, None) for name in ("cert_file", "key_file")}
            refused = await probe(spec(url, tls=tls.model_copy(update=files)), identified=False)
            assert refused.outcome is Outcome.TLS, refused.detail
            assert version is ssl.TLSVersion.TLSv1_2 or why in refused.detail
    assert "idle" not in caplog.text


async def test_the_name_in_the_certificate_can_be_another_one(tmp_path: Path) -> None:
    authority = trustme.CA()
    tls = certificate_files(tmp_path, authority)
    async with asking_for_certificates(authority, "engine.example") as url:
        assert (await probe(spec(url, tls=tls), identified=False)).outcome is Outcome.TLS
        result = await probe(spec(url, tls=tls.model_copy(update={"server_name": "engine.example"}), model=None))
        assert result.outcome is Outcome.OK, result.detail


@pytest.mark.parametrize("system", [False, True])
def test_certificates_are_followed_and_a_bad_one_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, system: bool
) -> None:
    """Also halfway through a rotation, when the key is another one's; `problem` says so until it is fixed."""
    monkeypatch.setattr("prober.net.certificates.CHECK_INTERVAL_S", 0.0)
    spec = certificate_files(tmp_path, trustme.CA())
    settings = ClientTls(spec.model_copy(update={"ca_file": None}) if system else spec)
    first = settings.context()
    good = (tmp_path / "tls.key").read_bytes()
    (tmp_path / "tls.key").write_bytes(trustme.CA().issue_cert("x").private_key_pem.bytes())
    assert settings.context() is first
    assert "stay in use" in settings.problem
    assert "PRIVATE" not in settings.problem
    (tmp_path / "tls.key").write_bytes(good)
    settings.context()
    assert settings.problem == ""
    (tmp_path / "tls.key").unlink()
    with pytest.raises(BadCertificate, match=r"tls\.key"):
        ClientTls(spec)


def test_half_of_a_pair_is_a_mistake() -> None:
    text = "targets: [{name: t, url: 'https://h', tls: {cert_file: a}}]"
    with pytest.raises(ConfigError, match="needs cert_file and key_file together"):
        load(text, source="c", engines=DIALECTS, environment={}, read=lambda path: path)


# --- what is said


def test_what_rotates_is_not_kept_for_ever() -> None:
    """Configured secrets stay, also after many tokens."""
    redactor = Redactor()
    redactor.add("configured-secret")
    for index in range(1000):
        redactor.add_rotating(f"token-{index:06}-{index:06}")
    assert redactor.redact("token-000999-000999, configured-secret") == "…, …"
    assert redactor.redact("000000-000000") == "000000-000000"


def test_what_is_secret_in_an_address_is_hidden() -> None:
    """The password as it is written, as it is meant and as it is sent, and what the query asks; not the host, not the path."""
    redactor = Redactor()
    redactor.add_url("https://user:p%40ssw0rd-one@host.example/list?token=t0k%2Fen-two&pagesized&short=1")
    sent = base64.b64encode(b"user:p@ssw0rd-one").decode()
    text = f"p%40ssw0rd-one p@ssw0rd-one {sent} t0k%2Fen-two t0k/en-two pagesized host.example/list?short=1"
    assert redactor.redact(text) == "… … … … … … host.example/list?short=1"


async def said_of_a_list(tmp_path: Path, answer: bytes) -> tuple[str, list[bytes]]:
    """The problem that an http discovery reports for an answer, and the requests it sent."""
    (tmp_path / "token").write_text(TOKEN)
    discovered = DiscoveredTargets("d", lambda: None)
    async with hostile(answer, listed=False) as (url, requests):
        await Http(
            HttpSpec(url=f"{url}/list?key={QUERY_SECRET}", auth=Auth(bearer_token_file=str(tmp_path / "token"))),
            (),
            discovered,
        ).refresh()
    (problem,) = discovered.problems
    return problem, requests


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (head("200 OK", f"{TOKEN} {QUERY_SECRET}") + b"[]", "Content-Type is '… …'"),
        (
            head("200 OK", "application/json") + json.dumps([{f"{TOKEN} {QUERY_SECRET}": 1}]).encode(),
            "unknown key '… …'",
        ),
        (
            head("200 OK", "application/json") + json.dumps([{"labels": {QUERY_SECRET: None}}]).encode(),
            "'…' has a value",
        ),
        (head(f"401 {TOKEN}", "text/plain") + TOKEN.encode(), "HTTP 401"),
        (f"{TOKEN} {QUERY_SECRET}\r\n\r\n".encode(), "not HTTP"),
    ],
)
async def test_a_list_that_repeats_what_it_was_sent_is_not_repeated(
    tmp_path: Path, answer: bytes, message: str
) -> None:
    """Neither the token nor what the query asks; of the URL itself the query is not shown."""
    problem, (requests,) = await said_of_a_list(tmp_path, answer)
    assert TOKEN.encode() in requests
    assert QUERY_SECRET.encode() in requests
    assert message in problem
    assert "/list?…: " in problem
    assert TOKEN not in problem
    assert QUERY_SECRET not in problem


async def test_the_address_of_a_list_is_shown_without_its_query(caplog: pytest.LogCaptureFixture) -> None:
    """In the log, and as the label that rules look at."""
    discovered = DiscoveredTargets("d", lambda: None)
    listed = head("200 OK", "application/json") + b'[{"targets": ["h:1"]}]'
    async with hostile(listed, listed=False) as (url, requests):
        source = Http(HttpSpec(url=f"{url}/list?key={QUERY_SECRET}"), {"__meta_url"}, discovered)
        discovered.failed(f"{url}/list?…", "no answer")
        with caplog.at_level("INFO"):
            await source.refresh()
        assert [targets for _, targets in discovered.items()] == [
            ({"__meta_url": f"{url}/list?…", "__address__": "h:1"},)
        ]
    assert QUERY_SECRET.encode() in requests[0]
    assert "/list?…: answers again" in caplog.text
    assert QUERY_SECRET not in caplog.text
    assert discovered.problems == []


@pytest.mark.parametrize(
    "answer",
    [
        head("403 Forbidden", "application/json") + json.dumps({"reason": TOKEN, "message": f"no: {TOKEN}"}).encode(),
        head(f"403 {TOKEN}", "text/plain") + TOKEN.encode(),
        head("200 OK", "application/json") + TOKEN.encode(),
        head("200 OK", "application/json") + json.dumps({"type": TOKEN}).encode() + b"\n",
        head("200 OK", "application/json") + json.dumps({"type": "ERROR", "object": {"message": TOKEN}}).encode() + b"\n",
        head("200 OK", "application/json") + json.dumps({"metadata": {"resourceVersion": "1"},
                                                        "spec": {"leaseDurationSeconds": TOKEN}}).encode(),
        TOKEN.encode() + b"\r\n\r\n",
    ],
)  # fmt: skip
async def test_an_api_server_that_repeats_its_token_is_not_repeated(tmp_path: Path, answer: bytes) -> None:
    """In what is said of an object, a list, a watch and a lease."""
    (tmp_path / "token").write_text(TOKEN)
    messages: list[str] = []
    async with hostile(answer, listed=False) as (url, requests):
        api = Api(url, token_file=str(tmp_path / "token"))

        async def watched() -> None:
            async for _ in api.watch("/w"):
                pass

        for ask in (api.get("/g"), api.list("/l", lambda _: None), watched(), KubernetesLease(api, "n", "l").read(5.0)):
            try:
                await ask
            except (KubernetesApiError, Unreachable) as problem:
                messages.append(f"{problem} {getattr(problem, 'reason', '')} {getattr(problem, 'message', '')}")
        await api.close()
    assert all(TOKEN.encode() in request for request in requests)
    assert messages
    assert TOKEN not in "".join(messages)


async def test_the_holder_of_a_lease_is_no_token(tmp_path: Path) -> None:
    """The holder is shown to users."""
    (tmp_path / "token").write_text(TOKEN)
    document = {
        "metadata": {"resourceVersion": "1"},
        "spec": {"holderIdentity": f"by {TOKEN}", "leaseDurationSeconds": 1},
    }
    async with hostile(head("200 OK", "application/json") + json.dumps(document).encode(), listed=False) as (url, _):
        lease = KubernetesLease(Api(url, token_file=str(tmp_path / "token")), "n", "l")
        record = await lease.read(5.0)
        await lease.close()
    assert record is not None
    assert record.holder == "by …"


def test_the_address_of_an_api_server_has_no_password() -> None:
    """It would be in every message: a token is given as a file."""
    with pytest.raises(ValueError, match="has a user or password") as refused:
        Api("https://user:hunter22@h")
    assert "hunter22" not in str(refused.value)


async def test_a_prometheus_that_repeats_its_password_is_not_repeated() -> None:
    """Nor is a long story told whole."""
    pair = base64.b64encode(f"user:{TOKEN}".encode()).decode()
    body = json.dumps({"status": "error", "error": f"no: Basic {pair} {TOKEN} " + "x" * 10_000})
    async with hostile(head("200 OK", "application/json") + body.encode(), listed=False) as (url, requests):
        with pytest.raises(QueryFailed) as problem:
            await instant(url.replace("//", f"//user:{TOKEN}@"), "up")
    assert pair.encode() in requests[0]
    assert "no: Basic … …" in str(problem.value)
    assert len(str(problem.value)) < 1_000


def test_a_page_elsewhere_has_its_password_hidden() -> None:
    """As the header and the proxy's have."""
    hidden = endpoint(
        spec("http://h").model_copy(update={"metrics": MetricsSpec(url=f"http://user:{TOKEN}@h/metrics")})
    )
    assert hidden.redactor.redact(f"no: {TOKEN}") == "no: …"
