"""Panels of the GPUs, from the prober's own readings, or where it cannot read them from an exporter: NVIDIA's DCGM exporter, or
AMD's device metrics exporter.

An exporter knows no targets. Its series belong to the target

- that their label `target` names, which the scrape job adds, or
- whose pod their labels name. Discovery names a target `NAMESPACE/POD` or `NAMESPACE/SERVICE/POD`. Prometheus renames
  the labels pod and namespace to `exported_…` unless the scrape job honours them; the plain labels are then the exporter's own.

Names and units are those of default-counters.csv and dcp-metrics-included.csv of the DCGM exporter, and of metricslist.md of AMD's at
1.5, whose names begin with `amd_` where its configuration says so.
"""

import re
from typing import Any

from prober.exposition.dashboards.board import Collapsed
from prober.exposition.dashboards.panels import Panel, Query, now, series, stat, states
from prober.exposition.dashboards.queries import STEP, TARGET, WHOLE_GPUS, gauge, rate
from prober.exposition.dashboards.style import GREEN, NEUTRAL, RED, YELLOW, Unit, index_mapping, named
from prober.exposition.families import AnySeries
from prober.features.gpu import series as gpu_series
from prober.probing import series as probe_series

# The gauge is the last XID, which is also a label: this is 1 while it differs from that of a step ago, 0 without any.
NEW_XID = (
    "(DCGM_FI_DEV_XID_ERRORS{} > bool 0) unless ignoring (err_code, err_msg) (DCGM_FI_DEV_XID_ERRORS{} > 0"
    f" == ignoring (err_code, err_msg) DCGM_FI_DEV_XID_ERRORS{{}} offset {STEP})"
)
_POD_OF_TARGET = (
    f"label_replace(group by (target) ({probe_series.STATE}{{{TARGET}}}),"
    ' "pod", "$1/$2", "target", "([^/]+)/(?:[^/]+/)?([^/]+)")'
)


def of_target(expr: str, by: str = "target, gpu") -> str:
    """PromQL for the maxima of an exporter's values over the chosen targets. The label `gpu` becomes HOST/GPU, or HOST/GPU:PARTITION.

    expr: PromQL whose result has the exporter's labels; the braces of each selector get the matchers of the target
    """

    def where(matchers: str) -> str:
        return "(" + re.sub(r"\{(.*?)\}", lambda own: f"{{{','.join(filter(None, (own[1], matchers)))}}}", expr) + ")"

    exported, own = 'target="",exported_pod!=""', 'target="",exported_pod="",pod!=""'
    of_pods = (
        f'(label_join({where(exported)}, "pod", "/", "exported_namespace", "exported_pod")'
        f' or label_join({where(own)}, "pod", "/", "namespace", "pod"))'
        f" * on (pod) group_left (target) {_POD_OF_TARGET}"
    )
    with_partition = f'label_join({where(TARGET)} or {of_pods}, "gpu", ":", "gpu", "GPU_I_ID")'
    with_host = f'label_join({with_partition}, "gpu", "/", "Hostname", "hostname", "gpu")'  # two names, by release
    return f'max by ({by}) (label_replace({with_host}, "gpu", "$1/$2", "gpu", "/?([^/]*)//?(.+?):?"))'


def _amd(expr: str) -> str:
    """Adapt PromQL on AMD's exporter to `of_target`: names with or without prefix, labels renamed to the DCGM exporter's."""
    prefixed = re.sub(r"\b(gpu_\w+)\{", r"amd_\1{", expr)
    return f'label_replace({expr} or {prefixed}, "gpu", "$1", "gpu_id", "(.+)")'


GPU = "target, gpu"
SIZE: dict[str, Any] = {"width": 12, "height": 7, "empty": "no data: no GPU is read, or it does not report this"}
ANY_METRIC = "DCGM_FI_DEV_GPU_TEMP{}"  # every GPU has it
ANY_OF_AMD = _amd("gpu_total_vram{}")


def count() -> Panel:
    """Panel of the number of GPUs."""
    return stat(
        "GPUs",
        "Number of GPUs read for this target, without partitions, by the prober, else by an exporter of NVIDIA's or AMD's. "
        "Bad: fewer than the engine uses. No data: no GPUs are read.",
        "none",
        now(f"count({WHOLE_GPUS}) or count({of_target(ANY_METRIC, 'target, UUID')}) or count({of_target(ANY_OF_AMD)})"),
        steps=NEUTRAL,
    )


def _or_exporters(own: str, dcgm: str, amd: str = "") -> str:
    """PromQL for the prober's own readings, or without them an exporter's. dcgm, amd: `expr` of `of_target`"""
    return " or on (target) ".join((own, of_target(dcgm), *([of_target(_amd(amd))] if amd else [])))


