"""Series, alerts and recording rules of the GPUs."""

from prober.exposition.alerting import Alert, Link, Rule, of_present
from prober.exposition.families import counter, gauge

_GPU = ("target", "gpu")
GPU_INFO = gauge(
    "llmslo_gpu_info", "1; a GPU (or partition, as gpu:partition) that serves the target.", *_GPU, "uuid", "name"
)
GPU_UTILIZATION = gauge("llmslo_gpu_utilization_ratio", "Share of time in which a kernel was running.", *_GPU)
GPU_MEMORY_USED = gauge("llmslo_gpu_memory_used_bytes", "Memory in use.", *_GPU)
GPU_MEMORY_TOTAL = gauge("llmslo_gpu_memory_total_bytes", "Total memory.", *_GPU)
GPU_PROCESS_MEMORY = gauge(
    "llmslo_gpu_process_memory_bytes", "Memory of a process that computes on the GPU, by its id.", *_GPU, "pid"
)
GPU_BANDWIDTH = gauge("llmslo_gpu_memory_bandwidth_ratio", "Share of the memory bandwidth in use.", *_GPU)
GPU_OCCUPANCY = gauge("llmslo_gpu_sm_occupancy_ratio", "Resident warps as a share of the maximum.", *_GPU)
GPU_TENSOR = gauge("llmslo_gpu_tensor_active_ratio", "Share of cycles in which tensor cores were active.", *_GPU)
GPU_POWER = gauge("llmslo_gpu_power_watts", "Power draw.", *_GPU)
GPU_ENERGY = counter("llmslo_gpu_energy_joules_total", "Energy used.", *_GPU)
GPU_TEMPERATURE = gauge("llmslo_gpu_temperature_celsius", "Temperature of the GPU chip.", *_GPU)
GPU_CLOCK = gauge("llmslo_gpu_sm_clock_hertz", "SM clock frequency.", *_GPU)
GPU_THROTTLE = gauge("llmslo_gpu_throttle_active", "1 while the clock is limited for this reason.", *_GPU, "reason")
GPU_ECC = counter("llmslo_gpu_ecc_errors_total", "ECC memory errors.", *_GPU, "kind")
GPU_XID = counter("llmslo_gpu_xid_errors_total", "XID errors reported by the driver since the prober's start.", *_GPU)
GPU_PCIE = counter("llmslo_gpu_pcie_bytes_total", "Bytes over PCIe.", *_GPU, "direction")
GPU_NVLINK = counter("llmslo_gpu_nvlink_bytes_total", "Bytes over NVLink.", *_GPU, "direction")
GPU_PRICE = gauge("llmslo_gpu_price_dollars_per_hour", "Configured price of one GPU for an hour.", "target")
GPUS = gauge("llmslo_gpus", "Configured number of GPUs that serve the target.", "target")


def alerts(selector: str) -> tuple[Alert, ...]:
    """Alert on GPUs that are throttled."""
    reasons = "thermal|thermal_hardware|hardware|power_brake"  # a busy GPU at its power cap is normal
    throttled = f'llmslo_gpu_throttle_active{{{selector},reason=~"{reasons}"}}'
    return (
        Alert(
            "LLMGPUThrottling",
            "warning",
            of_present(f"max by (target, gpu, reason) (avg_over_time({throttled}[10m])) > 0.5", throttled),
            "5m",
            "GPU {{ $labels.gpu }} of {{ $labels.target }} is throttled ({{ $labels.reason }})",
            "Its clock was limited for {{ $value | humanizePercentage }} of the last 10 minutes. Requests may be slower at the same "
            "load.",
            link=Link("engine", ("target",)),
        ),
    )


def records(selector: str) -> list[Rule]:
    """Recording rules for tokens, energy and cost per GPU. They use max and not sum, as replicas of the prober see the same engine. A
    configured number of GPUs has precedence over the number of visible ones.
    """
    tokens = f"max by (target) (rate(llmslo_engine_generation_tokens_total{{{selector}}}[5m]))"
    no_partitions = ',gpu!~".+:.+"'  # a partition is listed in addition to its GPU
    visible = (
        f"count by (target) (group by (target, gpu) (llmslo_gpu_info{{{selector}{more}}}))"
        for more in (no_partitions, "")
    )
    gpus = " or ".join([f"max by (target) (llmslo_gpus{{{selector}}})", *visible])
    price = f"max by (target) (llmslo_gpu_price_dollars_per_hour{{{selector}}})"
    power = f"max by (target, gpu) (rate(llmslo_gpu_energy_joules_total{{{selector}}}[5m]))"
    return [
        {"record": "target:llmslo_engine_generation_tokens_per_gpu:rate5m", "expr": f"{tokens}\n/\n({gpus})\n"},
        {
            "record": "target:llmslo_gpu_energy_joules_per_1k_tokens:rate5m",
            "expr": f"1000 * sum by (target) ({power})\n/\n({tokens} > 0)\n",
        },
        {
            "record": "target:llmslo_gpu_cost_dollars_per_1k_tokens:rate5m",
            "expr": f"1000 / 3600 * {price} * ({gpus})\n/\n({tokens} > 0)\n",
        },
    ]
