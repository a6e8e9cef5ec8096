"""Sends the requests of a gate in an open loop until it decides."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from itertools import islice

from prober.features.experiments.gate import Gate, GateVerdict
from prober.measure.outcome import Trait
from prober.measure.result import ProbeResult
from prober.measure.target_state import WarmUpLength
from prober.probing.pacer import due_times
from prober.probing.sender import Sender
from prober.probing.session import Session
from prober.results.result import Load, Result
from prober.results.stage import stage_of
from prober.workload.workloads import RequestGenerator


async def ask(session: Session, judge: Gate, length: WarmUpLength) -> tuple[GateVerdict, Result]:
    """Warm up, then send the first probe's requests until the gate decides. Returns (verdict, result without `decision`).

    The gate decides immediately if neither the model look-up nor the first request finds a server.
    """
    clock, probe = session.clock, session.spec.probes[0]
    has_listener = session.failure is None or Trait.NO_LISTENER not in session.failure.outcome.traits
    taken = 0

    async def fed(
        results: AsyncGenerator[ProbeResult | None, None],
    ) -> tuple[list[ProbeResult], GateVerdict | None]:
        """(results up to the deciding one, verdict). The verdict is None if no result decides."""
        nonlocal taken
        sent: list[ProbeResult] = []
        async with aclosing(results):
            async for result in results:
                taken += 1
                due_ns = clock.now_ns() if result is None else result.timeline.intended_ns
                sent += [] if result is None else [result]
                is_first = taken == 1 and not has_listener
                if is_first and result is not None and Trait.NO_LISTENER in result.outcome.traits:
                    return sent, judge.nothing_listens(result, due_ns / 1e9)
                if (verdict := judge.take(result, due_ns / 1e9)) is not None:
                    return sent, verdict
        return sent, None

    drawer = RequestGenerator(probe.workload, session.rng)
    _, verdict = await fed(session.warm_up(drawer, length))
    begin_ns, results = clock.now_ns(), list[ProbeResult]()
    if verdict is None:
        times = due_times(probe, session.rng, begin_ns + round(session.spec.connect_lead * 1e9))
        async with Sender(session.target, session.launch) as sender:
            results, verdict = await fed(sender.results(drawer, islice(times, max(0, judge.most - taken))))
            await sender.cut()
    stage = stage_of(
        f"{probe.rate:g}/s",
        probe.rate,
        results,
        origin_ns=session.origin_ns,
        begin_ns=begin_ns,
        sending_s=(clock.now_ns() - begin_ns) / 1e9,
        slos=probe.slos,
    )
    result = session.result(
        "gate",
        Load.of(probe.workload, arrivals="poisson"),
        [stage],
        slos=probe.slos,
        warm_up=session.warmed,
    )
    return verdict or judge.verdict(), result
