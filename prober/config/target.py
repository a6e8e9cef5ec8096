"""Targets: their addresses, the probes sent to them, and budgets."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from random import Random
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    Discriminator,
    Field,
    Tag,
    ValidationInfo,
    field_validator,
    model_validator,
)

from prober.config.fields import (
    Auto,
    Block,
    Document,
    Duration,
    Items,
    Mistakes,
    NamedSlo,
    NamedWorkload,
    NotNegative,
    OptionalDuration,
    Positive,
    PositiveCount,
    Rate,
    mistake,
    present,
)
from prober.config.labels import UserLabels
from prober.config.problems import no_such
from prober.config.server import Auth, Headers, TlsSpec, api_of, base_url, http_url
from prober.config.serving import FACTS, ContextSpec, DecodeBoundSpec, GpusSpec, MetricsSpec
from prober.config.sweep import SweepSpec
from prober.config.workloads import THINK_TIME_REFUSED
from prober.measure.engines import DIALECTS
from prober.measure.objective import SIGNALS_WITHOUT_STREAM, JudgedStream, Slo
from prober.workload.budget import BudgetDemand
from prober.workload.built_in import BUILT_IN
from prober.workload.workloads import Mix, TraceWorkload, Workload, sample_lengths

DEFAULT_SIGNALS = ("ttft", "ttft_answer", "tpot", "itl", "e2e")  # judged by sweeps without `slos`
DAY_S = 86400
# By which a client of vLLM chooses a rank (`entrypoints/generate/base/serving.py` of 0.32); other engines ignore it.
RANK_HEADER = "X-data-parallel-rank"
DRAWS = 300  # from a workload, to estimate the variance of its lengths


class GammaShape(Block):
    shape: Positive = Field(description="below 1 bursty, 1 is Poisson, above 1 regular")


class Gamma(Block):
    gamma: GammaShape = Field(description="gamma-distributed gaps")


def _arrivals(value: object) -> str:
    return "Gamma" if isinstance(value, dict | Gamma) else "Process"


Arrivals = Annotated[
    Annotated[Literal["poisson", "constant", "trace"], Tag("Process")] | Annotated[Gamma, Tag("Gamma")],
    Discriminator(_arrivals),
]


class Timeouts(Block):
    """Timeouts of a request, in seconds.

    All except `connect` count from the due time, and only content of the answer satisfies them: headers and comments do not.
    """

    connect: Duration = Field(10.0, description="DNS, TCP and TLS of one connection together")
    first_token: Duration = Field(30.0, description="until the first content")
    stall: Duration = Field(10.0, description="between two chunks of content")
    total: Duration = Field(120.0, description="until the end of the answer")


class HealthSpec(Block):
    """Rules by which `/health/TARGET` decides whether a target is healthy."""

    failures: PositiveCount = Field(3, description="failed probes among the last `of` that make a target unhealthy")
    of: PositiveCount = Field(5, description="probes among which failures are counted, at least `failures`")
    successes: PositiveCount = Field(3, description="answered probes in a row that make it healthy again")
    slos: Items[NamedSlo] = Field(
        (),
        description="names from `slos`; a burn rate above 14.4 in the last 20 probes makes it unhealthy too; absent: none",
    )
    fail_open: bool = Field(True, description="answer 200 while its health is unknown; false: 503")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.failures > self.of:
            raise mistake(f"is {self.of}, fewer than the {self.failures} failures; raise it or lower `failures`", "of")
        return self


class TracingSpec(Block):
    """How a probe is found in the engine's traces. url: page of a trace, with `{trace_id}`; None: pages show only the id"""

    traceparent: Literal["sampled", "unsampled", "none"] = Field(
        "sampled",
        description="the header `traceparent` of probes: sampled asks tracers that follow their caller to record the probe, unsampled "
        "asks them not to, none sends none; one in `headers` is sent instead",
    )
    url: str | None = Field(
        None,
        description="page of a trace, which the status page links, such as https://jaeger.example/trace/{trace_id}",
    )

    @field_validator("url")
    @classmethod
    def _check_url(cls, url: str | None) -> str | None:
        if url is not None and not (url.startswith(("http://", "https://")) and "{trace_id}" in url):
            raise mistake(
                f"{url!r} is no address with a place for the id; write https://jaeger.example/trace/{{trace_id}}"
            )
        return url


