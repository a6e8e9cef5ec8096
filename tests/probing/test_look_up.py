"""The list of models and the health page: a help to a probe, never a gate, and never inside its latencies."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import orjson
import pytest

from prober.measure.engines import DIALECTS
from prober.measure.outcome import Outcome
from prober.measure.result import ProbeResult
from prober.measure.target_state import TargetState
from prober.probing.target import FIRST_PROBE_DELAY_S, MODELS_TIMEOUT_S, Identity, Target
from tests.probing.test_probe import ended, known, send, spec
from tests.scripted import Asked, scripted
from tests.virtual import make_clock
from tests.wire.case import HOLD, RST, Step
from tests.wire.events import good
from tests.wire.heads import body, stream

pytestmark = pytest.mark.virtual_time
HANG = HOLD


def answer(status: str, body: bytes = b"", kind: str = "application/json") -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


def models(*names: str) -> bytes:
    return answer("200 OK", orjson.dumps({"data": [{"id": name, "owned_by": "vllm"} for name in names]}))


USELESS: dict[str, Step] = {
    "401": answer("401 Unauthorized"),
    "403": answer("403 Forbidden", b"<html>no</html>", "text/html"),
    "404": answer("404 Not Found"),
    "405": answer("405 Method Not Allowed"),
    "429": answer("429 Too Many Requests"),
    "500": answer("500 Internal Server Error", b'{"error": {"message": "oops"}}'),
    "501": answer("501 Not Implemented"),
    "a redirect": answer("302 Found"),
    "HTML": answer("200 OK", b"<!doctype html><title>Sign in</title>", "text/html"),
    "an empty list": models(),
    "no list": answer("200 OK", b'{"data": null}'),
    "garbage": answer("200 OK", b'{"data": [{"id": '),
    "nothing": answer("200 OK"),
    "no HTTP": b"SSH-2.0-OpenSSH_9.6\r\n",
    "a hang": HANG,
    "a reset": RST,
}


@dataclass
class Engine:
    """An engine of raw bytes. page: answer of the list of models; delays of the two pages in seconds; served: its model."""

    page: Step
    served: str = "m"
    page_delay_s: float = 0.0
    health_delay_s: float = 0.0
    requests: list[dict[str, Any]] = field(default_factory=list)
    look_ups: list[float] = field(default_factory=list)  # times at which the list of models was asked for
    heads: list[bytes] = field(default_factory=list)  # of all requests

    def reply(self, asked: Asked) -> Iterator[Step]:
        self.heads.append(asked.head)
        if asked.path == "/health":
            yield from (self.health_delay_s, answer("200 OK"))
        elif asked.method == "GET":
            self.look_ups.append(asked.at_s)
            yield from (self.page_delay_s, self.page)
        else:
            self.requests.append(asked.json)
            is_served = asked.json["model"] == self.served
            yield from (
                stream(*good(asked.json["max_tokens"], 0.0))
                if is_served
                else body("404 Not Found", {"error": {"message": "no such model"}})
            )


@asynccontextmanager
async def probing(server: Engine, **changes: Any) -> AsyncIterator[Target]:
    """A new target of the daemon before its first probe."""
    clock = make_clock()
    async with scripted(server.reply) as url:
        yield Target(spec(url, **changes), clock)
        await asyncio.sleep(2 * MODELS_TIMEOUT_S)  # look-ups beside the probes end
    clock.close()


def ttft_s(result: ProbeResult) -> float:
    assert result.outcome is Outcome.OK, result.detail
    assert result.timeline.ttft_s is not None
    return result.timeline.ttft_s


@pytest.mark.parametrize("page", USELESS)
async def test_a_named_model_is_probed_whatever_the_list_of_models_answers(page: str) -> None:
    """With that model and the plain dialect. A page that hangs delays the first probe for a short time, and no other."""
    engine = Engine(USELESS[page])
    async with probing(engine, model="m") as target:
        for delay_s in (FIRST_PROBE_DELAY_S if page == "a hang" else 0.0, 0.0, 0.0):
            due_ns = target.clock.now_ns() + 50_000_000
            result = await send(target)
            assert ttft_s(result) < 0.01
            assert (result.timeline.intended_ns - due_ns) / 1e9 == pytest.approx(delay_s, abs=0.01)
        assert [request["model"] for request in engine.requests] == ["m"] * 3
        assert target.state is TargetState.READY


@pytest.mark.parametrize("page", ["403", "a hang"])
async def test_a_configured_engine_has_its_dialect_without_a_list_of_models(page: str) -> None:
    """The length is forced as this engine wants it, and nothing is asked before the first probe."""
    engine = Engine(USELESS[page])
    async with probing(engine, model="m", engine="vllm") as target:
        result = await send(target)
        assert (result.outcome, result.model, result.engine) == (Outcome.OK, "m", "vllm")
        assert engine.look_ups == []
        assert engine.requests[0]["ignore_eos"] is True


async def test_the_first_probe_of_a_named_model_has_the_dialect_and_the_path_of_its_engine() -> None:
    """A good list of models is waited for, so that an engine with ways of its own does not fail its first probe."""
    engine = Engine(models("m"), page_delay_s=1.0)
    async with probing(engine, model="m") as target:
        result = await send(target)
        assert (ttft_s(result) < 0.01, result.engine) == (True, "vllm")


async def test_a_named_model_that_nobody_listens_for_has_the_outcome_of_its_own_probe() -> None:
    """A look-up without a connection is no verdict; the probe connects by itself."""
    clock, target = known("http://127.0.0.1:1", model="m")
    target.identity = None
    result = await send(target)
    clock.close()
    assert result.outcome is Outcome.CONNECT_REFUSED
    assert "models" not in result.detail


@pytest.mark.parametrize("page", ["500", "a hang"])
async def test_a_later_good_answer_refines_the_dialect(page: str) -> None:
    """It is asked for again beside the probes, ever more seldom."""
    engine = Engine(USELESS[page])
    async with probing(engine, model="m") as target:
        assert (await send(target)).engine == "openai"
        for _ in range(60):
            await asyncio.sleep(5)
            await send(target)
        assert 3 <= len(engine.look_ups) <= 10
        engine.page = models("other", "m")
        engines = []
        for _ in range(120):
            await asyncio.sleep(5)
            engines.append((await send(target)).engine)
        assert (engines[0], engines[-1]) == ("openai", "vllm")
        assert target.identity == Identity("m", DIALECTS["vllm"], "/v1")
        asked = len(engine.look_ups)
        await asyncio.sleep(3600)
        await send(target)
        assert len(engine.look_ups) == asked, "nothing is left to find out"


async def test_a_first_look_up_is_not_in_the_latency_of_the_first_probe() -> None:
    """Health and models are asked first where nothing is known; the due time moves by as long as that took."""
    engine = Engine(models("m"), page_delay_s=1.5, health_delay_s=1.0)
    async with probing(engine) as target:
        begun_ns = target.clock.now_ns()
        result = await send(target, lead_s=0.1)
        assert ttft_s(result) < 0.01
        assert result.timeline.intended_ns - begun_ns == pytest.approx(2.6e9, rel=0.01)
        assert result.timeline.send_lag_s == pytest.approx(0, abs=0.001)


async def test_probes_that_wait_for_the_first_look_up_keep_their_distance() -> None:
    """They do not arrive all at once; one that is due later is not moved."""
    engine = Engine(models("m"), page_delay_s=1.0)
    async with probing(engine) as target:
        begun_ns = target.clock.now_ns()
        results = await asyncio.gather(*(send(target, lead_s) for lead_s in (0.1, 0.4, 1.7)))
        due_s = [(result.timeline.intended_ns - begun_ns) / 1e9 for result in results]
        assert due_s == pytest.approx([1.1, 1.4, 1.7], abs=0.01)
        assert max(map(ttft_s, results)) < 0.01
        assert len(engine.look_ups) == 1


async def test_a_look_up_after_an_outage_is_beside_the_probes() -> None:
    """The last known model is probed at once, although the list of models takes its time."""
    engine = Engine(models("m"))
    async with probing(engine) as target:
        await send(target)
        engine.page_delay_s = 2.0
        for _ in range(3):
            target.ended(ended(Outcome.CONNECT_REFUSED))
            await asyncio.sleep(1)
        await asyncio.sleep(60)
        assert target.state is TargetState.FAILING
        before = len(engine.look_ups)
        assert max([ttft_s(await send(target)) for _ in range(3)]) < 0.01
        await asyncio.sleep(0.1)
        assert len(engine.look_ups) == before + 1


async def test_a_model_that_is_gone_is_404_until_it_was_looked_up() -> None:
    """The users of that model get the same; the next probe has the new model."""
    engine = Engine(models("m"))
    async with probing(engine) as target:
        await send(target)
        engine.served, engine.page = "new", models("new")
        await asyncio.sleep(5)
        gone = await send(target)
        await asyncio.sleep(5)
        result = await send(target)
    assert (gone.outcome, gone.model) == (Outcome.HTTP_404, "m")
    assert (result.outcome, result.model) == (Outcome.OK, "new")


async def test_a_named_model_that_is_not_there_is_404_and_looked_up_ever_more_seldom() -> None:
    """Each probe says so; the list of models cannot change it, and is not asked for each time."""
    engine = Engine(models("other"), served="other")
    async with probing(engine, model="m") as target:
        outcomes = []
        for _ in range(200):
            await asyncio.sleep(5)
            outcomes.append((await send(target)).outcome)
        assert set(outcomes) == {Outcome.HTTP_404}
        assert len(engine.look_ups) < 20


async def test_without_a_named_model_a_hang_of_its_list_is_the_verdict() -> None:
    """The model is not guessed; nothing is sent."""
    engine = Engine(HANG)
    async with probing(engine) as target:
        result = await send(target)
        assert result.outcome is Outcome.TIMEOUT_TOTAL
        assert "/v1/models" in result.detail
        assert engine.requests == []


@pytest.mark.parametrize(
    ("page", "says"),
    [
        *((USELESS[status], f"HTTP {status}; set `model`") for status in ("404", "405", "501")),
        (USELESS["403"], "set `model`"),
        (USELESS["an empty list"], "lists no model; set `model`"),
        (models("m" * 200_000, "n" * 200_000), "set `model`"),
        (models("a", "b"), "serves 2 models; set `model` to one of a, b"),
    ],
)
async def test_a_list_that_gives_no_model_asks_for_the_model(page: bytes, says: str) -> None:
    """None is there, the server has no list, or it is too long to read: the remedy is in the detail of the probe."""
    async with probing(Engine(page)) as target:
        detail = (await send(target)).detail
        assert says in detail
        assert detail.count("set `model`") == 1


@pytest.mark.parametrize("page", ["401", "429", "500", "a redirect", "HTML", "no HTTP"])
async def test_a_failure_that_a_named_model_would_not_mend_does_not_ask_for_it(page: str) -> None:
    """A wrong token, an overload, a crash, a page that is no API: each is a fault of its own."""
    async with probing(Engine(USELESS[page])) as target:
        assert "set `model`" not in (await send(target)).detail


async def test_a_failed_look_up_keeps_what_was_known() -> None:
    """A page that fails, or lists several models after an outage, makes the target no unknown one."""
    engine = Engine(models("m"))
    async with probing(engine) as target:
        await send(target)
        for page in (USELESS["500"], models("m", "n"), HANG):
            engine.page = page
            for outcome in (Outcome.HTTP_404, Outcome.RESET):
                target.ended(ended(outcome))
            await asyncio.sleep(5)
            assert (await send(target)).outcome is Outcome.OK
            await asyncio.sleep(15)
        assert target.identity == Identity("m", DIALECTS["vllm"], "/v1")
        assert len(engine.look_ups) == 4


async def test_before_a_measurement_a_named_model_needs_a_connection_only() -> None:
    """Sweeps and experiments find the dialect out first; one that nobody listens for cannot begin."""
    engine = Engine(USELESS["403"])
    async with probing(engine, model="m") as target:
        assert await target.identify() is None
        assert target.identity == Identity("m", DIALECTS["openai"], "/v1")
    clock, target = known("http://127.0.0.1:1", model="m")
    target.identity = None
    verdict = await target.identify()
    clock.close()
    assert verdict is not None
    assert verdict.outcome is Outcome.CONNECT_REFUSED


async def test_a_fault_in_a_look_up_beside_the_probes_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The probe has its own result."""

    async def fail(_: float) -> None:
        raise ZeroDivisionError("a fault")

    engine = Engine(models("m"))
    async with probing(engine, model="m") as target:
        await send(target)
        target._is_doubtful = True
        await asyncio.sleep(5)
        monkeypatch.setattr(target, "_ask_models", fail)
        assert (await send(target)).outcome is Outcome.OK
    assert "ZeroDivisionError" in caplog.text
    assert "please report" in caplog.text


