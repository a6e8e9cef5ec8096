"""Every series this prober exports, declared once; docs/series.md is written from here."""

from typing import get_args

from prober.exposition.families import Series
from prober.features.diagnosis.clues import Name

_PROBE = ("target", "workload")


def _counter(name: str, help_: str, *labels: str) -> Series:
    return Series(name, "counter", help_, labels)


def _gauge(name: str, help_: str, *labels: str) -> Series:
    return Series(name, "gauge", help_, labels)


def _histogram(name: str, help_: str, *labels: str) -> Series:
    return Series(name, "histogram", help_, labels)


PROBES = _counter("llmslo_probes_total", "Due times of the schedule, sent or shed, without the neutral ones.", *_PROBE)
FAILURES = _counter("llmslo_probe_failures_total", "Probes that failed by the target's doing.", *_PROBE, "reason")
NEUTRAL = _counter(
    "llmslo_probes_neutral_total", "Due times kept out of every SLI: not the target's doing.", *_PROBE, "reason"
)
CACHED = _counter(
    "llmslo_probes_cached_total", "Cold probes the engine had cached, kept out of the latency histograms.", *_PROBE
)
USAGE_MISSING = _counter("llmslo_usage_missing_total", "Successful probes without token counts by the server.", *_PROBE)
COLD_START = _gauge("llmslo_cold_start_ttft_seconds", "TTFT of the latest first success on a cold engine.", *_PROBE)
STATE = _gauge("llmslo_target_state", "1 for the state the target is in.", "target", "state")
STARTING_UNTIL = _gauge(
    "llmslo_target_starting_until_timestamp_seconds",
    "When refused connections begin to count as failures; only while the target refuses them and has never answered.",
    "target",
)

QUALITY_CHECKS = _counter("llmslo_quality_checks_total", "Golden prompts whose answer was judged.", *_PROBE, "check")
QUALITY_FAILURES = _counter("llmslo_quality_failures_total", "Golden prompts answered wrongly.", *_PROBE, "check")

SLO_EVENTS = _counter("llmslo_slo_events_total", "Events that the SLO judges.", *_PROBE, "slo")
SLO_BAD_EVENTS = _counter(
    "llmslo_slo_bad_events_total", "Those that were bad; exact, whatever the buckets.", *_PROBE, "slo"
)
SLO_OBJECTIVE = _gauge(
    "llmslo_slo_objective_ratio", "The SLO as declared: share of events to be good.", *_PROBE, "slo", "signal"
)
SLO_THRESHOLD = _gauge(
    "llmslo_slo_threshold_seconds", "The SLO as declared: good up to here.", *_PROBE, "slo", "signal"
)

TTFT = _histogram("llmslo_ttft_seconds", "First content of any kind minus intended time.", *_PROBE)
TTFT_ANSWER = _histogram(
    "llmslo_ttft_answer_seconds",
    "First content that is not reasoning minus intended time, of models that reason.",
    *_PROBE,
)
TPOT = _histogram("llmslo_tpot_seconds", "Time per output token after the first, one a probe.", *_PROBE)
ITL = _histogram("llmslo_itl_seconds", "Inter-token latency, one a content chunk after the first.", *_PROBE)
CHUNK_GAP = _histogram("llmslo_chunk_gap_seconds", "Raw gap between content chunks.", *_PROBE)
E2E = _histogram("llmslo_e2e_seconds", "End of the answer minus intended time.", *_PROBE)
CONNECT = _histogram("llmslo_connect_seconds", "Set-up of a probe's fresh connection by phase.", "target", "phase")
SEND_LAG = _histogram("llmslo_send_lag_seconds", "The prober's own lateness in sending.", *_PROBE)

TOKENS = _counter("llmslo_probe_tokens_total", "Tokens that probing used, as the server counts them.", *_PROBE, "kind")
COST = _counter("llmslo_probe_cost_dollars_total", "What probing cost at the configured price.", "target")
BUDGET = _gauge("llmslo_budget_remaining_ratio", "Share of the 24-hour budget that is left.", "target", "budget")
RATE_LIMIT = _gauge(
    "llmslo_rate_limit_remaining", "Rate limit left, as the server's headers tell it.", "target", "kind"
)
CERT_EXPIRY = _gauge("llmslo_tls_cert_expiry_timestamp_seconds", "End of the server certificate's validity.", "target")

