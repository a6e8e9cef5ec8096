"""Specifications: the configuration with all defaults filled in, as immutable values that compare with ==.

A reload compares the new specs with the old ones by `key` and leaves alone what is equal.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random
from typing import Literal

from prober.config.relabel import Rule
from prober.measure.bandwidth_bound import DecodeModel
from prober.measure.objective import JudgedStream, Slo
from prober.workload.blackout import WeeklySpan
from prober.workload.budget import BudgetDemand
from prober.workload.workloads import Mix, Workload, sample_lengths

DAY_S = 86400
DRAWS = 300  # of a workload, to estimate the variance of its lengths


@dataclass(frozen=True, slots=True)
class ArrivalsSpec:
    """Arrival process. shape: of the gamma distribution, None for others."""

    kind: Literal["poisson", "constant", "gamma", "trace"]
    shape: float | None = None


@dataclass(frozen=True, slots=True)
class ProbeSpec:
    """One stream of probes. rate_per_s: mean rate; with arrivals `trace` that of the trace at the workload's speed."""

    workload: Workload | Mix
    rate_per_s: float
    arrivals: ArrivalsSpec
    slos: tuple[Slo, ...]

    def judged(self) -> Iterator[tuple[str, Workload, float, tuple[Slo, ...]]]:
        """(series, workload, probes per second, SLOs) of each series; `quality` judges golden prompts only."""
        for name, workload, share in self.workload.shares():
            slos = tuple(slo for slo in self.slos if slo.signal != "quality" or workload.golden)
            yield name, workload, self.rate_per_s * share, slos


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds after which a probe is given up."""

    connect_s: float
    first_token_s: float
    stall_s: float
    total_s: float


@dataclass(frozen=True, slots=True)
class TlsSpec:
    """TLS settings. ca_file: None for the CAs of the system.

    cert_file, key_file: the prober's own; server_name: in the server's certificate; None where not configured
    """

    ca_file: str | None
    insecure_skip_verify: bool
    cert_file: str | None = None
    key_file: str | None = None
    server_name: str | None = None


@dataclass(frozen=True, slots=True)
class MetricsSpec:
    """Metrics page of the engine. url: None to discover it on the target's server; interval_s: between readings."""

    url: str | None
    interval_s: float


@dataclass(frozen=True, slots=True)
class GpusSpec:
    """GPUs of this machine. chosen: indices and UUIDs, or "all"; None if not configured. price_per_hour: dollars per GPU."""

    chosen: tuple[int | str, ...] | None
    price_per_hour: float | None


@dataclass(frozen=True, slots=True)
class DecodeSpec:
    """Data that a decode step reads. bandwidth: of one GPU in bytes/s; gpus: number that share the weights; None: detected."""

    model: DecodeModel
    bandwidth_bytes_per_s: float | None
    gpus: int | None


@dataclass(frozen=True, slots=True)
class SweepSpec:
    """Short sweeps of a target. schedule: cron, None on demand only; rates per second; guard_*: see the configuration.

    demand_query: what the configured Prometheus is asked for the requests per second of its users; None: the engine's counters
    requests, tokens, cost: of one sweep, None without limit; times in seconds.
    """

    schedule: str | None
    timezone: str
    mode: Literal["gentle", "adaptive", "grid"]
    workload: Workload | Mix
    slos: tuple[Slo, ...]
    min_rate: float
    max_rate: float
    max_in_flight: int
    min_gap_s: float
    blackout: tuple[WeeklySpan, ...]
    after_change: bool
    guard_waiting: float | None
    guard_kv_usage: float
    guard_production_ttft_s: float | None
    guard_burn: float
    requests: int | None
    tokens: int | None
    time_s: float
    cost: float | None
    demand_query: str | None = None


@dataclass(frozen=True, slots=True)
class BudgetSpec:
    """Daily budget of a target's probes and sweeps in tokens and dollars; None: no limit. Prices: dollars per million tokens."""

    tokens_per_day: int | None
    cost_per_day: float | None
    prompt_price: float | None
    completion_price: float | None

    def dollars(self, prompt_tokens: float, completion_tokens: float) -> float:
        """Cost of tokens in dollars; 0 without a price."""
        return (prompt_tokens * (self.prompt_price or 0.0) + completion_tokens * (self.completion_price or 0.0)) / 1e6


@dataclass(frozen=True, slots=True)
class TargetSpec:
    """One target. key: name, or URL without a name; name, model, engine: None if the daemon detects them.

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
    metrics: MetricsSpec | None
    gpus: GpusSpec
    decode_bound: DecodeSpec | None
    probes: tuple[ProbeSpec, ...]
    sweep: SweepSpec | None
    budget: BudgetSpec | None
    allow_link_local: bool = False
    starting_timeout_s: float = 1200.0

    def uses(self) -> Iterator[tuple[Slo, JudgedStream]]:
        """Streams of this target's probes by the SLO that judges them."""
        for probe in self.probes:
            for series, workload, rate, slos in probe.judged():
                _, mean = workload.mean_tokens()
                use = JudgedStream(self.name or self.key, series, rate, mean, workload.max_output_tokens)
                for slo in slos:
                    yield slo, use


@dataclass(frozen=True, slots=True)
class DriftSpec:
    """Settings of drift detection. false_alarms_per_s: per signal; material: share of the baseline latency."""

    false_alarms_per_s: float
    material: float
    accept_after_s: float