class Overridable(Block):
    """Settings that `defaults` sets for all targets and each target can override."""

    rate: Rate = Field(0.2, description="mean rate of probes")
    arrivals: Arrivals = Field(
        "poisson",
        description="process of the due times: poisson, constant, {gamma: {shape: 0.5}}, or trace: the "
        "times of the workload's trace, at its own rate",
    )
    max_in_flight: Annotated[int, Field(ge=1)] = Field(
        16, description="most unfinished probes past their due time; further ones are shed"
    )
    warmup: Annotated[int, Field(ge=0)] = Field(
        3,
        description="successful probes that are left out of latency metrics after a start, a restart or ten idle minutes; after "
        "a start three more calibrate the length of prompts, unless it is 0",
    )
    starting_timeout: OptionalDuration = Field(
        1200.0,
        description="how long a target that refuses connections and has not answered yet is `starting`; after that its "
        "probes are sent and fail; 0: at once",
    )
    connect_lead: OptionalDuration = Field(1.0, description="how long before its due time a probe connects")
    timeouts: Timeouts = Field(default_factory=Timeouts, description="when a probe is aborted")
    tracing: TracingSpec = Field(
        default_factory=TracingSpec, description="traces of probes in the engine and before it"
    )
    health: HealthSpec = Field(default_factory=HealthSpec, description="answers of `/health/TARGET`")
    context: ContextSpec = Field(
        default_factory=ContextSpec,
        description=f"facts about hardware, engine and model for the context of results, as text: {', '.join(FACTS)}",
    )
    labels: UserLabels = Field(
        default_factory=dict,
        description="labels of every series about the target and of its alerts, such as `{team: search, env: prod}`; a target has "
        "those of `defaults` too",
    )
    allow_link_local: bool = Field(False, description="allow link-local addresses and those of cloud metadata services")


class PriceSpec(Block):
    prompt: NotNegative = Field(description="of the prompt")
    completion: NotNegative = Field(description="of the answer")


class BudgetSpec(Block):
    """Daily budget of a target's probes and sweeps; None: no limit."""

    tokens_per_day: PositiveCount | None = Field(None, description="prompt and output tokens")
    cost_per_day: Positive | None = Field(None, description="dollars")
    price_per_million: PriceSpec | None = Field(None, validate_default=True, description="dollars per million tokens")

    @field_validator("price_per_million")
    @classmethod
    def _check_price(cls, price: PriceSpec | None, info: ValidationInfo) -> PriceSpec | None:
        if price is None and info.data.get("cost_per_day") is not None:
            raise mistake("needed with cost_per_day: {prompt: 0.60, completion: 0.60}")
        return price

    def dollars(self, prompt_tokens: float, completion_tokens: float) -> float:
        """Dollars for these tokens; 0 without configured prices."""
        price = self.price_per_million
        return (prompt_tokens * price.prompt + completion_tokens * price.completion) / 1e6 if price else 0.0


class ProbeSpec(Block):
    """A stream of probes. rate: with arrivals `trace`, the trace's rate at the workload's speed"""

    workload: NamedWorkload = Field(
        default_factory=lambda: BUILT_IN["probe"],
        description="name of a workload, built in or from `workloads`",
        json_schema_extra={"default": "probe"},
    )
    rate: Rate = Field(default_factory=lambda: 0.2, description="mean rate; absent: that of the target")
    arrivals: Arrivals = Field(
        default_factory=lambda: "poisson", description="process of the due times; absent: that of the target"
    )
    slos: Items[NamedSlo] = Field(
        default_factory=tuple, description="names from `slos`; absent: all of them", validate_default=False
    )

    def judged(self) -> Iterator[tuple[str, Workload, float, tuple[Slo, ...]]]:
        """Yield (series, workload, probes per second, SLOs) per series. `quality` SLOs only judge checked answers."""
        for name, workload, share in self.workload.shares():
            slos = tuple(slo for slo in self.slos if slo.signal != "quality" or workload.checks)
            yield name, workload, self.rate * share, slos

    def for_target(self, target: Mapping[str, Any], known: list[Slo], at: str, mistakes: Mistakes) -> Self:
        """The probe with inherited values. target: valid fields of the target; known: SLOs of the file; at: path of the probe"""
        own = self.model_fields_set
        update = {key: target[key] for key in ("rate", "arrivals") if key not in own and key in target}
        if update.get("arrivals", self.arrivals) == "trace":
            if isinstance(self.workload, TraceWorkload):
                update["rate"] = self.workload.rate_per_s
                if self.workload.trace.seems_in_seconds and self.workload.speed == 1:
                    mistakes.add(
                        f"/workloads.{self.workload.name}.trace",
                        f"its times look like seconds, and would be sent as milliseconds, at {update['rate']:,.0f}/s; write "
                        "milliseconds, or set `speed`: 0.001 if they are seconds, another than 1 if they are not",
                    )
            else:
                name = self.workload.name
                mistakes.add(f"{at}.arrivals", f"workload {name!r} has no trace; give it one, or use poisson")
        if self.workload.think_time is not None:
            mistakes.add(f"{at}.workload", THINK_TIME_REFUSED)
        stream = target.get("stream", True)
        if "slos" not in own:
            update["slos"] = tuple(slo for slo in known if not unjudged(slo, self.workload, stream=stream))
        for slo in update.get("slos", self.slos):
            if "timeouts" in target and (problem := threshold_problem(slo, target["timeouts"])):
                mistakes.add(f"/slos.{slo.name}.threshold", problem)
            if problem := unjudged(slo, self.workload, stream=stream):
                mistakes.add(f"{at}.slos", problem)
        return self.model_copy(update=update)


