"""The result of one experiment: tool, target, load, stages and requests. None always means unknown.

`stage.stage_of` makes stages and rows from probes; `result_file.to_json` and `from_json` write and read a result's file.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self
from urllib.parse import urlsplit

from prober.measure.objective import Slo
from prober.measure.outcome import ANSWERED
from prober.results.adapters import AdapterUse
from prober.results.capacity import Capacity, words
from prober.results.disturbance import Contrast, Disturbance
from prober.results.facts import Context
from prober.results.refused_requests import RefusedRequests
from prober.results.shedding import Shedding, SheddingOnset
from prober.results.stage_parts import PromptTokens, Reasoning, Retries, Series, ToolCalls
from prober.statistics.quantiles import Quantile
from prober.workload.sessions import OWN_ANSWERS
from prober.workload.workloads import Mix, Workload

Kind = Literal["sweep", "grid", "compare", "gate", "run"]
OURS = "llm-slo-prober "  # `Result.tool` of the prober's own results starts with this
CONTENT_AT_ONCE = (
    "All content of each answer arrived at once: TPOT and ITL are not measurable here, "
    "and TTFT is the time of the whole answer"
)
LATENCIES = ("ttft", "tpot", "itl", "e2e")
OPEN_LOOP = ("poisson", "constant", "gamma", "trace")


@dataclass(frozen=True, slots=True)
class RequestRow:
    """A request of a stage.

    start_s: departure without the target's delay, in seconds since the start of the result; due time if it was not sent
    outcome: a value of `Outcome`
    error: the reason, "" if ok
    itls_s: shape (chunks − 1,)
    prompt_tokens, output_tokens: numbers of tokens in the server's usage
    warm_up, cached: answered, but not counted in latencies
    cut_s: seconds from `start_s` until the request was cut in flight; None: not cut
    """

    start_s: float | None
    outcome: str = "ok"
    error: str = ""
    ttft_s: float | None = None
    itls_s: tuple[float, ...] = ()
    tpot_s: float | None = None
    e2e_s: float | None = None
    send_lag_s: float | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    warm_up: bool = False
    cached: bool = False
    cut_s: float | None = None

    @property
    def is_answered(self) -> bool:
        """True if the request has a proper answer."""
        return self.outcome in ANSWERED

    @property
    def is_timed(self) -> bool:
        """True if the request is answered and its latencies count."""
        return self.is_answered and not self.warm_up and not self.cached

    def latency(self, name: str) -> float | None:
        """The "ttft", "tpot" or "e2e" of the request in seconds; None if unknown or not counted."""
        value: float | None = getattr(self, f"{name}_s") if self.is_timed else None
        return value


@dataclass(frozen=True, slots=True)
class Load:
    """The requests that were sent.

    prompt_tokens, output_tokens: distribution of the lengths as text, such as `fixed 500` or `uniform 1 to 9`; parts of a mix are
    separated by `; `. The text must not change, because a baseline is only compared with requests of the same text
    varied: prompts within a stage (in a result: within any stage) differ in length
    arrivals: one of OPEN_LOOP, perhaps with parameters in brackets, or "closed" if requests wait for answers to others
    max_in_flight: cap on requests in flight
    sampling: additional fields of the requests, such as the temperature
    dataset: "generated" or the name of a data set
    """

    workload: str | None = None
    prompt_tokens: str | None = None
    output_tokens: str | None = None
    varied: bool | None = None
    arrivals: str | None = None
    max_in_flight: int | None = None
    seed: int | None = None
    sampling: Mapping[str, Any] | None = None
    dataset: str | None = None

    @classmethod
    def of(cls, workload: Workload | Mix, *, arrivals: str, max_in_flight: int | None = None) -> Self:
        """The load of one workload."""
        parts = [part for part, _ in workload.parts]
        lengths = {part.prompt_lengths for _, part, _ in workload.shares()}
        return cls(
            workload=workload.name,
            prompt_tokens="; ".join(part.prompt_text for part in parts),
            output_tokens="; ".join(part.output_text for part in parts),
            varied=len(lengths) > 1 or any(len(of_part) > 1 for of_part in lengths),
            arrivals=arrivals,
            max_in_flight=max_in_flight,
            sampling=dict(parts[0].sampling),
            dataset=parts[0].dataset,
        )

    @property
    def is_open_loop(self) -> bool:
        """True if requests are known to be sent independently of earlier ones."""
        return (self.arrivals or "").partition(" (")[0] in OPEN_LOOP

    @property
    def has_own_answers(self) -> bool:
        """True if prompts contain the server's own answers to earlier turns, so that no two runs send the same prompts."""
        return OWN_ANSWERS in (self.prompt_tokens or "")


