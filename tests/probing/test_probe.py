"""One probe against real sockets: every outcome, and what is and is not the target's time."""

import asyncio
import socket
import ssl
import sys
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
import trustme

from prober.config.server import Auth, TlsSpec
from prober.config.target import TargetSpec, Timeouts
from prober.measure.engines import DIALECTS
from prober.measure.outcome import Outcome
from prober.measure.quality import Expectation
from prober.measure.result import ProbeResult
from prober.measure.target_state import TargetState
from prober.measure.timeline import Timeline
from prober.mock.delays import constant
from prober.mock.faults import Fault
from prober.mock.service import Behaviour, Settings
from prober.net.clock import Clock
from prober.net.endpoint import Endpoint
from prober.net.exchange import LINGER_S
from prober.probing.probe import LocalRun, header_number, new_request, run_probe, server_request_id
from prober.probing.target import Identity, Target
from prober.workload.budget import Budget
from prober.workload.prompts import GoldenPrompt
from prober.workload.shapes import Fixed
from prober.workload.workloads import GoldenWorkload, RequestGenerator, Workload
from tests.config.reading import loaded
from tests.net.test_stamped_socket import ThreadServer
from tests.scripted import Asked, Reply, Script, scripted
from tests.virtual import BEAT_NS, VirtualLoop, make_clock, running
from tests.wire.case import HOLD, Step
from tests.wire.events import DONE, chat, end, good, text
from tests.wire.heads import EVENTS, head, joined, stream, until_close

pytestmark = pytest.mark.virtual_time
QUICK = Settings(behaviour=Behaviour(ttft=constant(0.02), itl=constant(0.001)))
SHORT = Timeouts(connect=0.3, first_token=0.3, stall=0.2, total=0.6)
PATIENT = Timeouts(connect=5, first_token=10, stall=5, total=20)
Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def spec(url: str, **changes: Any) -> TargetSpec:
    text = f"targets: [{{name: t, url: '{url}', connect_lead: 100ms}}]"
    found = loaded(text).targets[0]
    return found.model_copy(update={"timeouts": PATIENT} | changes)


def ended(outcome: Outcome, workload: str = "probe", detail: str = "") -> ProbeResult:
    """A probe as a target hears of its end."""
    return ProbeResult("", workload, "", 0.0, outcome, detail, Timeline(0))


async def send(target: Target, lead_s: float = 0.05) -> ProbeResult:
    drawer = RequestGenerator(target.spec.probes[0].workload, Random(1))
    result = await run_probe(target, drawer, target.clock.now_ns() + round(lead_s * 1e9))
    assert result is not None
    return result


async def probe(found: TargetSpec, *, identified: bool = True) -> ProbeResult:
    clock = make_clock()
    target = Target(found, clock)
    if identified:
        await target.identify()
    try:
        return await send(target)
    finally:
        clock.close()


def known(url: str, **changes: Any) -> tuple[Clock, Target]:
    """A target that need not be asked who it is."""
    clock = make_clock(changes.pop("beat_ns", BEAT_NS))
    target = Target(spec(url, engine="vllm", **changes), clock)
    target.identity = Identity(target.spec.model or "m", DIALECTS["vllm"], "/v1")
    target.state = TargetState.READY
    return clock, target


@asynccontextmanager
async def answered(reply: Reply, **changes: Any) -> AsyncIterator[Target]:
    """Such a target, and its server, which replies so."""
    async with scripted(reply) as url:
        clock, target = known(url, **changes)
        yield target
        clock.close()


@asynccontextmanager
async def identified(settings: Settings = QUICK, **changes: Any) -> AsyncIterator[Target]:
    """A target of the mock, which has been asked who it is."""
    async with running(settings) as url:
        target = Target(spec(url, **changes), make_clock())
        await target.identify()
        yield target
        target.clock.close()


