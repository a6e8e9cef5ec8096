"""Each case of the wire suite through the probe, over a real socket, against its verdict, its numbers and the server's times."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from random import Random
from typing import Any

import pytest

from prober.config.load import load
from prober.config.problems import ConfigError
from prober.config.target import TargetSpec, Timeouts
from prober.measure.engines import DIALECTS, GENERIC
from prober.measure.outcome import Outcome
from prober.measure.quality import Expectation
from prober.measure.result import ProbeResult
from prober.measure.target_state import TargetState
from prober.net.clock import Clock
from prober.probing.probe import run_probe
from prober.probing.target import Identity, Target
from prober.workload.prompts import GoldenPrompt
from prober.workload.shapes import Fixed
from prober.workload.workloads import RequestGenerator, Workload
from tests.wire.case import ANSWER, ANY, END, FIRST, LAST, Case, Limits, Mark
from tests.wire.events import MODEL
from tests.wire.server import Served, WireServer
from tests.wire.table import markdown, read_cases

CONCURRENCY = 12
RETRIES = 3
HEAVY_BYTES = 300_000
"""Scripts of more bytes run alone."""
EARLY_NS = 2_000_000
TOLERANCE_NS = 50_000_000
SPAN_TOLERANCE_S = 0.025
"""Of the time between the first and the last content."""
PROMPT_END_NS = 300_000_000
"""An answer that ended, or stalled, is over for the prober this long after it at the latest."""


@dataclass(frozen=True)
class Seen:
    """A probe's result, the server's record, and the time at which the probe returned."""

    result: ProbeResult
    served: Served
    returned_ns: int


def spec(case: Case, port: int) -> TargetSpec:
    """The target as a user would configure it."""
    scheme = "https" if case.tls else "http"
    engine = f"engine: {case.engine}, " if case.engine else ""
    text = (
        f"targets: [{{name: t, url: '{scheme}://127.0.0.1:{port}/v1', model: {MODEL}, api: {case.api}, {engine}"
        f"stream: {str(case.stream).lower()}, connect_lead: 100ms, max_send_lag: 5s}}]"
    )
    target = load(text, source="c", engines=DIALECTS, environment={}, read=lambda path: path).targets[0]
    limits = case.limits
    timeouts = Timeouts(connect=2, first_token=limits.first_token, stall=limits.stall, total=limits.total)
    return target.model_copy(update={"timeouts": timeouts})


def workload(case: Case) -> Workload:
    """A request of the case's length; a golden prompt if the case has one."""
    golden: tuple[GoldenPrompt, ...] = ()
    if case.golden:
        golden = (GoldenPrompt("17 + 25?", Expectation("regex", re.escape(case.golden))),)
    return Workload("w", Fixed(8), Fixed(case.tokens), golden=golden)


def is_accepted(api: str) -> bool:
    """Whether the configuration knows the API."""
    try:
        spec(Case("", "", (), "", api=api), 1)
    except ConfigError:
        return False
    return True


ACCEPTED = {api for api in ("chat", "completions", "responses", "messages") if is_accepted(api)}


@dataclass(frozen=True)
class Prepared:
    """A case, its listening server and its target."""

    case: Case
    served: Served
    target: Target


async def prepare(case: Case, server: WireServer, clock: Clock) -> Prepared:
    """Listen and configure; done before any probe, because it takes the loop's time."""
    served = await server.serve(case)
    target = Target(spec(case, served.port), clock)
    target.identity = Identity(MODEL, DIALECTS.get(case.engine, GENERIC), "/v1")
    target.state = TargetState.READY
    return Prepared(case, served, target)


async def probe(prepared: Prepared) -> Seen:
    """One probe against the server of a case."""
    case, clock = prepared.case, prepared.target.clock
    lead_s = 0.15 if case.before_request else 0.03
    due_ns = clock.now_ns() + round(lead_s * 1e9)
    result = await run_probe(prepared.target, RequestGenerator(workload(case), Random(1)), due_ns)
    assert result is not None
    return Seen(result, prepared.served, clock.now_ns())


async def probe_all(cases: list[Case]) -> dict[str, Seen | Exception]:
    """Probe all cases; those of many bytes alone, at the end."""
    seen: dict[str, Seen | Exception] = {}
    clock = Clock()
    slots = asyncio.Semaphore(CONCURRENCY)

    async def one(prepared: Prepared) -> None:
        async with slots:
            try:
                seen[prepared.case.name] = await asyncio.wait_for(probe(prepared), 20)
            except Exception as problem:
                seen[prepared.case.name] = problem

    with WireServer() as server:
        prepared = [await prepare(case, server, clock) for case in cases]
        await asyncio.gather(*(one(ready) for ready in prepared if not is_heavy(ready.case)))
        for heavy in (ready for ready in prepared if is_heavy(ready.case)):
            await one(heavy)
        await asyncio.sleep(1.1)  # the prober waits so long for servers to close first
    clock.close()
    return seen


def is_heavy(case: Case) -> bool:
    """Whether the case would disturb the times of others."""
    return sum(len(step) for step in case.script if isinstance(step, bytes)) > HEAVY_BYTES


@pytest.fixture(scope="module")
def seen(request: pytest.FixtureRequest) -> dict[str, Seen | Exception]:
    """Results of all selected cases, by name."""
    params = [item.callspec.params for item in request.session.items if hasattr(item, "callspec")]
    cases = [param["case"] for param in params if isinstance(param.get("case"), Case) and param["case"].api in ACCEPTED]
    results = asyncio.run(probe_all(cases))
    for _ in range(RETRIES):
        if again := [case for case in cases if may_be_late(case, results[case.name])]:
            results |= asyncio.run(probe_all(again))
    return results


