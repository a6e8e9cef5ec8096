"""GPUs that NVIDIA's DCGM exporter or AMD's device metrics exporter reads, recorded by target for panels.

An exporter knows no targets. Its series belong to the target

- that their label `target` names, which the scrape job adds, or
- whose pod their labels name. Discovery names a target `NAMESPACE/POD` or `NAMESPACE/SERVICE/POD`. Prometheus renames
  the labels pod and namespace to `exported_…` unless the scrape job honours them; the plain labels are then the exporter's own.

Names and units are those of default-counters.csv and dcp-metrics-included.csv of the DCGM exporter, and of metricslist.md of AMD's at
1.5, whose names begin with `amd_` where its configuration says so.
"""

import re

from prober.exposition.alerting import Rule
from prober.exposition.dashboards.queries import TARGET
from prober.probing.series import STATE

EXPORTED = "gpu:llmslo_exporter:max"  # labels: target, gpu, metric, and cluster if there are several
_METRICS = (
    "DCGM_FI_DEV_(GPU_UTIL|FB_USED|FB_FREE|POWER_USAGE|SM_CLOCK|GPU_TEMP|XID_ERRORS)"
    "|DCGM_FI_PROF_(GR_ENGINE_ACTIVE|DRAM_ACTIVE|SM_OCCUPANCY|PIPE_TENSOR_ACTIVE|PCIE_[TR]X_BYTES)"
    "|(amd_)?gpu_(gfx_activity|(used|total)_vram|(average_)?package_power|clock|(junction|edge)_temperature"
    "|prof_(occupancy|tensor_active)_percent)"
)
# AMD's exporter has a clock of each domain; early releases name them in capitals.
_SELECTOR = f'{{__name__=~"{_METRICS}",clock_type=~"|system|GPU_CLOCK_TYPE_SYSTEM"}}'
_STEPS = (  # functions on the exporters' series, each with its arguments after the first
    ("label_replace", '"metric", "$1", "__name__", "(?:amd_)?(.+)"'),
    ("label_join", '"owner", "/", "namespace", "pod"'),
    ("label_join", '"exported", "/", "exported_namespace", "exported_pod"'),
    ("label_replace", '"owner", "$1", "exported", "(.+/.+)"'),
    ("label_replace", '"owner", "$1", "target", "(.+)"'),
    ("label_join", '"gpu", "/", "Hostname", "hostname", "gpu", "gpu_id"'),  # two names of each, by release and maker
    ("label_join", '"gpu", ":", "gpu", "GPU_I_ID"'),
    ("label_replace", '"gpu", "$1/$2$3", "gpu", "/*([^/]*)/+([^/:]+)/?(:.+)?:?"'),
)


def record() -> Rule:
    """Recording rule for the exporters' metrics by `target`, `gpu` (HOST/GPU or HOST/GPU:PARTITION) and `metric`, without `amd_`.

    Of two targets that are one pod, one has its GPUs.
    """
    expr = f"\n  {_SELECTOR}"
    for function, arguments in _STEPS:
        expr = f"{function}({expr},\n  {arguments})"
    targets = f'group by (cluster, target) ({STATE}{{state="ready"}})'
    owners = (
        f'label_replace({targets}, "owner", "$1", "target", "(.+)")\n'
        f'or label_replace({targets}, "owner", "$1/$2", "target", "([^/]+)/[^/]+/([^/]+)")'
    )
    joined = f"{expr}\n* on (cluster, owner) group_left (target) topk by (cluster, owner) (1,\n{owners})"
    return {"record": EXPORTED, "expr": f"max by (cluster, target, gpu, metric) (\n{joined})\n"}


def exported(expr: str) -> str:
    """PromQL by the chosen target and GPU from an expression of the exporters' metrics, each with or without an offset."""
    selected = rf'max by (target, gpu) ({EXPORTED}{{{TARGET},metric="\g<metric>"}}\g<offset>)'
    return re.sub(rf"\b(?P<metric>{_METRICS})\b(?P<offset>( offset [^\s)]+)?)", selected, expr)
