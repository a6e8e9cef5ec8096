"""The `traceparent` of probes, by which an engine's trace of a probe is found."""

import re
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from prober.config.problems import ConfigError
from prober.config.target import TracingSpec
from prober.measure.outcome import Outcome
from prober.measure.request import trace_ids
from prober.measure.result import ProbeResult
from prober.probing.probe import LocalRun, new_request
from prober.workload.workloads import RequestGenerator
from tests.config.reading import loaded
from tests.probing.test_probe import answered, send
from tests.scripted import Asked
from tests.wire.events import good
from tests.wire.heads import stream

pytestmark = pytest.mark.virtual_time
# The grammar of the W3C's Trace Context, version 00: neither id is all zeros.
GRAMMAR = re.compile(r"00-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-(0[01])")
Sent = list[tuple[Asked, ProbeResult]]


async def probed(number: int = 1, **changes: Any) -> Sent:
    """Requests of probes of a target with these settings, and their results."""
    received: list[Asked] = []

    def reply(asked: Asked) -> Any:
        received.append(asked)
        return stream(*good(asked.json["max_tokens"]))

    async with answered(reply, **changes) as target:
        results = [await send(target) for _ in range(number)]
    return list(zip(received, results, strict=True))


@pytest.mark.parametrize(("traceparent", "flags"), [("sampled", "01"), ("unsampled", "00")])
async def test_each_probe_begins_a_trace_of_its_own(traceparent: Any, flags: str) -> None:
    """In the form of the W3C, with the configured flag; the result has the id, for exemplars, pages and logs."""
    sent = await probed(3, tracing=TracingSpec(traceparent=traceparent))
    found = [GRAMMAR.fullmatch(asked.headers["traceparent"]) for asked, _ in sent]
    assert [(match[1], match[2]) for match in found if match] == [(result.trace_id, flags) for _, result in sent]
    assert len({result.trace_id for _, result in sent}) == 3
    assert all(sum(map(len, sum(result.exemplar, ()))) <= 128 for _, result in sent), "the limit of OpenMetrics"


@pytest.mark.parametrize(
    ("changes", "header"),
    [
        ({"tracing": TracingSpec(traceparent="none")}, None),
        ({"headers": {"Traceparent": "00-1234-56-01"}}, "00-1234-56-01"),
    ],
)
async def test_no_id_is_told_of_a_trace_that_the_prober_did_not_begin(changes: Any, header: str | None) -> None:
    """A header of the configuration is sent as it is, once."""
    ((asked, result),) = await probed(**changes)
    assert asked.headers.get("traceparent") == header
    assert asked.head.lower().count(b"traceparent") == (header is not None)
    assert (result.is_traced, result.trace_id) == (False, "")
    assert [name for name, _ in result.exemplar] == ["request_id"]


async def test_only_the_head_of_a_request_has_it_and_only_of_probes() -> None:
    """The body is the same byte for byte, so a prefix cache sees no difference. Sweeps and other experiments send none."""
    received: list[Asked] = []

    def reply(asked: Asked) -> Any:
        received.append(asked)
        return stream(*good(asked.json["max_tokens"]))

    async with answered(reply) as target:
        drawer = RequestGenerator(target.spec.probes[0].workload, Random(1))
        request = new_request(target, drawer, target.clock.now_ns())
        for has_trace in (False, True):
            due_ns = target.clock.now_ns() + 10**8
            await LocalRun(target, replace(request, due_ns=due_ns), has_trace=has_trace).send()
    without, traced = received
    assert without.body == traced.body
    line = f"traceparent: {traced.headers['traceparent']}\r\n".encode()
    assert traced.head.replace(line, b"") == without.head
    assert len(line) == 70


async def test_a_probe_that_is_not_sent_has_no_trace() -> None:
    """So nobody looks for it."""

    def reply(asked: Asked) -> Any:
        return stream(*good(asked.json["max_tokens"]))

    async with answered(reply, max_in_flight=0) as target:
        result = await send(target)
    assert (result.outcome, result.trace_id) == (Outcome.SHED, "")


def test_ids_follow_from_the_request_id() -> None:
    """Equal in every process, and so in the store; never the same for two requests."""
    assert trace_ids("slo-probe-1") == trace_ids("slo-probe-1")
    assert len({trace_ids(f"slo-probe-{number:016x}")[0] for number in range(10_000)}) == 10_000


@pytest.mark.parametrize("url", ["jaeger/{trace_id}", "https://jaeger/trace", "javascript:{trace_id}"])
def test_an_address_without_a_place_for_the_id_is_a_mistake(url: str) -> None:
    """And so is one that is no link."""
    with pytest.raises(ConfigError, match=r"tracing\.url: .* is no address with a place for the id"):
        loaded(f"targets: [{{url: 'http://h', tracing: {{url: '{url}'}}}}]")
