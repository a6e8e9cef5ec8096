"""Targets in each state that the page can show, as values."""

import dataclasses
from collections.abc import Mapping, Sequence
from decimal import Decimal
from functools import cache
from random import Random
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from prober.config.target import Estimate
from prober.features.capacity.sweep_runner import SweepProgress
from prober.features.capacity.target_sweeps import SweptCapacity
from prober.features.diagnosis.advice import Advice
from prober.features.diagnosis.clues import Finding
from prober.features.diagnosis.diagnosis import Diagnosis
from prober.features.drift.state import DriftStatus, DriftVerdict, Shift
from prober.features.slo.compliance import Burn, Compliance, SloStatus
from prober.measure.buffering import Buffering
from prober.measure.chunk import Usage
from prober.measure.engine_signals import EngineInfo, EngineSignals
from prober.measure.objective import Slo
from prober.measure.outcome import Outcome
from prober.measure.result import ProbeResult
from prober.measure.target_state import TargetEvent, TargetState
from prober.measure.timeline import Connection, Timeline
from prober.results.capacity import Capacity, Mix
from prober.statistics.quantiles import Quantile, quantiles
from prober.web.api_types import Answer, SweepAnswer
from prober.web.page.view import PageView
from prober.web.targets import (
    BudgetAnswer,
    DriftAnswer,
    HeadroomAnswer,
    HealthAnswer,
    NoDataAnswer,
    Problem,
    QuantileAnswer,
    SloAnswer,
    StartingAnswer,
    SweepingAnswer,
    TargetAnswer,
)
from tests.results.samples import sweep

NOW = 1_763_722_800.0
MS = 1_000_000
TTFT = Slo("ttft", "ttft", 0.5, Decimal("0.99"), 2_592_000.0)
ITL = Slo("itl", "itl", 0.05, Decimal("0.99"), 2_592_000.0)
OK = Slo("ok", "success", None, Decimal("0.99"), 2_592_000.0)
HOSTILE = "<script>document.title='taken'</script>\"'><img src=x onerror=alert(1)>&amp;\u202egnp.exe\u202c\x00\x1b[2J"
LONG = "very-long-" * 400
T = TypeVar("T")


def replace(value: T, **changes: Any) -> T:
    """A copy of a dataclass or of an answer with other values."""
    if isinstance(value, Answer):
        return value.model_copy(update=changes)
    return dataclasses.replace(value, **changes)  # type: ignore[type-var]


def answered(drawn: Mapping[tuple[str, str], Sequence[float]]) -> list[QuantileAnswer]:
    """Quantiles of these samples."""
    return [
        QuantileAnswer(
            workload=workload,
            signal=signal,
            enough=quantile.has_enough_samples,
            since=NOW - 7_000,
            **dataclasses.asdict(quantile),
        )
        for (workload, signal), values in drawn.items()
        for quantile in quantiles(values)
    ]


def drift(signal: str, verdict: DriftVerdict, *shifts: Shift) -> DriftAnswer:
    """The drift of a latency."""
    return DriftAnswer.model_validate(DriftStatus("chat", signal, verdict, shifts))


def room(*bounds: float | None) -> HeadroomAnswer:
    """Headroom from its three bounds and the three of what can be added."""
    return HeadroomAnswer(**dict(zip(HeadroomAnswer.model_fields, bounds, strict=True)))