async def sent_late(target: Target, after_s: float, still_s: float) -> ProbeResult:
    """A probe that is due in 0.1 s, whose prober stands still for so long after so long."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    sending = asyncio.create_task(send(target, 0.1))
    await asyncio.sleep(after_s)
    loop.stand_still(still_s)
    return await sending


@asynccontextmanager
async def serving(handler: Handler, tls: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    server = await asyncio.start_server(handler, "127.0.0.1", 0, ssl=tls)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await asyncio.sleep(1)  # of the loop's time: clients leave, and handlers see it


FAULTS = [
    ("http:404", Outcome.HTTP_404),
    ("http:408", Outcome.HTTP_408),
    ("http:429", Outcome.HTTP_429),
    ("http:500", Outcome.HTTP_5XX),
    ("http:401", Outcome.REJECTED),
    ("http:422", Outcome.REJECTED),
    ("http_html", Outcome.MALFORMED),
    ("malformed:3", Outcome.MALFORMED),
    ("big_line:3000000", Outcome.MALFORMED),
    ("error_in_stream:3", Outcome.ERROR_IN_STREAM),
    ("truncated:3", Outcome.TRUNCATED),
    ("wrong_done", Outcome.TRUNCATED),
    ("empty", Outcome.EMPTY),
    ("short:3", Outcome.SHORT),
    ("no_usage", Outcome.OK),
    ("no_first_token", Outcome.TIMEOUT_FIRST_TOKEN),
    ("role_then_keepalive:50ms", Outcome.TIMEOUT_FIRST_TOKEN),
    ("hang", Outcome.TIMEOUT_FIRST_TOKEN),
    ("late_headers:5s", Outcome.TIMEOUT_FIRST_TOKEN),
    ("stall:3", Outcome.TIMEOUT_STALL),
    ("endless", Outcome.TIMEOUT_TOTAL),
]


@pytest.mark.parametrize(("fault", "outcome"), FAULTS)
async def test_each_fault_has_its_outcome(fault: str, outcome: Outcome) -> None:
    """What a server can do wrong is named for what it is, never `ok`."""
    timed = outcome.value.startswith("timeout")
    async with running(QUICK) as url:
        found = spec(url, headers={"X-Mock-Fault": fault}, timeouts=SHORT if timed else PATIENT)
        result = await probe(found)
    assert result.outcome is outcome, result.detail
    assert result.detail or outcome is Outcome.OK


async def test_a_good_answer_is_ok_and_counted_by_the_server() -> None:
    """Outcome, length, usage and times of a healthy stream."""
    async with running(QUICK) as url:
        result = await probe(spec(url))
    timeline = result.timeline
    assert result.outcome is Outcome.OK
    assert timeline.usage is not None
    assert timeline.usage.completion_tokens == result.requested_output_tokens == len(timeline.content_ns)
    assert list(timeline.content_tokens or ()) == [1] * len(timeline.content_ns)
    assert timeline.ttft_s is not None
    assert timeline.ttft_s >= 0.02
    assert (result.model, result.engine) == ("mock", "vllm")


async def test_a_name_that_does_not_resolve_is_dns() -> None:
    """Failing to find the address is an outcome of the probe."""
    result = await probe(spec("http://does-not-exist.invalid:1", timeouts=SHORT), identified=False)
    assert result.outcome in (Outcome.DNS, Outcome.CONNECT_TIMEOUT)


async def test_nobody_listening_is_connect_refused() -> None:
    """With the address in the detail."""
    async with serving(_ignore) as port:
        pass
    result = await probe(spec(f"http://127.0.0.1:{port}"), identified=False)
    assert result.outcome is Outcome.CONNECT_REFUSED
    assert f"127.0.0.1:{port}" in result.detail


async def _ignore(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()
    writer.close()


async def test_a_handshake_that_never_ends_is_connect_timeout() -> None:
    """TCP accepted, TLS silent: the connection was not made in time."""
    async with serving(_ignore) as port:
        result = await probe(spec(f"https://127.0.0.1:{port}", timeouts=SHORT), identified=False)
    assert result.outcome is Outcome.CONNECT_TIMEOUT
    assert "tls" in result.detail


@contextmanager
def full_backlog() -> Iterator[int]:
    """A port whose line of waiting connections is full: the kernel answers no further SYN."""
    with ExitStack() as open_sockets:
        listening = open_sockets.enter_context(socket.socket())
        listening.bind(("127.0.0.1", 0))
        listening.listen(0)
        for _ in range(4):
            waiting = open_sockets.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listening.getsockname())
        yield listening.getsockname()[1]


@pytest.mark.real_time
@pytest.mark.skipif(sys.platform != "linux", reason="a full backlog is silent on Linux only")
async def test_a_server_that_accepts_nobody_is_connect_timeout() -> None:
    """No answer to the SYN: the phase that did not end is in the detail."""
    with full_backlog() as port:
        result = await probe(spec(f"http://127.0.0.1:{port}", timeouts=SHORT), identified=False)
    assert result.outcome is Outcome.CONNECT_TIMEOUT, result.detail
    assert "tcp" in result.detail


async def test_what_a_request_delivered_before_it_was_cut_is_known() -> None:
    """Chunk by chunk, though nobody waited for the end of the answer; of one that was cut before its first token, nothing."""
    slow = Settings(behaviour=Behaviour(ttft=constant(0.05), itl=constant(0.02)))
    for after_s, least in ((0.6, 5), (0.01, 0)):
        async with identified(slow) as target:
            drawer = RequestGenerator(Workload("w", prompt_tokens=Fixed(20), output_tokens=Fixed(500)), Random(1))
            flight = LocalRun(target, new_request(target, drawer, target.clock.now_ns() + 50_000_000))
            flying = asyncio.create_task(flight.send())
            await asyncio.sleep(0.05 + after_s)
            flying.cancel()
            await asyncio.wait([flying])
            found = flight.delivered()
        assert least <= len(found.content_ns) < 500
        assert found.end_ns is None
        assert (found.first_ns is None) is (least == 0)


async def test_a_probe_that_is_cancelled_gives_its_slot_back_and_leaves_no_connection() -> None:
    """The prober's own end is no result, and the target's cap and the server are rid of it at once."""
    came, left = asyncio.Event(), asyncio.Event()

    def hold(_: Asked) -> Iterator[Step]:
        came.set()
        try:
            yield HOLD
        finally:
            left.set()

    async with answered(hold) as target, asyncio.timeout(5):
        task = asyncio.create_task(send(target, lead_s=0.0))
        await came.wait()
        task.cancel()
        await asyncio.wait([task])
        await left.wait()
    assert task.cancelled()
    assert not target.in_flight
    assert target.state == TargetState.READY


@pytest.mark.parametrize(
    ("said", "outcome", "detail"),
    [("It is 42.", Outcome.OK, ""), ("It is 41.", Outcome.WRONG_ANSWER, "'It is 41.' does not match")],
)
async def test_a_golden_prompt_is_sent_as_it_is_and_its_answer_judged(said: str, outcome: Outcome, detail: str) -> None:
    """No nonce, no forced length; reasoning is not part of the answer, and a wrong answer has its latencies all the same."""
    requests: list[dict[str, object]] = []

    def say(asked: Asked) -> Script:
        requests.append(asked.json)
        return until_close(chat({"reasoning": "42? 41?"}), text(said[:4]), text(said[4:]), end("stop"), DONE)

    prompt = GoldenPrompt("17 + 25?", Expectation("regex", r"\b42\b"))
    golden = GoldenWorkload("g", Fixed(1), Fixed(64), golden=(prompt,))
    async with answered(say) as target:
        result = await run_probe(target, RequestGenerator(golden, Random(1)), target.clock.now_ns() + 50_000_000)
    assert result is not None
    assert (result.outcome, result.check) == (outcome, "regex")
    assert detail in result.detail
    assert result.timeline.ttft_s is not None
    assert requests[0]["messages"] == [{"role": "user", "content": "17 + 25?"}]
    assert requests[0]["max_tokens"] == 64
    assert not {"ignore_eos", "cache_salt"} & requests[0].keys()


@asynccontextmanager
async def secure(tmp_path: Path) -> AsyncIterator[tuple[str, str]]:
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    async with running(QUICK, tls=context) as url:
        yield url, str(tmp_path / "ca.pem")


async def test_a_ca_that_does_not_fit_is_tls_and_one_that_fits_is_ok(tmp_path: Path) -> None:
    """The certificate is verified, its end is known, and the handshake has its own time."""
    async with secure(tmp_path) as (url, ca_file):
        refused = await probe(spec(url), identified=False)
        result = await probe(spec(url, tls=TlsSpec(ca_file=ca_file)))
    assert refused.outcome is Outcome.TLS
    assert "certificate" in refused.detail
    assert result.outcome is Outcome.OK, result.detail
    assert result.cert_expiry_unix_s is not None
    assert result.timeline.connection is not None
    assert result.timeline.connection.tls_s is not None


async def relay(port: int, delay_s: float, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Waits, then carries bytes both ways."""
    await asyncio.sleep(delay_s)
    upstream_reader, upstream_writer = await asyncio.open_connection("127.0.0.1", port)

    await carry((reader, upstream_writer), (upstream_reader, writer))


