"""`vllm bench serve --save-result`, with or without `--save-detailed`."""

from prober.features.experiments.importers.exported_object import ExportedObject
from prober.features.experiments.importers.flat import Flat
from prober.results.result import Load, Result

VLLM = Flat(
    tool="vllm bench serve",
    names={"ttft": "ttft", "tpot": "tpot", "itl": "itl", "e2e": "e2el"},
    must=("request_throughput", "total_input_tokens", "output_throughput", "model_id"),
    must_not=("input_throughput",),
    differs=(
        "TTFT and E2E count from when the request was sent, not from when it was due.",
        "In chat the first chunk counts as first token even if it carries a role alone: TTFT is too low there.",
        "ITL is the gap between chunks, however many tokens a chunk carries.",
        "A stream that was cut, or that carries an error inside a 200, counts as a success.",
        "With a maximum concurrency requests wait in the client, and TTFT leaves that wait out.",
        "Its date has no time zone: it is read as UTC.",
    ),
)


def read(exported: ExportedObject) -> Result:
    """Result of one run."""
    rate, cap, burstiness = (
        exported.number("request_rate"),
        exported.count("max_concurrency"),
        exported.number("burstiness"),
    )
    if cap is not None:
        arrivals: str | None = "closed"
    elif rate is None:
        arrivals = "all at once" if exported.get("request_rate") == "inf" else None
    else:
        arrivals = "poisson" if burstiness in (None, 1.0) else "gamma"
    load = Load(
        prompt_tokens=_lengths(exported, "input_lens"),
        output_tokens=_lengths(exported, "output_lens"),
        varied=_varied(exported),
        arrivals=arrivals,
        max_in_flight=cap,
        dataset=exported.first(("dataset_name",), ("dataset",)),
    )
    return VLLM.result([exported], load)


def _lengths(exported: ExportedObject, key: str) -> str | None:
    lengths = exported.rows(key)
    return f"{min(lengths):g}–{max(lengths):g}, as seen" if lengths else None


def _varied(exported: ExportedObject) -> bool | None:
    lengths = exported.rows("input_lens")
    return len(set(lengths)) > 1 if lengths else None
