"""The context of a result from the configuration of its target."""

from dataclasses import replace
from typing import cast

import pytest

from prober.config.load import load
from prober.config.target import TargetSpec
from prober.measure.engine_signals import EngineInfo, EngineSignals
from prober.measure.request import Request
from prober.probing.probe import ProbeRun
from prober.probing.session import Session, completed
from prober.results.facts import Context, Fact
from prober.results.result import Load, Prices
from tests.results.samples import sweep
from tests.virtual import make_clock

BASE = replace(sweep(), context=Context(gpu="NVIDIA L4", gpu_count="8"), prices=Prices())


def spec(keys: str, defaults: str = "") -> TargetSpec:
    text = f"{defaults}\ntargets: [{{url: http://h, name: t, {keys}}}]"
    return load(text, source="c", engines=(), environment={}, read=str).targets[0]


def test_the_configuration_completes_a_result() -> None:
    """Facts, flags, number and price of GPUs, streaming, seed."""
    target = spec("gpus: {count: 2, price_per_hour: 1.5}, context: {precision: bfloat16, flags: {a: 1}}, stream: false")
    result = completed(BASE, target, [Fact("tokenizer", "llama", "/server_info")], seed=7)
    assert (result.context.precision, result.context.tokenizer, result.context.streaming) == (
        "bfloat16",
        "llama",
        "off",
    )
    assert (result.load.seed, result.prices.gpu_per_hour) == (7, 1.5)
    assert result.target.flags["a"] == "1"
    assert {stage.gpus for stage in result.stages} == {2}


def test_gpus_that_are_merely_visible_do_not_contradict_a_configured_number() -> None:
    """Chosen ones do."""
    assert completed(BASE, spec("gpus: {count: 2}"), ()).disagreements == ()
    assert completed(BASE, spec("gpus: {}"), ()).context.gpu_count == "8"
    (disagreement,) = completed(BASE, spec("gpus: {count: 2, indices: all}"), ()).disagreements
    assert disagreement.name == "gpu_count"


def test_a_context_of_the_defaults_is_that_of_all_targets() -> None:
    """A target's own block replaces it."""
    defaults = "defaults: {context: {precision: float16, driver: '550'}}"
    assert completed(BASE, spec("model: m", defaults), ()).context.driver == "550"
    own = completed(BASE, spec("context: {precision: bfloat16}", defaults), ()).context
    assert (own.precision, own.driver) == ("bfloat16", None)


@pytest.mark.virtual_time
@pytest.mark.parametrize(
    ("readings", "changes", "expected"),
    [
        ([(0, 50, 2), (60, 112, 1)], [], ()),  # as many as were due meanwhile, and ten that travelled
        ([(0, 50, 2), (60, 172, 9)], [], ("other load of 1 requests/s or more, by the engine's page",)),
        ([(0, 50, 2), (60, 112, 90)], [], ()),  # those that run now may have been counted as finished
        ([(0, 50, 2), (60, 172, 9)], ["restarted"], None),
        ([(0, 50, 2)], [], None),
        ([(0, None, 2), (60, None, 2)], [], None),
    ],
)
async def test_requests_of_others_are_those_that_the_session_cannot_have_sent(
    readings: list[tuple[int, float | None, float]], changes: list[str], expected: tuple[str, ...] | None
) -> None:
    """By the engine's counters: (second, finished, running). Restarted counters tell nothing."""
    begin_ns = make_clock().now_ns()
    session = Session(spec("model: m"), make_clock(), None, launch=lambda *_: cast(ProbeRun, None))
    for second in range(-20, 50):
        session.launch(session.target, Request("id", begin_ns + second * 10**9, "w", 10, 5, (), {}))
    for second, finished, running in readings:
        signals = EngineSignals(EngineInfo("vllm"), requests_finished_total=finished, requests_running=running)
        session.readings.append((begin_ns + second * 10**9, signals))
    session.changes = changes
    assert session.result("gate", Load(), []).interference == expected
