"""Models that refuse a field of the request, as OpenAI's models that reason do over chat: each answers in raw bytes."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest

from prober.features.capacity.sweep_runner import SweepRunner
from prober.features.engines.page_reader import PageReader
from prober.measure.outcome import Outcome
from prober.measure.result import ProbeResult
from prober.probing.channel import Beat
from prober.probing.probe import LocalRun, calibrate, new_request
from prober.probing.session import Session
from prober.probing.target import Target
from prober.probing.worker import Worker
from prober.probing.worker_host import WorkerProcess
from prober.probing.workers import Workers
from prober.workload.shapes import Fixed
from prober.workload.workloads import RequestGenerator, Workload
from tests.features.capacity.stage import target_spec
from tests.probing.test_probe import send, spec
from tests.scripted import Asked, Script, scripted
from tests.virtual import make_clock
from tests.wire.events import good
from tests.wire.heads import body, stream

pytestmark = pytest.mark.virtual_time
LIMIT = "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."
NO_ZERO = (
    "Unsupported value: 'temperature' does not support 0 with this model. Only the default (1) value is supported."
)
REASONING = (("max_tokens", LIMIT, "unsupported_parameter"),)


@dataclass
class Api:
    """An API that refuses fields: (name, words, code) of each. requests: the bodies of all."""

    refused: Sequence[tuple[str, str, str]] = REASONING
    requests: list[dict[str, Any]] = field(default_factory=list)

    def reply(self, asked: Asked) -> Script:
        if asked.method == "GET":
            return body("404 Not Found", "")
        self.requests.append(fields := asked.json)
        for name, words, code in self.refused:
            if name in fields:
                error = {"message": words, "type": "invalid_request_error", "param": name, "code": code}
                return body("400 Bad Request", {"error": error})
        return stream(*good(fields.get("max_completion_tokens") or fields["max_tokens"], 0.0))

    @property
    def limits(self) -> list[set[str]]:
        """Fields of the limit in each request."""
        return [{"max_tokens", "max_completion_tokens"} & set(body) for body in self.requests]


@asynccontextmanager
async def probing(server: Api, **changes: Any) -> AsyncIterator[Target]:
    clock = make_clock()
    async with scripted(server.reply) as url:
        yield Target(spec(url, model="m", engine="openai", **changes), clock)
        await asyncio.sleep(1)
    clock.close()


async def sent(target: Target, **sampling: Any) -> ProbeResult:
    """A probe whose workload has these request fields."""
    drawer = RequestGenerator(Workload("w", Fixed(8), Fixed(4), sampling={"temperature": 0, **sampling}), Random(1))
    return await LocalRun(target, new_request(target, drawer, target.clock.now_ns() + 50_000_000)).send()


OLD, NEW = {"max_tokens"}, {"max_completion_tokens"}


@pytest.mark.parametrize(
    ("words", "limits"),
    [
        (LIMIT, [OLD, NEW, NEW]),
        (f"litellm.BadRequestError: AzureException BadRequestError - {LIMIT}", [OLD, NEW, NEW]),
        ("max_tokens is not allowed here, please use the `max_completion_tokens` parameter", [OLD, NEW, NEW]),
        ("'max_tokens' or 'max_completion_tokens' is too large: 32. This model's maximum is 16.", [OLD, OLD, OLD]),
        ("max_tokens must be at least 64", [OLD, OLD, OLD]),
    ],
)
async def test_a_refusal_that_names_max_completion_tokens_changes_the_next_request(
    words: str, limits: list[set[str]], caplog: pytest.LogCaptureFixture
) -> None:
    """The refused probe stays refused and is not sent again; that is said once. Other words about the limit change nothing."""
    api = Api((("max_tokens", words, "unsupported_parameter"),))
    async with probing(api) as target:
        results = [await send(target) for _ in range(3)]
    ok = [Outcome.OK if limit == NEW else Outcome.REJECTED for limit in limits]
    assert ([result.outcome for result in results], api.limits) == (ok, limits)
    assert words in results[0].detail
    assert ("`max_tokens: null` in `sampling`" in results[0].detail) is (limits[1] == NEW)
    assert [r.levelno for r in caplog.records if "max_completion_tokens" in r.message] == (
        [logging.WARNING] if limits[1] == NEW else []
    )


async def test_requests_under_way_teach_no_more_than_the_first() -> None:
    """Several refusals, of which the last ones come after the change, leave it as it is."""
    api = Api()
    async with probing(api) as target:
        await asyncio.gather(*(send(target) for _ in range(3)))
        assert (await send(target)).outcome is Outcome.OK
    assert api.limits == [OLD, OLD, OLD, NEW]


@pytest.mark.parametrize("api_name", ["completions", "messages"])
async def test_other_apis_keep_their_field(api_name: str) -> None:
    """They have no `max_completion_tokens`, whatever a server says."""
    api = Api()
    async with probing(api, api=api_name) as target:
        assert [(await send(target)).outcome for _ in range(2)] == [Outcome.REJECTED] * 2
    assert api.limits == [OLD, OLD]


async def test_null_in_sampling_asks_for_the_other_limit_from_the_first_request_on() -> None:
    """As `prober once` needs it, which sends no second one."""
    api = Api()
    async with probing(api) as target:
        assert (await sent(target, max_tokens=None)).outcome is Outcome.OK
    assert api.limits == [NEW]


def of_a_sweep(target: Target) -> Target:
    """The target as a sweep sees it."""
    sweep = target_spec("http://h").sweep
    assert sweep is not None
    return SweepRunner(
        Session(target.spec, target.clock, None, target=target), sweep, PageReader, lambda _: None
    )._target


@pytest.mark.parametrize("view", [Target.beside, of_a_sweep])
async def test_probes_on_request_and_sweeps_share_what_the_target_has_learnt(view: Callable[[Target], Target]) -> None:
    """Each teaches the other."""
    api = Api()
    async with probing(api) as target:
        assert (await send(view(target))).outcome is Outcome.REJECTED
        assert [(await send(one)).outcome for one in (target, view(target))] == [Outcome.OK] * 2


async def test_a_refused_sample_prompt_does_not_end_the_calibration() -> None:
    """The next one has the other field, and all three tell how the server counts."""
    api = Api()
    async with probing(api) as target:
        await calibrate(target)
        assert target.prompt_calibration is not None
        assert "refused" not in target.prompt_calibration.problem
    assert api.limits == [OLD, NEW, NEW, NEW]


@pytest.mark.parametrize(
    ("words", "remedy"),
    [
        ("temperature: Extra inputs are not permitted", "`temperature: null` in `sampling` leaves it out"),
        (NO_ZERO, "`temperature: null` in `sampling` leaves it out"),
        ("top_p and temperature cannot both be set", "`temperature: null`, `top_p: null` in `sampling` leaves it out"),
        ("the temperatures are wrong", ""),
    ],
)
async def test_a_refused_field_of_sampling_is_named_with_the_remedy(words: str, remedy: str) -> None:
    """The message says how to leave it out, nothing is left out without being asked, and with null it is gone."""
    api = Api((("temperature", words, "unsupported_value"),))
    async with probing(api) as target:
        refused = [await sent(target, top_p=0.5) for _ in range(2)]
        assert [result.outcome for result in refused] == [Outcome.REJECTED] * 2
        assert words in refused[0].detail
        assert ("null" in refused[0].detail, remedy in refused[0].detail) == (bool(remedy), True)
        assert (await sent(target, temperature=None)).outcome is Outcome.OK
    assert "temperature" not in api.requests[-1]


class WorkerHere(WorkerProcess):
    """A worker in this process, which is given each message at once."""

    async def start(self, module: str) -> None:
        self.worker = Worker(self.number, make_clock())
        answer = self.channel._received
        self.worker.channel = cast(Any, SimpleNamespace(send=answer))

        def send(message: object) -> None:
            self.worker._receive(message)
            if isinstance(message, Beat):
                answer(message)

        self.channel = cast(Any, SimpleNamespace(send=send))

    async def end(self, timeout_s: float) -> str:
        return ""


async def test_all_workers_learn_from_the_refusal_that_one_of_them_reports(caplog: pytest.LogCaptureFixture) -> None:
    """The next requests of each have the other field, and the prober says it once for all."""
    api, workers = Api(), Workers()
    async with probing(api) as target:
        await workers.start(3, kind=WorkerHere)
        drawer = RequestGenerator(Workload("w", Fixed(8), Fixed(4)), Random(1))

        async def send_to_all(count: int) -> list[ProbeResult]:
            due_ns = target.clock.now_ns() + 50_000_000
            requests = [new_request(target, drawer, due_ns) for _ in range(count)]
            return await asyncio.gather(*(workers.launch(target, request).send() for request in requests))

        first, later = await send_to_all(1), await send_to_all(6)
        await workers.close()
    assert [result.outcome for result in (*first, *later)] == [Outcome.REJECTED, *[Outcome.OK] * 6]
    assert {result.worker for result in later} == {1, 2, 3}
    assert api.limits == [OLD, *[NEW] * 6]
    assert len([record for record in caplog.records if "max_completion_tokens" in record.message]) == 1
