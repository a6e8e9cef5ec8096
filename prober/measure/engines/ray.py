"""Ray Serve LLM (2.60). Metrics page only: the agent of each node exports the engines' metrics as ray_vllm_… and ray_sglang_….

Several replicas on one page are added up. Names are those of Ray's own dashboards.
"""

from dataclasses import replace

from prober.measure.engine_signals import EngineTable, PageShape, with_renamed_metrics
from prober.measure.engines import sglang, vllm

_NEEDS = "scrape the node's metrics agent (--metrics-export-port), not the serve port"
_VLLM, _SGLANG = "ray_vllm_", "ray_sglang_"


def _of_ray(table: EngineTable, old: str, new: str) -> EngineTable:
    as_ray = with_renamed_metrics(table, engine="ray", old=old, new=new, shape=PageShape(prefixes=(new,)))
    signals = {name: sources for name, sources in as_ray.signals.items() if name != "start_time_seconds"}
    return replace(as_ray, signals=signals, facts=(), lazy=True, needs=_NEEDS)


TABLES = (_of_ray(vllm.V1, "vllm:", _VLLM), _of_ray(sglang.TABLES[0], "sglang:", _SGLANG))
