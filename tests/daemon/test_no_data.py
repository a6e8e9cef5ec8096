"""A target or a workload that gives no data says so, with the reason, everywhere the same; and a budget is charged what was used."""

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random
from typing import Any, cast

import orjson
import pytest

from prober.cli.watch import facts, plain_lines
from prober.config.target import TargetSpec
from prober.measure.outcome import Outcome
from prober.measure.target_state import MIN_NS, NO_DATA_STATES, TargetState
from prober.net.clock import Clock
from prober.probing.history import TargetHistory
from prober.probing.target import Target
from prober.web.api_types import dumped
from prober.web.targets import Snapshot
from prober.web.views import Snapshots, Views
from tests.config.reading import loaded
from tests.daemon.test_fleet import Watched, watched
from tests.observed import StoppedClock
from tests.probing.test_probe import ended
from tests.scripted import Asked, scripted
from tests.wire.case import Script, Step
from tests.wire.events import DONE, MODEL, content, end, usage
from tests.wire.heads import body, stream

pytestmark = pytest.mark.virtual_time
KEY = (
    "HTTP 401: invalid x-api-key (some_error); the target has no `auth`: set bearer_token_file, or header and key_file"
)
OUTCOMES = {
    "+": Outcome.OK,
    "-": Outcome.REJECTED,
    "$": Outcome.OVER_BUDGET,
    "!": Outcome.HTTP_5XX,
    "~": Outcome.SHED,
    "0": Outcome.INVALID,
}
# Probes of the workloads a and b as they end, and the states of the target, of a and of b after that.
SEQUENCES = {
    "a+": "ready ready pending",
    "a-": "pending rejected pending",  # nothing is known of b
    "a- b-": "rejected rejected rejected",
    "a- b$": "rejected rejected over_budget",
    "a$ b$ a~ b0": "over_budget over_budget over_budget",
    "a- b- a! b!": "rejected rejected rejected",
    "a- b- a! a! a!": "failing failing rejected",
    "a- b- a+ a+": "rejected rejected rejected",
    "a- b- a+ a+ a+ b- b-": "ready ready pending",
    "a- b- a+ a+ a+ b- b- b-": "ready ready rejected",
    "a+ b+ a- a- b- b- a+ a- a- b+ b-": "ready ready ready",
    "a+ b+ a- a- a- b+ a-": "ready rejected ready",
    "a+ b+ a- a- a- b- b-": "ready rejected ready",
    "a+ b+ a- a- a- b- b- b-": "rejected rejected rejected",
    "a+ b+ a$ a$ a$ b+": "ready over_budget ready",
    "a+ b+ a! a! a! a- a- a- b-": "failing rejected ready",
    "a+ b+ a! a! a! a- a- a- b- b- b-": "rejected rejected rejected",
    "a+ b+ a- b! a- b! a- b!": "failing rejected failing",
    "a! a- b- a-": "pending pending rejected",
    "a! a! a+ a! a! a!": "ready ready pending",  # one more for each failure before
    "a+ a+ a! a! a! a+ a! a+ a!": "failing failing pending",
    "a+ a+ a! a! a! a+ a+ a! a+ a+": "ready ready pending",
}


def targets(url: str, more: str = "", workloads: str = "a b") -> tuple[TargetSpec, ...]:
    """Two targets, each probed with the same workloads every second, and judged by an SLO. more: keys of the first one"""
    keys = f"url: '{url}', model: {MODEL}, engine: openai, probes: [{', '.join(f'{{workload: {name}}}' for name in workloads.split())}]"
    text = f"""
defaults: {{rate: 1/s, arrivals: constant, warmup: 0}}
slos: {{answered: {{signal: success, objective: 99%}}}}
workloads:
  a: {{prompt_tokens: 9, output_tokens: 4}}
  b: {{prompt_tokens: 9, output_tokens: 64}}
  shared: {{prompt_tokens: 9, output_tokens: 4, prefix: {{tokens: 5, reuse: 50%}}}}
  talk: {{prompt_tokens: 9, output_tokens: 4, sessions: {{turns: 2, count: 1}}}}
targets: [{{name: t, {keys}{more}}}, {{name: u, {keys}}}]
"""
    return loaded(text).targets