@dataclass(frozen=True, slots=True)
class Delivered:
    """Answers and tokens received while a stage was sending, from all requests of the sweep; see `results.delivery`.

    answers: proper answers that ended in the span
    prompt_tokens: of prompts whose first token came in the span; output_tokens: by arrival of the chunks; None if any is unknown
    """

    span_s: float
    answers: int
    prompt_tokens: int | None
    output_tokens: int | None

    @property
    def prompt_tokens_per_s(self) -> float | None:
        """Prompt tokens per second of the span."""
        return self.prompt_tokens / self.span_s if self.prompt_tokens is not None and self.span_s else None

    @property
    def output_tokens_per_s(self) -> float | None:
        """Output tokens per second of the span."""
        return self.output_tokens / self.span_s if self.output_tokens is not None and self.span_s else None


@dataclass(frozen=True, slots=True)
class Throughput:
    """Throughput of the target at the rate of a stage; None if the stage is too short. See `results.delivery`.

    requests_per_s: properly answered requests
    good_per_s: answered requests that are good by every SLO
    """

    requests_per_s: float | None = None
    good_per_s: float | None = None
    prompt_tokens_per_s: float | None = None
    output_tokens_per_s: float | None = None


@dataclass(frozen=True, slots=True)
class Stage:
    """A part of an experiment with one request rate, and its figures.

    rate_per_s: intended rate of the prober's requests
    users: number of concurrent users, who pause between an answer and the next request; None: no such loop
    begin_s: seconds since the start of the result
    sending_s: duration of sending; duration_s: from the begin to the end of the last answer
    sent, answered: numbers of requests, and of properly answered ones
    outcomes: number of requests by outcome; empty for another tool that counts only answers, which are then `sent`
    latencies: quantiles in seconds by name in LATENCIES; a latency without samples is absent, and 1.0 is the maximum
    prompt_tokens, output_tokens: totals of the answered requests
    demand_per_s: background load, in requests of the same length
    gpus: number of GPUs of the target
    use: figures of engine and GPUs by name (`stage.USES`), other load included; empty for another tool
    slos: (events, bad events) by SLO
    good: answered requests that are good by every SLO
    ended: why the stage ended, as a name
    load: load of this stage if stages differ; None: the result's
    throughput: None for another tool; see `at_rate`
    delivered: received while the stage was sending; None: not counted
    at_least: lower bounds of quantiles that are unknown because requests were cut in flight, by latency
    reasoning: figures of answers that began with reasoning; None without such answers
    tool_calls: figures of answers to requests with tools; None without such requests
    retries: retries of a gateway; None if no response tells of any
    series: figures by kind of request (turns, warm and cold, workloads of a mix); empty if there is a single kind
    disturbance: effect of another load sent during a part of the stage; None without one
    adapters: latency of first uses of adapters compared with loaded ones; None for fewer than two adapters
    contrast: the stage compared with an earlier one; None: not configured
    quality: numbers of (checked answers, wrong answers); None without checks
    prompt_lengths: prompt tokens as requested and as counted by the server; None if no prompt was composed to a length
    refused: refused requests; none for another tool
    shedding: requests that the target shed; None without any
    reported: figures of another tool in seconds, by latency and name: "mean", "std", "p99", …
    requests: one row per request; empty if only the figures were stored
    """

    name: str
    rate_per_s: float | None
    begin_s: float | None
    sending_s: float | None
    duration_s: float | None
    sent: int
    answered: int
    outcomes: Mapping[str, int] = field(default_factory=dict)
    latencies: Mapping[str, tuple[Quantile, ...]] = field(default_factory=dict)
    prompt_tokens: float | None = None
    output_tokens: float | None = None
    demand_per_s: float | None = None
    gpus: int | None = None
    use: Mapping[str, float | None] = field(default_factory=dict)
    slos: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    good: int | None = None
    ended: str = ""
    load: Load | None = None
    throughput: Throughput | None = None
    prompt_lengths: PromptTokens | None = None
    quality: tuple[int, int] | None = None
    reasoning: Reasoning | None = None
    tool_calls: ToolCalls | None = None
    retries: Retries | None = None
    disturbance: Disturbance | None = None
    adapters: AdapterUse | None = None
    contrast: Contrast | None = None
    series: tuple[Series, ...] = ()
    delivered: Delivered | None = None
    refused: RefusedRequests = RefusedRequests()
    shedding: Shedding | None = None
    at_least: Mapping[str, tuple[Quantile, ...]] = field(default_factory=dict)
    reported: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    users: int | None = None
    requests: tuple[RequestRow, ...] = ()

    def quantile(self, latency: str, q: float) -> Quantile | None:
        """The quantile `q` of "ttft", "tpot", "itl" or "e2e"."""
        return next((quantile for quantile in self.latencies.get(latency, ()) if quantile.q == q), None)

    def tail_ratio(self, latency: str) -> float | None:
        """p99 ÷ p50 of a latency; None if either is unknown."""
        p50, p99 = self.quantile(latency, 0.5), self.quantile(latency, 0.99)
        return p99.estimate / p50.estimate if p50 and p99 and p50.estimate > 0 else None

    @property
    def unanswered(self) -> int | None:
        """Number of requests without a proper answer; None if they are not counted."""
        return self.sent - self.answered if self.outcomes or not self.sent else None

    @property
    def at_rate(self) -> Throughput:
        """Throughput at the rate of the stage, for all GPUs; of another tool its requests and tokens over its duration."""
        if self.throughput is not None or not self.duration_s:
            return self.throughput or Throughput()
        amounts = (self.answered, self.good, self.prompt_tokens, self.output_tokens)
        return Throughput(*(None if amount is None else amount / self.duration_s for amount in amounts))

    @property
    def prompt_tokens_per_request(self) -> float | None:
        """Mean prompt tokens of the answered requests."""
        return self.prompt_tokens / self.answered if self.prompt_tokens is not None and self.answered else None

    @property
    def output_tokens_per_request(self) -> float | None:
        """Mean output tokens of the answered requests."""
        return self.output_tokens / self.answered if self.output_tokens is not None and self.answered else None

    @property
    def output_tokens_per_s_per_gpu(self) -> float | None:
        """Output tokens per second of the stage, divided by the number of GPUs; None if either is unknown."""
        per_s = self.at_rate.output_tokens_per_s
        return per_s / self.gpus if per_s is not None and self.gpus else None

    @property
    def prompt_tokens_per_s_per_gpu(self) -> float | None:
        """Prompt tokens per second of the stage, divided by the number of GPUs; None if either is unknown."""
        per_s = self.at_rate.prompt_tokens_per_s
        return per_s / self.gpus if per_s is not None and self.gpus else None


