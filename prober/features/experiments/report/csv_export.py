"""Results as CSV: a row a stage, or a row a request, with the column names of `vllm bench serve --save-result` where it has them."""

import csv
from collections.abc import Iterable, Sequence
from typing import Any

from prober.results.result import Result
from prober.results.result_file import statistics


class _Lines(list[str]):
    """What csv writes to."""

    write = list.append


def stages(results: Sequence[Result]) -> str:
    """A row a stage. Columns that only some rows have are empty in the others; outcomes are columns too."""
    rows = [
        {
            "id": result.id,
            "tool": result.tool,
            "model_id": result.target.model,
            "engine": result.target.engine,
            "stage": stage.name,
            "workload": (stage.load or result.load).workload,
            "repeat": stage.repeat,
            "demand_rate": stage.demand_per_s,
            **statistics(result, (stage,)),
            "gpus": stage.gpus,
            **{each: getattr(stage.use, each) for each in stage.use.__slots__},
            **{f"outcome_{name}": count for name, count in stage.outcomes.items()},
            "ended": stage.ended or None,
        }
        for result in results
        for stage in result.stages
    ]
    return _written(rows)


def requests(results: Sequence[Result]) -> str:
    """A row a request; seconds."""
    rows = [
        {
            "id": result.id,
            "stage": result.stages[each.stage].name,
            "start_time": each.start_s,
            "outcome": each.outcome,
            "error": each.error or None,
            "input_len": each.prompt_tokens,
            "output_len": each.output_tokens,
            "ttft": each.ttft_s,
            "tpot": each.tpot_s,
            "latency": each.e2e_s,
            "send_lag": each.send_lag_s,
            "warm_up": int(each.warm_up),
            "cached": int(each.cached),
            "itls": " ".join(f"{gap:.6g}" for gap in each.itls_s) or None,
        }
        for result in results
        for each in result.requests
    ]
    return _written(rows)


def _written(rows: Sequence[dict[str, Any]]) -> str:
    """Nothing of a cell is a formula: a spreadsheet would run a text that begins like one."""
    columns: Iterable[str] = dict.fromkeys(name for row in rows for name in row)
    lines = _Lines()
    writer = csv.writer(lines, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        writer.writerow([_safe(row.get(name)) for name in columns])
    return "".join(lines)


def _safe(value: Any) -> Any:
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@") else value
