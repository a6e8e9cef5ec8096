"""Results as CSV, one row per stage or request; columns are named as in `vllm bench serve --save-result`, if it has them."""

import csv
from collections.abc import Iterable, Sequence
from typing import Any

from prober.measure.printable import printable
from prober.results.result import Result
from prober.results.result_file import VLLM_NAMES, statistics

FORMULA_SIGNS = ("=", "+", "-", "@", "\t", "\n", "＝", "＋", "－", "＠")  # also in their full width


class _Lines(list[str]):
    """List of lines to which `csv.writer` writes as to a file."""

    write = list.append


def stages(results: Sequence[Result]) -> str:
    """CSV with a row per stage. Unknown values are empty; each outcome has its own column."""
    rows = [
        {
            "id": result.id,
            "tool": result.tool,
            "model_id": result.target.model,
            "engine": result.target.engine,
            "stage": stage.name,
            "workload": (stage.load or result.load).workload,
            "demand_rate": stage.demand_per_s,
            **statistics((stage,)),
            **{
                f"file_{figure}_{VLLM_NAMES[latency]}_ms": seconds * 1e3
                for latency, reported in stage.reported.items()
                for figure, seconds in reported.items()
            },
            "at_rate_request_throughput": stage.at_rate.requests_per_s,
            "at_rate_request_goodput": stage.at_rate.good_per_s,
            "at_rate_output_throughput": stage.at_rate.output_tokens_per_s,
            "at_rate_input_throughput": stage.at_rate.prompt_tokens_per_s,
            "gpus": stage.gpus,
            **stage.use,
            **{f"outcome_{name}": count for name, count in stage.outcomes.items()},
            "ended": stage.ended or None,
        }
        for result in results
        for stage in result.stages
    ]
    return _csv(rows)


def requests(results: Sequence[Result]) -> str:
    """CSV with a row per request; times in seconds."""
    rows = [
        {
            "id": result.id,
            "stage": stage.name,
            "start_time": request.start_s,
            "outcome": request.outcome,
            "error": request.error or None,
            "input_len": request.prompt_tokens,
            "output_len": request.output_tokens,
            "ttft": request.ttft_s,
            "tpot": request.tpot_s,
            "latency": request.e2e_s,
            "send_lag": request.send_lag_s,
            "warm_up": int(request.warm_up),
            "cached": int(request.cached),
            "itls": " ".join(f"{gap:.6g}" for gap in request.itls_s) or None,
        }
        for result in results
        for stage in result.stages
        for request in stage.requests
    ]
    return _csv(rows)


def _csv(rows: Sequence[dict[str, Any]]) -> str:
    columns: Iterable[str] = dict.fromkeys(name for row in rows for name in row)
    lines = _Lines()
    writer = csv.writer(lines, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        writer.writerow([_safe(row.get(name)) for name in columns])
    return "".join(lines)


def _safe(value: Any) -> Any:
    """Make a value printable, so that no spreadsheet runs it as a formula."""
    if not isinstance(value, str):
        return value
    text = printable(value)
    return f"'{text}" if text.startswith(FORMULA_SIGNS) else text
