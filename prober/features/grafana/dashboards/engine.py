"""Engine and GPU: why a target is slow, on one time axis with what the probes felt."""

from typing import Any

from prober.features.grafana.dashboards.board import Board
from prober.features.grafana.dashboards.panels import (
    GREEN,
    GREY,
    NEUTRAL,
    ORANGE,
    RED,
    YELLOW,
    Panel,
    Query,
    dashed,
    named,
    now,
    on_the_right,
    series,
    stat,
    states,
    words,
)
from prober.features.grafana.dashboards.queries import STEP, TARGET, WHOLE_GPUS, gauge, limit, quantile, rate

GPU = "target, gpu"
HALVES: dict[str, Any] = {"width": 12, "height": 7}
GPU_HALVES: dict[str, Any] = {**HALVES, "empty": "no data: no GPU is read here, or it does not tell"}
BROKEN = "thermal|thermal_hardware|hardware|power_brake"


def board() -> Board:
    """The dashboard."""
    rows = {
        "": _now(),
        "Felt by the probes": [_felt(), _cause()],
        "Engine": _engine(),
        "GPUs": _gpus(),
    }
    text = "One target: queue, KV cache, preemptions, prefix hits and each GPU, under what the probes felt at the same time."
    return Board("engine", text, rows, one_target=True, variables=("target", "workload"))


def _now() -> list[Panel]:
    return [
        stat(
            "Engine's page",
            "Whether the engine's own metrics page can be read. Bad: no; then nothing below is known of now.",
            "none",
            now(gauge("llmslo_engine_up")),
            mappings=words(("cannot be read", RED), ("read", GREEN)),
            steps=((None, RED), (1, GREEN)),
            fill="background",
        ),
        stat(
            "Engine",
            "Who the engine says it is. Bad: another version or model than you rolled out.",
            "none",
            now(gauge("llmslo_engine_info", "engine, version, model"), "{{engine}} {{version}}, {{model}}"),
            steps=NEUTRAL,
            width=8,
            decimals=0,
            text_mode="name",
        ),
        stat(
            "Decode ÷ memory bound",
            "Speed of a decode step over what memory bandwidth allows. Bad: below 60%, something other than memory slows it. "
            "No data: the GPU or the model is not known.",
            "percentunit",
            now(gauge("llmslo_decode_bandwidth_bound_ratio")),
            steps=((None, ORANGE), (0.6, GREEN)),
            decimals=0,
        ),
        stat(
            "Context length",
            "Tokens that a prompt and its answer may have together. Bad: less than users send.",
            "short",
            now(gauge("llmslo_engine_context_tokens")),
            steps=NEUTRAL,
        ),
        stat(
            "GPUs",
            "How many GPUs are read beside this target, partitions apart. Bad: fewer than it was given. "
            "No data: none are read here.",
            "none",
            now(f"count({WHOLE_GPUS})"),
            steps=NEUTRAL,
        ),
    ]


def _felt() -> Panel:
    return series(
        "TTFT and ITL of the probes",
        "p50 and p90 of what the probes felt, moment by moment, the slowest workload. Bad: above the dashed limits; "
        "look straight down for what moved with it.",
        "s",
        Query(f"max({quantile(0.5, 'llmslo_ttft_seconds', window=STEP)})", "TTFT p50"),
        Query(f"max({quantile(0.9, 'llmslo_ttft_seconds', window=STEP)})", "TTFT p90"),
        Query(f"max({quantile(0.9, 'llmslo_itl_seconds', window=STEP)})", "ITL p90"),
        Query(f"min({limit('ttft')})", "limit of TTFT"),
        Query(f"min({limit('itl')})", "limit of ITL, right"),
        width=24,
        overrides=[
            on_the_right("ITL.*", "s"),
            dashed("limit of TTFT", in_legend=True),
            on_the_right(".*, right", "s"),
            dashed(".*, right", in_legend=True),
        ],
    )