def may_be_late(case: Case, seen: Seen | Exception) -> bool:
    """Whether only times differ, or the verdict depends on a short limit: a busy machine alone can cause that."""
    if isinstance(seen, Exception) or not problems(case, seen):
        return False
    return case.limits != Limits() or (
        seen.result.outcome.value in case.verdicts and not number_problems(case, seen.result)
    )


def problems(case: Case, seen: Seen) -> list[str]:
    """Everything that differs from the case, a sentence each."""
    result = seen.result
    detail = f"{result.outcome.value}: {result.detail}"
    found = []
    if result.outcome.value not in case.verdicts:
        found.append(f"verdict {detail!r}, not {case.verdict}")
    elif case.detail and case.detail.lower() not in result.detail.lower():
        found.append(f"detail {detail!r} lacks {case.detail!r}")
    elif result.outcome is not Outcome.OK and not result.detail:
        found.append(f"{result.outcome.value} without a detail")
    if not found:
        found += [*number_problems(case, result), *tpot_problems(case, seen), *time_problems(case, seen)]
    ttft = result.timeline.ttft_s
    if ttft is not None and ttft < 0:
        found.append(f"TTFT {ttft} s is negative")
    return found


def number_problems(case: Case, result: ProbeResult) -> list[str]:
    """Differences of counts and finish reason."""
    timeline = result.timeline
    found = []
    chunks = len(timeline.content_ns)
    if case.chunks not in (ANY, chunks):
        found.append(f"{chunks} content chunks, not {case.chunks}")
    tokens = timeline.usage.completion_tokens if timeline.usage else None
    allowed = case.completion if isinstance(case.completion, tuple) else (case.completion,)
    if ANY not in allowed and tokens not in allowed:
        found.append(f"{tokens} completion tokens, not {case.completion}")
    if case.finish and timeline.finish_reason != case.finish:
        found.append(f"finish reason {timeline.finish_reason!r}, not {case.finish!r}")
    return found


def tpot_problems(case: Case, seen: Seen) -> list[str]:
    """Difference of TPOT from the server's own, which is taken over the tokens after the first flush."""
    tpot_s, stamps, tokens = seen.result.timeline.tpot_s, seen.served.stamps_ns, case.tokens_after_first
    if tokens is None:
        return [] if tpot_s is None else [f"TPOT {tpot_s * 1e3:.2f} ms where none can be measured"]
    if tokens == ANY:
        return []
    true_s = (stamps[LAST] - stamps[FIRST]) / 1e9 / tokens
    if tpot_s is not None and abs(tpot_s - true_s) * tokens <= SPAN_TOLERANCE_S:
        return []
    return [f"TPOT {tpot_s} s; the server's is {true_s:.4f} s after the first flush"]


def time_problems(case: Case, seen: Seen) -> list[str]:
    """Differences between the prober's times and the server's."""
    timeline, stamps, ok = seen.result.timeline, seen.served.stamps_ns, seen.result.outcome is Outcome.OK
    last_ns = timeline.content_ns[-1] if len(timeline.content_ns) else None
    measured: dict[Mark, int | None] = {}
    if case.stream:
        measured = {FIRST: timeline.first_ns, ANSWER: timeline.first_answer_ns}
    if not ok:  # a failure may have come before content was read
        measured = {mark: at_ns for mark, at_ns in measured.items() if at_ns is not None}
    else:
        measured |= {END: timeline.end_ns} | ({LAST: last_ns} if case.stream else {})
    found = []
    for mark, at_ns in measured.items():
        if mark not in stamps:
            continue
        if at_ns is None:
            found.append(f"no time of {mark.value}")
        elif not -EARLY_NS <= at_ns - stamps[mark] <= TOLERANCE_NS:
            found.append(f"{mark.value} is {(at_ns - stamps[mark]) / 1e6:.1f} ms behind the server's write")
    if ok and timeline.e2e_s is None:
        found.append("ok without E2E")
    limits = case.limits
    ended_ns = stamps.get(END) if ok else None
    if seen.result.outcome is Outcome.TIMEOUT_STALL and LAST in stamps:
        ended_ns = stamps[LAST] + round(limits.stall * 1e9)
    if seen.result.outcome is Outcome.TIMEOUT_FIRST_TOKEN:
        ended_ns = timeline.intended_ns + round(limits.first_token * 1e9)
    if ended_ns is not None and seen.returned_ns - ended_ns > PROMPT_END_NS:
        found.append(f"the slot was held for {(seen.returned_ns - ended_ns) / 1e9:.2f} s after the end")
    return found


def params() -> list[Any]:
    """The cases as parameters of a test."""
    return [pytest.param(case, id=case.name) for case in read_cases()]


def check(case: Case, seen: dict[str, Seen | Exception]) -> None:
    """Compare a case with its result."""
    if case.api not in ACCEPTED:
        pytest.skip(f"the configuration does not know the API {case.api!r}")
    result = seen[case.name]
    if isinstance(result, Exception):
        raise result
    differences = problems(case, result)
    assert not differences, f"{case.name}: {'; '.join(differences)} [{case.why}{'; arguable' if case.arguable else ''}]"


@pytest.mark.parametrize("case", params())
def test_each_case(case: Case, seen: dict[str, Seen | Exception]) -> None:
    """Outcome, detail, counts and times are those that the documents demand."""
    check(case, seen)


def test_the_names_of_cases_are_unique() -> None:
    """A name is a test's id and a row of the documentation."""
    names = [case.name for case in read_cases()]
    assert len(names) == len(set(names)) >= 300


def test_the_table_has_a_row_for_each_case() -> None:
    """The documentation of the verdicts is generated from the cases."""
    cases = read_cases()
    rows = markdown(cases).splitlines()
    assert len(rows) == len(cases) + 2
    assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows} == {6}
