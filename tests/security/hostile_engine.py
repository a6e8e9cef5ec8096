"""An engine whose every answer is chosen by a test, and the probe of it."""

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from random import Random

import orjson

from prober.config.load import load
from prober.config.target import TargetSpec
from prober.measure.engines import DIALECTS
from prober.measure.result import ProbeResult
from prober.net.clock import Clock
from prober.probing.probe import run_probe
from prober.probing.target import Target
from prober.workload.workloads import RequestGenerator
from tests.scripted import scripted

Answers = Callable[[str, bytes], bytes]
"""Path and head of a request to the whole answer, as it is written."""


def response(
    body: bytes, *, status: int = 200, kind: str = "application/json", headers: tuple[tuple[str, bytes], ...] = ()
) -> bytes:
    """An answer of HTTP that ends with its connection."""
    lines = [f"HTTP/1.1 {status} X".encode(), f"Content-Type: {kind}".encode(), b"Connection: close"]
    lines += [name.encode() + b": " + value for name, value in headers]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def stream(*events: object, headers: tuple[tuple[str, bytes], ...] = ()) -> bytes:
    """A stream of chat completions that ends well. Events that are bytes are sent as they are."""
    data = [event if isinstance(event, bytes) else orjson.dumps(event) for event in (*events, b"[DONE]")]
    return response(b"".join(b"data: " + each + b"\n\n" for each in data), kind="text/event-stream", headers=headers)


def chunk(
    text: str = "", *, finish: str | None = None, model: str = "m", usage: dict[str, int] | None = None
) -> object:
    """A chunk of a chat completion."""
    made = {"model": model, "choices": [{"index": 0, "delta": {"content": text}, "finish_reason": finish}]}
    return made if usage is None else made | {"usage": usage}


def models(*names: str) -> bytes:
    """The list of models."""
    return response(orjson.dumps({"data": [{"id": name, "owned_by": "vllm"} for name in names]}))


def engine(answers: Answers, pause_s: float = 0.0) -> AbstractAsyncContextManager[str]:
    """The base URL of the engine. pause_s: before each answer"""
    return scripted(lambda asked: (pause_s, answers(asked.path, asked.head)))


def target_spec(url: str, keys: str = "") -> TargetSpec:
    """A target that is probed there. keys: further keys of it, as YAML."""
    text = "workloads: {short: {prompt_tokens: 20, output_tokens: 2}}\n" + (
        f"targets: [{{name: t, url: '{url}', connect_lead: 50ms, probes: [{{workload: short}}]{keys}}}]"
    )
    return load(text, source="c", engines=DIALECTS, environment={}, read=lambda path: path).targets[0]


async def probe(target: Target, clock: Clock) -> ProbeResult:
    """The result of one probe, sent at once."""
    drawer = RequestGenerator(target.spec.probes[0].workload, Random(1))
    result = await run_probe(target, drawer, clock.now_ns() + 10_000_000)
    assert result is not None
    return result


def by_path(answers: Mapping[str, bytes]) -> Answers:
    """An engine that answers so, and 404 elsewhere."""
    return lambda path, _: answers.get(path, response(b"", status=404))


async def probed(answers: Answers, keys: str = "") -> ProbeResult:
    """The result of one probe of this engine. keys: as in `target_spec`"""
    async with engine(answers) as url:
        clock = Clock()
        try:
            return await probe(Target(target_spec(url, keys), clock), clock)
        finally:
            clock.close()