def result_url(url: str) -> str:
    """The URL of a target as stored in results: without credentials and query."""
    parts = urlsplit(url)
    host = f"{parts.hostname}:{parts.port}" if parts.port else parts.hostname
    return f"{parts.scheme}://{host}{parts.path}"


@dataclass(frozen=True, slots=True)
class MeasuredTarget:
    """The measured target. url: without user, password and query; flags: settings of the engine, by the engine's own names"""

    url: str | None = None
    model: str | None = None
    engine: str | None = None
    engine_version: str | None = None
    api: str | None = None
    flags: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class WarmUp:
    """The warm-up before the measurement; in a matrix, the least proved one before any row.

    is_steady: the latencies were proved steady (`steadiness.SteadinessTest`); None: too few answers to test, or another tool
    changes: bounds of each latency's relative change between the last two thirds of the answers
    """

    requests: int
    seconds: float | None = None
    is_steady: bool | None = None
    changes: Mapping[str, tuple[float, float]] = field(default_factory=dict)

    def __str__(self) -> str:
        seconds = f" in {self.seconds:.3g} s" if self.seconds is not None else ""
        steady = {None: "", True: "steady after ", False: "not shown to be steady after "}[self.is_steady]
        return f"{steady}{self.requests:,} request{'' if self.requests == 1 else 's'}{seconds}"

    @property
    def changes_text(self) -> str:
        """The bounds of the change of each latency, such as `TTFT -6% to +4%`."""
        return ", ".join(f"{name} {low:+.0%} to {high:+.0%}" for name, (low, high) in self.changes.items())


