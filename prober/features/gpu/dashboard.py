"""Panels of the GPUs, from the prober's own readings, or where it cannot read them from an exporter."""

from typing import Any

from prober.exposition.dashboards.board import Collapsed
from prober.exposition.dashboards.panels import Panel, Query, now, series, stat, states
from prober.exposition.dashboards.queries import STEP, TARGET, WHOLE_GPUS, gauge, rate
from prober.exposition.dashboards.style import GREEN, NEUTRAL, RED, YELLOW, Unit, index_mapping, named
from prober.exposition.families import AnySeries
from prober.features.gpu import series as gpu_series
from prober.features.gpu.exporters import EXPORTED, exported

# The gauge is the last XID: this is 1 while it differs from that of a step ago, 0 without any.
NEW_XID = f"(XID > bool 0) unless (XID > 0 == XID offset {STEP})".replace("XID", "DCGM_FI_DEV_XID_ERRORS")
GPU = "target, gpu"
SIZE: dict[str, Any] = {"width": 12, "height": 7, "empty": "no data: no GPU is read, or it does not report this"}


def count() -> Panel:
    """Panel of the number of GPUs."""
    exported_gpus = f'label_replace({EXPORTED}{{{TARGET}}}, "whole_gpu", "$1", "gpu", "(.+?)(?::.+)?")'
    return stat(
        "GPUs",
        "Number of GPUs read for this target, without partitions, by the prober, else by an exporter of NVIDIA's or AMD's. "
        "Bad: fewer than the engine uses. No data: no GPUs are read.",
        "none",
        now(f"count({WHOLE_GPUS}) or count(group by (target, whole_gpu) ({exported_gpus}))"),
        steps=NEUTRAL,
    )


def _query(own: str, metrics: str, legend: str = "") -> Query:
    """The prober's own readings, or for a target without them an exporter's. metrics: `expr` of `exported`"""
    return Query(f"{own} or on (target) ({exported(metrics)})", f"GPU {{{{gpu}}}}{legend}")


def _gpu(title: str, text: str, unit: Unit, declared: AnySeries, metrics: str, **more: Any) -> Panel:
    return series(title, text, unit, _query(gauge(declared, GPU), metrics), **{**SIZE, **more})