async def test_a_target_without_health_page_that_answered_a_probe_has_answered() -> None:
    """A refusal afterwards is an outage and no start, although its list of models never answered."""
    engine = Engine(HANG)
    async with probing(engine, model="m", engine="openai") as target:
        target.waiting_since_ns = target.clock.now_ns()
        assert target.starting_until_ns is not None
        await send(target)
        assert target.starting_until_ns is None


@pytest.mark.parametrize(
    ("api", "headers", "versions"),
    [
        ("messages", {}, [b"anthropic-version: 2023-06-01"]),
        ("messages", {"Anthropic-Version": "2099-01-01"}, [b"Anthropic-Version: 2099-01-01"]),
        ("chat", {}, []),
    ],
)
async def test_a_look_up_has_the_headers_of_the_api_as_a_probe_has(
    api: str, headers: dict[str, str], versions: list[bytes]
) -> None:
    """Anthropic refuses a list of models without its version; the header of a target replaces that of the API."""
    engine = Engine(models("m"))
    async with probing(engine, api=api, headers=headers) as target:
        await send(target)
        asked, sent = (next(head for head in engine.heads if head.startswith(verb)) for verb in (b"GET /v1/m", b"POST"))
    for head in (asked, sent):
        assert [line for line in head.splitlines() if line.lower().startswith(b"anthropic-version")] == versions
