"""A service at a time, and observations of it."""

from dataclasses import dataclass

from bench.independent.structure import Structure
from prober.measure.engine_signals import EngineSignals
from prober.measure.gpu_reading import GpuReading, ThrottleReason
from prober.measure.outcome import Outcome
from prober.measure.result import ProbeResult


@dataclass(frozen=True, slots=True)
class Users:
    """Traffic of others. Lengths are lognormal with these medians, in tokens.

    burstiness: squared coefficient of variation of the gaps
    long_share, long_tokens: of prompts that are very long
    documents, document_tokens: shared prefixes, one of which begins every prompt; 0: none
    uncached_share: of all requests, probes included, whose prefix the cache does not recognise
    """

    rate_per_s: float
    burstiness: float = 1.0
    prompt_tokens: float = 500.0
    output_tokens: float = 150.0
    long_share: float = 0.0
    long_tokens: int = 0
    documents: int = 0
    document_tokens: int = 0
    uncached_share: float = 0.0


@dataclass(frozen=True, slots=True)
class Route:
    """Path between prober and engine.

    one_way_s: delay without queues; jitter: sigma of its logarithm
    gateway_s: mean of what a gateway adds before it forwards a request, and its share of the requests
    loss: share of chunks that wait for a retransmission
    handshakes: round trips until a connection is ready
    """

    one_way_s: float
    jitter: float = 0.1
    gateway_s: float = 0.0
    gateway_share: float = 1.0
    loss: float = 0.0
    handshakes: int = 2


@dataclass(frozen=True, slots=True)
class Gpu:
    """State of the GPUs of a replica.

    clock_ratio: SM clock ÷ maximum; reasons: why it is low, and the share of readings that show them
    foreign_bytes: memory of other processes
    """

    clock_ratio: float = 0.97
    reasons: frozenset[ThrottleReason] = frozenset()
    reason_share: float = 0.0
    foreign_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Machine:
    """Facts that no trouble changes.

    page: name of the page, a key of `engine.PAGES`; None: the prober reads none
    gpus: that share the weights; has_gpu_readings: the prober reads them
    has_chunk_usage: the engine reports usage in every chunk
    has_early_headers: the engine sends headers when it accepts a request, not with the first token
    has_throttle_reasons: the driver reports them
    hides_front: a page whose queue time includes the front's backlog does not count it as waiting
    probe_tokens: lengths of the prompts of the probes, short and long
    shared_share: of a warm prompt
    """

    page: str | None
    gpu_name: str
    gpus: int
    gpu_bytes: int
    clock_hertz: float
    has_gpu_readings: bool
    has_chunk_usage: bool
    has_early_headers: bool
    has_throttle_reasons: bool
    hides_front: bool
    probe_tokens: tuple[int, int]
    shared_share: float


@dataclass(frozen=True, slots=True)
class Failure:
    """How a share of the requests fails. hides_page: the engine's page cannot be read meanwhile."""

    outcome: Outcome
    detail: str
    share: float
    hides_page: bool = False


@dataclass(frozen=True, slots=True)
class Situation:
    """A service at a time. structures, gpus: of the replicas, whose requests are dealt at random."""

    machine: Machine
    structures: tuple[Structure, ...]
    gpus: tuple[Gpu, ...]
    users: Users
    route: Route
    failure: Failure | None = None


@dataclass(frozen=True, slots=True)
class Window:
    """Observations of a span of time, in order.

    readings: (seconds, signals) of the page
    devices: all GPUs at a time, shape (times, GPUs)
    """

    probes: tuple[ProbeResult, ...]
    readings: tuple[tuple[float, EngineSignals], ...]
    devices: tuple[tuple[GpuReading, ...], ...]