def row() -> Collapsed:
    """Collapsed row about use, memory, power, clocks, throttling, temperature, errors and links of each GPU."""
    sources = {
        "read by the prober": WHOLE_GPUS,
        "from the DCGM exporter": f'{EXPORTED}{{{TARGET},metric=~"DCGM_.+"}}',
        "from AMD's exporter": f'{EXPORTED}{{{TARGET},metric=~"gpu_.+"}}',
    }
    return Collapsed(
        [
            _gpu(
                "Utilisation",
                "Share of time in which a kernel was running. Bad: it falls while requests wait; look at the host CPU.",
                "percentunit",
                gpu_series.GPU_UTILIZATION,
                # Partitions have only the second.
                "DCGM_FI_DEV_GPU_UTIL / 100 or DCGM_FI_PROF_GR_ENGINE_ACTIVE or gpu_gfx_activity / 100",
                high=1,
            ),
            _gpu(
                "Memory bandwidth in use",
                "Share of the memory bandwidth in use. Bad: near 1 while latency is too high: decoding is limited by memory bandwidth. "
                "No data: GPUs before Hopper do not report it.",
                "percentunit",
                gpu_series.GPU_BANDWIDTH,
                "DCGM_FI_PROF_DRAM_ACTIVE",
                high=1,
            ),
            series(
                "SM occupancy and tensor units",
                "Share of resident warps, and of cycles in which tensor cores were active. Bad: both fall at the same load.",
                "percentunit",
                _query(
                    gauge(gpu_series.GPU_OCCUPANCY, GPU),
                    "DCGM_FI_PROF_SM_OCCUPANCY or gpu_prof_occupancy_percent / 100",
                    " warps",
                ),
                _query(
                    gauge(gpu_series.GPU_TENSOR, GPU),
                    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE or gpu_prof_tensor_active_percent / 100",
                    " tensor",
                ),
                high=1,
                **SIZE,
            ),
            series(
                "Memory in use",
                "Share of GPU memory in use. Bad: a rise above the engine's steady share; look for another process.",
                "percentunit",
                _query(
                    f"{gauge(gpu_series.GPU_MEMORY_USED, GPU)} / {gauge(gpu_series.GPU_MEMORY_TOTAL, GPU)}",
                    "DCGM_FI_DEV_FB_USED / (DCGM_FI_DEV_FB_USED + DCGM_FI_DEV_FB_FREE) or gpu_used_vram / gpu_total_vram",
                ),
                high=1,
                **SIZE,
            ),
            series(
                "Processes",
                "Processes that compute on the GPU, as far as the driver shows them: often none in a container. Bad: more than the "
                "engine's own. No data: the prober reads no GPU, or the driver does not tell.",
                "none",
                Query(gauge(gpu_series.GPU_PROCESSES, GPU), "GPU {{gpu}}"),
                **SIZE,
            ),
            _gpu(
                "Power",
                "Power draw. Bad: one GPU far below the others under the same load.",
                "watt",
                gpu_series.GPU_POWER,
                # The last two: MI300 and later, MI200.
                "DCGM_FI_DEV_POWER_USAGE or gpu_package_power > 0 or gpu_average_package_power",
            ),
            _gpu(
                "SM clock",
                "Clock of the SMs. Bad: lower at the same load; see throttling.",
                "hertz",
                gpu_series.GPU_CLOCK,
                "(DCGM_FI_DEV_SM_CLOCK or gpu_clock) * 1e6",
            ),
            states(
                "Throttling",
                "Whether the clock is limited, by GPU and reason; power_cap is normal under load. "
                "Bad: thermal, hardware or power_brake. No data: also if the GPUs are read by the DCGM exporter.",
                index_mapping(("no", GREEN), ("throttled", RED)),
                Query(
                    f'max by (gpu, reason) ({gpu_series.GPU_THROTTLE}{{{TARGET},reason=~"{gpu_series.FAULTS}"}})',
                    "GPU {{gpu}} {{reason}}",
                ),
                Query(
                    f'max by (gpu) ({gpu_series.GPU_THROTTLE}{{{TARGET},reason="power_cap"}})', "GPU {{gpu}} power_cap"
                ),
                overrides=[
                    named(".*power_cap", ("mappings", index_mapping(("no", GREEN), ("at its cap", YELLOW)))),
                ],
                **SIZE,
            ),
            _gpu(
                "Temperature",
                "Temperature of the chip. Bad: near the start of thermal throttling, 85 to 90 °C on most GPUs.",
                "celsius",
                gpu_series.GPU_TEMPERATURE,
                "DCGM_FI_DEV_GPU_TEMP or gpu_junction_temperature > 0 or gpu_edge_temperature",
            ),
            series(
                "Errors",
                "ECC memory errors and XID errors of the driver. Bad: any uncorrected ECC error, any XID. The DCGM exporter tells the "
                "last XID, so of those only a new one is counted, and no ECC errors.",
                "short",
                Query(
                    f"max by (gpu, error_type) (increase({gpu_series.GPU_ECC}{{{TARGET}}}[{STEP}])) > 0",
                    "GPU {{gpu}} ECC {{error_type}}",
                ),
                _query(f"max by ({GPU}) (increase({gpu_series.GPU_XID}{{{TARGET}}}[{STEP}]))", NEW_XID, " XID"),
                bars=True,
                **SIZE,
            ),
            series(
                "PCIe and NVLink",
                "Bytes per second over PCIe and NVLink. Bad: on GPUs that share a model, NVLink idle and PCIe busy.",
                "Bps",
                *(
                    _query(
                        rate(gpu_series.GPU_PCIE, GPU, f',direction="{direction}"'),
                        f"DCGM_FI_PROF_PCIE_{theirs}_BYTES",
                        f" PCIe {direction}",
                    )
                    for direction, theirs in (("sent", "TX"), ("received", "RX"))
                ),
                Query(rate(gpu_series.GPU_NVLINK, "gpu, direction"), "GPU {{gpu}} NVLink {{direction}}"),
                **SIZE,
            ),
        ],
        "gpus",
        sources,
    )