async def carry(*ways: tuple[asyncio.StreamReader, asyncio.StreamWriter]) -> None:
    """Bytes, each way until its end."""

    async def one(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while data := await source.read(65536):
            sink.write(data)
        sink.close()

    await asyncio.gather(*(one(*way) for way in ways), return_exceptions=True)


@pytest.mark.parametrize("late_s", [0.0, 0.05, 0.1, 0.5])
async def test_a_slow_handshake_is_slow_and_not_invalid(tmp_path: Path, late_s: float) -> None:
    """What it takes longer than `connect_lead` counts in TTFT and E2E, whether or not the prober itself began late."""
    async with secure(tmp_path) as (url, ca_file):
        port = int(url.rsplit(":", 1)[1])
        async with serving(lambda r, w: relay(port, 0.25, r, w)) as slow:
            target = Target(spec(f"https://127.0.0.1:{slow}", tls=TlsSpec(ca_file=ca_file)), make_clock())
            await target.identify()
            result = await send(target, 0.1 - late_s)
            target.clock.close()
    timeline = result.timeline
    assert result.outcome is Outcome.OK, result.detail
    assert timeline.ttft_s is not None
    assert timeline.ttft_s == pytest.approx(0.25 - 0.1 + 0.02, abs=0.005)
    assert timeline.send_lag_s == pytest.approx(late_s, abs=0.001)
    assert timeline.e2e_s is not None
    assert timeline.ttft_s is not None
    assert timeline.e2e_s > timeline.ttft_s


@pytest.mark.parametrize("late_s", [0.0, 0.05, 0.4])
async def test_how_late_the_prober_sends_is_in_no_latency(late_s: float) -> None:
    """It stands still before the due time, until after it: the connection is ready, and the answer takes as long as ever."""
    async with identified() as target:
        result = await sent_late(target, 0.09, 0.01 + late_s)
    timeline = result.timeline
    assert result.outcome is Outcome.OK
    assert result.detail == ""
    assert timeline.send_lag_s == pytest.approx(late_s, abs=0.002)
    assert timeline.ttft_s == pytest.approx(0.02, abs=0.002)
    assert timeline.tpot_s == pytest.approx(0.001, abs=1e-4)
    assert timeline.e2e_s == pytest.approx(0.02 + 0.001 * (result.requested_output_tokens - 1), abs=0.003)


@pytest.mark.parametrize(("late_s", "outcome"), [(2.9, Outcome.OK), (3.1, Outcome.INVALID)])
async def test_a_request_that_would_be_three_seconds_late_is_not_sent(late_s: float, outcome: Outcome) -> None:
    """After a stop of the prober all of them would leave together."""
    async with identified() as target:
        result = await sent_late(target, 0.05, 0.05 + late_s)
    assert result.outcome is outcome
    assert (result.timeline.sent_ns is None) == (outcome is Outcome.INVALID)
    assert ("woke 3.1 s after the due time" in result.detail) == (outcome is Outcome.INVALID)


STANDSTILLS: list[tuple[bytes, float, Outcome]] = [  # answer before the connection is closed, seconds, outcome
    (b"", 0.5, Outcome.RESET),
    (b"", 1.5, Outcome.INVALID),
    (b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\n\r\n", 0.5, Outcome.HTTP_408),
    (b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\n\r\n", 1.5, Outcome.INVALID),
    (b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n", 1.5, Outcome.HTTP_5XX),
    (b"HTTP/1.1 429 Busy\r\nContent-Length: 0\r\n\r\n", 1.5, Outcome.HTTP_429),
]


@pytest.mark.parametrize(("answer", "still_s", "outcome"), STANDSTILLS)
async def test_what_a_standstill_may_have_caused_is_invalid(answer: bytes, still_s: float, outcome: Outcome) -> None:
    """A server gives a client up that it does not hear for a second or more; what it says of itself stays."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)

    def reply(_: Asked) -> Iterator[Step]:
        yield 0.01
        loop.stand_still(still_s)
        yield answer

    async with answered(reply, beat_ns=10_000_000) as target:
        result = await send(target)
    assert result.outcome is outcome, result.detail
    assert ("stood still" in result.detail) == (outcome is Outcome.INVALID)


class Busy:
    """A request that holds its slot."""

    is_late = False

    def read_arrived(self) -> None:
        """Nothing has arrived."""


@pytest.mark.parametrize(("late_s", "outcome"), [(0.0, Outcome.SHED), (0.09, Outcome.SHED), (0.2, Outcome.INVALID)])
async def test_a_full_target_is_the_prober_s_doing_where_requests_leave_together(
    late_s: float, outcome: Outcome
) -> None:
    """A late request finds those that were due before it still in flight."""
    async with identified(max_in_flight=1) as target:
        target.in_flight.add(Busy())
        result = await sent_late(target, 0.09, 0.01 + late_s)
    assert result.outcome is outcome
    assert "1 probes were in flight already (max_in_flight)" in result.detail


@pytest.mark.parametrize("has_ended", [True, False])
async def test_an_answer_that_has_arrived_unread_holds_no_slot(has_ended: bool) -> None:
    """At the cap, all connections of the target are read before a request is shed; an answer under way holds its slot."""
    came, goes_on = asyncio.Event(), asyncio.Event()

    async def reply(asked: Asked) -> AsyncGenerator[Step, None]:
        if not came.is_set():
            came.set()
            await goes_on.wait()
            whole = joined(*stream(*good(asked.json["max_tokens"])))
            yield whole if has_ended else whole[:400]
            second._at_due_time()  # its alarm rings before the loop reads what was just sent
        yield HOLD

    async with answered(reply, max_in_flight=1) as target:
        drawer = RequestGenerator(target.spec.probes[0].workload, Random(1))
        first = asyncio.create_task(send(target))
        await came.wait()
        second = LocalRun(target, new_request(target, drawer, target.clock.now_ns() + 50_000_000))
        sending = asyncio.create_task(second.send())
        await asyncio.sleep(0.04)
        goes_on.set()
        await asyncio.sleep(0.005)
        slots = list(target.in_flight)
        await asyncio.sleep(LINGER_S)
        for task in (first, sending):
            task.cancel()
        await asyncio.wait([first, sending])
        await asyncio.sleep(0.1)
    if has_ended:
        assert slots == [second]
        assert first.result().outcome is Outcome.OK
    else:
        assert sending.result().outcome is Outcome.SHED


async def proxy(seen: list[str], reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A forward proxy: CONNECT, and absolute requests passed on as they are."""
    head = await reader.readuntil(b"\r\n\r\n")
    method, target = head.decode().split(" ")[:2]
    seen.append(f"{method} {target}")
    port = int(target.removeprefix("http://").split("/")[0].rsplit(":", 1)[1])
    upstream_reader, upstream_writer = await asyncio.open_connection("127.0.0.1", port)
    if method == "CONNECT":
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
    else:
        upstream_writer.write(head)
    await carry((reader, upstream_writer), (upstream_reader, writer))


async def test_http_and_https_go_through_a_proxy(tmp_path: Path) -> None:
    """http with an absolute address, https through a tunnel with its own phase."""
    seen: list[str] = []
    async with serving(lambda r, w: proxy(seen, r, w)) as port:
        through = f"http://127.0.0.1:{port}"
        async with running(QUICK) as url:
            plain = await probe(spec(url, proxy_url=through))
        async with secure(tmp_path) as (url, ca_file):
            tunnelled = await probe(spec(url, proxy_url=through, tls=TlsSpec(ca_file=ca_file)))
    assert plain.outcome is Outcome.OK, plain.detail
    assert tunnelled.outcome is Outcome.OK, tunnelled.detail
    assert any(line.startswith("POST http://127.0.0.1:") for line in seen)
    assert seen[-1].startswith("CONNECT 127.0.0.1:")
    assert tunnelled.timeline.connection is not None
    assert tunnelled.timeline.connection.proxy_s is not None


@pytest.mark.parametrize(
    ("answer", "outcome", "said"),
    [
        (b"", Outcome.CONNECT_TIMEOUT, "in proxy"),
        (b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n", Outcome.CONNECT_REFUSED, "407"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", Outcome.CONNECT_REFUSED, "does not speak HTTP"),
    ],
)
async def test_a_proxy_that_gives_no_tunnel_is_let_go(answer: bytes, outcome: Outcome, said: str) -> None:
    """No tunnel is a connection that could not be made, and the one to the proxy is closed and not kept for ever."""
    left = asyncio.Event()

    def reply(_: Asked) -> Iterator[Step]:
        try:
            yield from (answer, HOLD)
        finally:
            left.set()

    async with scripted(reply) as proxy_url:
        result = await probe(spec("https://127.0.0.1:1", proxy_url=proxy_url, timeouts=SHORT), identified=False)
        async with asyncio.timeout(5):
            await left.wait()
    assert result.outcome is outcome, result.detail
    assert said in result.detail


async def test_at_the_cap_a_probe_is_shed_and_not_delayed() -> None:
    """With one allowed in flight, the second of two that are due at once is shed."""
    async with identified(max_in_flight=1) as target:
        results = await asyncio.gather(send(target), send(target))
        after = await send(target)
    assert sorted(result.outcome for result in results) == [Outcome.OK, Outcome.SHED]
    assert after.outcome is Outcome.OK
    assert not target.in_flight


async def test_a_shed_probe_leaves_no_connection() -> None:
    """Its connection was ready and nothing was sent on it: it is closed at once, or an overload would pile them up."""
    left, busy = asyncio.Event(), Busy()
    received: list[bytes] = []

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received.extend(piece for piece in await asyncio.gather(reader.read(), return_exceptions=True) if piece)  # type: ignore[misc]
        writer.close()
        left.set()

    async with serving(handler) as port:
        clock, target = known(f"http://127.0.0.1:{port}", max_in_flight=1)
        target.in_flight.add(busy)
        result = await send(target)
        async with asyncio.timeout(5):
            await left.wait()
    clock.close()
    assert result.outcome is Outcome.SHED
    assert all(isinstance(piece, ConnectionResetError) for piece in received)
    assert list(target.in_flight) == [busy]


async def test_an_outage_of_the_target_is_its_failure_and_not_the_prober_s() -> None:
    """Probes under way while others find the target failing, and what it is forgotten, end with their own outcome."""
    came = asyncio.Event()

    def reply(_: Asked) -> Iterator[Step]:
        came.set()
        yield 0.1

    async with answered(reply) as target:
        under_way = asyncio.create_task(send(target))
        await came.wait()
        for _ in range(3):
            target.ended(ended(Outcome.CONNECT_REFUSED))
        assert target.identity == Identity("m", DIALECTS["vllm"], "/v1"), "the last known one is probed on"
        result = await under_way
    assert result.outcome in (Outcome.RESET, Outcome.MALFORMED), result.detail


async def test_a_budget_that_is_used_up_sends_nothing() -> None:
    """Tokens are reserved before a request leaves, and given back when fewer were used."""
    async with identified() as target:
        target.budgets["tokens"] = Budget(1)
        refused = await send(target)
        target.budgets["tokens"] = Budget(100_000)
        result = await send(target)
    assert refused.outcome is Outcome.OVER_BUDGET
    assert refused.timeline.sent_ns is None
    usage = result.timeline.usage
    assert usage is not None
    assert usage.prompt_tokens is not None
    assert usage.completion_tokens is not None
    assert target.budgets["tokens"].spent(target.clock.now_ns()) == usage.prompt_tokens + usage.completion_tokens


async def test_the_token_file_is_read_again_and_kept_when_it_vanishes(tmp_path: Path) -> None:
    """A rotated token is used at once; a vanished file does not stop the probes, and is told."""
    token = tmp_path / "token"
    token.write_text("old\n")
    clock = make_clock()
    async with running(replace(QUICK, api_key="new")) as url:
        target = Target(spec(url, auth=Auth(bearer_token_file=str(token))), clock)
        refused = await send(target)
        token.write_text("new\n")
        good = await send(target)
        token.unlink()
        kept = await send(target)
    clock.close()
    assert [r.outcome for r in (refused, good, kept)] == [Outcome.REJECTED, Outcome.OK, Outcome.OK]
    assert target.endpoint.secret is not None
    assert str(token) in target.endpoint.secret.problem


async def test_a_token_file_that_never_was_sends_nothing(tmp_path: Path) -> None:
    """Without a token the probe is not sent, and says which file is missing."""
    async with running(QUICK) as url:
        result = await probe(spec(url, auth=Auth(bearer_token_file=str(tmp_path / "none"))))
    assert result.outcome is Outcome.REJECTED
    assert "none" in result.detail


TOKENS = 20
TOKEN = b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'
ANSWER = (  # in the form of `ThreadServer`
    (0.0, b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"),
    (0.05, TOKEN),
    *[(0.01, TOKEN)] * (TOKENS - 1),
    (
        0.01,
        b'data: {"choices":[{"delta":{},"finish_reason":"length"}],"usage":{"prompt_tokens":20,"completion_tokens":20}}\n\n'
        b"data: [DONE]\n\n",
    ),
)


async def probe_while_busy(server: ThreadServer, busy_s: float, idle_s: float, **changes: Any) -> ProbeResult:
    """A probe in an event loop that is busy for `busy_s`, and free for `idle_s`, again and again."""
    clock, target = known(f"http://127.0.0.1:{server.port}", **changes)
    drawer = RequestGenerator(Workload("w", Fixed(20), Fixed(TOKENS)), Random(1))
    with server.running():
        probing = asyncio.create_task(run_probe(target, drawer, clock.now_ns() + 150_000_000))
        while not probing.done():
            time.sleep(busy_s)  # noqa: ASYNC251
            await asyncio.sleep(idle_s)
    clock.close()
    result = probing.result()
    assert result is not None
    return result


@pytest.mark.real_time
@pytest.mark.usefixtures("stamping")
async def test_a_busy_prober_measures_what_the_server_did() -> None:
    """An event loop that is busy for 50 ms at a time, five tokens each, changes neither TTFT nor TPOT nor E2E."""
    server = ThreadServer(*ANSWER)
    result = await probe_while_busy(server, 0.05, 0.002)
    timeline = result.timeline
    assert result.outcome is Outcome.OK, result.detail
    assert timeline.merged_chunks > TOKENS / 2, "it was late"
    assert timeline.sent_ns is not None
    assert timeline.sent_ns <= server.asked_ns[1]
    assert timeline.origin_ns == timeline.sent_ns
    bounds = timeline.bounds_s("ttft")
    assert bounds is not None
    (before_ns, after_ns), last = server.sent_ns[1], server.sent_ns[-1]
    assert timeline.sent_ns + bounds[0] * 1e9 <= after_ns
    assert timeline.sent_ns + bounds[1] * 1e9 >= before_ns
    slack_ns = 20_000_000  # a machine that is busy delivers late
    assert timeline.end_ns is not None
    assert last[0] <= timeline.end_ns <= last[1] + slack_ns
    assert timeline.e2e_s == (timeline.end_ns - timeline.sent_ns) / 1e9
    first = timeline.flush_sizes[0]  # tokens, of which the last one's time is known
    took_ns = server.sent_ns[TOKENS][0] - server.sent_ns[first][1]
    assert timeline.tpot_s is not None
    assert took_ns - slack_ns <= timeline.tpot_s * 1e9 * (TOKENS - first) <= took_ns + slack_ns
    assert sum(timeline.chunk_gaps_s) == pytest.approx((timeline.content_ns[-1] - timeline.content_ns[0]) / 1e9)


@pytest.mark.real_time
@pytest.mark.usefixtures("stamping")
async def test_a_deadline_is_no_matter_of_when_the_prober_reads() -> None:
    """Each limit passes while the loop is busy, and everything arrived in time."""
    server = ThreadServer(*ANSWER)
    limits = Timeouts(connect=20, first_token=0.4, stall=0.4, total=0.8)
    result = await probe_while_busy(server, 1.2, 0.05, timeouts=limits)
    assert server.sent_ns[-1][1] - server.asked_ns[0] < 0.8e9
    assert result.outcome is Outcome.OK, result.detail
    assert result.timeline.e2e_s is not None
    assert result.timeline.e2e_s < 0.8


async def test_an_engine_that_loads_is_starting_and_then_warm_up() -> None:
    """While the health page says so nothing is sent; what answers first afterwards is warm-up."""
    clock = make_clock()
    async with running(replace(QUICK, faults=(Fault("starting", end_s=0.4),))) as url:
        target = Target(spec(url), clock)
        held = await run_probe(target, RequestGenerator(target.spec.probes[0].workload, Random(1)), clock.now_ns())
        state = target.state
        while target.state != TargetState.READY:
            last = await run_probe(target, RequestGenerator(target.spec.probes[0].workload, Random(1)), clock.now_ns())
            await asyncio.sleep(1.0)
    clock.close()
    assert held is None
    assert state == TargetState.STARTING
    assert last is not None
    assert last.warm_up


NUMBERS = [
    ("5", 5.0),
    ("0", 0.0),
    ("007", 7.0),
    ("\xb2", None),  # is a digit for Python, and no number
    ("\xb3\xb9", None),
    ("", None),
    ("-1", None),
    ("+1", None),
    ("1.5", None),
    ("1e3", None),
    ("1_000", None),
    ("0x10", None),
    ("nan", None),
    ("inf", None),
    ("Wed, 21 Oct 2026 07:28:00 GMT", None),
    ("9" * 15, 999_999_999_999_999.0),
    ("9" * 16, None),
    ("9" * 5_000, None),
]


@pytest.mark.parametrize(("text", "number"), NUMBERS)
def test_a_header_s_number_is_ascii_digits_or_absent(text: str, number: float | None) -> None:
    """Whatever a server sends there, nothing is raised and nothing is guessed."""
    assert header_number({"x": text}, "x") == number
    assert header_number({"y": text}, "x") is None


async def told(status: str, *headers: str) -> ProbeResult:
    """The result of a good answer with this status and these headers."""
    head_ = head(status, EVENTS, *headers)
    async with answered(lambda asked: until_close(*good(asked.json["max_tokens"], 0.0), head=head_)) as target:
        return await send(target)


async def test_a_header_that_is_no_number_is_absent_and_the_probe_is_ok() -> None:
    """A superscript two in `x-ratelimit-remaining-requests` spoils neither the result nor the header beside it."""
    limits = ("x-ratelimit-remaining-requests: \xb2", "x-ratelimit-remaining-tokens: 12", "Retry-After: \xb2")
    of_anthropic = ("input-tokens-remaining: 3000", "output-tokens-remaining: 1e3")
    result = await told("200 OK", *limits, *(f"anthropic-ratelimit-{limit}" for limit in of_anthropic))
    assert result.outcome is Outcome.OK, result.detail
    assert result.rate_limit == {"tokens": 12.0, "input_tokens": 3000.0}
    assert result.retry_after_s is None


@pytest.mark.parametrize(
    ("headers", "retries"),
    [
        (["x-envoy-attempt-count: 1"], {"retry": 0}),
        (["X-Envoy-Attempt-Count: 3"], {"retry": 2}),
        (["x-litellm-attempted-retries: 0", "x-litellm-attempted-fallbacks: 1"], {"retry": 0, "fallback": 1}),
        (["x-envoy-attempt-count: 2", "x-litellm-attempted-retries: 2"], {"retry": 3}),
        (["x-portkey-retry-attempt-count: 2"], {"retry": 2}),
        (["x-portkey-retry-attempt-count: -1"], {}),
        (["Ngrok-AIG-Attempts: 3"], {"retry": 2}),
        (["x-envoy-attempt-count: 0"], {"retry": 0}),
        (["x-litellm-attempted-retries: None"], {}),
        (["x-litellm-max-retries: 3"], {}),
    ],
)
@pytest.mark.parametrize("status", ["200 OK", "503 Service Unavailable"])
async def test_retries_of_a_gateway_are_those_that_its_headers_tell(
    headers: list[str], retries: dict[str, int], status: str
) -> None:
    """Of answers and of failures; what no header tells is no zero. Values as the gateways' own documents have them."""
    result = await told(status, *headers)
    assert result.outcome is (Outcome.OK if status == "200 OK" else Outcome.HTTP_5XX)
    assert result.retries == retries


@pytest.mark.parametrize(
    ("headers", "server_id"),
    [
        (["X-Request-Id: req_6f1c"], "req_6f1c"),
        (["request-id: req_011C"], "req_011C"),
        (["x-litellm-call-id: 386e", "x-request-id: "], "386e"),
        ([f"x-request-id: {'x' * 200}"], f"{'x' * 99}…"),
        (["x-amzn-trace-id: Root=1"], ""),
    ],
)
@pytest.mark.parametrize("status", ["200 OK", "503 Service Unavailable"])
async def test_the_servers_own_id_of_the_request_is_kept(headers: list[str], server_id: str, status: str) -> None:
    """Of answers and of failures, shortened; it finds the request in the server's log."""
    assert (await told(status, *headers)).server_request_id == server_id


def test_an_id_that_the_server_returns_is_not_its_own() -> None:
    """vLLM returns the id that the prober sent."""
    assert server_request_id({"x-request-id": "slo-probe-1", "request-id": "other"}, "slo-probe-1") == "other"
    assert server_request_id({"x-request-id": "slo-probe-1"}, "slo-probe-1") == ""


async def test_parts_of_its_time_come_from_the_headers_too() -> None:
    """A gateway's own time is a part of an answer's; a claim that is longer than the probe is none."""
    result = await told("200 OK", "x-litellm-overhead-duration-ms: 0.25", "x-litellm-timing-llm-api-ms: 70000")
    assert result.timeline.parts is not None
    assert (result.timeline.parts.gateway_s, result.timeline.parts.until_headers_s) == (0.00025, None)
    assert (await told("200 OK")).timeline.parts is None


@pytest.mark.parametrize(("asked", "seconds"), [("30", 30.0), ("Tue, 14 Nov 2023 22:13:50 GMT", 30.0)])
async def test_a_retry_after_is_seconds_or_a_date_by_the_prober_s_clock(asked: str, seconds: float) -> None:
    """Where the answer has no date of its own; all its forms are those of tests/net/test_retry_after.py."""
    result = await told("429 Too Many Requests", f"Retry-After: {asked}")
    assert result.outcome is Outcome.HTTP_429
    assert result.retry_after_s == pytest.approx(seconds, abs=0.1)  # as long as the answer took to come


async def test_a_list_of_models_that_the_prober_fails_to_read_is_the_target_s_fault(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """`malformed`, with the type of the exception, and the trace in the log."""

    def fail(*_: object) -> None:
        raise ZeroDivisionError("a fault")

    clock = make_clock()
    async with running(QUICK) as url:
        target = Target(spec(url), clock)
        monkeypatch.setattr(target, "_read", fail)
        result = await send(target)
    clock.close()
    assert result.outcome is Outcome.MALFORMED
    assert "ZeroDivisionError" in result.detail
    assert "report" in result.detail
    assert "Traceback" in caplog.text


@pytest.mark.parametrize(
    ("owner", "function"),
    [
        ("target", "prepare"),
        ("endpoint", "token"),
        ("endpoint", "head"),
        ("clock", "call_at"),
        ("run", "_on_due"),
        ("run", "_send_if_ready"),
    ],
)
async def test_an_exception_before_the_answer_is_raised_and_gives_slot_and_budget_back(
    owner: str, function: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing was sent, so nothing is spent; and the next probe is as if nothing had been."""

    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError("a fault")

    async with identified() as target:
        target.budgets["tokens"] = Budget(100_000)
        owners: dict[str, Any] = {"target": target, "endpoint": Endpoint, "clock": target.clock, "run": LocalRun}
        with monkeypatch.context() as patched:
            patched.setattr(owners[owner], function, fail)
            with pytest.raises(ZeroDivisionError):
                await send(target)
        assert not target.in_flight
        assert target.budgets["tokens"].spent(target.clock.now_ns()) == 0
        result = await send(target)
    assert result.outcome is Outcome.OK, result.detail