def probe(
    at: int,
    rng: Random,
    *,
    name: str = "llama-70b",
    ttft_ms: float = 180.0,
    outcome: Outcome = Outcome.OK,
    detail: str = "",
    chunks: int = 64,
) -> ProbeResult:
    """A probe that was due `at` seconds before NOW."""
    due = 10**15 - at * 10**9
    connection = Connection(due - 900 * MS, due - 880 * MS, tcp_s=0.0002, tls_s=0.018)
    ended = outcome in (Outcome.OK, Outcome.WRONG_ANSWER)
    first = due + round(ttft_ms * rng.uniform(0.85, 1.4) * MS)
    stamps = [first]
    for _ in range(chunks - 1):
        stamps.append(stamps[-1] + round(rng.uniform(8, 13) * MS))
    timeline = Timeline(
        due,
        connection=connection,
        sent_ns=due + 20_000,
        headers_ns=due + 30 * MS,
        first_ns=first if ended else None,
        first_answer_ns=first if ended else None,
        end_ns=stamps[-1] + MS if ended else due + 90 * MS,
        content_ns=tuple(stamps) if ended else (),
        usage=Usage(128, chunks, 0) if ended else None,
        finish_reason="length" if ended else None,
    )
    return ProbeResult(
        name,
        "chat",
        f"slo-probe-{at:016x}",
        NOW - at,
        outcome,
        detail,
        timeline,
        model="org/model-70b",
        engine="vllm",
        requested_prompt_tokens=128,
        requested_output_tokens=chunks,
        text="Once upon a time" if ended else "",
    )


def slos(*states: Compliance, burning: bool = True) -> list[SloAnswer]:
    """Statuses of the three SLOs. burning: the budgets of those that are missed burn; else they did so until ten minutes ago"""
    why = {"met": "", "missed": "", "no_data": "120 of the 1,000 events needed"}
    bad = {"met": 4, "missed": 61, "no_data": 0}
    now = Burn(60, 35, 300.0, NOW - 400, NOW - 5) if burning else Burn(60, 0, 300.0, None, NOW - 600)
    return [
        SloAnswer.model_validate(
            SloStatus(
                *(slo, "chat", 120 if state == "no_data" else 2_400, bad[state], NOW - 9_000, state, why[state]),
                burn=now if state == "missed" else Burn(60, 0, 300.0),
                of_answered=slo is not OK,
            )
        )
        for slo, state in zip((TTFT, ITL, OK), states, strict=True)
    ]


@cache
def target(
    name: str = "llama-70b",
    seed: int = 1,
    *,
    ttft_ms: float = 180.0,
    samples: int = 1_400,
    model: str = "org/model-70b",
) -> TargetAnswer:
    """A target without problems."""
    rng = Random(seed)
    probes = [probe(5 + i * 12, rng, name=name, ttft_ms=ttft_ms) for i in range(40)]
    drawn = {
        ("chat", "ttft"): [ttft_ms / 1e3 * rng.uniform(0.85, 1.4) for _ in range(samples)],
        ("chat", "tpot"): [rng.uniform(0.009, 0.012) for _ in range(samples)],
        ("chat", "e2e"): [ttft_ms / 1e3 + rng.uniform(0.6, 0.9) for _ in range(samples)],
        ("chat", "itl"): [rng.uniform(0.008, 0.013) for _ in range(4 * samples)],
    }
    return TargetAnswer(
        name=name,
        url="http://llm.example:8000/v1",
        model=model,
        engine="vllm",
        state=TargetState.READY,
        reason="",
        health=HealthAnswer(state="healthy", reason="failed probes: 0 of the last 5"),
        starting=None,
        paused=None,
        outcomes={"ok": samples, "http_5xx": 2},
        slos=slos("met", "met", "met"),
        quantiles=answered(drawn),
        latest=answered({key: values[-200:] for key, values in drawn.items()}),
        earlier=answered(drawn),
        probes=probes,
        drift=[drift(signal, DriftVerdict("settled", 0.12)) for signal in ("ttft", "itl")],
        budgets=[
            BudgetAnswer(budget="tokens", limit=4e6, spent=1.1e6),
            BudgetAnswer(budget="cost", limit=5.0, spent=0.66),
        ],
        estimate=Estimate(2.2e6, 1.1e6, 1.98),
        sweepable=True,
        capacity="ttft: estimated knee 12/s, 90% interval 10 to 13, as of 2025-11-21 02:40 UTC",
        headroom=room(0.31, 0.42, 0.47, 3.4, 4.6, 5.2),
        swept=SweptCapacity(
            [Capacity("ttft", "found", 10.0, 12.0, 13.0, 0.9, 2_000, "model", mix=Mix(100, 25), alone_per_s=11.0)],
            NOW - 30_000,
            demand_per_s=7.1,
        ),
        sweeps=[sweep("a1b2c3d4e5f6")],
        last_sweep=SweepAnswer.model_validate(sweep("a1b2c3d4e5f6")),
    )


