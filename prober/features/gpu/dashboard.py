"""Panels of the GPUs."""

from typing import Any

from prober.exposition.dashboards.panels import Panel, Query, now, series, stat, states
from prober.exposition.dashboards.queries import STEP, TARGET, WHOLE_GPUS, gauge, rate
from prober.exposition.dashboards.style import GREEN, NEUTRAL, RED, YELLOW, index_mapping, named

GPU = "target, gpu"
SIZE: dict[str, Any] = {"width": 12, "height": 7, "empty": "no data: no GPU is read, or it does not report this"}
FAULTS = "thermal|thermal_hardware|hardware|power_brake"


def count() -> Panel:
    """Number of GPUs."""
    return stat(
        "GPUs",
        "Number of GPUs read for this target, without partitions. Bad: fewer than the engine uses. "
        "No data: no GPUs are read.",
        "none",
        now(f"count({WHOLE_GPUS})"),
        steps=NEUTRAL,
    )


def _gpu(title: str, text: str, unit: str, name: str, **more: Any) -> Panel:
    query = Query(gauge(f"llmslo_gpu_{name}", GPU), "GPU {{gpu}}")
    return series(title, text, unit, query, **{**SIZE, **more})


def panels() -> list[Panel]:
    """Use, memory, power, clocks, throttling, temperature, errors and links of each GPU."""
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
            **SIZE,
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
            **SIZE,
        ),
        _gpu("Power", "Power draw. Bad: one GPU far below the others under the same load.", "watt", "power_watts"),
        _gpu("SM clock", "Clock of the SMs. Bad: lower at the same load; see throttling.", "hertz", "sm_clock_hertz"),
        states(
            "Throttling",
            "Whether the clock is limited, by GPU and reason; power_cap is normal under load. "
            "Bad: thermal, hardware or power_brake.",
            index_mapping(("no", GREEN), ("throttled", RED)),
            Query(
                f'max by (gpu, reason) (llmslo_gpu_throttle_active{{{TARGET},reason=~"{FAULTS}"}})',
                "GPU {{gpu}} {{reason}}",
            ),
            Query(f'max by (gpu) (llmslo_gpu_throttle_active{{{TARGET},reason="power_cap"}})', "GPU {{gpu}} power_cap"),
            overrides=[
                named(".*power_cap", ("mappings", index_mapping(("no", GREEN), ("at its cap", YELLOW)))),
            ],
            **SIZE,
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
            **SIZE,
        ),
        series(
            "PCIe and NVLink",
            "Bytes per second over PCIe and NVLink. Bad: on GPUs that share a model, NVLink idle and PCIe busy.",
            "Bps",
            Query(rate("llmslo_gpu_pcie_bytes_total", "gpu, direction"), "GPU {{gpu}} PCIe {{direction}}"),
            Query(rate("llmslo_gpu_nvlink_bytes_total", "gpu, direction"), "GPU {{gpu}} NVLink {{direction}}"),
            **SIZE,
        ),
    ]
