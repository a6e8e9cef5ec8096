"""The configuration as the user writes it, one model a block. The descriptions are the reference that docs/ shows."""

from collections.abc import Callable
from decimal import Decimal
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag, WithJsonSchema
from pydantic_core import PydanticCustomError

from prober.config import units
from prober.measure.objective import SIGNALS, Signal


def _read(parse: Callable[[object], Any]) -> BeforeValidator:
    def validate(value: object) -> Any:
        try:
            return parse(value)
        except ValueError as problem:
            raise PydanticCustomError("unit", "{message}", {"message": str(problem)}) from None

    return BeforeValidator(validate)


def _text(pattern: str, *examples: str) -> WithJsonSchema:
    return WithJsonSchema({"type": "string", "pattern": pattern, "examples": list(examples)})


Duration = Annotated[float, _read(units.duration), _text(units.DURATION_PATTERN, "500ms", "10s", "6h")]
OptionalDuration = Annotated[
    float,
    _read(lambda value: 0.0 if value == 0 and not isinstance(value, bool) else units.duration(value)),
    WithJsonSchema(
        {"anyOf": [{"const": 0}, {"type": "string", "pattern": units.DURATION_PATTERN, "examples": ["20m", "1h"]}]}
    ),
]
Rate = Annotated[float, _read(units.rate), _text(units.RATE_PATTERN, "0.2/s", "12/min")]
Percent = Annotated[Decimal, _read(units.percent), _text(units.PERCENT_PATTERN, "99%", "99.9%")]
Reuse = Annotated[float, _read(units.reuse), WithJsonSchema({"type": "string", "examples": ["warm", "cold", "30%"]})]
Count = Annotated[
    int,
    _read(units.count),
    WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 0}, {"type": "string", "pattern": units.COUNT_PATTERN}]}),
]
Tokens = Annotated[Count, Field(ge=1)]