def healthy() -> list[TargetAnswer]:
    """A target without problems."""
    return [target()]


def slow() -> list[TargetAnswer]:
    """An SLO is missed, and the diagnosis names the cause."""
    rng = Random(2)
    late = [probe(5 + i * 12, rng, ttft_ms=900.0 if i < 25 else 180.0) for i in range(40)]
    diagnosis = Diagnosis(
        ("queueing",),
        "requests wait for a place in the batch",
        (
            Finding("requests waiting", 7.2, "", "usually 0.1"),
            Finding("waiting, share of the growth of the TTFT", 0.86, "ratio", "of 720 ms"),
        ),
        missing=("GPU utilization",),
        next_measurement="the same at half the demand",
        bad="TTFT 1.1 s, 500 ms allowed",
        advice=(Advice("admit more requests at a time", "KV cache", None, "--max-num-seqs"),),
    )
    return [
        replace(
            target(ttft_ms=900.0),
            slos=slos("missed", "met", "met"),
            diagnosis=diagnosis,
            probes=late,
            readings=[
                (
                    5.0 * i,
                    EngineSignals(
                        EngineInfo("vllm"),
                        requests_running=32.0,
                        requests_waiting=i / 10,
                        kv_cache_usage_ratio_max=0.41,
                        generation_tokens_total=6_000.0 * i,
                    ),
                )
                for i in range(73)
            ],
            headroom=room(-0.2, -0.08, 0.02, 0.0, 0.0, 0.2),
            swept=replace(target().swept, demand_per_s=13.0, exhausted_unix_s=NOW + 12 * 86_400),
        )
    ]


def over() -> list[TargetAnswer]:
    """An SLO was missed for a while that is over, and whose cause is known."""
    cause = Diagnosis(("queueing",), "requests waited", since_unix_s=NOW - 1_500, until_unix_s=NOW - 600)
    return [replace(target(), slos=slos("missed", "met", "met", burning=False), past_cause=cause)]


def drifting() -> list[TargetAnswer]:
    """Slower than its baseline, within its SLOs."""
    moved = DriftVerdict("settled", 1.0, True, "regression", NOW - 5_400, load="within")
    shifts = [Shift(0.5, 1.31, 1.24, 1.39, 420), Shift(0.9, 1.44, 1.30, 1.61, 420)]
    moves = [drift("ttft", moved, *shifts), drift("itl", DriftVerdict("provisional", 0.44))]
    budget = BudgetAnswer(budget="tokens", limit=4e6, spent=3.9e6)
    return [replace(target(ttft_ms=240.0), drift=moves, budgets=[budget])]


def at_other_load(*, active: bool) -> list[DriftAnswer]:
    """No verdict at a load that the baseline does not know; or a drift of before."""
    verdict = DriftVerdict("settled", 0.2, active, "unknown" if active else None, load="outside")
    return [drift("ttft", verdict)]


def unusual() -> list[DriftAnswer]:
    """Slower than in the first hours, which are all that is learnt."""
    return [drift("ttft", DriftVerdict("provisional", 1.0, True, "unusual", NOW))]


def full() -> list[TargetAnswer]:
    """A sweep is running."""
    return [
        replace(
            target(),
            sweep=SweepingAnswer.model_validate(SweepProgress("ramp", 4, 12.5, 311, 22, 41.0)),
            sweeps=[sweep("a1b2c3d4e5f6"), sweep("b7c8d9e0f1a2", 2)],
        )
    ]


def down() -> list[TargetAnswer]:
    """Refuses connections after it was ready."""
    rng = Random(3)
    message = "127.0.0.1:8000 refused the connection"
    probes = [
        probe(5 + i * 12, rng, outcome=Outcome.CONNECT_REFUSED, detail=message) if i < 12 else probe(5 + i * 12, rng)
        for i in range(40)
    ]
    outcomes = {"ok": 1_400, "connect_refused": 12}
    return [
        replace(
            target(),
            state=TargetState.FAILING,
            reason=f"connect_refused: {message}",
            slos=slos("missed", "met", "missed"),
            probes=probes,
            outcomes=outcomes,
            quantiles=[],
            latest=[],
            no_latency="No latency: no probe is answered now.",
        )
    ]