def _cause() -> Panel:
    return states(
        "Likely cause",
        "The regime that the prober names from the evidence while an SLO is breached or a latency has drifted. "
        "Bad: any; unknown means that the evidence does not single one out.",
        words(("no", GREY), ("nothing stands out", YELLOW), ("likely", RED)),
        Query(
            f'2 * (max by (regime) (llmslo_regime_active{{{TARGET},regime!="unknown"}}) > 0) or '
            f'max by (regime) (llmslo_regime_active{{{TARGET},regime="unknown"}}) > 0',
            "{{regime}}",
        ),
        width=24,
        height=5,
        empty="no cause is named: nothing is breached, or nothing is known",
    )


def _engine() -> list[Panel]:
    hits = rate("llmslo_engine_prefix_cache_hits_total")
    asked = rate("llmslo_engine_prefix_cache_queries_total")
    return [
        series(
            "Requests running and waiting",
            "Requests in the batch and in the queue. Bad: waiting above 0 all the time; TTFT is then the queue's.",
            "short",
            Query(gauge("llmslo_engine_requests_running"), "running"),
            Query(gauge("llmslo_engine_requests_waiting"), "waiting"),
            overrides=[named("waiting", ("color", {"mode": "fixed", "fixedColor": ORANGE}))],
            **HALVES,
        ),
        series(
            "Time in the engine's queue",
            "What the engine says of the time requests waited. Bad: a share of the TTFT that grows. "
            "No data: this engine does not tell.",
            "s",
            Query(quantile(0.5, "llmslo_engine_queue_seconds", "target", TARGET, STEP), "p50"),
            Query(quantile(0.99, "llmslo_engine_queue_seconds", "target", TARGET, STEP), "p99"),
            **HALVES,
        ),
        series(
            "KV cache in use, and preemptions",
            "Share of the KV cache in use, of the fullest rank, and requests put back per second. "
            "Bad: above 90% with preemptions; streams stall and prefills are done again.",
            "percentunit",
            Query(gauge("llmslo_engine_kv_cache_usage_ratio"), "KV cache in use"),
            Query(rate("llmslo_engine_preemptions_total"), "preemptions"),
            high=1,
            steps=((None, GREEN), (0.9, RED)),
            custom={"thresholdsStyle": {"mode": "dashed"}},
            overrides=[
                on_the_right("preemptions", "ops"),
                named("preemptions", ("color", {"mode": "fixed", "fixedColor": RED})),
            ],
            **HALVES,
        ),
        series(
            "Prefix cache hits",
            "Share of looked-up prompt tokens that the prefix cache had. Bad: a fall; prompts are prefilled that were not before.",
            "percentunit",
            Query(f"{hits} / ({asked} > 0)", "hits"),
            high=1,
            **HALVES,
        ),
        series(
            "Tokens and requests",
            "Prompt and output tokens per second, and requests finished per second. "
            "Bad: output falls while requests wait: the engine got slower.",
            "short",
            Query(rate("llmslo_engine_prompt_tokens_total"), "prompt tokens"),
            Query(rate("llmslo_engine_generation_tokens_total"), "output tokens"),
            Query(rate("llmslo_engine_requests_total"), "requests"),
            overrides=[on_the_right("requests", "reqps")],
            **HALVES,
        ),
        series(
            "TTFT and ITL by the engine",
            "p99 of all requests, as the engine itself says. Bad: it rises with the probes': the cause is in the engine; "
            "if it does not, it is on the way.",
            "s",
            Query(quantile(0.99, "llmslo_engine_ttft_seconds", "target", TARGET, STEP), "TTFT p99"),
            Query(quantile(0.99, "llmslo_engine_itl_seconds", "target", TARGET, STEP), "ITL p99"),
            overrides=[on_the_right("ITL.*", "s")],
            **HALVES,
        ),
    ]


