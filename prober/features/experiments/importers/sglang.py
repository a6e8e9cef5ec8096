"""`python -m sglang.bench_serving --output-file`: one line per run."""

from prober.features.experiments.importers.exported_object import ExportedObject
from prober.features.experiments.importers.flat import Flat
from prober.results.result import Load, Result

SGLANG = Flat(
    tool="sglang.bench_serving",
    names={"ttft": "ttft", "tpot": "tpot", "itl": "itl", "e2e": "e2e_latency"},
    must=("input_throughput", "output_throughput", "mean_e2e_latency_ms", "completed"),
    must_not=(),
    differs=(
        "TTFT and E2E count from when the request was sent, not from when it was due; its waits add up, so that fewer "
        "requests are sent than asked for.",
        "Some of its clients take a chunk with a role alone as the first token: TTFT is too low there.",
        "A stream that was cut, or that carries an error inside a 200, counts as a success, with the length asked for.",
    ),
)


def read(exported_objects: list[ExportedObject]) -> Result:
    """Result with one stage per line."""
    first = exported_objects[0]
    rate, cap = first.number("request_rate"), first.count("max_concurrency")
    ratio = first.number("random_range_ratio")
    load = Load(
        prompt_tokens=_most(first, "random_input_len"),
        output_tokens=_most(first, "random_output_len"),
        varied=ratio < 1.0 if ratio is not None else None,
        arrivals="closed" if cap is not None else "poisson" if rate is not None else "all at once",
        max_in_flight=cap,
        dataset=first.text("dataset_name"),
    )
    return SGLANG.result(exported_objects, load)


def _most(exported: ExportedObject, key: str) -> str | None:
    highest = exported.text(key)
    return f"at most {highest}" if highest is not None else None