@pytest.mark.parametrize("sequence", SEQUENCES)
def test_a_state_is_that_of_every_probe_and_never_of_one_among_others(sequence: str) -> None:
    """A target gives no data if none of its workloads does. A state takes three probes in a row, unless none ended otherwise before.

    It is over when three more probes were answered than were not.
    """
    clock = StoppedClock()
    target = Target(targets("http://127.0.0.1:9")[0], cast(Clock, clock))
    for probe in sequence.split():
        clock.ns += MIN_NS // 2
        target.ended(ended(OUTCOMES[probe[1]], probe[0], "why"))
    states = {name: known.state for name, known in target.workloads.items()}
    assert f"{target.state} {states['a']} {states['b']}" == SEQUENCES[sequence]
    reasons = {"ready": "", "failing": "http_5xx: why"}
    if target.state is not TargetState.PENDING:
        assert target.reason == reasons.get(target.state, "why")


@pytest.mark.parametrize("per_s", [0.2, 1, 4, 20])
@pytest.mark.parametrize("failing_share", [0.2, 0.5])
def test_a_target_that_fails_some_of_its_probes_is_ready(failing_share: float, per_s: float) -> None:
    """In 5,000 probes after an hour without a failure it is `failing` twice at most, and never for less than two seconds."""
    clock, rng = StoppedClock(), Random(1)
    target = Target(targets("http://127.0.0.1:9", workloads="a")[0], cast(Clock, clock))
    changes = [(0, target.state)]
    for number in range(5_100):
        clock.ns += round(1e9 / per_s)
        is_failure = number > 100 and rng.random() < failing_share
        target.ended(ended(Outcome.HTTP_429 if is_failure else Outcome.OK, "a"))
        if target.state is not changes[-1][1]:
            changes.append((clock.ns, target.state))
    assert len(changes) <= 6
    assert all(after - before >= MIN_NS for (before, _), (after, _) in pairwise(changes[1:]))


@pytest.mark.parametrize(("per_s", "seen_after_s"), [(0.2, 15), (1, 3), (4, 2.5), (50, 2.1)])
def test_an_outage_is_seen_after_three_probes_and_within_three_seconds(per_s: float, seen_after_s: float) -> None:
    """Also after one in fifty has failed; it is over as soon, and a single answer does not end it."""
    clock = StoppedClock()
    target = Target(targets("http://127.0.0.1:9", workloads="a")[0], cast(Clock, clock))

    def end(is_answered: Callable[[int], bool], until: TargetState, probes: int = 1_000) -> float:
        begun_ns = clock.ns
        for number in range(probes):
            clock.ns += round(1e9 / per_s)
            target.ended(ended(Outcome.OK if is_answered(number) else Outcome.HTTP_5XX, "a"))
            if number and target.state is until:
                break
        return (clock.ns - begun_ns) / 1e9

    end(lambda number: number % 50 > 0, TargetState.FAILING)
    assert str(target.state) == "ready"
    assert end(lambda number: False, TargetState.FAILING) <= max(seen_after_s, 4 / per_s)
    end(lambda number: number % 50 == 25, TargetState.READY)
    assert str(target.state) == "failing"
    assert end(lambda number: True, TargetState.READY) <= seen_after_s


@pytest.mark.parametrize(
    ("workload", "sequence", "state", "without_data"),
    [
        ("talk", "_turn1+ _turn2+ _turn1- _turn1- _turn1-", "rejected", ["talk_turn1"]),
        ("talk", "_turn1+ _turn2+ _turn2- _turn2- _turn1+ _turn2-", "ready", ["talk_turn2"]),
        ("shared", "+ _warm+ - - - - - - _warm+ - - -", "ready", ["shared"]),
        ("shared", "+ _warm+ - - - - _warm- _warm- _warm-", "rejected", ["shared", "shared_warm"]),
        ("shared", "- - -", "rejected", ["shared"]),  # warm requests may be rare
    ],
)
def test_a_workload_of_several_kinds_of_requests_is_no_data_if_all_that_are_still_sent_are(
    workload: str, sequence: str, state: str, without_data: list[str]
) -> None:
    """A session whose first turn is refused has no others, though they were answered before. Rare answers make no state flap."""
    clock = StoppedClock()
    target = Target(targets("http://127.0.0.1:9", workloads=workload)[0], cast(Clock, clock))
    states = []
    for probe in sequence.split():
        clock.ns += MIN_NS // 2
        target.ended(ended(OUTCOMES[probe[-1]], workload + probe[:-1]))
        states.append(target.state)
    assert states[-1] == state
    assert len([before for before, after in pairwise(states) if after is not before]) <= 1
    assert [name for name, known in target.workloads.items() if known.state in NO_DATA_STATES] == without_data