def unjudged(slo: Slo, workload: Workload | Mix, *, stream: bool) -> str:
    """Why an SLO cannot judge a workload's answers; empty if it can."""
    if slo.signal == "quality" and not workload.checks:
        return (
            f"{slo.name!r} judges quality, but no answer of workload {workload.name!r} is checked; give it `golden` prompts, tools "
            "or a `response_format`, or list other SLOs"
        )
    if not stream and slo.signal not in SIGNALS_WITHOUT_STREAM:
        return f"{slo.name!r} judges {slo.signal}, which `stream: false` cannot see; list other SLOs"
    return ""


def threshold_problem(slo: Slo, timeouts: Timeouts) -> str:
    """Error if a timeout ends a probe before its SLO threshold is exceeded; empty if not."""
    cuts = {"ttft": "first_token", "itl": "stall", "tpot": "stall"}
    key = cuts.get(slo.signal, "total")
    limit_s: float = getattr(timeouts, key)
    if slo.threshold_s is None or slo.threshold_s < limit_s:
        return ""
    return (
        f"{slo.threshold_s:g}s is not below timeouts.{key} of {limit_s:g}s, which would cut it; lower it or raise that"
    )


def _engine(name: str | None, info: ValidationInfo) -> str | None:
    known = info.context.engines if info.context else DIALECTS
    if name is not None and name not in known:
        raise mistake(no_such("engine", name, [*known, "auto"]))
    return name