def _gpu(title: str, text: str, unit: Unit, declared: AnySeries, dcgm: str, amd: str = "", **more: Any) -> Panel:
    query = Query(_or_exporters(gauge(declared, GPU), dcgm, amd), "GPU {{gpu}}")
    return series(title, text, unit, query, **{**SIZE, **more})


def row() -> Collapsed:
    """Collapsed row about use, memory, power, clocks, throttling, temperature, errors and links of each GPU."""
    sources = {
        "read by the prober": WHOLE_GPUS,
        "from the DCGM exporter": of_target(ANY_METRIC),
        "from AMD's exporter": of_target(ANY_OF_AMD),
    }
    return Collapsed(
        [
            _gpu(
                "Utilisation",
                "Share of time in which a kernel was running. Bad: it falls while requests wait; look at the host CPU.",
                "percentunit",
                gpu_series.GPU_UTILIZATION,
                "DCGM_FI_DEV_GPU_UTIL{} / 100 or DCGM_FI_PROF_GR_ENGINE_ACTIVE{}",  # partitions have only the latter
                "gpu_gfx_activity{} / 100",
                high=1,
            ),
            _gpu(
                "Memory bandwidth in use",
                "Share of the memory bandwidth in use. Bad: near 1 while latency is too high: decoding is limited by memory bandwidth. "
                "No data: GPUs before Hopper do not report it.",
                "percentunit",
                gpu_series.GPU_BANDWIDTH,
                "DCGM_FI_PROF_DRAM_ACTIVE{}",
                high=1,
            ),
            series(
                "SM occupancy and tensor units",
                "Share of resident warps, and of cycles in which tensor cores were active. Bad: both fall at the same load.",
                "percentunit",
                Query(
                    _or_exporters(
                        gauge(gpu_series.GPU_OCCUPANCY, GPU),
                        "DCGM_FI_PROF_SM_OCCUPANCY{}",
                        "gpu_prof_occupancy_percent{} / 100",
                    ),
                    "GPU {{gpu}} warps",
                ),
                Query(
                    _or_exporters(
                        gauge(gpu_series.GPU_TENSOR, GPU),
                        "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE{}",
                        "gpu_prof_tensor_active_percent{} / 100",
                    ),
                    "GPU {{gpu}} tensor",
                ),
                high=1,
                **SIZE,
            ),
            series(
                "Memory in use",
                "Share of GPU memory in use. Bad: a rise above the engine's steady share; look for another process.",
                "percentunit",
                Query(
                    _or_exporters(
                        f"{gauge(gpu_series.GPU_MEMORY_USED, GPU)} / {gauge(gpu_series.GPU_MEMORY_TOTAL, GPU)}",
                        "DCGM_FI_DEV_FB_USED{} / (DCGM_FI_DEV_FB_USED{} + DCGM_FI_DEV_FB_FREE{})",
                        "gpu_used_vram{} / gpu_total_vram{}",
                    ),
                    "GPU {{gpu}}",
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
                "DCGM_FI_DEV_POWER_USAGE{}",
                "(gpu_package_power{} > 0 or gpu_average_package_power{})",  # MI300 and later, MI200
            ),
            _gpu(
                "SM clock",
                "Clock of the SMs. Bad: lower at the same load; see throttling.",
                "hertz",
                gpu_series.GPU_CLOCK,
                "DCGM_FI_DEV_SM_CLOCK{} * 1e6",
                'gpu_clock{clock_type=~"system|GPU_CLOCK_TYPE_SYSTEM"} * 1e6',  # the latter in early releases
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
                "DCGM_FI_DEV_GPU_TEMP{}",
                "(gpu_junction_temperature{} > 0 or gpu_edge_temperature{})",
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
                Query(
                    _or_exporters(
                        f"max by ({GPU}) (increase({gpu_series.GPU_XID}{{{TARGET}}}[{STEP}]))",
                        NEW_XID,
                    ),
                    "GPU {{gpu}} XID",
                ),
                bars=True,
                **SIZE,
            ),
            series(
                "PCIe and NVLink",
                "Bytes per second over PCIe and NVLink. Bad: on GPUs that share a model, NVLink idle and PCIe busy.",
                "Bps",
                *(
                    Query(
                        _or_exporters(
                            rate(gpu_series.GPU_PCIE, GPU, f',direction="{direction}"'),
                            f"DCGM_FI_PROF_PCIE_{theirs}_BYTES{{}}",
                        ),
                        f"GPU {{{{gpu}}}} PCIe {direction}",
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
