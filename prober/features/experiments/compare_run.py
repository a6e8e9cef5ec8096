"""Sends a comparison's requests to both sides in turns, and compares the results; also compares two stored results."""

import asyncio
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from datetime import UTC, datetime
from random import Random
from statistics import fmean

from prober import __version__
from prober.features.experiments import compare
from prober.features.experiments.matrix_run import unless
from prober.measure.engine_signals import EngineSignals
from prober.measure.gpu_reading import GpuReading
from prober.measure.objective import Slo
from prober.measure.outcome import ANSWERED
from prober.measure.result import ProbeResult
from prober.measure.target_state import WarmUpLength
from prober.probing.sender import Sender
from prober.probing.session import Session
from prober.results.comparison import Comparison, Side, with_refused
from prober.results.refused_requests import refused_requests
from prober.results.result import Load, MeasuredTarget, RequestRow, Result, WarmUp
from prober.results.stage import quality_of, request_of, use_of
from prober.results.stage_parts import tool_calls_of
from prober.workload.workloads import Mix, RequestGenerator

OTHER_PROMPTS = (
    "later turns of sessions have the answers that their own side gave, so A and B were not sent the same prompts "
    "(`sessions.answers: filler` sends the same)"
)
MAX_WARMER_C, MAX_SLOWER_RATIO = 5.0, 0.02  # closer states of GPUs count as alike


class UnansweredSide(Exception):
    """A side does not answer. The message has the side and the reason."""


class NotJudged(Exception):
    """Nothing can be compared: a side refuses its warm-up, or no round has ended. The message says which."""


def gpu_text(readings: Mapping[Side, Sequence[Sequence[GpuReading]]]) -> str:
    """Sentence on whether this machine's GPUs were in the same state for both sides. readings: per turn of a side"""
    states: list[tuple[float, float]] = []  # °C and Hz of A and B, means of their readings
    for side in ("a", "b"):
        known = [
            (device.temperature_celsius, device.sm_clock_hertz)
            for devices in readings[side]
            for device in devices
            if device.temperature_celsius is not None and device.sm_clock_hertz is not None
        ]
        if not known:
            return (
                "GPU temperature and clocks are unknown: the engine's GPUs are not on this machine, or report neither, or the turns "
                "are shorter than a second"
            )
        states.append((fmean(warmth for warmth, _ in known), fmean(clock for _, clock in known)))
    (warm_a, clock_a), (warm_b, clock_b) = states
    apart = abs(warm_a - warm_b) > MAX_WARMER_C or abs(clock_a / clock_b - 1) > MAX_SLOWER_RATIO
    judged = "so the difference may be theirs: take a longer --cool-down" if apart else "alike"
    return (
        f"GPUs of this machine: A at {warm_a:.0f} °C and {clock_a / 1e6:.0f} MHz, B at {warm_b:.0f} °C and "
        f"{clock_b / 1e6:.0f} MHz, {judged}"
    )


def compare_stored(
    a: Result, b: Result, rounds: int, error: float, slos: Sequence[Slo]
) -> tuple[Comparison, list[compare.Round]]:
    """(comparison of two results, its rounds). Raises ValueError if a result has too few requests."""
    comparison = _comparison(a.target, b.target, error, time.time())
    if reasons := compare.incomparable(a, b):
        return replace(comparison, remarks=tuple(reasons)), []
    comparison, refused = replace(comparison, load=a.load), compare.stored_refused(a, b)
    if (unjudged := with_refused(comparison, refused)).not_judged:
        return unjudged, []
    pairs = compare.stored_rounds(a, b, rounds)
    compared = compare.compare(pairs, error, slos)
    begins = (datetime.fromtimestamp(result.started_unix_s, UTC).isoformat(" ", "minutes") for result in (a, b))
    remarks = [
        "A was measured at {}, B at {}, and not in turn: whatever else changed between is in the difference".format(
            *begins
        ),
        *compare.reservations(a.target, b.target, pairs, compared),
        *([OTHER_PROMPTS] if a.load.has_own_answers or b.load.has_own_answers else []),
    ]
    return with_refused(replace(comparison, compared=tuple(compared), remarks=tuple(remarks)), refused), pairs