ENGINE_UP = _gauge("llmslo_engine_up", "1 while the engine's own page can be read.", "target")
ENGINE_INFO = _gauge("llmslo_engine_info", "1; who the engine says it is.", "target", "engine", "version", "model")
ENGINE_CONTEXT = _gauge("llmslo_engine_context_tokens", "Longest prompt and answer together.", "target")
ENGINE_RUNNING = _gauge("llmslo_engine_requests_running", "Requests in the batch.", "target")
ENGINE_WAITING = _gauge("llmslo_engine_requests_waiting", "Requests that wait.", "target")
ENGINE_KV_USAGE = _gauge("llmslo_engine_kv_cache_usage_ratio", "KV cache in use, of the fullest rank.", "target")
ENGINE_KV_CAPACITY = _gauge(
    "llmslo_engine_kv_cache_capacity_tokens", "Tokens that all ranks' KV caches hold.", "target"
)
ENGINE_PREEMPTIONS = _counter("llmslo_engine_preemptions_total", "Requests put back for want of KV cache.", "target")
ENGINE_PREFIX_QUERIES = _counter("llmslo_engine_prefix_cache_queries_total", "Prompt tokens looked up.", "target")
ENGINE_PREFIX_HITS = _counter("llmslo_engine_prefix_cache_hits_total", "Prompt tokens found in the cache.", "target")
ENGINE_PROMPT_TOKENS = _counter("llmslo_engine_prompt_tokens_total", "Prompt tokens of all requests.", "target")
ENGINE_GENERATION_TOKENS = _counter("llmslo_engine_generation_tokens_total", "Tokens generated.", "target")
ENGINE_REQUESTS = _counter("llmslo_engine_requests_total", "Requests finished, for whatever reason.", "target")
ENGINE_TTFT = _histogram("llmslo_engine_ttft_seconds", "The engine's own TTFT, in its own buckets.", "target")
ENGINE_ITL = _histogram("llmslo_engine_itl_seconds", "The engine's own ITL, in its own buckets.", "target")
ENGINE_QUEUE = _histogram("llmslo_engine_queue_seconds", "The engine's own queue time, in its own buckets.", "target")
ENGINE_CHANGES = _counter(
    "llmslo_engine_changes_total",
    "Times the engine was restarted or said another version, model or flag, or its GPUs another driver.",
    "target",
    "what",
)

_GPU = ("target", "gpu")
GPU_INFO = _gauge(
    "llmslo_gpu_info", "1; which GPU (or partition, as gpu:partition) serves the target.", *_GPU, "uuid", "name"
)
GPU_UTILIZATION = _gauge("llmslo_gpu_utilization_ratio", "Share of time in which a kernel ran.", *_GPU)
GPU_MEMORY_USED = _gauge("llmslo_gpu_memory_used_bytes", "Memory in use.", *_GPU)
GPU_MEMORY_TOTAL = _gauge("llmslo_gpu_memory_total_bytes", "Memory there is.", *_GPU)
GPU_BANDWIDTH = _gauge("llmslo_gpu_memory_bandwidth_ratio", "Share of the memory's bandwidth in use.", *_GPU)
GPU_OCCUPANCY = _gauge("llmslo_gpu_sm_occupancy_ratio", "Warps resident, of those that could be.", *_GPU)
GPU_TENSOR = _gauge("llmslo_gpu_tensor_active_ratio", "Share of cycles in which tensor units worked.", *_GPU)
GPU_POWER = _gauge("llmslo_gpu_power_watts", "Power draw.", *_GPU)
GPU_ENERGY = _counter("llmslo_gpu_energy_joules_total", "Energy used.", *_GPU)
GPU_TEMPERATURE = _gauge("llmslo_gpu_temperature_celsius", "Temperature of the chip.", *_GPU)
GPU_CLOCK = _gauge("llmslo_gpu_sm_clock_hertz", "Clock of the SMs.", *_GPU)
GPU_THROTTLE = _gauge("llmslo_gpu_throttle_active", "1 while the clock is held down for this reason.", *_GPU, "reason")
GPU_ECC = _counter("llmslo_gpu_ecc_errors_total", "Memory errors.", *_GPU, "kind")
GPU_XID = _counter("llmslo_gpu_xid_errors_total", "Errors that the driver reported since the prober's start.", *_GPU)
GPU_PCIE = _counter("llmslo_gpu_pcie_bytes_total", "Bytes over PCIe.", *_GPU, "direction")
GPU_NVLINK = _counter("llmslo_gpu_nvlink_bytes_total", "Bytes over NVLink.", *_GPU, "direction")

