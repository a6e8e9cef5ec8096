"""GPUs of a target from the DCGM exporter, for a prober that cannot read NVML itself because it runs elsewhere.

The exporter knows no targets. Its series belong to a target

- whose name they have as a label `target`, which the scrape job adds, or
- of whose pod they name pod and namespace. Discovery names a target `NAMESPACE/POD` or `NAMESPACE/SERVICE/POD`. Prometheus renames
  these two labels to `exported_…` unless the scrape job honours them; without a pod, or renamed, they are those of the exporter.

Names and units are those of default-counters.csv and dcp-metrics-included.csv of the exporter.
"""

from prober.exposition.dashboards.queries import STEP, TARGET
from prober.probing import series as probe_series

LABELS = frozenset(
    (
        *("target", "cluster", "gpu", "UUID", "GPU_I_ID", "Hostname", "hostname", "err_code", "err_msg"),
        *("pod", "namespace", "exported_pod", "exported_namespace"),
    )
)
METRICS = (
    *("DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_FB_FREE", "DCGM_FI_DEV_POWER_USAGE"),
    *("DCGM_FI_DEV_SM_CLOCK", "DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_XID_ERRORS"),
    *("DCGM_FI_PROF_GR_ENGINE_ACTIVE", "DCGM_FI_PROF_DRAM_ACTIVE", "DCGM_FI_PROF_SM_OCCUPANCY"),
    *("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "DCGM_FI_PROF_PCIE_TX_BYTES", "DCGM_FI_PROF_PCIE_RX_BYTES"),
)
# The gauge is the last XID, which is also in its labels: 1 while it is another than a step ago, 0 without any.
NEW_XID = (
    "(DCGM_FI_DEV_XID_ERRORS{} > bool 0) unless ignoring (err_code, err_msg) (DCGM_FI_DEV_XID_ERRORS{} > 0"
    f" == ignoring (err_code, err_msg) DCGM_FI_DEV_XID_ERRORS{{}} offset {STEP})"
)
_POD_OF_TARGET = (
    f"label_replace(group by (target) ({probe_series.STATE}{{{TARGET}}}),"
    ' "pod", "$1/$2", "target", "([^/]+)/(?:[^/]+/)?([^/]+)")'
)


def of_target(expr: str, by: str = "target, gpu") -> str:
    """Maxima of `expr` for the chosen targets. The label `gpu` becomes HOST/GPU, or HOST/GPU:PARTITION.

    expr: with `{}` in place of the matchers of each selector; its result has the labels of the exporter.
    """

    def where(matchers: str) -> str:
        return "(" + expr.replace("{}", f"{{{matchers}}}") + ")"

    exported, own = 'target="",exported_pod!=""', 'target="",exported_pod="",pod!=""'
    of_pods = (
        f'(label_join({where(exported)}, "pod", "/", "exported_namespace", "exported_pod")'
        f' or label_join({where(own)}, "pod", "/", "namespace", "pod"))'
        f" * on (pod) group_left (target) {_POD_OF_TARGET}"
    )
    with_partition = f'label_join({where(TARGET)} or {of_pods}, "gpu", ":", "gpu", "GPU_I_ID")'
    with_host = f'label_join({with_partition}, "gpu", "/", "Hostname", "hostname", "gpu")'  # of two names, by release
    return f'max by ({by}) (label_replace({with_host}, "gpu", "$1/$2", "gpu", "/?([^/]*)//?(.+?):?"))'