async def compare_targets(
    sessions: Mapping[Side, Session],
    plan: Sequence[compare.PlannedRound],
    pause_s: float,
    warm_up: WarmUpLength,
    error: float,
    slos: Sequence[Slo],
    interrupted: asyncio.Event,
) -> tuple[Comparison, list[compare.Round]]:
    """Send requests to two targets in turns; return (comparison, its rounds). Raises UnansweredSide, NotJudged.

    interrupted: ends the running round, which does not count
    """
    gpus: dict[Side, list[Sequence[GpuReading]]] = {"a": [], "b": []}
    pages: dict[Side, list[EngineSignals]] = {"a": [], "b": []}
    rounds: list[compare.Round] = []
    answers: dict[Side, list[ProbeResult | None]] = {"a": [], "b": []}  # to the same requests, in the same order
    by_rate: dict[str, list[ProbeResult]] = {}
    warm_ups: list[WarmUp] = []

    async def send_all() -> None:
        for planned in plan:
            rows: dict[Side, Sequence[RequestRow]] = {}
            ended: dict[Side, list[ProbeResult | None]] = {}
            for side in planned.sides:
                if warm_ups:
                    await asyncio.sleep(pause_s)
                session = sessions[side]
                begin_ns = session.clock.now_ns()
                rows[side], ended[side] = await _turn(session, side, planned, warm_up)
                warm_ups.append(session.warmed)
                pages[side] += [signals for at_ns, signals in session.readings if at_ns >= begin_ns]
                local = session if session.gpus else sessions["b" if side == "a" else "a"]
                gpus[side] += [devices for at_ns, devices in local.gpus if at_ns >= begin_ns]
            for side, results in ended.items():
                answers[side] += results
                by_rate.setdefault(f"{side.upper()} at {planned.rate_per_s:g}/s", []).extend(filter(None, results))
            rounds.append(compare.Round(planned.rate_per_s, rows["a"], rows["b"]))

    is_complete = await unless(interrupted, send_all())
    if not rounds:
        raise NotJudged("interrupted before the first round had ended; nothing is compared")
    a, b = sessions["a"].described(), sessions["b"].described()
    compared = compare.compare(rounds, error, slos)
    remarks = [*compare.reservations(a, b, rounds, compared), gpu_text(gpus), *_engine_texts(pages)]
    if not is_complete:
        remarks.insert(0, f"interrupted after {len(rounds)} of {len(plan)} rounds")
    remarks.append(_warm_up_text(warm_ups))
    remarks += _answer_texts(answers)
    workloads = [session.spec.probes[0].workload for session in sessions.values()]
    if isinstance(workloads[0], Mix):
        remarks.append(f"quantiles are those of the whole mix {workloads[0].name!r}, not of each of its workloads")
    remarks += [f"{side.upper()} {text} meanwhile" for side, session in sessions.items() for text in session.changes]
    comparison = _comparison(a, b, error, sessions["a"].started_unix_s)
    loads = [Load.of(workload, arrivals="") for workload in workloads]
    if loads[0].has_own_answers:
        remarks.append(OTHER_PROMPTS)
    fields = [json.dumps(load.sampling) for load in loads]
    apart = (("request fields", *fields),) if fields[0] != fields[1] else ()
    comparison = replace(
        comparison,
        compared=tuple(compared),
        answers=tuple(compare.compare_answers(answers["a"], answers["b"], error)),
        differs=(*comparison.differs, *apart),
        remarks=tuple(remarks),
    )
    refused = {place: part for place, results in by_rate.items() if (part := refused_requests(results)).refused}
    comparison = with_refused(comparison, refused)
    return comparison, rounds if comparison.compared else []


def _warm_up_text(warm_ups: Sequence[WarmUp]) -> str:
    counts = [warmed.requests for warmed in warm_ups]
    sent = " to ".join(str(count) for count in sorted({min(counts), max(counts)}))
    tested = [warmed.is_steady for warmed in warm_ups if warmed.is_steady is not None]
    steady = f"; {sum(tested)} of {len(tested)} warm-ups tested were shown to be steady" if tested else ""
    return f"warm-up before each turn: {sent} request{'' if sent == '1' else 's'}, which do not count{steady}"


def _answer_texts(answers: Mapping[Side, Sequence[ProbeResult | None]]) -> Iterator[str]:
    """Sentences about each side's checked answers and tool calls."""
    for side, ended in answers.items():
        results = list(filter(None, ended))
        if quality := quality_of(results):
            yield f"{quality[1]:,} of {quality[0]:,} checked answers of {side.upper()} are wrong"
        if calls := tool_calls_of(results):
            yield f"{side.upper()}: {calls.text()}"


def _comparison(a: MeasuredTarget, b: MeasuredTarget, error: float, started_s: float) -> Comparison:
    """A comparison of two targets without figures."""
    return Comparison(
        id=f"compare-{int(started_s)}",
        started_unix_s=started_s,
        ended_unix_s=time.time(),
        tool=f"llm-slo-prober {__version__}",
        a=a,
        b=b,
        load=None,
        error=error,
        compared=(),
        differs=tuple(compare.differences(a, b)),
        remarks=(),
    )


_OF_ENGINE = {
    "running_mean": "mean running requests",
    "waiting_mean": "mean waiting requests",
    "waiting_peak": "most waiting",
    "kv_usage_peak_ratio": "highest KV cache usage",
}


def _engine_texts(pages: Mapping[Side, Sequence[EngineSignals]]) -> Iterator[str]:
    """A sentence for each side whose page was read during its turns."""
    for side, readings in pages.items():
        use = use_of(readings, ())
        values = [f"{text} {value:.3g}" for name, text in _OF_ENGINE.items() if (value := use[name]) is not None]
        if values:
            yield f"the engine of {side.upper()} during its turns, by its page: {', '.join(values)}"


async def _turn(
    session: Session, side: Side, planned: compare.PlannedRound, warm_up: WarmUpLength
) -> tuple[list[RequestRow], list[ProbeResult | None]]:
    """Run a turn of one side: warm-up, then the requests of the round in an open loop.

    Returns the requests and their results (None if the side was loading).
    """
    workload = session.spec.probes[0].workload
    async with aclosing(session.warm_up(RequestGenerator(workload, Random()), warm_up)) as first:
        warm = [result async for result in first]
    is_answered = any(result is not None and result.outcome in ANSWERED for result in warm)
    if warm and not is_answered and planned.number == 0:
        last = warm[-1]
        if (refused := refused_requests(result for result in warm if result is not None)).is_too_many:
            raise NotJudged(f"{side.upper()} ({session.spec.url}): {refused}")
        why = last.reason if last is not None else "it says it is loading or shutting down"
        raise UnansweredSide(f"{side.upper()} ({session.spec.url}) answers nothing: {why}")
    start_ns = session.clock.now_ns() + round(session.spec.connect_lead * 1e9)
    drawer = RequestGenerator(workload, Random(planned.seed))
    async with Sender(session.target, session.launch) as sender:
        due_times = (start_ns + offset for offset in planned.offsets_ns)
        ended = [result async for result in sender.results(drawer, due_times)]
    loading = RequestRow(start_s=0.0, outcome="http_5xx", error="it says it is loading or shutting down")
    rows = [request_of(result, start_ns) if result is not None else loading for result in ended]
    return rows, ended
