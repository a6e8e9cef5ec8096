"""Each case of the wire suite through the whole probe, in virtual time and memory, against its verdict, its numbers and the server's
times.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from random import Random

import pytest

from prober.config.load import load
from prober.config.target import TargetSpec, Timeouts
from prober.measure.engines import DIALECTS, GENERIC
from prober.measure.outcome import Outcome
from prober.measure.quality import Expectation
from prober.measure.result import ProbeResult
from prober.measure.target_state import TargetState
from prober.net.exchange import LINGER_S
from prober.probing.probe import run_probe
from prober.probing.target import Identity, Target
from prober.workload.prompts import GoldenPrompt
from prober.workload.shapes import Fixed
from prober.workload.workloads import GoldenWorkload, RequestGenerator, Workload
from tests.virtual import VirtualClock, VirtualLoop
from tests.wire.case import ANSWER, ANY, END, FIRST, LAST, Case, Mark
from tests.wire.events import MODEL
from tests.wire.server import HOST, PORT, WireServer
from tests.wire.table import read_cases

CASES = read_cases()
DUE_NS = 200_000_000  # the connection is there 100 ms earlier
RETURN_NS = 10_000_000  # so soon after the end, or after a limit, the slot is free again


@dataclass(frozen=True)
class Seen:
    """A probe's result, the server's times of the marked steps, and the time at which the probe returned."""

    result: ProbeResult
    stamps_ns: dict[Mark, int]
    returned_ns: int


def spec(case: Case) -> TargetSpec:
    """The target as a user would configure it."""
    scheme = "https" if case.tls else "http"
    engine = f"engine: {case.engine}, " if case.engine else ""
    text = (
        f"targets: [{{name: t, url: '{scheme}://{HOST}:{PORT}/v1', model: {MODEL}, api: {case.api}, {engine}"
        f"stream: {str(case.stream).lower()}, connect_lead: 100ms}}]"
    )
    target = load(text, source="c", engines=DIALECTS, environment={}, read=lambda path: path).targets[0]
    limits = case.limits
    timeouts = Timeouts(connect=2, first_token=limits.first_token, stall=limits.stall, total=limits.total)
    return target.model_copy(update={"timeouts": timeouts})


async def probe(case: Case, loop: VirtualLoop) -> Seen:
    """One probe against the server of a case."""
    clock = VirtualClock()
    server = WireServer(case, loop)
    target = Target(spec(case), clock)
    target.identity = Identity(MODEL, DIALECTS.get(case.engine, GENERIC), "/v1")
    target.state = TargetState.READY
    workload = Workload("w", Fixed(8), Fixed(case.tokens))
    if case.golden:
        golden = GoldenPrompt("17 + 25?", Expectation("regex", re.escape(case.golden)))
        workload = GoldenWorkload("w", Fixed(8), Fixed(case.tokens), golden=(golden,))
    drawer = RequestGenerator(workload, Random(1))
    result = await run_probe(target, drawer, clock.now_ns() + DUE_NS)
    assert result is not None
    seen = Seen(result, server.stamps_ns, clock.now_ns())
    clock.close()
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()
    await asyncio.sleep(LINGER_S)
    return seen


def problems(case: Case, seen: Seen) -> list[str]:
    """Everything that differs from the case, a sentence each."""
    result = seen.result
    verdict = f"{result.outcome.value}: {result.detail}"
    if result.outcome.value not in case.verdicts:
        return [f"verdict {verdict!r}, not {case.verdict}"]
    found = []
    if case.detail.lower() not in result.detail.lower():
        found.append(f"detail {verdict!r} lacks {case.detail!r}")
    if result.outcome is not Outcome.OK and not result.detail:
        found.append(f"{result.outcome.value} without a detail")
    return [*found, *number_problems(case, seen), *time_problems(case, seen)]


def number_problems(case: Case, seen: Seen) -> list[str]:
    """Differences of counts, finish reason and TPOT. The server's TPOT is taken over the tokens after the first flush."""
    timeline, stamps = seen.result.timeline, seen.stamps_ns
    found = []
    if case.chunks not in (ANY, len(timeline.content_ns)):
        found.append(f"{len(timeline.content_ns)} content chunks, not {case.chunks}")
    tokens = timeline.usage.completion_tokens if timeline.usage else None
    allowed = case.completion if isinstance(case.completion, tuple) else (case.completion,)
    if ANY not in allowed and tokens not in allowed:
        found.append(f"{tokens} completion tokens, not {case.completion}")
    if case.finish and timeline.finish_reason != case.finish:
        found.append(f"finish reason {timeline.finish_reason!r}, not {case.finish!r}")
    if case.why_no_tpot not in timeline.why_no_tpot:
        found.append(f"no TPOT because {timeline.why_no_tpot!r}, not {case.why_no_tpot!r}")
    if case.why_no_ttft_answer not in timeline.why_no_ttft_answer or (timeline.why_no_ttft_answer and ANSWER in stamps):
        found.append(f"no TTFT of the answer because {timeline.why_no_ttft_answer!r}, not {case.why_no_ttft_answer!r}")
    if case.tokens_after_first is None and timeline.tpot_s is not None:
        found.append(f"TPOT {timeline.tpot_s} s where none can be measured")
    if case.tokens_after_first not in (None, ANY):
        true_s = (stamps[LAST] - stamps[FIRST]) / 1e9 / case.tokens_after_first
        if timeline.tpot_s != pytest.approx(true_s):
            found.append(f"TPOT {timeline.tpot_s} s, not {true_s} s")
    return found


def time_problems(case: Case, seen: Seen) -> list[str]:
    """Differences between the prober's times and the server's."""
    timeline, stamps, outcome = seen.result.timeline, seen.stamps_ns, seen.result.outcome
    measured = {FIRST: timeline.first_ns, ANSWER: timeline.first_answer_ns} if case.stream else {}
    if outcome is Outcome.OK:
        measured[END] = timeline.end_ns
        if case.stream and timeline.content_ns:
            measured[LAST] = timeline.content_ns[-1]
    found = [
        f"{mark.value} at {at_ns}, the server's is {stamps[mark]}"
        for mark, at_ns in measured.items()
        if mark in stamps and at_ns != stamps[mark] and not (at_ns is None and outcome is not Outcome.OK)
    ]
    ended_ns = stamps.get(END) if outcome is Outcome.OK else None
    if outcome is Outcome.TIMEOUT_STALL and LAST in stamps:
        ended_ns = stamps[LAST] + round(case.limits.stall * 1e9)
    if outcome is Outcome.TIMEOUT_FIRST_TOKEN:
        ended_ns = timeline.intended_ns + round(case.limits.first_token * 1e9)
    if ended_ns is not None and seen.returned_ns - ended_ns > RETURN_NS:
        found.append(f"the slot was held for {(seen.returned_ns - ended_ns) / 1e9:.3f} s after the end")
    return found


@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in CASES])
def test_a_probe_judges_each_answer_as_the_documents_demand(case: Case) -> None:
    """Outcome, words, counts and times of a probe are those of the case."""
    loop = VirtualLoop()
    try:
        seen = loop.run_until_complete(probe(case, loop))
    finally:
        loop.close()
    assert not problems(case, seen), f"[{case.why}]"


def test_the_names_of_cases_are_unique() -> None:
    """A name is a test's id and a row of the documentation."""
    assert len({case.name for case in CASES}) == len(CASES)