def rejected() -> list[TargetAnswer]:
    """Its key has stopped working."""
    refused = probe(5, Random(1), outcome=Outcome.REJECTED, detail="HTTP 401: invalid api key")
    return [
        replace(
            target(),
            state=TargetState.REJECTED,
            reason=refused.detail,
            no_data=[no_data("chat", "rejected", refused.detail)],
            probes=[refused, *target().probes],
            outcomes={"ok": 1_400, "rejected": 1},
        )
    ]


def no_data(workload: str, state: str, reason: str) -> NoDataAnswer:
    detail = f"no data of workload {workload}: {state}: {reason}"
    return NoDataAnswer(workload=workload, state=state, reason=reason, detail=detail)


def refused_workload() -> list[TargetAnswer]:
    """One of its workloads is refused, another one has used up the budget, and the others are answered."""
    refused = no_data("long", "rejected", "HTTP 400: the context has 4096 tokens")
    unsent = no_data("large", "over_budget", "the budget of the last 24 hours is used up")
    return [replace(target(), no_data=[refused, unsent])]


def nothing() -> list[TargetAnswer]:
    """Just started: no probe, no model, no name."""
    return [
        TargetAnswer(
            name="http://llm.example:8000",
            url="http://llm.example:8000",
            model="",
            engine="",
            state=TargetState.PENDING,
            reason="",
            starting=None,
            paused=None,
            slos=[replace(slo, events=0, why="no event yet") for slo in slos(*("no_data",) * 3)],
            no_latency="No latency samples yet.",
            drift=[drift("ttft", DriftVerdict("learning", 0.0))],
        )
    ]


def starting() -> list[TargetAnswer]:
    """An engine that has refused connections since the prober started to probe it six minutes ago."""
    text = "refuses connections since 10:54:00; counted as failures after 20m, from 11:14:00 UTC (starting_timeout)"
    start = StartingAnswer(since=NOW - 360, until=NOW + 840, detail=text)
    return [replace(nothing()[0], state=TargetState.STARTING, starting=start, reason=text)]


def paused() -> list[TargetAnswer]:
    """Paused by a person."""
    return [replace(target(), paused=NOW - 600)]


def buffered() -> list[TargetAnswer]:
    """Behind a gateway that releases all content of an answer at once."""
    rng, buffering, probes = Random(5), Buffering(), []
    for at in range(5, 125, 12):
        result = probe(at, rng, ttft_ms=900.0)
        last = result.timeline.content_ns[-1]
        at_once = replace(result.timeline, first_ns=last, first_answer_ns=last, content_ns=(last,) * 64)
        probes.append(replace(result, timeline=at_once))
        buffering = buffering.after(at_once)
    return [replace(target(), probes=probes, buffered=True, buffering=buffering.sentence)]


def cached() -> list[TargetAnswer]:
    """All of its prompts are in the engine's cache."""
    return [replace(target(), caching="probe measures no latency, as every prompt is cached")]


def filled(value: Any, text: str) -> Any:
    """The same value with `text` for every line of every string in it; a field that can hold only certain words keeps them."""
    if type(value) is str:
        return "\n".join(text for _ in value.split("\n"))
    if isinstance(value, Answer):
        hints = {name: field.annotation for name, field in type(value).model_fields.items()}
        return replace(value, **_filled_fields(value, hints, text))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        hints = get_type_hints(type(value))
        return replace(
            value, **_filled_fields(value, {f.name: hints[f.name] for f in dataclasses.fields(value) if f.init}, text)
        )
    if isinstance(value, tuple) and hasattr(value, "_replace"):
        return value._replace(**_filled_fields(value, get_type_hints(type(value)), text))
    if isinstance(value, Mapping):
        return {filled(key, text + str(i)): filled(item, text) for i, (key, item) in enumerate(value.items())}
    if isinstance(value, list | tuple):
        return type(value)(filled(item, text) for item in value)
    return value


