"""Buffering: a mock engine's streams through a relay that holds them back, and the target beside it."""

from functools import partial
from random import Random

import pytest

from prober.daemon.registry import registry
from prober.measure.buffering import Buffering
from prober.measure.outcome import Outcome
from prober.measure.result import ProbeResult
from prober.measure.timeline import Timeline
from prober.mock.delays import constant
from prober.mock.service import Behaviour, Settings
from prober.probing import series
from prober.probing.history import EventLog
from prober.probing.probe import run_probe
from prober.probing.recorder import TargetBuffering
from prober.probing.target import Target
from prober.workload.shapes import Fixed
from prober.workload.workloads import RequestGenerator, Workload
from tests.measure.test_buffering import AT_ONCE, STREAMED
from tests.observed import observed
from tests.probing.test_probe import spec
from tests.relay import relaying
from tests.virtual import make_clock, running

TOKENS, ITL_S = 24, 0.005
SETTINGS = Settings(behaviour=Behaviour(ttft=constant(0.02), itl=constant(ITL_S)))
WORKLOAD = Workload("probe", Fixed(20), Fixed(TOKENS))


async def answers(policy: str, count: int) -> list[Timeline]:
    """Timelines of probes of a mock engine behind a relay."""
    clock = make_clock()
    try:
        async with running(SETTINGS) as url, relaying(int(url.rpartition(":")[2].partition("/")[0]), policy) as port:
            target = Target(spec(f"http://127.0.0.1:{port}"), clock)
            await target.identify()
            requests = RequestGenerator(WORKLOAD, Random(1))
            results = [await run_probe(target, requests, clock.now_ns() + 20_000_000) for _ in range(count)]
    finally:
        clock.close()
    assert {result.outcome for result in results if result is not None} == {Outcome.OK}
    return [result.timeline for result in results if result is not None]


@pytest.mark.virtual_time
@pytest.mark.parametrize("policy", ["all", "all-by-event"])
async def test_an_answer_that_a_relay_holds_back_has_neither_tpot_nor_itl(policy: str) -> None:
    """Written at once or event by event: TTFT is the time of the whole answer, and nothing is 0."""
    buffering = Buffering()
    for timeline in await answers(policy, 5):
        assert (timeline.tpot_s, timeline.itls_s) == (None, [])
        assert timeline.why_no_tpot.startswith("not measurable here: all content arrived at once")
        assert timeline.ttft_s is not None
        assert timeline.ttft_s > (TOKENS - 1) * ITL_S
        buffering = buffering.after(timeline)
    assert buffering.is_buffered is True


@pytest.mark.virtual_time
async def test_eight_tokens_at_a_time_are_buffered_and_have_a_tpot() -> None:
    """TPOT and ITL are those of the engine: the tokens of the first flush are left out, and a flush is one gap over its tokens."""
    buffering = Buffering()
    for timeline in await answers("events:8", 5):
        assert timeline.tpot_s == pytest.approx(ITL_S, rel=0.01)
        assert timeline.itls_s == pytest.approx([ITL_S] * 2, rel=0.01)
        buffering = buffering.after(timeline)
    assert buffering.is_buffered is True


@pytest.mark.virtual_time
async def test_a_relay_that_passes_everything_on_is_not_buffering() -> None:
    """The neighbour of the tests above: as many ITLs as tokens after the first."""
    buffering = Buffering()
    for timeline in await answers("none", 5):
        assert timeline.tpot_s == pytest.approx(ITL_S, rel=0.01)
        assert len(timeline.itls_s) > TOKENS / 2
        buffering = buffering.after(timeline)
    assert buffering.is_buffered is False


def ended(timeline: Timeline, outcome: Outcome = Outcome.OK) -> ProbeResult:
    return ProbeResult("t", "probe", "id", 0.0, outcome, "", timeline, requested_output_tokens=16)


def test_each_target_has_its_own_state() -> None:
    """Absent until enough was seen, then 1 or 0; a change to `buffered` and back is an event; failures do not count."""
    families, events = registry(), EventLog()
    monitor = partial(TargetBuffering, families, events)
    one, other = (observed(spec("http://127.0.0.1:1"), monitor, name=name) for name in ("one", "other"))

    def shown() -> dict[str, float]:
        names = [labels[0] for labels in families[series.BUFFERED.name].children]
        return {name: families.value(series.BUFFERED, name).value for name in names}

    for _ in range(4):
        one.probe_ended(ended(AT_ONCE))
        one.probe_ended(ended(STREAMED, Outcome.TRUNCATED))
    assert shown() == {}
    for _ in range(6):
        one.probe_ended(ended(AT_ONCE))
        other.probe_ended(ended(STREAMED))
    assert shown() == {"one": 1, "other": 0}
    assert other.find(TargetBuffering) is not None
    for _ in range(10):
        one.probe_ended(ended(STREAMED))
    assert shown() == {"one": 0, "other": 0}
    assert [(event.target, event.kind, event.text) for event in reversed(events.latest())] == [
        ("one", "state", "buffered: 5 of the last 5 answers arrived all at once or in flushes of 4 chunks or more"),
        (
            "one",
            "state",
            "no longer buffered: 2 of the last 10 answers arrived all at once or in flushes of 4 chunks or more",
        ),
    ]
