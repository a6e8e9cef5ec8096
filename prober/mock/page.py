"""The metrics page with the names of vLLM 0.32, counted from the records of the requests."""

from bisect import bisect_left
from dataclasses import dataclass, field

from prober.mock.record import Record
from prober.simulation.engine import State

# The bounds of vLLM 0.32's histograms.
TTFT_BOUNDS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
               160.0, 640.0, 2560.0)  # fmt: skip
ITL_BOUNDS = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0)
REQUEST_BOUNDS = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0,
                  960.0, 1920.0, 7680.0)  # fmt: skip
LENGTH_BOUNDS = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0, 10000.0)
FINISH_REASONS = ("stop", "length", "abort", "error", "repetition")
KV_CACHE_TOKENS = 200_000
KV_BLOCK_TOKENS = 16
KV_BLOCKS = KV_CACHE_TOKENS // KV_BLOCK_TOKENS


@dataclass(slots=True)
class Histogram:
    """A classic histogram in seconds or tokens."""

    bounds: tuple[float, ...]
    sum: float = 0.0
    counts: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.counts = [0] * (len(self.bounds) + 1)

    def observe(self, value: float) -> None:
        """Count one value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def lines(self, name: str, labels: str) -> list[str]:
        """The samples of the text format."""
        total, lines = 0, []
        for bound, count in zip((*map(str, self.bounds), "+Inf"), self.counts, strict=True):
            total += count
            lines.append(f'{name}_bucket{{engine="0",le="{bound}",{labels}}} {float(total)}')
        ending = f'{{engine="0",{labels}}}'
        return [*lines, f"{name}_count{ending} {float(total)}", f"{name}_sum{ending} {self.sum}"]


@dataclass(slots=True)
class Page:
    """Counters and histograms of the engine. As in vLLM, a request whose client left is not counted as finished."""

    model: str
    started_unix_s: float
    prompt_tokens: int = 0
    generation_tokens: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0
    finished: dict[str, int] = field(default_factory=lambda: dict.fromkeys(FINISH_REASONS, 0))
    ttft: Histogram = field(default_factory=lambda: Histogram(TTFT_BOUNDS))
    itl: Histogram = field(default_factory=lambda: Histogram(ITL_BOUNDS))
    e2e: Histogram = field(default_factory=lambda: Histogram(REQUEST_BOUNDS))
    tpot: Histogram = field(default_factory=lambda: Histogram(ITL_BOUNDS))
    queued: Histogram = field(default_factory=lambda: Histogram(REQUEST_BOUNDS))
    prompts: Histogram = field(default_factory=lambda: Histogram(LENGTH_BOUNDS))
    outputs: Histogram = field(default_factory=lambda: Histogram(LENGTH_BOUNDS))
    _open: dict[Record, int] = field(default_factory=dict)

    def begin(self, record: Record) -> None:
        """Count a request from its record until `finish`."""
        self._open[record] = 0

    def finish(self, record: Record, reason: str | None, now_ns: int) -> None:
        """End a request, with one of FINISH_REASONS, or None if its client left."""
        self._settle(record, now_ns)
        del self._open[record]
        if reason is None:
            return
        self.finished[reason] += 1
        self.e2e.observe((now_ns - record.received_ns) / 1e9)
        self.prompts.observe(record.prompt_tokens)
        self.outputs.observe(sum(record.tokens))
        if sum(record.tokens) > 1:
            self.tpot.observe((record.writes[-1] - record.writes[0]) / 1e9 / (sum(record.tokens) - 1))
        if record.started_ns is not None:
            self.queued.observe((record.started_ns - record.received_ns) / 1e9)

    def settle(self, now_ns: int) -> None:
        """Count the tokens written up to `now_ns` of the monotonic clock."""
        for record in self._open:
            self._settle(record, now_ns)

    def state(self, *, running: int, waiting: int) -> State:
        """Values computed from the records, for an engine without counters of its own."""
        served = (item for item in self._open.items() if item[0].started_ns is not None)
        held = sum(record.prompt_tokens + sum(record.tokens[:index]) for record, index in served)
        return State(
            running=running,
            waiting=waiting,
            kv_usage_ratio=min(1.0, held / KV_CACHE_TOKENS),
            prefix_queries=self.prefix_queries,
            prefix_hits=self.prefix_hits,
            prompt_tokens=self.prompt_tokens,
            generation_tokens=self.generation_tokens,
        )

    def render(self, state: State, kv_blocks: int) -> str:
        """The page in the text format."""
        model = self.model.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
        labels = f'model_name="{model}"'
        lines = [
            "# HELP process_start_time_seconds Start time of the process since unix epoch in seconds.",
            "# TYPE process_start_time_seconds gauge",
            f"process_start_time_seconds {self.started_unix_s}",
        ]
        for name, kind, help_text, value in (
            ("num_requests_running", "gauge", "Number of requests in model execution batches.", state.running),
            ("num_requests_waiting", "gauge", "Number of requests waiting to be processed.", state.waiting),
            ("kv_cache_usage_perc", "gauge", "KV-cache usage. 1 means 100 percent usage.", state.kv_usage_ratio),
            ("prefix_cache_queries_total", "counter", "Prefix cache queries, in tokens.", state.prefix_queries),
            ("prefix_cache_hits_total", "counter", "Prefix cache hits, in tokens.", state.prefix_hits),
            ("num_preemptions_total", "counter", "Cumulative number of preemption from the engine.", state.preemptions),
            ("prompt_tokens_total", "counter", "Number of prefill tokens processed.", state.prompt_tokens),
            ("generation_tokens_total", "counter", "Number of generation tokens processed.", state.generation_tokens),
        ):
            lines += [f"# HELP vllm:{name} {help_text}", f"# TYPE vllm:{name} {kind}"]
            lines.append(f'vllm:{name}{{engine="0",{labels}}} {float(value)}')
        lines += ["# HELP vllm:num_requests_waiting_by_reason Requests waiting, by reason."]
        lines += ["# TYPE vllm:num_requests_waiting_by_reason gauge"]
        for reason, number in (("capacity", state.waiting), ("deferred", 0)):
            lines.append(
                f'vllm:num_requests_waiting_by_reason{{engine="0",{labels},reason="{reason}"}} {float(number)}'
            )
        lines += ["# HELP vllm:request_success_total Count of successfully processed requests."]
        lines += ["# TYPE vllm:request_success_total counter"]
        for reason, count in self.finished.items():
            lines.append(f'vllm:request_success_total{{engine="0",finished_reason="{reason}",{labels}}} {float(count)}')
        for name, help_text, histogram in (
            ("time_to_first_token_seconds", "time to first token in seconds", self.ttft),
            ("inter_token_latency_seconds", "inter-token latency in seconds", self.itl),
            ("request_time_per_output_token_seconds", "time per output token of requests in seconds", self.tpot),
            ("e2e_request_latency_seconds", "e2e request latency in seconds", self.e2e),
            ("request_queue_time_seconds", "time spent in WAITING phase for request", self.queued),
            ("request_prompt_tokens", "number of prefill tokens processed", self.prompts),
            ("request_generation_tokens", "number of generation tokens processed", self.outputs),
        ):
            lines += [f"# HELP vllm:{name} Histogram of {help_text}.", f"# TYPE vllm:{name} histogram"]
            lines += histogram.lines(f"vllm:{name}", labels)
        size = kv_blocks * KV_BLOCK_TOKENS
        blocks = f'block_size="{KV_BLOCK_TOKENS}",engine="0",kv_cache_size_tokens="{size}",num_gpu_blocks="{kv_blocks}"'
        lines += ["# HELP vllm:cache_config_info Information of the LLMEngine CacheConfig"]
        lines += ["# TYPE vllm:cache_config_info gauge", f"vllm:cache_config_info{{{blocks}}} 1.0"]
        return "\n".join(lines) + "\n"

    def _settle(self, record: Record, now_ns: int) -> None:
        """Count the tokens of a record up to `now_ns`; records of background requests have their writes in advance."""
        writes, index = record.writes, self._open[record]
        if index == 0 and writes and writes[0] <= now_ns:
            self.ttft.observe((writes[0] - record.received_ns) / 1e9)
            self.prompt_tokens += record.prompt_tokens
            self.prefix_queries += record.prompt_tokens
            self.prefix_hits += record.cached_tokens
        while index < len(writes) and writes[index] <= now_ns:
            if index:
                self.itl.observe((writes[index] - writes[index - 1]) / 1e9)
            self.generation_tokens += record.tokens[index]
            index += 1
        self._open[record] = index