@dataclass
class Gateway:
    """A server of OpenAI's API. refused: answers, by a word of the prompt, instead of the good one; "" refuses all."""

    refused: dict[str, Script] = field(default_factory=dict)
    requests: int = 0

    def reply(self, asked: Asked) -> Iterator[Step]:
        yield 0.001
        if asked.method == "GET":
            yield from body("404 Not Found", "no list")
            return
        self.requests += 1
        tokens = asked.json["max_tokens"]
        whole = stream(*content(tokens, 0.001), end(), usage(tokens, 20), DONE)
        yield from next((refusal for word, refusal in self.refused.items() if word.encode() in asked.body), whole)


def refused_with(status: str, message: str) -> Script:
    return body(status, {"type": "error", "error": {"type": "some_error", "message": message}})


@asynccontextmanager
async def probed(gateway: Gateway, more: str = "", workloads: str = "a b") -> AsyncIterator[Watched]:
    """The two targets under way: t is served by the gateway, and u by another one that is well."""
    async with scripted(gateway.reply) as url, scripted(Gateway().reply) as other, watched() as seen:
        first, second = targets(url, more, workloads)
        second = second.model_copy(update={"url": other})
        await seen.reconcile((first, second), 1.0)
        yield seen
        assert seen.fleet.runners["u"].target.state is TargetState.READY
        assert [event.text for event in seen.events.latest("u")] == ["ready, was pending"]
        await seen.fleet.stop(0.0)
        await asyncio.sleep(1)


async def told(seen: Watched, caplog: pytest.LogCaptureFixture) -> dict[str, Any]:
    """What each place says of target t."""
    views = Views(seen.fleet, seen.sweeps)
    view = next(view for view in await views.targets() if view.name == "t")
    line = orjson.loads(dumped(await Snapshots(views, seen.fleet.context).take()))
    api = next(target for target in line["targets"] if target["name"] == "t")
    snapshot = Snapshot.model_validate(line)
    of_target = (text for _, _, text in facts(view, snapshot.time))
    return {
        "events": [event.text for event in reversed(seen.events.latest("t"))],
        "log": [line for line in caplog.messages if line.startswith("target=t ")],
        "state": {
            str(view.state),
            api["state"],
            *(state for state in TargetState if seen.count("llmslo_target_state", "t", state)),
        },
        "reason": {view.reason, api["reason"]},
        "no data": {workload["workload"]: (workload["state"], workload["reason"]) for workload in api["no_data"]},
        "series": {
            (workload, reason)
            for workload in "ab"
            for reason in NO_DATA_STATES
            if seen.count("llmslo_no_data", "t", workload, reason)
        },
        "page": view.concern,
        "slo": {slo["workload"]: slo["why"] for slo in api["slos"]},
        "watch": "\n".join([*plain_lines(snapshot), *of_target]),
    }