GPU_PRICE = _gauge("llmslo_gpu_price_dollars_per_hour", "What an hour of one GPU costs, as configured.", "target")

REGIME = _gauge(
    "llmslo_regime_active",
    "1 for the likely cause while an SLO is breached or a latency has drifted.",
    "target",
    "regime",
)
BOUND_RATIO = _gauge(
    "llmslo_decode_bandwidth_bound_ratio", "Speed of a decode step over what memory bandwidth allows.", "target"
)

CAPACITY = _gauge(
    "llmslo_capacity_requests_per_second",
    "Rate up to which an SLO holds, as the last sweep that found it says: lower, estimate, upper.",
    *("target", "slo", "bound"),
)
CAPACITY_TOKENS = _gauge(
    "llmslo_capacity_tokens_per_second",
    "The same in prompt and output tokens, of the SLO that binds.",
    "target",
    "bound",
)
CAPACITY_SHAPE = _gauge(
    "llmslo_capacity_shape_ratio",
    "Tokens of a request at the capacity over those of one of production now: by so much requests are corrected.",
    "target",
)
DEMAND = _gauge(
    "llmslo_demand_requests_per_second",
    "Requests that the engine finishes, over the last one to five minutes; absent while that is not known.",
    "target",
)
DEMAND_TOKENS = _gauge("llmslo_demand_tokens_per_second", "The same in prompt and output tokens.", "target")
HEADROOM = _gauge("llmslo_headroom_ratio", "Share of the capacity that is free.", "target", "unit", "bound")
SWEEPS = _counter("llmslo_sweeps_total", "Sweeps that ended, by what they found.", "target", "verdict")
SWEEP_STOPS = _counter("llmslo_sweep_stops_total", "Sweeps that ended, by why the sending ended.", "target", "reason")
SWEEPS_REFUSED = _counter("llmslo_sweeps_refused_total", "Sweeps that were not begun, by why.", "target", "reason")
SWEEP_RATE = _gauge("llmslo_sweep_rate_per_second", "Rate that a sweep adds now; 0 without one.", "target")
SWEEP_REQUESTS = _counter("llmslo_sweep_requests_total", "Requests that sweeps sent.", "target")
SWEEP_TOKENS = _counter(
    "llmslo_sweep_tokens_total", "Prompt and output tokens of sweeps, as the server counts.", "target"
)
SWEEP_SUCCESS = _gauge("llmslo_sweep_last_success_timestamp_seconds", "When a sweep last found a capacity.", "target")
SWEEP_STAGE_RATE = _gauge(
    "llmslo_sweep_stage_rate_per_second", "Total rate in a stage of the last sweep.", "target", "stage"
)
SWEEP_STAGE_TOKENS = _gauge(
    "llmslo_sweep_stage_tokens_per_second",
    "Output tokens per second that the sweep was sent while a stage lasted, by the stamps of their chunks.",
    "target",
    "stage",
)
SWEEP_STAGE_LATENCY = _gauge(
    "llmslo_sweep_stage_latency_seconds",
    "Latency in a stage of the last sweep, of quantiles with enough samples and the median.",
    *("target", "stage", "signal", "quantile"),
)
CAPACITY_EXHAUSTION = _gauge(
    "llmslo_capacity_exhaustion_timestamp_seconds",
    "Day, by UTC, from which daily peaks of demand reach the capacity, as they grow; absent where that is not foreseen.",
    *("target", "bound"),
)
SWEEP_PERIOD = _gauge(
    "llmslo_sweep_period_seconds",
    "Longest time between two sweeps that the schedule lets begin; absent without one.",
    "target",
)

_SIGNAL = (*_PROBE, "signal")
DRIFT_EVIDENCE = _gauge(
    "llmslo_drift_evidence_ratio", "Evidence on a log scale that it is slower than its baseline; 1 alarms.", *_SIGNAL
)
DRIFT_ACTIVE = _gauge("llmslo_drift_active", "1 while it is slower than its baseline, by cause.", *_SIGNAL, "cause")
DRIFT_SINCE = _gauge(
    "llmslo_drift_since_timestamp_seconds", "When the change began, while it is active; an estimate.", *_SIGNAL
)
DRIFT_SHIFT = _gauge(
    "llmslo_drift_shift_ratio",
    "Quantile since the change over the baseline's, at the same load, with its 95% interval (bound: lower, estimate, upper); "
    "only with enough samples.",
    *_SIGNAL,
    "quantile",
    "bound",
)
DRIFT_PHASE = _gauge("llmslo_drift_phase", "1 for what the baseline is.", *_SIGNAL, "phase")
DRIFT_EVENTS = _counter("llmslo_drift_events_total", "What happened to the baseline.", *_SIGNAL, "event")

