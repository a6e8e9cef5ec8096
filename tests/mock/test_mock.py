"""The mock is the truth others are measured against, so it is held to it."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from prober.measure.outcome import Outcome
from prober.measure.quality import Expectation
from prober.measure.sse import SseDecoder
from prober.mock.delays import constant, lognormal, parse_delay
from prober.mock.drawn import DrawnPlace
from prober.mock.faults import ARGUMENTS, Fault, Schedule, fault_forms, parse_fault
from prober.mock.record import Record
from prober.mock.service import Behaviour, Settings
from prober.probing.probe import run_probe
from prober.workload.prompts import GoldenPrompt
from prober.workload.shapes import Fixed, Uniform
from prober.workload.workloads import GoldenWorkload, RequestGenerator, Workload
from tests.probing.test_probe import identified
from tests.virtual import running

pytestmark = pytest.mark.virtual_time

QUICK = Settings(behaviour=Behaviour(ttft=constant(0.01), itl=constant(0.001)))
ASK: dict[str, Any] = {
    "model": "mock",
    "messages": [{"role": "user", "content": "hi there"}],
    "max_tokens": 8,
    "stream": True,
    "stream_options": {"include_usage": True},
}


async def ask(url: str, body: dict[str, Any] = ASK, **headers: str) -> bytes:
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{url}/v1/chat/completions", json=body, headers=headers) as answer,
    ):
        return await answer.read()


def payloads(body: bytes) -> list[Any]:
    return [event.data if event.data == b"[DONE]" else json.loads(event.data) for event in SseDecoder().feed(body)]


async def test_due_times_are_absolute() -> None:
    """A token is due one TTFT and so many ITLs after the start, whatever became of the ones before."""
    behaviour, record = Behaviour(constant(0.05), constant(0.01)), Record("a", 0, started_ns=0)
    due_ns = [due_ns async for due_ns in DrawnPlace(behaviour, record, Random(1), 1.0).plan(3)]
    assert due_ns == [50_000_000, 60_000_000, 70_000_000]


async def test_the_truth_file_has_every_write(tmp_path: Path) -> None:
    """A record per request has its id, the time it was received and the times of its content chunks, in order."""
    path = tmp_path / "truth.jsonl"
    async with running(replace(QUICK, truth=path)) as url:
        await ask(url, ASK, **{"X-Request-Id": "me"})
    (record,) = map(json.loads, path.read_text().splitlines())
    assert record["id"] == "me"
    assert len(record["writes"]) == 8
    stamps = [record["received_ns"], *record["writes"], record["end_ns"]]
    assert stamps == sorted(stamps)
    assert record["writes"][0] - record["received_ns"] >= 10_000_000


async def test_a_stream_ends_with_usage_and_done() -> None:
    """The events after the contents are the usage and [DONE]."""
    async with running(QUICK) as url:
        body = await ask(url)
    events = payloads(body)
    assert events[-1] == b"[DONE]"
    assert events[-2]["usage"]["completion_tokens"] == 8
    contents = [event["choices"][0]["delta"].get("content") for event in events[:-2]]
    assert len([content for content in contents if content]) == 8


async def test_running_usage() -> None:
    """With usage on every chunk the totals rise by one."""
    options = {"include_usage": True, "continuous_usage_stats": True}
    async with running(QUICK) as url:
        body = await ask(url, ASK | {"stream_options": options})
    totals = [event["usage"]["completion_tokens"] for event in payloads(body)[:-1] if event["choices"]]
    assert [total for total in totals if total] == list(range(1, 9))


async def test_a_queue_makes_the_second_wait() -> None:
    """With one slot a request is served after the one before it, and the page says who waits."""
    async with running(replace(QUICK, behaviour=replace(QUICK.behaviour, slots=1, ttft=constant(0.1)))) as url:
        both = asyncio.gather(ask(url), ask(url))
        waiting = 0.0
        async with aiohttp.ClientSession() as session:
            while not waiting and not both.done():
                async with session.get(f"{url}/metrics") as answer:
                    text = await answer.text()
                samples = [s for family in text_string_to_metric_families(text) for s in family.samples]
                waiting = sum(s.value for s in samples if s.name == "vllm:num_requests_waiting")
        await both
    assert waiting == 1


async def test_a_wrong_model_and_a_wrong_token_are_refused() -> None:
    """The answers are those of vLLM."""
    async with running(replace(QUICK, api_key="k")) as url:
        unknown = json.loads(await ask(url, ASK | {"model": "x"}, Authorization="Bearer k"))
        nobody = json.loads(await ask(url))
    assert unknown["error"]["code"] == 404
    assert nobody == {"error": "Unauthorized"}


def test_faults_are_read_and_have_their_time() -> None:
    """`stall:3@60s-120s` holds from the 60th to the 120th second."""
    fault = parse_fault("stall:3@60s-120s")
    assert fault == Fault("stall", 3.0, 60.0, 120.0)
    schedule = Schedule((fault,), 0)
    assert [schedule.at(s * 10**9) for s in (59, 60, 119, 120)] == [None, fault, fault, None]


async def test_a_fault_of_a_share_has_that_share_of_the_requests() -> None:
    """`http:503/20%`: about a fifth of the requests to the API, at random."""
    assert parse_fault("http:503/20%@60s-") == Fault("http", 503.0, 60.0, share=0.2)
    async with running(replace(QUICK, faults=(parse_fault("http:503/20%"),), seed=1)) as url:
        answers = [await ask(url) for _ in range(100)]
    assert 10 <= sum(b"mock fault http:503" in answer for answer in answers) <= 30


async def test_a_page_can_go_while_requests_are_answered() -> None:
    """`no_page`: the metrics page is 404."""
    async with running(replace(QUICK, faults=(parse_fault("no_page"),))) as url:
        assert b"choices" in await ask(url)
        async with aiohttp.ClientSession() as session, session.get(f"{url}/metrics") as answer:
            assert answer.status == 404


def test_every_fault_is_named_with_its_argument() -> None:
    """The forms show which arguments are required and which are optional."""
    listed = fault_forms().split(", ")
    assert {"http:STATUS", "hang", "stall[:TOKENS]"} < set(listed)
    assert [form.partition(":")[0].removesuffix("[") for form in listed] == list(ARGUMENTS)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("stal", "fault 'stal': no fault 'stal'; known: "),
        ("http", "fault 'http': http needs its status; write http:503"),
        ("http:99", "fault 'http:99': '99' is not an HTTP status from 200 to 599"),
        ("empty:1", "fault 'empty:1': empty takes no argument; write empty"),
        ("hang@5s", "fault 'hang@5s': the window '5s' has no end; write @60s-120s, or @60s- for one that never ends"),
        ("hang@9s-5s", "fault 'hang@9s-5s': the window '9s-5s' ends before it starts"),
        ("http:503/20", "fault 'http:503/20': '20' is not a percentage; write it with its sign, such as 99%"),
        (
            "no_page/20%",
            "fault 'no_page/20%': no_page is of the entire engine; write it without a share of its requests",
        ),
    ],
)
def test_a_bad_fault_says_what_to_write(text: str, message: str) -> None:
    """The message names the fault and the form that is wanted."""
    with pytest.raises(ValueError, match="fault") as error:
        parse_fault(text)
    assert str(error.value).startswith(message)


def test_delays_are_read() -> None:
    """A constant, a lognormal by median and sigma."""
    assert parse_delay("50ms") == constant(0.05)
    assert parse_delay("lognormal:50ms:0.4") == lognormal(0.05, 0.4)
    assert parse_delay("uniform:1ms:2ms") == Uniform(1_000_000, 2_000_000)
    with pytest.raises(ValueError, match="write 50ms, lognormal"):
        parse_delay("normal:1:2")


TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {
    "type": "object", "required": ["city", "days", "units", "hours"], "properties": {
        "city": {"type": "string"}, "days": {"type": "integer", "minimum": 2}, "units": {"enum": ["C", "F"]},
        "hours": {"type": "array", "items": {"type": "number"}, "minItems": 2}},
}}}]  # fmt: skip


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("fault", "outcome", "detail"),
    [
        ("", Outcome.OK, ""),
        ("broken_json", Outcome.WRONG_ANSWER, "is not JSON"),
        ("cut_json", Outcome.WRONG_ANSWER, "is not JSON"),
        ("empty_json", Outcome.WRONG_ANSWER, "'city' is a required property"),
        ("short:4", Outcome.WRONG_ANSWER, "limit of tokens"),
    ],
)
async def test_a_tool_call(fault: str, outcome: Outcome, detail: str, stream: bool) -> None:
    """The probe reads a call over a socket; times of a streamed call are those of the engine's tokens."""
    sampling = {"tools": TOOLS, "tool_choice": "required"}
    workload = Workload("w", Fixed(8), Fixed(200), sampling=sampling)
    settings = Settings(
        behaviour=Behaviour(constant(0.02), constant(0.01), reasoning=2),
        faults=(parse_fault(fault),) if fault else (),
    )
    async with identified(settings, stream=stream) as target:
        result = await run_probe(target, RequestGenerator(workload, Random(1)), target.clock.now_ns() + 10_000_000)
    assert result is not None
    timeline = result.timeline
    assert (result.outcome, result.check, timeline.calls) == (outcome, "tool_call", 1), result.detail
    assert detail in result.detail
    if not stream:
        assert (timeline.ttft_call_s, timeline.arguments_s) == (None, None)
        return
    assert timeline.call_ns == timeline.content_ns[2]
    assert timeline.finish_reason == ("length" if fault == "short:4" else "tool_calls")
    assert timeline.arguments_ns == (None if "JSON" in result.detail else timeline.content_ns[-1])


@pytest.mark.parametrize("stream", [True, False])
async def test_an_answer_with_a_response_format_is_json(stream: bool) -> None:
    """Valid JSON after the reasoning, as engines with a grammar answer; an unknown kind of format is refused."""
    schema = {"type": "object", "properties": {"answer": {"type": "string"}}, "required": ["answer"]}
    json_format = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    expected = Expectation("json_schema", schema)
    for sent_format, outcome in (
        (json_format, Outcome.OK),
        ({"type": "text"}, Outcome.WRONG_ANSWER),
        ({"type": "grammar"}, Outcome.REJECTED),
    ):
        workload = GoldenWorkload(
            "json",
            Fixed(1),
            Fixed(12),
            sampling={"response_format": sent_format},
            golden=(GoldenPrompt("Two colours?", expected),),
        )
        async with identified(Settings(behaviour=replace(QUICK.behaviour, reasoning=3)), stream=stream) as target:
            result = await run_probe(target, RequestGenerator(workload, Random(1)), target.clock.now_ns() + 10_000_000)
        assert result is not None
        assert result.outcome is outcome, result.detail