class Template(Overridable):
    """Settings of configured and discovered targets: all except address and name."""

    model: Auto = Field(None, description="name of the model; auto: from /v1/models")
    api: Literal["chat", "completions", "responses", "messages"] = Field(
        "chat",
        description="API to probe: OpenAI's chat, completions and responses, or Anthropic's messages; absent: that of the URL, if it "
        "ends in the path of one",
    )
    stream: bool = Field(True, description="false: measure E2E only")
    engine: Annotated[Auto, AfterValidator(_engine)] = Field(
        None, description="name of the engine; auto: from /v1/models"
    )
    ranks: Annotated[int, Field(ge=2, le=1024)] | None = Field(
        None,
        description="number of data-parallel ranks of a vLLM server: each is probed as a target of its own, `NAME-rank-0` and so on, "
        "with the label `rank`; absent: the engine chooses a rank for each probe",
    )
    auth: Auth | None = Field(None, description="bearer token, or a key in a header of its own")
    headers: Headers = Field(
        default_factory=dict,
        description="headers of every request; values may contain `${NAME}` of the environment",
        repr=False,
    )
    tls: TlsSpec | None = Field(None, description="settings for https")
    proxy_url: (
        Annotated[str, AfterValidator(lambda text, info: http_url(text, info, "http://host:port", "http"))] | None
    ) = Field(None, description="http:// URL of a forward proxy; may contain `${NAME}` of the environment", repr=False)
    metrics: (
        Annotated[MetricsSpec, AfterValidator(lambda metrics: None if metrics.url == "none" else metrics)] | None
    ) = Field(default_factory=MetricsSpec, description="metrics page of the engine")
    gpus: GpusSpec = Field(default_factory=GpusSpec, description="GPUs that serve the target")
    decode_bound: DecodeBoundSpec | None = Field(
        None, description="data that a decode step reads, to compare TPOT with the limit of memory bandwidth"
    )
    probes: Items[ProbeSpec] = Field(
        default_factory=lambda: (ProbeSpec(),),
        description="streams of probes; absent: one of the workload `probe`",
        validate_default=True,
    )
    budget: BudgetSpec | None = Field(
        None,
        description="limits of probes and sweeps together in any 24 hours; sweeps leave the scheduled probes their share",
    )
    sweep: SweepSpec | None = Field(None, description="short sweeps that measure the capacity")

    @model_validator(mode="before")
    @classmethod
    def _inherit(cls, value: Any, info: ValidationInfo) -> Any:
        if not isinstance(info.context, Document) or not isinstance(value, dict):
            return value
        merged = {**info.context.defaults, **present(value)}
        own, more = merged.get("labels"), info.context.defaults.get("labels")
        return merged | {"labels": {**more, **own}} if isinstance(own, dict) and isinstance(more, dict) else merged

    @field_validator("probes")
    @classmethod
    def _check_probes(cls, probes: tuple[ProbeSpec, ...], info: ValidationInfo) -> tuple[ProbeSpec, ...]:
        if not probes:
            raise mistake("is empty; remove it for the default probe, or remove the target")
        known = list(info.context.slos.values()) if info.context else []
        places: dict[str, int] = {}
        with Mistakes() as mistakes:
            for index, probe in enumerate(probes):
                for name in probe.workload.series:
                    if name in places:
                        mistakes.add(
                            f"[{index}].workload",
                            f"probes[{places[name]}] fills the same series {name!r}; keep one of the two",
                        )
                    places[name] = index
            complete = tuple(
                probe.for_target(info.data, known, f"[{index}]", mistakes) for index, probe in enumerate(probes)
            )
        return complete

    @field_validator("ranks")
    @classmethod
    def _check_ranks(cls, ranks: int | None, info: ValidationInfo) -> int | None:
        if ranks is not None and info.data.get("engine") not in (None, "vllm"):
            raise mistake("only vLLM lets a client choose a rank; remove it")
        return ranks

    @field_validator("headers")
    @classmethod
    def _check_headers(cls, headers: dict[str, str], info: ValidationInfo) -> dict[str, str]:
        for name in headers if info.data.get("ranks") else ():
            if name.lower() == RANK_HEADER.lower():
                raise mistake("`ranks` sends this header for each rank; remove one of them", f".{name}")
        return headers

    @model_validator(mode="after")
    def _check_health(self, info: ValidationInfo) -> Self:
        judging = {slo for probe in self.probes for _, _, _, slos in probe.judged() for slo in slos}
        for index, slo in enumerate(self.health.slos if info.context else ()):
            if slo not in judging:
                raise mistake(
                    f"no probe of the target is judged by {slo.name!r}; list it there", f"health.slos[{index}]"
                )
        return self

    @field_validator("budget")
    @classmethod
    def _check_budget(cls, budget: BudgetSpec, info: ValidationInfo) -> BudgetSpec:
        use = _estimate(info.data.get("probes", ()), budget)
        with Mistakes() as mistakes:
            for key, used, text in (("tokens", use.tokens, "{:,.0f}"), ("cost", use.dollars, "${:.2f}")):
                limit: float | None = getattr(budget, f"{key}_per_day")
                if limit is not None and used is not None and used > limit:
                    few = f"{text.format(limit)} a day, but the schedule needs about {text.format(used)}"
                    mistakes.add(f"{key}_per_day", f"{few}; lower the rate or raise the budget")
        return budget

    @field_validator("sweep")
    @classmethod
    def _check_sweep(cls, sweep: SweepSpec, info: ValidationInfo) -> SweepSpec:
        document: Document | None = info.context
        known, stream = tuple(document.slos.values() if document else sweep.slos), info.data.get("stream", True)
        chosen = tuple(slo for slo in known if slo in sweep.slos)
        if "slos" not in sweep.model_fields_set:
            default = (slo for slo in known if slo.signal in DEFAULT_SIGNALS)
            chosen = tuple(slo for slo in default if not unjudged(slo, sweep.workload, stream=stream))
        with Mistakes() as mistakes:
            if sweep.workload.think_time is not None:
                mistakes.add("workload", THINK_TIME_REFUSED)
            for index, slo in enumerate(sweep.slos):
                if problem := unjudged(slo, sweep.workload, stream=stream):
                    mistakes.add(f"slos[{index}]", problem)
            if not chosen and (document is None or "slos" not in dict(document.broken)):
                least = "{signal: ttft, threshold: 500ms, objective: 99%}"
                mistakes.add("", f"there is no SLO to judge; add one to `slos`, such as {least}")
            has_price = "budget" not in info.data or getattr(info.data["budget"], "price_per_million", None) is not None
            if sweep.limits.cost is not None and not has_price:
                prices = "{price_per_million: {prompt: 0.60, completion: 0.60}}"
                mistakes.add("limits.cost", f"needs prices: budget: {prices}")
        return sweep.model_copy(update={"slos": chosen})