@dataclass(frozen=True, slots=True)
class Disagreement:
    """A fact on which sources contradict each other. values: (value, source); the result uses the first"""

    name: str
    values: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class DecodeLimit:
    """Upper bound of the decode speed of one stream, from the memory bandwidth of the GPUs that share the weights.

    bytes_per_token: weights read per token; the KV cache, which lowers the bound, is not counted
    bandwidth_bytes_per_s: memory bandwidth of one GPU
    """

    gpu: str
    gpus: int
    bandwidth_bytes_per_s: float
    bytes_per_token: float

    @property
    def tokens_per_s(self) -> float:
        """Upper bound of the tokens per second of one stream."""
        return self.gpus * self.bandwidth_bytes_per_s / self.bytes_per_token


@dataclass(frozen=True, slots=True)
class Prices:
    """Prices in dollars. gpu_per_hour: of one GPU"""

    gpu_per_hour: float | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """Decision on the measured target, stored with the result.

    accepted: False: the target is rejected; why: reason as text; rollback_risk: what going back needs and risks, written by a person
    """

    accepted: bool
    why: str
    rollback_risk: str | None = None


@dataclass(frozen=True, slots=True)
class Result:
    """The result of one experiment.

    tool: name and version of the program that measured
    configuration: configuration of the experiment, as text
    size: size of the engine by its metrics page (`EngineSignals.size`); empty if unknown
    capacities: one for each SLO, for a sweep only
    stop, stop_detail: name of the reason why the experiment ended, and its detail
    refused: refused requests of a sweep or gate; a gate's include those of the warm-up
    shedding: where a sweep's target began to shed; None if it shed none, and for other experiments
    context_sources: source of each fact of the context, by name of the fact
    disagreements: facts of the context on which sources contradict each other
    decode_limit: None if the model, the GPU or its number is unknown
    interference: sentences on other load on the target; None if it was not observed
    retry_after_s: pause that the target requested at the end of the experiment; 0 for none
    differs: differences in meaning between the tool's figures and the prober's
    """

    id: str
    kind: Kind
    started_unix_s: float
    ended_unix_s: float
    tool: str
    target: MeasuredTarget
    load: Load
    stages: tuple[Stage, ...]
    configuration: str | None = None
    size: Mapping[str, float] = field(default_factory=dict)
    slos: tuple[Slo, ...] = ()
    warm_up: WarmUp | None = None
    capacities: tuple[Capacity, ...] = ()
    stop: str | None = None
    stop_detail: str = ""
    refused: RefusedRequests = RefusedRequests()
    shedding: SheddingOnset | None = None
    prices: Prices = Prices()
    context: Context = Context()
    context_sources: Mapping[str, str] = field(default_factory=dict)
    disagreements: tuple[Disagreement, ...] = ()
    decode_limit: DecodeLimit | None = None
    interference: tuple[str, ...] | None = None
    retry_after_s: float = 0.0
    decision: Decision | None = None
    differs: tuple[str, ...] = ()

    @property
    def requests(self) -> list[RequestRow]:
        """The requests of all stages together."""
        return [row for stage in self.stages for row in stage.requests]

    def without_requests(self) -> Self:
        """The result without its requests, which are most of its size; the stages keep their quantiles."""
        return replace(self, stages=tuple(replace(stage, requests=()) for stage in self.stages))

    @property
    def why_no_requests(self) -> str:
        """Phrase for a result without requests that says how to store them."""
        of_daemon = ", as the daemon keeps a sweep; the file of `prober sweep --output` has them"
        why = of_daemon if self.tool.startswith(OURS) else f"; `{self.tool} --save-result --save-detailed` writes them"
        return f"holds the figures of its stages and none of its requests{why}"

    def capacity_words(self) -> str:
        """The capacities, the refused requests and the start of shedding, as a sentence."""
        judged, refused = words(self.capacities), str(self.refused)
        if self.refused.is_too_many or self.stop == "rate_limited":
            judged, refused = f"not judged: {refused or 'a rate limit is no capacity'}", ""
        return "; ".join(filter(None, (judged, refused, str(self.shedding or ""))))

    @property
    def content_came_at_once(self) -> bool:
        """True if answers of two tokens or more had a TTFT but no ITL.

        Only for the prober's own results, as other tools may store no ITL.
        """
        timed = [stage for stage in self.stages if "ttft" in stage.latencies]
        has_gaps = any("itl" in stage.latencies for stage in timed)
        has_tokens = any((stage.output_tokens_per_request or 0) >= 2 for stage in timed)
        return self.tool.startswith(OURS) and has_tokens and not has_gaps