def _gpu(title: str, text: str, unit: str, name: str, **more: Any) -> Panel:
    query = Query(gauge(f"llmslo_gpu_{name}", GPU), "GPU {{gpu}}")
    return series(title, text, unit, query, **{**GPU_HALVES, **more})


def _gpus() -> list[Panel]:
    return [
        _gpu(
            "Utilisation",
            "Share of time with any work at all on the GPU. Bad: it falls while requests wait: the host holds it up.",
            "percentunit",
            "utilization_ratio",
            high=1,
        ),
        _gpu(
            "Memory bandwidth in use",
            "Share of the memory's bandwidth. Bad: near 1 at a latency that is too high: decoding is at the memory's bound. "
            "No data: before Hopper no GPU tells.",
            "percentunit",
            "memory_bandwidth_ratio",
            high=1,
        ),
        series(
            "SM occupancy and tensor units",
            "Share of warps resident, and of cycles in which tensor units worked. Bad: both fall at the same load.",
            "percentunit",
            Query(gauge("llmslo_gpu_sm_occupancy_ratio", GPU), "GPU {{gpu}} warps"),
            Query(gauge("llmslo_gpu_tensor_active_ratio", GPU), "GPU {{gpu}} tensor"),
            high=1,
            **GPU_HALVES,
        ),
        series(
            "Memory in use",
            "Share of the GPU's memory in use. Bad: another process beside the engine's steady share.",
            "percentunit",
            Query(
                f"{gauge('llmslo_gpu_memory_used_bytes', GPU)} / {gauge('llmslo_gpu_memory_total_bytes', GPU)}",
                "GPU {{gpu}}",
            ),
            high=1,
            **GPU_HALVES,
        ),
        _gpu("Power", "Power draw. Bad: one GPU far below the others under the same load.", "watt", "power_watts"),
        _gpu("SM clock", "Clock of the SMs. Bad: lower at the same load; see throttling.", "hertz", "sm_clock_hertz"),
        states(
            "Throttling",
            "Whether the clock is held down, by GPU and reason; clocks of a GPU at its power cap are normal. "
            "Bad: thermal, hardware or power_brake.",
            words(("no", GREEN), ("throttled", RED)),
            Query(
                f'max by (gpu, reason) (llmslo_gpu_throttle_active{{{TARGET},reason=~"{BROKEN}"}})',
                "GPU {{gpu}} {{reason}}",
            ),
            Query(f'max by (gpu) (llmslo_gpu_throttle_active{{{TARGET},reason="power_cap"}})', "GPU {{gpu}} power_cap"),
            overrides=[
                named(".*power_cap", ("mappings", words(("no", GREEN), ("at its cap", YELLOW)))),
            ],
            **GPU_HALVES,
        ),
        _gpu(
            "Temperature",
            "Temperature of the chip. Bad: rising towards where thermal throttling begins, 85 to 90 °C on most.",
            "celsius",
            "temperature_celsius",
        ),
        series(
            "Errors",
            "Memory errors and errors that the driver reported. Bad: any uncorrected one, any XID.",
            "short",
            Query(
                f"max by (gpu, kind) (increase(llmslo_gpu_ecc_errors_total{{{TARGET}}}[{STEP}])) > 0",
                "GPU {{gpu}} ECC {{kind}}",
            ),
            Query(f"max by (gpu) (increase(llmslo_gpu_xid_errors_total{{{TARGET}}}[{STEP}]))", "GPU {{gpu}} XID"),
            bars=True,
            **GPU_HALVES,
        ),
        series(
            "PCIe and NVLink",
            "Bytes per second over PCIe and NVLink. Bad: NVLink silent on GPUs that share a model, PCIe busy instead.",
            "Bps",
            Query(rate("llmslo_gpu_pcie_bytes_total", "gpu, direction"), "GPU {{gpu}} PCIe {{direction}}"),
            Query(rate("llmslo_gpu_nvlink_bytes_total", "gpu, direction"), "GPU {{gpu}} NVLink {{direction}}"),
            **GPU_HALVES,
        ),
    ]