class Block(BaseModel):
    """Frozen, and unknown keys are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class GammaShape(Block):
    shape: Annotated[float, Field(gt=0, strict=False, description="below 1 bursty, 1 is Poisson, above 1 regular")]


class Gamma(Block):
    gamma: GammaShape = Field(description="gamma-distributed gaps")


def _arrivals(value: object) -> str:
    return "Gamma" if isinstance(value, dict | Gamma) else "Process"


Arrivals = Annotated[
    Annotated[Literal["poisson", "constant", "trace"], Tag("Process")] | Annotated[Gamma, Tag("Gamma")],
    Discriminator(_arrivals),
]


class Timeouts(Block):
    """All but `connect` count from the intended time and act on content, not on bytes."""

    connect: Duration = Field(default=10.0, description="DNS, TCP and TLS of one connection together")
    first_token: Duration = Field(default=30.0, description="until the first content")
    stall: Duration = Field(default=10.0, description="between two pieces of content")
    total: Duration = Field(default=120.0, description="until the end of the answer")


class Overridable(Block):
    """What `defaults` sets for all targets and each target may set for itself; absent means inherited."""

    rate: Rate | None = Field(default=None, description="mean rate of probes (0.2/s)")
    arrivals: Arrivals | None = Field(
        default=None,
        description="process of the due times: poisson (the default), constant, {gamma: {shape: 0.5}}, or trace: the "
        "times of the workload's trace, at its own rate",
    )
    max_in_flight: Annotated[int, Field(ge=1)] | None = Field(
        default=None, description="probes past their due time and unfinished; at this cap the next one is shed (16)"
    )
    warmup: Annotated[int, Field(ge=0)] | None = Field(
        default=None, description="successes after start, restart or ten idle minutes that are no one's latency (3)"
    )
    starting_timeout: OptionalDuration | None = Field(
        default=None,
        description="a target that refuses connections and has not answered since the prober began is `starting` for so "
        "long; then its probes are sent and fail; 0 counts them at once (20m)",
    )
    connect_lead: Duration | None = Field(
        default=None, description="how long before its due time a probe's connection is begun (1s)"
    )
    max_send_lag: Duration | None = Field(
        default=None, description="the prober's own lateness above which a probe is invalid (10ms)"
    )
    timeouts: Timeouts | None = Field(default=None, description="when a probe is given up")
    allow_link_local: bool | None = Field(
        default=None, description="also send to link-local addresses and to those of clouds' metadata services (false)"
    )


class Slo(Block):
    signal: Signal = Field(description="what is judged: " + ", ".join(SIGNALS))
    threshold: Duration | None = Field(
        default=None, description="good up to here; a bucket bound; not for `success` and `quality`"
    )
    objective: Percent = Field(description="share of events that must be good, above 0% and below 100%")
    window: Duration = Field(default=30 * 86400.0, description="over which the objective is judged, at least 6d (30d)")


class FixedLength(Block):
    fixed: Tokens


class MinMax(Block):
    min: Tokens
    max: Tokens


class UniformLength(Block):
    uniform: MinMax


class LognormalParameters(Block):
    median: Annotated[float, Field(gt=0, strict=False)]
    sigma: Annotated[float, Field(ge=0, le=10, strict=False)]
    min: Tokens = 1
    max: Tokens


class LognormalLength(Block):
    lognormal: LognormalParameters


class Quantiles(Block):
    quantiles: dict[Annotated[float, Field(ge=0, le=1, strict=False)], Annotated[float, Field(ge=1, strict=False)]]


class EmpiricalLength(Block):
    empirical: Quantiles


_LENGTHS = {"fixed": FixedLength, "uniform": UniformLength, "lognormal": LognormalLength, "empirical": EmpiricalLength}


def _length(value: object) -> str | None:
    if isinstance(value, Block):
        return type(value).__name__
    if not isinstance(value, dict):
        return "Tokens"
    return next((_LENGTHS[key].__name__ for key in _LENGTHS if key in value), None)


# Told apart by their one key, so that a mistake inside one is reported there and not as four failed alternatives.
Length = Annotated[
    Annotated[Tokens, Tag("Tokens")]
    | Annotated[FixedLength, Tag("FixedLength")]
    | Annotated[UniformLength, Tag("UniformLength")]
    | Annotated[LognormalLength, Tag("LognormalLength")]
    | Annotated[EmpiricalLength, Tag("EmpiricalLength")],
    Discriminator(
        _length,
        custom_error_type="unit",
        custom_error_message="not a length; write a number of tokens, or one of fixed, uniform, lognormal, empirical",
    ),
]


class PrefixBlock(Block):
    tokens: Tokens = Field(description="length of the shared beginning")
    reuse: Reuse = Field(description="share of requests that carry it: warm is 100%")


class PromptsFile(Block):
    file: str = Field(description="JSONL of messages, or ShareGPT's JSON")


class TraceFile(Block):
    file: str = Field(description="Mooncake JSONL or Azure CSV")
    speed: Annotated[float, Field(gt=0, strict=False)] = Field(default=1.0, description="2 replays twice as fast")


class Expect(Block):
    text: str | None = Field(default=None, description="the answer is this text, white space at its ends aside")
    regex: str | None = Field(default=None, description="it is found in the answer; Python's syntax")
    json_schema: dict[str, Any] | None = Field(default=None, description="the answer is JSON that it allows")


class GoldenPrompt(Block):
    prompt: Annotated[str, Field(min_length=1)] = Field(description="sent as it is, as the user's message")
    expect: Expect | None = Field(default=None, description="what the right answer is: one of text, regex, json_schema")


class Part(Block):
    workload: str = Field(description="name of one")
    weight: Annotated[float, Field(gt=0, strict=False)] = Field(
        default=1.0, description="its share, beside the others' (1)"
    )


class WorkloadBlock(Block):
    prompt_tokens: Length | None = Field(
        default=None,
        description="a number, {uniform: {min, max}}, {lognormal: {median, sigma, min, max}} or "
        "{empirical: {quantiles: {0: 10, 0.5: 100, 1: 2000}}}",
    )
    output_tokens: Length | None = Field(default=None, description="the same; forced where the engine can be forced")
    prefix: PrefixBlock | None = Field(default=None, description="a shared beginning that the prefix cache may hold")
    sampling: dict[str, Any] | None = Field(default=None, description="request fields ({temperature: 0}); never `seed`")
    prompts: PromptsFile | None = Field(default=None, description="texts from a file instead of made ones")
    trace: TraceFile | None = Field(default=None, description="lengths, prefixes and times from a recorded trace")
    golden: list[GoldenPrompt] | None = Field(
        default=None,
        description="prompts with known answers instead of made ones, for the signal `quality`; output_tokens bounds the "
        "answer (64) and is not forced",
    )
    mix: list[Part] | None = Field(default=None, description="several workloads by weight, each with its own series")


class Auth(Block):
    bearer_token_file: str = Field(description="read again whenever it changes")


class Tls(Block):
    ca_file: str | None = Field(default=None, description="certificate authorities to trust instead of the system's")
    insecure_skip_verify: bool = Field(default=False, description="accept any certificate (for a test only)")
    cert_file: str | None = Field(
        default=None, description="the prober's own certificate, PEM with its chain; read again when it changes"
    )
    key_file: str | None = Field(default=None, description="its key, not encrypted")
    server_name: str | None = Field(
        default=None, description="name that the server's certificate must have, where it is not that of the url"
    )


class Price(Block):
    prompt: Annotated[float, Field(ge=0, strict=False)] = Field(description="of the prompt")
    completion: Annotated[float, Field(ge=0, strict=False)] = Field(description="of the answer")


class Budget(Block):
    tokens_per_day: Annotated[Count, Field(ge=1)] | None = Field(default=None, description="prompt and output together")
    cost_per_day: Annotated[float, Field(gt=0, strict=False)] | None = Field(default=None, description="dollars")
    price_per_million: Price | None = Field(default=None, description="dollars per million tokens")


class Probe(Block):
    workload: str = Field(default="probe", description="name of a workload, built in or from `workloads`")
    rate: Rate | None = Field(default=None, description="mean rate, else the target's")
    arrivals: Arrivals | None = Field(default=None, description="due times, else the target's")
    slos: list[str] | None = Field(default=None, description="names from `slos`; all of them if absent")


class Metrics(Block):
    url: str = Field(
        default="auto",
        description="auto: where the engine has it on this server; none: never read; else its address, where `${NAME}` is the "
        "environment's",
    )
    interval: Duration = Field(default=5.0, description="how often, from 500ms up")


class Gpus(Block):
    indices: Literal["all", "none"] | list[int | str] | None = Field(
        default=None,
        description="all that are visible, none, or a list of indices and UUIDs; absent: all if it is the only target, "
        "else none",
    )
    price_per_hour: Annotated[float, Field(ge=0, strict=False)] | None = Field(
        default=None, description="dollars for an hour of one of them, for the cost of 1,000 tokens"
    )


class DecodeBound(Block):
    config_file: str | None = Field(default=None, description="the model's config.json, as Hugging Face has it")
    active_parameters: Annotated[float, Field(gt=0, strict=False)] | None = Field(
        default=None, description="weights read for one token, else from config_file"
    )
    bytes_per_weight: Annotated[float, Field(gt=0, strict=False)] | None = Field(
        default=None, description="2 for 16 bit, 1 for 8 bit; needed for a quantised model"
    )
    kv_bytes_per_token: Annotated[float, Field(ge=0, strict=False)] | None = Field(
        default=None, description="of one token of context in all layers, else from config_file"
    )
    gpu: str | None = Field(default=None, description="NVML's name of the GPU; absent: as the GPU reader sees it")
    memory_bandwidth: Annotated[float, Field(gt=0, strict=False)] | None = Field(
        default=None, description="of one GPU in bytes/s, else from a table of data sheets"
    )
    gpus: Annotated[Count, Field(ge=1)] | None = Field(
        default=None, description="that share the weights (tensor parallel); absent: as many as are seen, else 1"
    )


class SweepGuard(Block):
    waiting: Annotated[float, Field(ge=0, strict=False)] | None = Field(
        default=None, description="requests in the engine's queue; absent: a wait of 1.4 TTFT thresholds, gentle 0.35"
    )
    kv_cache: Percent = Field(default=Decimal("0.98"), description="usage of the KV cache (98%)")
    production_ttft: Duration | None = Field(
        default=None, description="a TTFT that more than a tenth of the others' requests must not pass"
    )
    burn: Annotated[float, Field(gt=0, strict=False)] = Field(
        default=14.4, description="of the continuous probes: burn rate over the last 20 of them"
    )


class SweepLimits(Block):
    requests: Annotated[Count, Field(ge=1)] | None = Field(default=None, description="of one sweep")
    tokens: Annotated[Count, Field(ge=1)] | None = Field(default=None, description="prompt and output together")
    time: Duration = Field(default=600.0, description="how long one may send (10m)")
    cost: Annotated[float, Field(gt=0, strict=False)] | None = Field(
        default=None, description="dollars, by `budget.price_per_million`"
    )


class Sweep(Block):
    schedule: str | None = Field(default=None, description="cron, five fields; absent: on demand only")
    timezone: str = Field(default="UTC", description="of schedule and blackout")
    mode: Literal["gentle", "adaptive", "grid"] = Field(
        default="gentle",
        description="gentle ends before the SLO is breached, adaptive at the knee, grid walks fixed steps",
    )
    workload: str = Field(default="chat", description="what is sent")
    slos: list[str] | None = Field(default=None, description="what is asked; absent: all on TTFT, TPOT, ITL and E2E")
    min_rate: Rate = Field(default=1.0, description="where it begins")
    max_rate: Rate = Field(default=50.0, description="where it ends at the latest")
    max_in_flight: Annotated[Count, Field(ge=1)] = Field(
        default=2000, description="at once; reached, the target is saturated"
    )
    min_gap: Duration = Field(
        default=21_600.0,
        description="from the start of one sweep to the next (6h); with `--storage.path` or a lease it outlives restarts and kills",
    )
    blackout: list[str] = Field(default_factory=list, description="when none may run, such as [Mon-Fri 08:00-20:00]")
    after_change: bool = Field(
        default=True, description="another one after a change of engine, version, model or flags"
    )
    demand_query: Annotated[str, Field(min_length=1)] | None = Field(
        default=None,
        description="PromQL for the requests per second of its users, such as 'sum(rate(gateway_requests_total[5m]))', asked of "
        "`prometheus.url`: the demand that headroom is told of, and the load that a sweep found there if the engine's page "
        "does not count requests. Ranges of 5m at most, as it may count what sweeps send; absent: the engine's counters",
    )
    guard: SweepGuard = Field(default_factory=SweepGuard, description="what ends a sweep at once")
    limits: SweepLimits = Field(
        default_factory=SweepLimits, description="what one may use, beside what the target's `budget` leaves its probes"
    )


class Template(Overridable):
    """What targets have in common with those that are found: all but where they are, and what they are called."""

    model: str = Field(default="auto", description="auto asks /v1/models")
    api: Literal["chat", "completions"] = Field(default="chat", description="which endpoint is probed")
    stream: bool = Field(default=True, description="false measures E2E only")
    engine: str = Field(default="auto", description="auto asks /v1/models; else a dialect's name")
    auth: Auth | None = Field(default=None, description="how the prober shows who it is")
    headers: dict[str, str] = Field(
        default_factory=dict, description="sent with every request; `${NAME}` in a value is the environment's"
    )
    tls: Tls | None = Field(default=None, description="for https")
    proxy_url: str | None = Field(
        default=None, description="http:// address of a forward proxy; `${NAME}` in it is the environment's"
    )
    metrics: Metrics = Field(default_factory=Metrics, description="the engine's own page")
    gpus: Gpus = Field(default_factory=Gpus, description="GPUs of this machine that serve it")
    decode_bound: DecodeBound | None = Field(
        default=None, description="what a decode step reads, to compare with what the memory allows"
    )
    probes: list[Probe] | None = Field(default=None, description="what is sent; one of workload `probe` if absent")
    sweep: Sweep | None = Field(default=None, description="short sweeps that find out how much it can carry")
    budget: Budget | None = Field(
        default=None,
        description="what probes and sweeps together may cost in any 24 hours; a sweep leaves the scheduled probes what they need",
    )


class Target(Template):
    url: str = Field(description="base address; without a path, /v1 is meant")
    name: Annotated[str, Field(min_length=1, max_length=200)] | None = Field(
        default=None,
        description="label `target`; else POD_NAMESPACE/POD_WORKLOAD, the model, the host, or the model found out",
    )


class Relabel(Block):
    source_labels: list[str] = Field(default_factory=list, description="whose values are put together and looked at")
    separator: str = Field(default=";", description="stands between them (;)")
    regex: str = Field(default="(.*)", description="RE2, and has to fit the whole text ((.*))")
    target_label: str | None = Field(default=None, description="which label is set")
    replacement: str = Field(default="$1", description="to what: $1 and ${name} are groups of the regex ($1)")
    action: Literal["replace", "keep", "drop"] = Field(
        default="replace", description="keep: only what fits is a target; drop: what fits is none"
    )


class FileDiscovery(Block):
    files: Annotated[list[str], Field(min_length=1)] = Field(
        description="lists of targets in Prometheus's file_sd format, .json, .yml or .yaml; * and ? may stand in the names"
    )
    interval: Duration = Field(default=5.0, description="how often they are looked at (5s)")


class HttpDiscovery(Block):
    url: str = Field(
        description="address of a list of targets in Prometheus's http_sd format; `${NAME}` in it is the environment's"
    )
    interval: Duration = Field(default=60.0, description="how often it is asked for (1m)")
    auth: Auth | None = Field(default=None, description="how the prober shows who it is, to this server only")
    tls: Tls | None = Field(default=None, description="for https")


class DnsDiscovery(Block):
    names: Annotated[list[str], Field(min_length=1)] = Field(description="names whose records are the targets")
    type: Literal["SRV", "A", "AAAA"] = Field(default="SRV", description="SRV has ports, A and AAAA have none")
    port: Annotated[int, Field(ge=1, le=65535)] | None = Field(default=None, description="needed for A and AAAA")
    interval: Duration = Field(default=30.0, description="how often they are asked for (30s)")
    server: str | None = Field(default=None, description="IP:port of who is asked; absent: as /etc/resolv.conf says")


def _port(value: object) -> object:
    if (isinstance(value, int) and 1 <= value <= 65_535 and value is not True) or (isinstance(value, str) and value):
        return value
    raise ValueError(f"{value!r} is no port; write its number, such as 8000, or its name, such as http")


Port = Annotated[
    int | str,
    _read(_port),
    WithJsonSchema(
        {"anyOf": [{"type": "integer", "minimum": 1, "maximum": 65535}, {"type": "string", "minLength": 1}]}
    ),
]


class KubernetesDiscovery(Block):
    role: Literal["pod", "endpointslice"] = Field(default="pod", description="what the targets are")
    namespaces: list[str] = Field(
        default_factory=list, description="where; absent: the namespace of the prober; ['*']: all of them"
    )
    label_selector: str | None = Field(default=None, description="as kubectl's -l, such as app=vllm")
    field_selector: str | None = Field(default=None, description="as kubectl's --field-selector")
    annotations: dict[str, str] = Field(
        default_factory=dict, description="annotations they must have, and their values"
    )
    port: Port | None = Field(default=None, description="number or name; absent: the only one that is declared")
    port_annotation: str | None = Field(default=None, description="annotation of a pod that names its port; goes first")
    unready: bool = Field(default=False, description="also what is not ready")
    api_server: str | None = Field(default=None, description="address; absent: the cluster's that the prober runs in")
    auth: Auth | None = Field(
        default=None, description="with api_server; in a cluster the pod's service account is used"
    )
    ca_file: str | None = Field(default=None, description="with api_server: the certificate authority to trust")


class Discovery(Block):
    name: Annotated[str, Field(pattern=r"^[\w.-]{1,100}$")] | None = Field(
        default=None, description="label `discovery`; absent: its kind, with its place in the list if there are several"
    )
    file: FileDiscovery | None = Field(default=None, description="targets from files")
    http: HttpDiscovery | None = Field(default=None, description="targets from a server's list")
    dns: DnsDiscovery | None = Field(default=None, description="targets from DNS")
    kubernetes: KubernetesDiscovery | None = Field(default=None, description="targets from a cluster")
    relabel: list[Relabel] = Field(
        default_factory=list, description="which are targets and what they are called; the rules apply in turn"
    )
    hosts: list[str] = Field(
        default_factory=list,
        description="where targets may be: names, *.example.org, or networks such as 10.0.0.0/8; needed where `target` has "
        "`auth`, `headers`, or a client certificate. Absent: anywhere but this machine itself",
    )
    limit: Annotated[Count, Field(ge=1)] = Field(default=100, description="most targets it may bring (100)")
    target: Template = Field(default_factory=Template, description="how they are probed")


class Drift(Block):
    false_alarms: Rate = Field(
        default=1 / (30 * 86400.0), description="most false alarms of each signal of each workload (1/30d)"
    )
    material: Percent = Field(default=Decimal("0.2"), description="a change that matters, of latencies (20%)")
    accept_after: Duration = Field(
        default=7 * 86400.0, description="how long a change stays an alarm until it is the new normal (7d)"
    )


class Storage(Block):
    path: str | None = Field(
        default=None, description="folder for what must survive a restart; `--storage.path` goes before it"
    )


class Prometheus(Block):
    url: str = Field(
        description="base address of the Prometheus that scrapes this prober, to begin from its past; `${NAME}` in it is the "
        "environment's"
    )


class Grafana(Block):
    url: str = Field(description="base address, with the path it is served under")
    auth: Auth = Field(description="a service account's token")
    tls: Tls | None = Field(default=None, description="for https")
    folder: Annotated[str, Field(min_length=1, max_length=200)] = Field(
        default="LLM SLO prober", description="title or uid of the dashboards' folder; made if there is none"
    )
    datasource: str | None = Field(
        default=None,
        description="name or uid of the Prometheus that the dashboards begin with; absent: Grafana's choice",
    )
    dashboards: bool = Field(
        default=True,
        description="keep them as this version of the prober has them; those that people edited are left alone",
    )
    annotations: bool = Field(default=True, description="mark sweeps, drift and changes of the engine")
    interval: Duration = Field(default=3600.0, description="how often the dashboards are looked at, from 1m up (1h)")


class Config(Block):
    """The whole file."""

    defaults: Overridable = Field(default_factory=Overridable, description="for all targets")
    slos: dict[str, Slo] = Field(default_factory=dict, description="name to objective")
    workloads: dict[str, WorkloadBlock] = Field(default_factory=dict, description="name to shape of request")
    drift: Drift = Field(default_factory=Drift, description="when a change of latency is told")
    storage: Storage = Field(default_factory=Storage, description="what survives a restart")
    prometheus: Prometheus | None = Field(default=None, description="where the past can be asked for")
    grafana: Grafana | None = Field(default=None, description="where dashboards and marks are kept")
    targets: list[Target] = Field(default_factory=list, description="what is probed; needed without `discovery`")
    discovery: list[Discovery] = Field(default_factory=list, description="where more targets are found")