async def test_a_key_that_stops_working_is_one_state_with_its_reason_until_a_probe_is_answered(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """One event and one log line at the begin, one at the end, however long it lasts."""
    caplog.set_level(logging.INFO)
    gateway = Gateway()
    async with probed(gateway) as seen:
        await asyncio.sleep(3.5)
        before = (await told(seen, caplog))["events"]
        gateway.refused = {"": refused_with("401 Unauthorized", "invalid x-api-key")}
        await asyncio.sleep(30)
        at = await told(seen, caplog)
        begin = f"rejected, was ready: {KEY}"
        assert at["events"][len(before) :] == [begin]
        assert re.fullmatch(rf"target=t is {re.escape(begin)} \(trace_id=[0-9a-f]{{32}}\)", at["log"][-1])
        history = seen.fleet.runners["t"].find(TargetHistory)
        refused = (
            {probe.trace_id for probe in history.recent() if probe.outcome is Outcome.REJECTED} if history else set()
        )
        assert [event.trace_id in refused for event in seen.events.latest("t")] == [True, False], (
            "none where it is well"
        )
        assert at["state"] == {"rejected"}
        assert at["reason"] == {KEY}
        assert at["no data"] == {"a": ("rejected", KEY), "b": ("rejected", KEY)}
        assert at["series"] == {("a", "rejected"), ("b", "rejected")}
        text = "rejects every probe, so nothing is measured"
        assert (at["page"].kind, at["page"].text, at["page"].detail) == ("bad", text, KEY)
        assert at["page"].since == pytest.approx(seen.clock.unix_s() - 30.5, abs=1.0), "the last answer"
        assert all(f"the last probe was rejected: {KEY}" in why for why in at["slo"].values())
        assert re.search(rf"{text}, since \d\d:\d\d:\d\d \({re.escape(KEY)}\)", at["watch"])
        gateway.refused = {}
        await asyncio.sleep(5)
        after = await told(seen, caplog)
    assert after["events"][len(before) :] == [begin, "ready, was rejected"]
    assert (after["state"], after["reason"], after["no data"], after["series"]) == ({"ready"}, {""}, {}, set())


async def test_a_workload_that_is_refused_beside_another_is_no_data_of_its_own(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The target is ready: the other workload is answered. The page, the API, `watch`, the event and the log name the workload."""
    caplog.set_level(logging.INFO)
    refusal = "HTTP 400: max_tokens: 64 > 32 (some_error)"
    gateway = Gateway({'"max_tokens":64': refused_with("400 Bad Request", "max_tokens: 64 > 32")})
    async with probed(gateway) as seen:
        await asyncio.sleep(6.5)
        at = await told(seen, caplog)
        assert at["events"][1:] == [f"workload b is rejected, was ready: {refusal}"]
        assert at["log"][-1] == f"target=t workload b is rejected, was ready: {refusal}"
        assert (at["state"], at["reason"], at["no data"]) == ({"ready"}, {""}, {"b": ("rejected", refusal)})
        assert at["series"] == {("b", "rejected")}
        assert (at["page"].text, at["page"].detail) == ("no data of b: rejected", refusal)
        assert at["page"].runbook == "LLMProbeRejected"
        assert refusal in at["slo"]["b"]
        assert at["slo"]["a"] == "7 of the 1,000 events needed"
        assert f"no data of workload b: rejected: {refusal}" in at["watch"]
        gateway.refused = {}
        await asyncio.sleep(4)
        after = await told(seen, caplog)
    assert after["events"][2:] == ["workload b is ready, was rejected"]
    assert (after["no data"], after["series"]) == ({}, set())


async def test_a_budget_that_is_used_up_is_a_state_until_it_has_room_again(caplog: pytest.LogCaptureFixture) -> None:
    """Nothing is sent meanwhile; a larger budget makes the target ready with the first answer."""
    caplog.set_level(logging.INFO)
    gateway = Gateway()
    async with probed(gateway, ", budget: {tokens_per_day: 2M}", "a") as seen:
        seen.fleet.runners["t"].target.budgets["tokens"].settle(0.0, 2e6 - 240, seen.clock.now_ns())
        await asyncio.sleep(20)
        at, sent = await told(seen, caplog), gateway.requests
        used_up = "the budget of the last 24 hours is used up"
        assert at["events"][1:] == [f"over_budget, was ready: {used_up}"]
        assert (at["state"], at["reason"]) == ({"over_budget"}, {used_up})
        assert at["series"] == {("a", "over_budget")}
        assert (at["page"].kind, at["page"].text, at["page"].runbook) == (
            "few",
            "no data: over budget",
            "LLMProbeBudgetExhausted",
        )
        assert f"no data: over budget ({used_up})" in at["watch"]
        assert sent == 10
        larger = targets(seen.fleet.runners["t"].spec.url, ", budget: {tokens_per_day: 3M}", "a")[0]
        await seen.reconcile((larger, seen.fleet.runners["u"].spec), 1.0)
        assert (await told(seen, caplog))["state"] == {"pending"}
        await asyncio.sleep(5)
        assert (await told(seen, caplog))["state"] == {"ready"}
        assert gateway.requests > sent
