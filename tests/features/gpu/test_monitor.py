"""The series of the GPUs that serve a target."""

from prober.config.serving import GpusSpec
from prober.config.target import TargetSpec
from prober.daemon.registry import registry as new_registry
from prober.exposition.families import Registry
from prober.features.gpu.monitor import TargetGpus
from prober.measure.gpu_reading import GpuReading
from tests.observed import observed

READING = GpuReading(
    0,
    "GPU-1",
    "H100",
    utilization_ratio=0.5,
    memory_used_bytes=60,
    memory_total_bytes=80,
    memory_bandwidth_ratio=0.25,
    sm_occupancy_ratio=0.125,
    tensor_active_ratio=0.75,
    power_watts=400.0,
    energy_joules=1_000.0,
    temperature_celsius=55.0,
    sm_clock_hertz=1.98e9,
    throttled=frozenset(),
    ecc_corrected_errors=3,
    ecc_uncorrected_errors=1,
    xid_errors=2,
    pcie_sent_bytes=10,
    pcie_received_bytes=20,
    nvlink_sent_bytes=30,
    nvlink_received_bytes=40,
    processes={7: 50},
)
EXPORTED: dict[str, dict[tuple[str, ...], float]] = {
    "llmslo_gpu_info": {("GPU-1", "H100"): 1},
    "llmslo_gpu_utilization_ratio": {(): 0.5},
    "llmslo_gpu_memory_used_bytes": {(): 60},
    "llmslo_gpu_memory_total_bytes": {(): 80},
    "llmslo_gpu_memory_bandwidth_ratio": {(): 0.25},
    "llmslo_gpu_sm_occupancy_ratio": {(): 0.125},
    "llmslo_gpu_tensor_active_ratio": {(): 0.75},
    "llmslo_gpu_power_watts": {(): 400},
    "llmslo_gpu_energy_joules_total": {(): 1_000},
    "llmslo_gpu_temperature_celsius": {(): 55},
    "llmslo_gpu_sm_clock_hertz": {(): 1.98e9},
    "llmslo_gpu_xid_errors_total": {(): 2},
    "llmslo_gpu_ecc_errors_total": {("corrected",): 3, ("uncorrected",): 1},
    "llmslo_gpu_pcie_bytes_total": {("sent",): 10, ("received",): 20},
    "llmslo_gpu_nvlink_bytes_total": {("sent",): 30, ("received",): 40},
    "llmslo_gpu_processes": {(): 1},
}


def values(registry: Registry, name: str) -> dict[tuple[str, ...], float]:
    """The values of the target's series, by their labels."""
    family = registry[name]
    return {labels: family.value(*labels).value for labels in family.of("t")}


def test_each_value_of_a_gpu_is_exported_under_its_name() -> None:
    """By device, with the configured number and price of the GPUs; and nothing of a GPU that is gone."""
    registry = new_registry()
    spec = TargetSpec(url="http://a", gpus=GpusSpec(count=2, price_per_hour=2.5))
    gpus = TargetGpus(registry, observed(spec))
    gpus.gpus_read([READING], "580")
    shown = {name: found for name in EXPORTED if (found := values(registry, name))}
    assert shown == {
        name: {("t", "0", *labels): value for labels, value in each.items()} for name, each in EXPORTED.items()
    }
    assert values(registry, "llmslo_gpus") == {("t",): 2}
    assert values(registry, "llmslo_gpu_price_dollars_per_hour") == {("t",): 2.5}
    gpus.gpus_read([], "580")
    assert not any(values(registry, name) for name in EXPORTED)