@dataclass(frozen=True, slots=True)
class GrafanaSpec:
    """Grafana for dashboards and annotations. url: without a trailing slash; folder, datasource: title, name or uid."""

    url: str
    token_file: str
    tls: TlsSpec | None
    folder: str
    datasource: str | None
    dashboards: bool
    annotations: bool
    interval_s: float


@dataclass(frozen=True, slots=True)
class FileSpec:
    """Discovery from files. files: paths and patterns; interval_s: between checks."""

    files: tuple[str, ...]
    interval_s: float


@dataclass(frozen=True, slots=True)
class HttpSpec:
    """Discovery from an HTTP server. interval_s: between requests."""

    url: str
    interval_s: float
    bearer_token_file: str | None
    tls: TlsSpec | None


@dataclass(frozen=True, slots=True)
class DnsSpec:
    """Discovery from DNS. port: for A and AAAA; server: (address, port), None for the system's resolver."""

    names: tuple[str, ...]
    type: Literal["SRV", "A", "AAAA"]
    port: int | None
    interval_s: float
    server: tuple[str, int] | None


@dataclass(frozen=True, slots=True)
class KubernetesSpec:
    """Discovery from Kubernetes. namespaces: empty for the own one, `*` for all; port: number or name; api_server: None in a pod."""

    role: Literal["pod", "endpointslice"]
    namespaces: tuple[str, ...]
    label_selector: str | None
    field_selector: str | None
    annotations: tuple[tuple[str, str], ...]
    port: int | str | None
    port_annotation: str | None
    unready: bool
    api_server: str | None
    bearer_token_file: str | None
    ca_file: str | None


@dataclass(frozen=True, slots=True)
class DiscoverySpec:
    """A discovery and the settings of its targets. name: label `discovery`; hosts: allowed hosts, empty for any.

    template: a target whose key and URL say nothing; limit: most targets.
    """

    name: str
    source: FileSpec | HttpSpec | DnsSpec | KubernetesSpec
    rules: tuple[Rule, ...]
    hosts: tuple[str, ...]
    limit: int
    template: TargetSpec

    @property
    def reads(self) -> frozenset[str]:
        """Labels that the relabelling rules read."""
        return frozenset(name for rule in self.rules for name in rule.source_labels)


@dataclass(frozen=True, slots=True)
class Specs:
    """The complete configuration. storage_path, prometheus_url, grafana: None if not configured.

    warnings: what is right, and not wise, as `source: path: message`
    """

    targets: tuple[TargetSpec, ...]
    drift: DriftSpec
    storage_path: str | None
    prometheus_url: str | None
    grafana: GrafanaSpec | None = None
    discovery: tuple[DiscoverySpec, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def kinds(self) -> tuple[TargetSpec, ...]:
        """Targets, and one template per discovery for the targets that it finds."""
        return (*self.targets, *(each.template for each in self.discovery))

    def uses(self) -> dict[Slo, list[JudgedStream]]:
        """Streams by each SLO that judges any."""
        found: dict[Slo, list[JudgedStream]] = {}
        for target in self.kinds:
            for slo, use in target.uses():
                found.setdefault(slo, []).append(use)
        return found


@dataclass(frozen=True, slots=True)
class Estimate:
    """Mean daily use: tokens, and dollars if prices are known."""

    prompt_tokens: float
    completion_tokens: float
    dollars: float | None

    @property
    def tokens(self) -> float:
        """Prompt and completion tokens."""
        return self.prompt_tokens + self.completion_tokens


def estimate_per_day(target: TargetSpec) -> Estimate:
    """Daily use of one prober on `target`: rate x 86400 x mean lengths, summed over its probes."""
    uses = [(probe.rate_per_s * DAY_S, *probe.workload.mean_tokens()) for probe in target.probes]
    prompt = sum(requests * tokens for requests, tokens, _ in uses)
    completion = sum(requests * tokens for requests, _, tokens in uses)
    budget = target.budget
    if budget is None or budget.prompt_price is None or budget.completion_price is None:
        return Estimate(prompt, completion, None)
    return Estimate(prompt, completion, (prompt * budget.prompt_price + completion * budget.completion_price) / 1e6)


def needs_of(target: TargetSpec) -> dict[str, BudgetDemand]:
    """Use of the daily budgets "tokens" and "cost" by the scheduled probes of `target`."""
    budget, found = target.budget, dict[str, BudgetDemand]()
    if budget is not None and budget.tokens_per_day is not None:
        found["tokens"] = _need(target, lambda prompt, output: prompt + output)
    if budget is not None and budget.cost_per_day is not None:
        found["cost"] = _need(target, budget.dollars)
    return found


def _need(target: TargetSpec, amount: Callable[[float, float], float]) -> BudgetDemand:
    """Mean (rate x mean) and variance (rate x mean square) of Poisson arrivals. amount: maps (prompt, output) tokens."""
    mean = variance = 0.0
    for probe in target.probes:
        draws = sample_lengths(probe.workload, Random(0), DRAWS)
        mean += probe.rate_per_s * amount(*probe.workload.mean_tokens())
        variance += probe.rate_per_s * sum(amount(*draw) ** 2 for draw in draws) / len(draws)
    return BudgetDemand(mean, variance)
