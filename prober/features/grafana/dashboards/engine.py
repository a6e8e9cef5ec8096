"""Engine dashboard: engine and GPU metrics on one time axis with the latency of the probes."""

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
GPU_HALVES: dict[str, Any] = {**HALVES, "empty": "no data: no GPU is read, or it does not report this"}
BROKEN = "thermal|thermal_hardware|hardware|power_brake"


def board() -> Board:
    """The dashboard."""
    rows = {
        "": _now(),
        "Latency of the probes": [_felt(), _cause()],
        "Engine": _engine(),
        "GPUs": _gpus(),
    }
    text = "One target: queue, KV cache, preemptions, prefix cache hits and GPUs, below the latency of the probes."
    return Board("engine", text, rows, one_target=True, variables=("target", "workload"))


def _now() -> list[Panel]:
    return [
        stat(
            "Engine metrics page",
            "Whether the engine's metrics page can be read. Bad: no; the engine panels below then have no current data.",
            "none",
            now(gauge("llmslo_engine_up")),
            mappings=words(("unreadable", RED), ("readable", GREEN)),
            steps=((None, RED), (1, GREEN)),
            fill="background",
        ),
        stat(
            "Engine",
            "Engine, version and model as reported by the engine. Bad: not the version or model that you rolled out.",
            "none",
            now(gauge("llmslo_engine_info", "engine, version, model"), "{{engine}} {{version}}, {{model}}"),
            steps=NEUTRAL,
            width=8,
            decimals=0,
            text_mode="name",
        ),
        stat(
            "Decode ÷ memory bound",
            "Speed of a decode step as a share of what memory bandwidth allows. Bad: below 60%; memory bandwidth is not the limit. "
            "No data: the GPU or the model is unknown.",
            "percentunit",
            now(gauge("llmslo_decode_bandwidth_bound_ratio")),
            steps=((None, ORANGE), (0.6, GREEN)),
            decimals=0,
        ),
        stat(
            "Context length",
            "Maximum tokens of prompt and answer together. Bad: less than users send.",
            "short",
            now(gauge("llmslo_engine_context_tokens")),
            steps=NEUTRAL,
        ),
        stat(
            "GPUs",
            "Number of GPUs read for this target, without partitions. Bad: fewer than the engine uses. "
            "No data: no GPUs are read.",
            "none",
            now(f"count({WHOLE_GPUS})"),
            steps=NEUTRAL,
        ),
    ]


def _felt() -> Panel:
    return series(
        "TTFT and ITL of the probes",
        "p50 and p90 of the probes of the slowest workload. Bad: above the dashed limits; "
        "the panels below show what changed at the same time.",
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
        "Cause that the prober diagnoses while an SLO is breached or a latency has drifted. "
        "Bad: any. Unknown: the evidence does not identify a single cause.",
        words(("no", GREY), ("unknown", YELLOW), ("likely", RED)),
        Query(
            f'2 * (max by (regime) (llmslo_regime_active{{{TARGET},regime!="unknown"}}) > 0) or '
            f'max by (regime) (llmslo_regime_active{{{TARGET},regime="unknown"}}) > 0',
            "{{regime}}",
        ),
        width=24,
        height=5,
        empty="no diagnosis: nothing is breached, or no data",
    )


def _engine() -> list[Panel]:
    hits = rate("llmslo_engine_prefix_cache_hits_total")
    queries = rate("llmslo_engine_prefix_cache_queries_total")
    return [
        series(
            "Requests running and waiting",
            "Requests in the batch and in the queue. Bad: waiting always above 0; queueing then adds to TTFT.",
            "short",
            Query(gauge("llmslo_engine_requests_running"), "running"),
            Query(gauge("llmslo_engine_requests_waiting"), "waiting"),
            overrides=[named("waiting", ("color", {"mode": "fixed", "fixedColor": ORANGE}))],
            **HALVES,
        ),
        series(
            "Time in the engine's queue",
            "Queue time as measured by the engine. Bad: a growing share of TTFT. "
            "No data: this engine does not report it.",
            "s",
            Query(quantile(0.5, "llmslo_engine_queue_seconds", "target", TARGET, STEP), "p50"),
            Query(quantile(0.99, "llmslo_engine_queue_seconds", "target", TARGET, STEP), "p99"),
            **HALVES,
        ),
        series(
            "KV cache in use, and preemptions",
            "Share of the KV cache in use, of the fullest rank, and preemptions per second. "
            "Bad: above 90% with preemptions; preempted requests stall and repeat their prefill.",
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
            "Share of looked-up prompt tokens that were in the prefix cache. Bad: a drop; more prompt tokens need a prefill.",
            "percentunit",
            Query(f"{hits} / ({queries} > 0)", "hits"),
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
            "p99 of all requests as measured by the engine. If it rises with that of the probes, the cause is in the engine; "
            "if not, look at the network or a proxy. Bad: rising.",
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
            "Share of time in which a kernel was running. Bad: it falls while requests wait; look at the host CPU.",
            "percentunit",
            "utilization_ratio",
            high=1,
        ),
        _gpu(
            "Memory bandwidth in use",
            "Share of the memory bandwidth in use. Bad: near 1 while latency is too high: decoding is limited by memory bandwidth. "
            "No data: GPUs before Hopper do not report it.",
            "percentunit",
            "memory_bandwidth_ratio",
            high=1,
        ),
        series(
            "SM occupancy and tensor units",
            "Share of resident warps, and of cycles in which tensor cores were active. Bad: both fall at the same load.",
            "percentunit",
            Query(gauge("llmslo_gpu_sm_occupancy_ratio", GPU), "GPU {{gpu}} warps"),
            Query(gauge("llmslo_gpu_tensor_active_ratio", GPU), "GPU {{gpu}} tensor"),
            high=1,
            **GPU_HALVES,
        ),
        series(
            "Memory in use",
            "Share of GPU memory in use. Bad: a rise above the engine's steady share; look for another process.",
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
            "Whether the clock is limited, by GPU and reason; power_cap is normal under load. "
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
            "Temperature of the chip. Bad: near the start of thermal throttling, 85 to 90 °C on most GPUs.",
            "celsius",
            "temperature_celsius",
        ),
        series(
            "Errors",
            "ECC memory errors and XID errors of the driver. Bad: any uncorrected ECC error, any XID.",
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
            "Bytes per second over PCIe and NVLink. Bad: on GPUs that share a model, NVLink idle and PCIe busy.",
            "Bps",
            Query(rate("llmslo_gpu_pcie_bytes_total", "gpu, direction"), "GPU {{gpu}} PCIe {{direction}}"),
            Query(rate("llmslo_gpu_nvlink_bytes_total", "gpu, direction"), "GPU {{gpu}} NVLink {{direction}}"),
            **GPU_HALVES,
        ),
    ]