DISCOVERY_TARGETS = _gauge(
    "llmslo_discovery_targets", "Targets that were found and are probed, of all shards.", "discovery"
)
DISCOVERY_REFUSED = _gauge(
    "llmslo_discovery_refused_targets",
    "Found and not probed: over the limit, of a name or URL that another one has, or no target.",
    "discovery",
    "reason",
)
DISCOVERY_UP = _gauge(
    "llmslo_discovery_up", "1 while its source is heard; else the targets of before stay.", "discovery"
)
DISCOVERY_FAILURES = _counter("llmslo_discovery_failures_total", "Times that its source was not heard.", "discovery")

LEASE_HELD = _gauge("llmslo_lease_held", "1 while this replica may sweep and write to Grafana; absent without a lease.")
LEASE_TRANSITIONS = _gauge(
    "llmslo_lease_transitions", "How often the lease was taken, as last seen: its fencing number."
)
LEASE_FAILURES = _counter(
    "llmslo_lease_failures_total", "Tries to read or renew the lease that were not answered well."
)
SHARD_INFO = _gauge(
    "llmslo_shard_info", "1; which shard of the targets this replica probes, from 0, of how many.", "shard", "shards"
)
SHARDS = _gauge("llmslo_shards", "How many shards the targets are divided among, as far as this replica knows.")

BUILD_INFO = _gauge("llmslo_build_info", "1; the version is a label.", "version")
RELOAD_OK = _gauge("llmslo_config_last_reload_successful", "1 if the latest reload was taken over.")
RELOAD_TIME = _gauge("llmslo_config_last_reload_success_timestamp_seconds", "Time of the latest reload taken over.")
LOOP_LAG = _histogram("llmslo_event_loop_lag_seconds", "Lateness of the prober's event loop, four times a second.")
STORAGE_FAILURES = _counter("llmslo_storage_write_failures_total", "Writes to --storage.path that failed.")
GRAFANA_FAILURES = _counter(
    "llmslo_grafana_sync_failures_total", "Visits to Grafana that failed: for dashboards, for annotations.", "what"
)
GRAFANA_SUCCESS = _gauge(
    "llmslo_grafana_sync_last_success_timestamp_seconds", "When Grafana last had all that it was given.", "what"
)
GRAFANA_DASHBOARDS = _gauge(
    "llmslo_grafana_dashboards",
    "Dashboards that Grafana has as they should be, and those left alone: edited by people, read from a file, failed.",
    "state",
)
TRUSTED = _gauge(
    "llmslo_trusted",
    "0 if over 5 minutes over 1% of probes were invalid, loop lag p99 passed max_send_lag, or a due time was missed.",
)

ALL: tuple[Series, ...] = tuple(value for value in globals().copy().values() if isinstance(value, Series))

STATES = ("pending", "starting", "ready", "draining", "failing")
PHASES = ("dns", "tcp", "proxy", "tls")
ENGINE_CHANGE_KINDS = ("engine", "version", "model", "flags", "driver", "restart")
REGIMES: tuple[str, ...] = get_args(Name)
DISCOVERY_REFUSALS = ("duplicate", "limit", "unfit")
SWEEP_VERDICTS = ("found", "not_reached", "below_lowest", "not_enough_data", "void", "failed")
SWEEP_REFUSALS = (
    *("not_configured", "running", "min_gap", "retry_after"),
    *("blackout", "not_ready", "alert_firing", "locked", "no_lease", "missed"),
    *("over_budget", "not_recorded"),
)
DRIFT_CAUSES = ("regression", "load", "unknown")
DRIFT_PHASES = ("learning", "provisional", "settled")
DRIFT_EVENT_KINDS = ("learnt", "alarm", "recovered", "improved", "accepted")
GRAFANA_DASHBOARD_STATES = ("current", "edited", "provisioned", "failed")
TOKEN_KINDS = ("prompt", "completion", "cached")
