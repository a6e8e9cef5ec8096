"""What each target shall do: the file with every default filled in, as plain values that compare with ==.

A reload compares the new specs with the old ones by `key` and leaves alone what is equal.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Literal, TypeVar

from prober.config import models
from prober.workload.workloads import Mix, Workload

Signal = Literal["ttft", "ttft_answer", "tpot", "itl", "e2e", "success"]
SIGNALS_WITHOUT_STREAM: tuple[Signal, ...] = ("e2e", "success")
DAY_S = 86400
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SloSpec:
    """One objective. threshold_s: seconds, None for `success`; objective: exact ratio of good events; window_s: seconds."""

    name: str
    signal: Signal
    threshold_s: float | None
    objective: Decimal
    window_s: float


@dataclass(frozen=True, slots=True)
class ArrivalsSpec:
    """The arrival process. shape: of the gamma distribution, None for the others."""

    kind: Literal["poisson", "constant", "gamma", "trace"]
    shape: float | None = None


@dataclass(frozen=True, slots=True)
class ProbeSpec:
    """One stream of requests. rate_per_s: mean rate; with arrivals `trace` that of the trace at the workload's speed."""

    workload: Workload | Mix
    rate_per_s: float
    arrivals: ArrivalsSpec
    slos: tuple[SloSpec, ...]


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds after which a probe is given up."""

    connect_s: float
    first_token_s: float
    stall_s: float
    total_s: float


@dataclass(frozen=True, slots=True)
class TlsSpec:
    """How the server proves who it is. ca_file: None for the system's certificates."""

    ca_file: str | None
    insecure_skip_verify: bool


@dataclass(frozen=True, slots=True)
class BudgetSpec:
    """What a target's probes may use a day: tokens, dollars; prices in dollars per million tokens. None: no limit."""

    tokens_per_day: int | None
    cost_per_day: float | None
    prompt_price: float | None
    completion_price: float | None


@dataclass(frozen=True, slots=True)
class TargetSpec:
    """One endpoint. key: name, or URL while it has none; name, model, engine: None where the daemon is to find out.

    url: base URL without a slash at its end. Durations in seconds. Files as written in the configuration.
    """

    key: str
    name: str | None
    url: str
    model: str | None
    api: Literal["chat", "completions"]
    stream: bool
    engine: str | None
    bearer_token_file: str | None
    headers: tuple[tuple[str, str], ...]
    tls: TlsSpec | None
    proxy_url: str | None
    max_in_flight: int
    warmup: int
    connect_lead_s: float
    max_send_lag_s: float
    timeouts: Timeouts
    probes: tuple[ProbeSpec, ...]
    budget: BudgetSpec | None


@dataclass(frozen=True, slots=True)
class Config:
    """A file that was found right. workloads: built-in ones and its own; names: of the targets, in their order."""

    document: models.Document
    workloads: Mapping[str, Workload | Mix]
    names: tuple[str | None, ...]


@dataclass(frozen=True, slots=True)
class Estimate:
    """Mean use of a day: tokens, and dollars where prices are known."""

    prompt_tokens: float
    completion_tokens: float
    dollars: float | None

    @property
    def tokens(self) -> float:
        """Prompt and completion tokens."""
        return self.prompt_tokens + self.completion_tokens


def resolve(config: Config) -> tuple[TargetSpec, ...]:
    """What each target shall do, in the order of the file. References to what the file does not have are left out."""
    targets = zip(config.document.targets, config.names, strict=True)
    return tuple(_target(config, target, name) for target, name in targets)


def estimate_per_day(target: TargetSpec) -> Estimate:
    """What one instance of the prober uses on `target` in a day: rate x 86400 x mean lengths, summed over its probes."""
    uses = [(probe.rate_per_s * DAY_S, *probe.workload.mean_tokens()) for probe in target.probes]
    prompt = sum(requests * tokens for requests, tokens, _ in uses)
    completion = sum(requests * tokens for requests, _, tokens in uses)
    budget = target.budget
    if budget is None or budget.prompt_price is None or budget.completion_price is None:
        return Estimate(prompt, completion, None)
    return Estimate(prompt, completion, (prompt * budget.prompt_price + completion * budget.completion_price) / 1e6)


def timeouts(defaults: models.Timeouts, own: models.TargetTimeouts) -> Timeouts:
    """A target's timeouts: its own where it has them, the defaults where not."""
    return Timeouts(
        _or(own.connect, defaults.connect),
        _or(own.first_token, defaults.first_token),
        _or(own.stall, defaults.stall),
        _or(own.total, defaults.total),
    )


def arrivals(config: Config, target: models.Target, probe: models.Probe) -> ArrivalsSpec:
    """A probe's arrival process: its own, else its target's, else the default."""
    written = _or(probe.arrivals, _or(target.arrivals, config.document.defaults.arrivals))
    if isinstance(written, models.GammaArrivals):
        return ArrivalsSpec("gamma", written.gamma.shape)
    return ArrivalsSpec(written)


def slos(config: Config, target: models.Target, probe: models.Probe) -> tuple[SloSpec, ...]:
    """The objectives a probe counts for: those it names, else all that its target can measure."""
    declared = config.document.slos
    measured = [name for name, slo in declared.items() if target.stream or slo.signal in SIGNALS_WITHOUT_STREAM]
    names = measured if probe.slos is None else [name for name in probe.slos if name in declared]
    return tuple(
        SloSpec(name, slo.signal, slo.threshold, slo.objective, slo.window)
        for name, slo in ((name, declared[name]) for name in names)
    )


def _target(config: Config, target: models.Target, name: str | None) -> TargetSpec:
    defaults, budget, price = config.document.defaults, target.budget, target.budget and target.budget.price_per_million
    return TargetSpec(
        key=name or target.url,
        name=name,
        url=target.url,
        model=None if target.model == "auto" else target.model,
        api=target.api,
        stream=target.stream,
        engine=None if target.engine == "auto" else target.engine,
        bearer_token_file=target.auth and target.auth.bearer_token_file,
        headers=tuple(target.headers.items()),
        tls=target.tls and TlsSpec(target.tls.ca_file, target.tls.insecure_skip_verify),
        proxy_url=target.proxy_url,
        max_in_flight=_or(target.max_in_flight, defaults.max_in_flight),
        warmup=_or(target.warmup, defaults.warmup),
        connect_lead_s=_or(target.connect_lead, defaults.connect_lead),
        max_send_lag_s=_or(target.max_send_lag, defaults.max_send_lag),
        timeouts=timeouts(defaults.timeouts, target.timeouts),
        probes=tuple(_probe(config, target, probe) for probe in target.probes if probe.workload in config.workloads),
        budget=budget
        and BudgetSpec(budget.tokens_per_day, budget.cost_per_day, price and price.prompt, price and price.completion),
    )


def _probe(config: Config, target: models.Target, probe: models.Probe) -> ProbeSpec:
    workload, process = config.workloads[probe.workload], arrivals(config, target, probe)
    rate = _or(probe.rate, _or(target.rate, config.document.defaults.rate))
    if process.kind == "trace" and isinstance(workload, Workload) and workload.trace is not None:
        rate = workload.trace.rate_per_s * workload.speed
    return ProbeSpec(workload, rate, process, slos(config, target, probe))


def _or(own: T | None, default: T) -> T:
    return default if own is None else own
