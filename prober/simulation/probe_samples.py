"""Probes of a simulated engine under load: one sample per probe."""

from collections import deque
from collections.abc import Iterable, Iterator
from heapq import merge
from random import Random
from typing import NamedTuple

from prober.simulation.engine import Engine
from prober.simulation.faults import Fault
from prober.simulation.load import Load
from prober.simulation.parameters import Parameters
from prober.simulation.request import End, Request, Truth
from prober.workload.shapes import LengthDistribution, Lognormal, Uniform

# As in the built-in workload `probe`.
PROMPT = Lognormal(128, 0.5, 32, 512)
OUTPUT = Uniform(16, 48)
LOAD_WINDOW_S = 60.0  # window in which arrivals are counted


class ProbeSample(NamedTuple):
    """Latencies of one probe, in seconds.

    itl_p99_s: the probe's ITL at rank ceil(0.99·n)
    load: background requests per second in the minute before the probe was sent
    """

    unix_s: float
    ttft_s: float
    itl_p99_s: float
    tpot_s: float
    load: float


def simulate_probes(
    parameters: Parameters,
    load: Load,
    rng: Random,
    start_unix_s: float,
    duration_s: float,
    probe_rate_per_s: float = 0.2,
    faults: Iterable[Fault] = (),
    prompt_tokens: LengthDistribution = PROMPT,
    output_tokens: LengthDistribution = OUTPUT,
) -> Iterator[ProbeSample]:
    """Yield the probes of `duration_s` of virtual time, in order of sending.

    Probes arrive as a Poisson process in addition to `load`. Times of `faults` are seconds from the start. A probe that is lost in a
    crash or does not end in time yields no sample. The random load is independent of the probes.
    """
    loads, probes, engine_rng = (Random(rng.getrandbits(64)) for _ in range(3))
    engine = Engine(parameters, engine_rng, faults)
    probe_requests = _probes(probes, probe_rate_per_s, duration_s, prompt_tokens, output_tokens)
    # Requests are ordered by arrival, and no two arrive at the same time.
    in_flight: deque[tuple[Truth, float]] = deque()
    arrivals: deque[float] = deque()
    for request in merge(load.requests(loads, start_unix_s, duration_s), probe_requests):
        engine.advance(request.arrival_s)  # `truth` then shows what has ended
        truth = engine.submit(request)
        while arrivals and arrivals[0] <= request.arrival_s - LOAD_WINDOW_S:
            arrivals.popleft()
        if not request.background:
            in_flight.append((truth, len(arrivals) / LOAD_WINDOW_S))
            yield from _ended(engine, in_flight, start_unix_s)
        arrivals.append(request.arrival_s)
    engine.advance(duration_s)
    yield from _ended(engine, in_flight, start_unix_s)


def _probes(
    rng: Random, rate_per_s: float, duration_s: float, prompt: LengthDistribution, output: LengthDistribution
) -> Iterator[Request]:
    at_s = rng.expovariate(rate_per_s)
    while at_s < duration_s:
        yield Request(at_s, prompt.draw(rng), max(2, output.draw(rng)))
        at_s += rng.expovariate(rate_per_s)


def _ended(engine: Engine, in_flight: deque[tuple[Truth, float]], start_unix_s: float) -> Iterator[ProbeSample]:
    while in_flight and in_flight[0][0].end is not None:
        truth, load = in_flight.popleft()
        if truth.end is End.COMPLETE:
            ttft_s, itl_s, tpot_s = truth.ttft_s, truth.itl_quantile_s(0.99), truth.tpot_s
            if ttft_s is not None and itl_s is not None and tpot_s is not None:
                yield ProbeSample(start_unix_s + truth.request.arrival_s, ttft_s, itl_s, tpot_s, load)
