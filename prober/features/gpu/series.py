"""Series and alert of the GPUs."""

from prober.exposition.alerting import Alert, Link, of_present
from prober.exposition.families import counter, gauge

_GPU = ("target", "gpu")
FAULTS = "thermal|thermal_hardware|hardware|power_brake"  # reasons; a busy GPU is normally at its power cap
GPU_INFO = gauge(
    "llmslo_gpu_info", "1; a GPU (or partition, as gpu:partition) that serves the target.", *_GPU, "uuid", "name"
)
GPU_UTILIZATION = gauge("llmslo_gpu_utilization_ratio", "Share of time in which a kernel was running.", *_GPU)
GPU_MEMORY_USED = gauge("llmslo_gpu_memory_used_bytes", "Memory in use.", *_GPU)
GPU_MEMORY_TOTAL = gauge("llmslo_gpu_memory_total_bytes", "Total memory.", *_GPU)
GPU_PROCESSES = gauge(
    "llmslo_gpu_processes", "Processes that compute on the GPU, as far as the driver shows them to the prober.", *_GPU
)
GPU_BANDWIDTH = gauge("llmslo_gpu_memory_bandwidth_ratio", "Share of the memory bandwidth in use.", *_GPU)
GPU_OCCUPANCY = gauge("llmslo_gpu_sm_occupancy_ratio", "Resident warps as a share of the maximum.", *_GPU)
GPU_TENSOR = gauge("llmslo_gpu_tensor_active_ratio", "Share of cycles in which tensor cores were active.", *_GPU)
GPU_POWER = gauge("llmslo_gpu_power_watts", "Power draw.", *_GPU)
GPU_ENERGY = counter("llmslo_gpu_energy_joules_total", "Energy used.", *_GPU)
GPU_TEMPERATURE = gauge("llmslo_gpu_temperature_celsius", "Temperature of the GPU chip.", *_GPU)
GPU_CLOCK = gauge("llmslo_gpu_sm_clock_hertz", "SM clock frequency.", *_GPU)
GPU_THROTTLE = gauge("llmslo_gpu_throttle_active", "1 while the clock is limited for this reason.", *_GPU, "reason")
GPU_ECC = counter("llmslo_gpu_ecc_errors_total", "ECC memory errors.", *_GPU, "error_type")
GPU_XID = counter("llmslo_gpu_xid_errors_total", "XID errors reported by the driver since the prober's start.", *_GPU)
GPU_PCIE = counter("llmslo_gpu_pcie_bytes_total", "Bytes over PCIe.", *_GPU, "direction")
GPU_NVLINK = counter("llmslo_gpu_nvlink_bytes_total", "Bytes over NVLink.", *_GPU, "direction")
GPU_PRICE = gauge("llmslo_gpu_price_dollars_per_hour", "Configured price of one GPU for an hour.", "target")
GPUS = gauge("llmslo_gpus", "Configured number of GPUs that serve the target.", "target")


def alerts() -> tuple[Alert, ...]:
    """Alert on GPUs that are throttled."""
    throttled = f'llmslo_gpu_throttle_active{{reason=~"{FAULTS}"}}'
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