class TargetSpec(Template):
    """A target. url: base URL without trailing slash; name, model, engine: None: detected by the daemon"""

    url: Annotated[str, AfterValidator(base_url)] = Field(
        description="base URL, or that of the API itself, such as http://host/v1/messages; without a path, /v1 is added; "
        "`?api-version=…` is sent with every request"
    )
    name: Annotated[str, Field(min_length=1, max_length=200)] | None = Field(
        None,
        description="label `target`; absent: of a sidecar its workload, see Names; else the configured model, or the host",
    )

    @model_validator(mode="before")
    @classmethod
    def _take_api_of_url(cls, value: Any) -> Any:
        """Set `api` to the API whose path ends the URL."""
        api = api_of(value.get("url")) if isinstance(value, dict) else None
        if api is None:
            return value
        if (named := value.get("api") or api.name) != api.name:
            raise mistake(
                f"is {named}, but the URL ends in /{api.path}, which is {api.name}; remove one of the two", "api"
            )
        return {**value, "api": api.name}

    @property
    def key(self) -> str:
        """Identity of the target across reloads: its name, or its URL if it has no name."""
        return self.name or self.url

    @property
    def rank(self) -> str | None:
        """Data-parallel rank of the engine that every request names; None: the engine chooses."""
        return self.labels.get("rank")

    def per_rank(self) -> tuple[Self, ...]:
        """This target, or one for each of its ranks."""
        if self.ranks is None:
            return (self,)
        return tuple(
            self.model_copy(
                update={
                    "name": f"{self.key}-rank-{rank}",
                    "ranks": None,
                    "headers": {**self.headers, RANK_HEADER: f"{rank}"},
                    "labels": {**self.labels, "rank": f"{rank}"},
                }
            )
            for rank in range(self.ranks)
        )

    @property
    def traffic_slos(self) -> tuple[Slo, ...]:
        """SLOs that judge all requests of the engine."""
        return self.metrics.slos if self.metrics else ()

    def uses(self) -> Iterator[tuple[Slo, JudgedStream]]:
        """Yield (SLO, stream of this target's probes that it judges)."""
        for probe in self.probes:
            for series, workload, rate_per_s, slos in probe.judged():
                _, mean = workload.mean_tokens()
                use = JudgedStream(self.key, series, rate_per_s, mean, workload.max_output_tokens)
                for slo in slos:
                    yield slo, use


@dataclass(frozen=True, slots=True)
class Estimate:
    """Mean daily use: tokens, and dollars; None without configured prices."""

    prompt_tokens: float
    completion_tokens: float
    dollars: float | None

    @property
    def tokens(self) -> float:
        """Prompt and completion tokens together."""
        return self.prompt_tokens + self.completion_tokens


def estimate_per_day(target: TargetSpec) -> Estimate:
    """Mean daily use by one prober of `target`: rate x 86400 x mean lengths, summed over its probes."""
    return _estimate(target.probes, target.budget)


def _estimate(probes: tuple[ProbeSpec, ...], budget: BudgetSpec | None) -> Estimate:
    uses = [(probe.rate * DAY_S, *probe.workload.mean_tokens()) for probe in probes]
    prompt = sum(requests * tokens for requests, tokens, _ in uses)
    completion = sum(requests * tokens for requests, _, tokens in uses)
    has_price = budget is not None and budget.price_per_million is not None
    return Estimate(prompt, completion, budget.dollars(prompt, completion) if budget and has_price else None)


def needs_of(target: TargetSpec) -> dict[str, BudgetDemand]:
    """Demand of the scheduled probes of `target` on the daily budgets "tokens" and "cost"."""
    budget = target.budget or BudgetSpec()
    tokens = _need(target, lambda prompt, output: prompt + output) if budget.tokens_per_day is not None else None
    cost = _need(target, budget.dollars) if budget.cost_per_day is not None else None
    return {kind: need for kind, need in (("tokens", tokens), ("cost", cost)) if need is not None}


def _need(target: TargetSpec, amount: Callable[[float, float], float]) -> BudgetDemand:
    """Mean (rate x mean) and variance (rate x mean square) for Poisson arrivals. amount: returns the cost of (prompt, output) tokens"""
    mean = variance = 0.0
    for probe in target.probes:
        draws = sample_lengths(probe.workload, Random(0), DRAWS)
        mean += probe.rate * amount(*probe.workload.mean_tokens())
        variance += probe.rate * sum(amount(*draw) ** 2 for draw in draws) / len(draws)
    return BudgetDemand(mean, variance)
