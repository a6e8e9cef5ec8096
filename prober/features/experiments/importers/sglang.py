"""`python -m sglang.bench_serving --output-file`: a line a run, appended."""

from prober.features.experiments.importers.flat import Flat
from prober.features.experiments.importers.sheet import Sheet
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


def read(sheets: list[Sheet]) -> Result:
    """Each line is a stage."""
    first = sheets[0]
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
    return SGLANG.result(sheets, load)


def _most(sheet: Sheet, key: str) -> str | None:
    found = sheet.text(key)
    return f"at most {found}" if found is not None else None