def _filled_fields(value: Any, hints: Mapping[str, Any], text: str) -> dict[str, Any]:
    return {name: filled(getattr(value, name), text) for name, hint in hints.items() if not _holds_words(hint)}


def _holds_words(hint: Any) -> bool:
    """Whether a type is a Literal, or has one as an alternative."""
    return get_origin(hint) is Literal or any(_holds_words(part) for part in get_args(hint))


def hostile(text: str = HOSTILE) -> list[TargetAnswer]:
    """Every field that a configuration, an engine or an endpoint can fill holds `text`."""
    one = replace(slow()[0], drift=drifting()[0].drift, probes=slow()[0].probes[:8])
    return [filled(one, text + str(i)) for i in range(2)]


@cache
def hundred() -> list[TargetAnswer]:
    """A hundred targets, a few of them with problems."""
    rare = {3: down, 17: slow, 42: drifting, 60: paused, 77: nothing}
    targets = []
    for i in range(100):
        name = f"team-{i % 7}/model-{i:02d}"
        one = rare[i]()[0] if i in rare else target(name, i, ttft_ms=80.0 + i * 3, samples=40 if i % 9 == 0 else 1_100)
        probes = [replace(probe, target=name, request_id=f"{probe.request_id[:-8]}{i:08x}") for probe in one.probes]
        targets.append(replace(one, name=name, probes=probes))
    return targets


def fleet() -> list[TargetAnswer]:
    """Seven of the hundred, with all that have problems."""
    return [hundred()[i] for i in (0, 1, 3, 17, 42, 60, 77)]


SCENES = {
    "healthy": healthy,
    "slow": slow,
    "over": over,
    "drifting": drifting,
    "full": full,
    "down": down,
    "nothing": nothing,
    "starting": starting,
    "paused": paused,
    "buffered": buffered,
    "cached": cached,
}


def events(targets: Sequence[TargetAnswer]) -> list[TargetEvent]:
    """Events of the first target."""
    name = targets[0].name
    return [
        TargetEvent(
            NOW - 60, name, "state", "failing, was ready: connect_refused: 127.0.0.1:8000 refused the connection"
        ),
        TargetEvent(
            NOW - 900,
            name,
            "diagnosis",
            "queueing: requests wait for a place in the batch\n  requests waiting: 7.2 [needed]",
        ),
        TargetEvent(NOW - 90_000, name, "engine", "version was 0.31.0, is 0.32.0"),
    ]


def unconfigured(text: str = "prober.yaml: targets[0].ulr: unknown key") -> PageView:
    """Nothing is probed because the configuration has mistakes."""
    headline = "configuration not applied, nothing is probed until it is fixed"
    problem = Problem(headline=headline, mistakes=[text] * 30)
    return replace(page_of([target()]), targets=[], concerns=[], events=[], is_target_page=False, problems=[problem])


def page_of(targets: Sequence[TargetAnswer], *, admin: bool = True, query: str = "", chosen: str = "") -> PageView:
    """The values of a page as `Views.page` makes them."""
    ranked = sorted(targets, key=lambda view: (*view.concern.order, view.name))
    matching = [view for view in ranked if query.lower() in view.name.lower()]
    one = next((view for view in targets if view.name == chosen), targets[0] if len(targets) == 1 else None)
    probes = sorted((p for view in targets for p in view.probes[:20]), key=lambda p: -p.timeline.intended_ns)
    return PageView(
        at_unix_s=NOW,
        targets=[one] if one else matching,
        concerns=[view.concern for view in ranked],
        matching=len(matching),
        events=events(targets),
        probes=one.probes if one else probes[:20],
        receive_delay=Quantile(0.99, 0.00041, 0.00035, 0.0006, 1_200),
        reads=(1_200, 0),
        admin=admin,
        version="9.9.9",
        filter_text=query,
        chosen=chosen,
        is_target_page=one is not None,
    )


STATES = (healthy, slow, over, drifting, full, down, nothing, starting, paused, buffered, rejected, refused_workload)
