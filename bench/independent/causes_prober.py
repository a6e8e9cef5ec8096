"""The prober of a scene: when it sends, what it sends, and how it stamps what it gets."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.random import Generator

from bench.independent.causes_situation import Route, Situation
from bench.independent.engine import Engine
from prober.measure.chunk import Usage
from prober.measure.outcome import Outcome
from prober.measure.result import ProbeResult
from prober.measure.timeline import Connection, Timeline

INTERVAL_S = 5.0  # of readings, and of probes where nothing else is stated
WARM_UP_S = 180.0  # of the service, before the first window
CONNECT_LEAD_S = 1.0
FIRST_TOKEN_TIMEOUT_S = 30.0
START_NS = 10**15  # of the monotonic clock
START_UNIX_S = 1_795_000_000.0
PRODUCT_NAMES = {"llama.cpp": "llamacpp"}  # of engines, where they differ from those of the simulated pages
RESERVED_ID = 1 << 40  # ids of prefix blocks of the probes, and beyond them ids that occur once

Spans = Sequence[tuple[float, float, Situation]]  # begin and end in s of each situation


@dataclass(frozen=True, slots=True)
class Probe:
    """A probe on its way. Times in seconds; `arrived_s` at the engine."""

    number: int
    intended_s: float
    connection_s: tuple[float, float]
    sent_s: float
    arrived_s: float
    back_s: float
    prompt_tokens: int
    output_tokens: int
    is_warm: bool


def scheduled_probes(
    windows: Sequence[tuple[float, float]],
    spans: Spans,
    rng: Generator,
    interval_s: float = INTERVAL_S,
) -> Iterator[Probe]:
    """Probes from the warm-up on. Half are warm, and half are long."""
    last_s = windows[-1][1]
    for number, due_s in enumerate(np.arange(WARM_UP_S - 60, last_s, interval_s)):
        intended_s = float(due_s) + rng.uniform(0, interval_s)
        situation = next(span for begin_s, end_s, span in spans if begin_s <= intended_s < end_s)
        is_measured = any(begin_s <= intended_s < end_s for begin_s, end_s in windows)
        route, machine = situation.route, situation.machine
        begun_s = intended_s - CONNECT_LEAD_S
        ready_s = begun_s + sum(2 * _one_way_s(route, rng) for _ in range(route.handshakes))
        sent_s = max(intended_s, ready_s) + rng.exponential(0.0003)
        forwarded_s = rng.gamma(2.0, route.gateway_s / 2) if rng.random() < route.gateway_share else 0.0
        yield Probe(
            number if is_measured else -1 - number,
            intended_s,
            (begun_s, ready_s),
            sent_s,
            sent_s + _one_way_s(route, rng) + forwarded_s,
            _one_way_s(route, rng),
            machine.probe_tokens[int(rng.integers(2))],
            int(rng.integers(24, 65)),
            bool(rng.integers(2)),
        )


def _one_way_s(route: Route, rng: Generator) -> float:
    return float(route.one_way_s * np.exp(route.jitter * abs(rng.standard_normal())))


def submit(engine: Engine, probe: Probe, situation: Situation, rng: Generator) -> int:
    """Send a probe to an engine. A warm prompt begins with blocks that all warm prompts begin with."""
    block = engine.structure.prefix_block
    blocks = int(situation.machine.shared_share * probe.prompt_tokens) // block if block and probe.is_warm else 0
    ids: Sequence[int] = range(RESERVED_ID, RESERVED_ID + blocks)
    if rng.random() < situation.users.uncached_share:
        ids = unique_ids(rng, blocks)
    return engine.submit(probe.arrived_s, probe.prompt_tokens, probe.output_tokens, ids, keep_tokens=True)


def _ns(at_s: float) -> int:
    return START_NS + round(at_s * 1e9)


def probe_result(probe: Probe, engine: Engine, number: int, situation: Situation, rng: Generator) -> ProbeResult:
    """The probe as the prober stamps it."""
    machine, route = situation.machine, situation.route
    delivered_s, tokens = np.unique(engine.token_times_s(number), return_counts=True)
    late_s = np.where(rng.random(len(delivered_s)) < route.loss, 0.2 + rng.exponential(0.1, len(delivered_s)), 0.0)
    jitter_s = rng.exponential(0.0001 + 0.02 * route.jitter * route.one_way_s, len(delivered_s))
    arrived_s = np.maximum.accumulate(delivered_s + probe.back_s + late_s + jitter_s)
    content_ns = tuple(_ns(float(at_s)) for at_s in arrived_s)
    request = engine.request(number)
    outcome, detail = Outcome.OK, ""
    has_timed_out = not content_ns or content_ns[0] - _ns(probe.intended_s) > FIRST_TOKEN_TIMEOUT_S * 1e9
    if request.has_failed:
        outcome, detail, content_ns = Outcome.HTTP_429, "HTTP 429", ()
    elif has_timed_out:
        outcome, detail, content_ns = Outcome.TIMEOUT_FIRST_TOKEN, "no content in time", ()
    elif request.end_s is None:
        outcome, detail = Outcome.TIMEOUT_TOTAL, "not ended in time"
    end_ns = content_ns[-1] + 200_000 if outcome is Outcome.OK else None
    headers_ns = content_ns[0] - 50_000 if content_ns else None
    if machine.has_early_headers and headers_ns and not engine.structure.front_s:
        headers_ns = min(headers_ns, _ns(probe.arrived_s + probe.back_s + 0.001))
    timeline = Timeline(
        intended_ns=_ns(probe.intended_s),
        connection=Connection(
            _ns(probe.connection_s[0]),
            _ns(probe.connection_s[1]),
            round(CONNECT_LEAD_S * 1e9),
            tcp_s=(probe.connection_s[1] - probe.connection_s[0]) / route.handshakes,
            tls_s=(probe.connection_s[1] - probe.connection_s[0]) * (1 - 1 / route.handshakes) or None,
            lead_ns=max(0, _ns(probe.intended_s) - _ns(probe.connection_s[0])),
        ),
        sent_ns=_ns(probe.sent_s),
        acknowledged_ns=_ns(probe.sent_s + 2 * probe.back_s),
        headers_ns=headers_ns,
        first_ns=content_ns[0] if content_ns else None,
        first_answer_ns=content_ns[0] if content_ns else None,
        end_ns=end_ns,
        content_ns=content_ns,
        content_tokens=tuple(tokens.tolist()) if machine.has_chunk_usage and content_ns else None,
        usage=Usage(probe.prompt_tokens, probe.output_tokens) if end_ns else None,
        finish_reason="length" if end_ns else None,
    )
    if situation.failure is not None and rng.random() < situation.failure.share:
        outcome, detail = situation.failure.outcome, situation.failure.detail
        timeline = _failed(timeline, outcome)
    return ProbeResult(
        target="service",
        workload="probe_warm" if probe.is_warm else "probe",
        request_id=f"probe-{probe.number}",
        unix_s=START_UNIX_S + probe.intended_s,
        outcome=outcome,
        detail=detail,
        timeline=timeline,
        engine=PRODUCT_NAMES.get(machine.page, machine.page) if machine.page else "",
        requested_prompt_tokens=probe.prompt_tokens,
        requested_output_tokens=probe.output_tokens,
    )


def _failed(timeline: Timeline, outcome: Outcome) -> Timeline:
    """The timeline of a request that is refused at once, or whose stream is cut in the middle."""
    timeline = replace(timeline, end_ns=None, usage=None, finish_reason=None)
    if outcome is Outcome.RESET and timeline.content_ns:
        half = len(timeline.content_ns) // 2 + 1
        tokens = timeline.content_tokens and timeline.content_tokens[:half]
        return replace(timeline, content_ns=timeline.content_ns[:half], content_tokens=tokens)
    timeline = replace(timeline, first_ns=None, first_answer_ns=None, content_ns=(), content_tokens=None)
    if outcome is Outcome.CONNECT_REFUSED:
        return replace(timeline, connection=None, sent_ns=None, headers_ns=None)
    assert timeline.sent_ns is not None
    return replace(timeline, headers_ns=timeline.sent_ns + 2_000_000)


def unique_ids(rng: Generator, blocks: int) -> list[int]:
    """Ids of blocks that no other prompt has."""
    first = int(rng.integers(2 * RESERVED_ID, 1 << 60))
    return list(range(first, first + blocks))
