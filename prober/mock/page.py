"""The mock's metrics page, with the names of vLLM 0.32, computed from the records of the requests."""

from bisect import bisect_right
from itertools import pairwise

from prober.exposition.families import Family, Histogram, counter, gauge, histogram, page
from prober.mock.record import Record
from prober.simulation.engine import State

# Bounds of vLLM 0.32's histograms.
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

START = gauge("process_start_time_seconds", "Start time of the process since unix epoch in seconds.")
STATE = {  # field of the state → series
    "running": gauge("vllm:num_requests_running", "Number of requests in model execution batches."),
    "waiting": gauge("vllm:num_requests_waiting", "Number of requests waiting to be processed."),
    "kv_usage_ratio": gauge("vllm:kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage."),
    "prefix_queries": counter("vllm:prefix_cache_queries_total", "Prefix cache queries, in tokens."),
    "prefix_hits": counter("vllm:prefix_cache_hits_total", "Prefix cache hits, in tokens."),
    "preemptions": counter("vllm:num_preemptions_total", "Cumulative number of preemption from the engine."),
    "prompt_tokens": counter("vllm:prompt_tokens_total", "Number of prefill tokens processed."),
    "generation_tokens": counter("vllm:generation_tokens_total", "Number of generation tokens processed."),
}
WAITING_BY_REASON = gauge("vllm:num_requests_waiting_by_reason", "Requests waiting, by reason.", "reason")
SUCCESS = counter("vllm:request_success_total", "Count of successfully processed requests.", "finished_reason")
CACHE_CONFIG = gauge(
    *("vllm:cache_config_info", "Information of the LLMEngine CacheConfig"),
    *("block_size", "kv_cache_size_tokens", "num_gpu_blocks"),
)
TTFT = histogram("vllm:time_to_first_token_seconds", "Histogram of time to first token in seconds.")
ITL = histogram("vllm:inter_token_latency_seconds", "Histogram of inter-token latency in seconds.")
TPOT = histogram(
    "vllm:request_time_per_output_token_seconds", "Histogram of time per output token of requests in seconds."
)
E2E = histogram("vllm:e2e_request_latency_seconds", "Histogram of e2e request latency in seconds.")
QUEUED = histogram("vllm:request_queue_time_seconds", "Histogram of time spent in WAITING phase for request.")
PROMPTS = histogram("vllm:request_prompt_tokens", "Histogram of number of prefill tokens processed.")
OUTPUTS = histogram("vllm:request_generation_tokens", "Histogram of number of generation tokens processed.")


class Page:
    """Counters and histograms of the engine. As in vLLM, requests whose client left do not count as finished."""

    def __init__(self, model: str, started_unix_s: float) -> None:
        self.started_unix_s = started_unix_s
        self.prompt_tokens = self.generation_tokens = self.prefix_queries = self.prefix_hits = 0
        self._open: dict[Record, int] = {}  # number of counted chunks by record
        labels = (("engine", "0"), ("model_name", model))
        self._state = {name: Family(series, labels) for name, series in STATE.items()}
        self._waiting, self._success = Family(WAITING_BY_REASON, labels), Family(SUCCESS, labels)
        self._cache, self._start = Family(CACHE_CONFIG, labels), Family(START)
        self._start.value().value = started_unix_s
        for reason in FINISH_REASONS:
            self._success.value(reason)
        self._histograms: list[Family] = []
        self._ttft, self._itl, self._tpot, self._e2e, self._queued, self._prompts, self._outputs = (
            self._histogram(Family(series, labels), bounds)
            for series, bounds in (
                *((TTFT, TTFT_BOUNDS), (ITL, ITL_BOUNDS), (TPOT, ITL_BOUNDS), (E2E, REQUEST_BOUNDS)),
                *((QUEUED, REQUEST_BOUNDS), (PROMPTS, LENGTH_BOUNDS), (OUTPUTS, LENGTH_BOUNDS)),
            )
        )

    def begin(self, record: Record) -> None:
        """Begin to count a request, until `finish`."""
        self._open[record] = 0

    def finish(self, record: Record, reason: str | None, now_ns: int) -> None:
        """Count the end of a request. reason: one of FINISH_REASONS; None if its client left"""
        self._settle(record, now_ns)
        del self._open[record]
        if reason is None:
            return
        self._success.value(reason).inc()
        self._e2e.observe((now_ns - record.received_ns) / 1e9)
        self._prompts.observe(record.prompt_tokens)
        self._outputs.observe(sum(record.tokens))
        if sum(record.tokens) > 1:
            self._tpot.observe((record.writes[-1] - record.writes[0]) / 1e9 / (sum(record.tokens) - 1))
        if record.started_ns is not None:
            self._queued.observe((record.started_ns - record.received_ns) / 1e9)

    def settle(self, now_ns: int) -> None:
        """Count the tokens written up to `now_ns` of the monotonic clock."""
        for record in self._open:
            self._settle(record, now_ns)

    def state(self, *, running: int, waiting: int) -> State:
        """Values for the metrics page, from the records, for an engine without its own counters."""
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
        """Write the metrics page in the text format."""
        for name, family in self._state.items():
            family.value().value = getattr(state, name)
        self._waiting.value("capacity").value = state.waiting
        self._waiting.value("deferred").value = 0.0
        self._cache.value(*map(str, (KV_BLOCK_TOKENS, KV_BLOCK_TOKENS * kv_blocks, kv_blocks))).value = 1.0
        families = [self._start, *self._state.values(), self._waiting, self._success, *self._histograms, self._cache]
        return b"".join(page(families, openmetrics=False)).decode()

    def _histogram(self, family: Family, bounds: tuple[float, ...]) -> Histogram:
        self._histograms.append(family)
        values = family.histogram(bounds)
        values.native = None  # only the text format is served
        return values

    def _settle(self, record: Record, now_ns: int) -> None:
        """Count the tokens of a record up to `now_ns`. Background requests have their writes recorded in advance."""
        writes, begin = record.writes, self._open[record]
        end = bisect_right(writes, now_ns, begin)
        if begin == 0 < end:
            self._ttft.observe((writes[0] - record.received_ns) / 1e9)
            self.prompt_tokens += record.prompt_tokens
            self.prefix_queries += record.prompt_tokens
            self.prefix_hits += record.cached_tokens
        if gaps_s := [(after - before) / 1e9 for before, after in pairwise(writes[max(0, begin - 1) : end])]:
            self._itl.observe(*gaps_s)
        self.generation_tokens += sum(record.tokens[begin:end])
        self._open[record] = end
