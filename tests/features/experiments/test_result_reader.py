"""Other tools' files, with the keys that they have: what they say, what they do not say, what is refused."""

import csv
import json
import re
from pathlib import Path
from typing import Any

import pytest

from prober.features.experiments.audit import audit
from prober.features.experiments.compare import incomparable
from prober.features.experiments.report.csv_export import stages
from prober.features.experiments.report.report import markdown
from prober.features.experiments.report.stage_tables import contradictions
from prober.features.experiments.result_reader import read
from prober.results.result import Result
from prober.results.result_file import from_json, to_json
from prober.results.strict_json import Unreadable

# As the tools write them.
VLLM, SGLANG, AIPERF = (
    json.loads((Path(__file__).parent / "tool_results" / f"{name}.json").read_text())
    for name in ("vllm", "sglang", "aiperf")
)
DETAILED = VLLM | {
    "input_lens": [10, 20, 30, 40],
    "output_lens": [3, 3, 3, 0],
    "ttfts": [0.05, 0.08, 0.05, 0.0],
    "itls": [[0.01, 0.01], [0.01, 0.03], [0.01, 0.01], []],
    "latencies": [0.07, 0.12, 0.07, 0.0],
    "start_times": [100.0, 100.5, 101.0, 101.5],
    "errors": ["", "", "", "Connection refused"],
    "generated_texts": ["a", "b", "c", ""],
}


CAPTURED = Path(__file__).parent / "tool_results" / "captured"  # written by the tools, of `prober mock` that fails 3%


def captured(name: str) -> Result:
    return read((CAPTURED / name).read_text(), name)


def metric(unit: str, **values: float) -> dict[str, Any]:
    return {"unit": unit, **values}


def record(start_ns: int, phase: str = "profiling", error: Any = None) -> dict[str, Any]:
    metrics = {
        "time_to_first_token": {"value": 50.0, "unit": "ms"},
        "inter_token_latency": {"value": 10.0, "unit": "ms"},
        "inter_chunk_latency": {"value": [10.0, 12.0], "unit": "ms"},
        "request_latency": {"value": 72.0, "unit": "ms"},
        "input_sequence_length": {"value": 550, "unit": "tokens"},
        "output_sequence_length": {"value": 3, "unit": "tokens"},
    }
    return {
        "metadata": {
            "request_start_ns": start_ns,
            "request_end_ns": start_ns + 72_000_000,
            "benchmark_phase": phase,
        },
        "metrics": {} if error else metrics,
        "error": error,
    }


def of(document: Any) -> Result:
    return read(json.dumps(document), "f.json")


def p(result: Result, latency: str, q: float, stage: int = 0) -> tuple[float, int]:
    found = result.stages[stage].quantile(latency, q)
    assert found is not None
    return round(found.estimate, 9), found.count


def test_vllm_with_its_lists() -> None:
    """Requests one by one: intervals, distributions; a request with an error is none that was answered."""
    result = of(DETAILED)
    (stage,) = result.stages
    assert result.tool == "vllm bench serve"
    assert (stage.name, stage.rate_per_s, stage.duration_s) == ("2/s", 2.0, 2.0)
    assert (stage.sent, stage.answered, stage.outcomes) == (4, 3, {"ok": 3, "failed": 1})
    assert [each.start_s for each in result.requests] == [0.0, 0.5, 1.0, 1.5]
    assert result.requests[1].tpot_s == pytest.approx((0.12 - 0.08) / 2)
    assert result.requests[3].ttft_s is None
    assert result.requests[3].error == "Connection refused"
    assert p(result, "ttft", 0.99) == (0.08, 3)
    assert p(result, "itl", 1.0) == (0.03, 6)
    assert p(result, "e2e", 0.5) == (0.07, 3)
    assert stage.output_tokens_per_s == 4.5
    assert stage.goodput_per_s == 1.0
    assert (result.load.arrivals, result.load.varied) == ("poisson", True)
    assert (result.target.model, result.target.api, result.target.engine) == ("org/model-7b", "chat", None)
    assert result.started_unix_s == result.ended_unix_s - 2.0


def test_vllm_without_its_lists() -> None:
    """Only the percentiles that were asked for, in seconds; the number of gaps is told nowhere, so it is 0."""
    result = of(VLLM)
    assert result.requests == []
    assert p(result, "ttft", 0.5) == (0.05, 3)
    assert p(result, "tpot", 0.99) == (0.012, 3)
    assert p(result, "itl", 0.99) == (0.011, 0)
    assert "e2e" not in result.stages[0].latencies
    assert result.stages[0].outcomes == {"ok": 3, "failed": 1}
    assert result.load.varied is None


@pytest.mark.parametrize(
    ("keys", "arrivals", "name"),
    [
        ({"request_rate": "inf", "max_concurrency": 8}, "closed", "concurrency 8"),
        ({"request_rate": 2.0, "max_concurrency": 8}, "closed", "2/s"),
        ({"request_rate": "inf"}, "all at once", "all at once"),
        ({"burstiness": 0.5}, "gamma", "2/s"),
    ],
)
def test_vllms_arrivals(keys: dict[str, Any], arrivals: str, name: str) -> None:
    """A cap on concurrency makes requests wait in the client: no open loop."""
    result = of(VLLM | keys)
    assert (result.load.arrivals, result.stages[0].name) == (arrivals, name)


def test_older_vllm_has_no_latencies_and_no_times() -> None:
    """E2E is TTFT and gaps, as its client had it; when requests were sent stays unknown."""
    document = {key: value for key, value in DETAILED.items() if key not in ("latencies", "start_times")}
    result = of(document)
    assert result.requests[1].e2e_s == pytest.approx(0.12)
    assert result.requests[1].start_s is None


def test_sglangs_lines_are_stages() -> None:
    """It appends a line a run: rates side by side."""
    lines = [SGLANG, SGLANG | {"request_rate": 8.0, "p99_ttft_ms": 300.0}]
    result = read("\n".join(map(json.dumps, lines)) + "\n", "f.jsonl")
    assert result.tool == "sglang.bench_serving"
    assert [stage.name for stage in result.stages] == ["4/s", "8/s"]
    assert p(result, "ttft", 0.99, 1) == (0.3, 40)
    assert p(result, "e2e", 0.99) == (1.9, 40)
    assert p(result, "itl", 1.0) == (0.06, 0)
    assert result.stages[0].output_tokens_per_s == 200.0
    assert (result.load.arrivals, result.load.varied) == ("poisson", True)


def test_aiperf() -> None:
    """Units are those it states; a later minor version is read."""
    result = of(AIPERF | {"schema_version": "1.9", "new_key": {"unit": "?"}})
    (stage,) = result.stages
    assert result.tool == "aiperf 0.13.0"
    assert p(result, "itl", 0.99) == (0.02, 15_000)
    assert p(result, "tpot", 0.5) == (0.009, 300)
    assert (stage.sent, stage.answered) == (303, 300)
    assert stage.output_tokens_per_s == 255.0
    assert result.configuration == "aiperf profile --model org/model-7b"
    assert result.warm_up is not None
    assert result.warm_up.requests == 10
    assert (result.load.arrivals, result.load.seed) == ("poisson", 42)
    assert (stage.name, stage.rate_per_s) == ("5/s", 5.0)
    assert result.load.prompt_tokens == "normal, mean 550, standard deviation 50"
    assert (result.target.model, result.target.url) == ("org/model-7b", "http://llm:8000/v1")


@pytest.mark.parametrize(
    ("config", "arrivals", "name"),
    [
        ({"loadgen": {"request_rate": 5.0}}, "poisson", "5/s"),
        ({"loadgen": {"request_rate": 5.0, "arrival_pattern": "constant"}}, "constant", "5/s"),
        ({"loadgen": {"concurrency": 8}}, "closed", "concurrency 8"),
        ({"phases": [{"kind": "profiling", "type": "concurrency", "concurrency": 8}]}, "closed", "concurrency 8"),
        ({}, None, "one run"),
    ],
)
def test_aiperfs_load(config: dict[str, Any], arrivals: str | None, name: str) -> None:
    """By the names of older releases too; what is not told is unknown."""
    result = of(AIPERF | {"input_config": config})
    assert (result.load.arrivals, result.stages[0].name) == (arrivals, name)


def test_aiperfs_records() -> None:
    """A line a request; the warm-up's are counted and left out."""
    error = {"code": 499, "type": "RequestCancellationError", "message": "cancelled"}
    lines = [record(0, "warmup"), record(10**9), record(2 * 10**9), record(3 * 10**9, error=error)]
    result = read("\n".join(map(json.dumps, lines)), "f.jsonl")
    assert [each.start_s for each in result.requests] == [0.0, 1.0, 2.0]
    assert result.requests[0].itls_s == (0.01, 0.012)
    assert result.requests[2].error == "cancelled"
    assert result.stages[0].outcomes == {"ok": 2, "failed": 1}
    assert result.stages[0].duration_s == pytest.approx(2.072)
    assert result.warm_up is not None
    assert result.warm_up.requests == 1


@pytest.mark.parametrize(
    ("name", "unanswered", "ttft_ms"),
    [
        ("vllm_0.32.0_summary.json", 4, {"mean": 96.2, "std": 45.81, "p50": 85.18, "p99": 260.4}),
        ("vllm_0.32.0_detailed.json", 6, {"mean": 90.42, "std": 36.19, "p50": 85.96, "p99": 205.4}),
        ("sglang_0.5.23_summary.jsonl", None, {"mean": 92.45, "std": 52.0, "p50": 81.59, "p99": 299.2}),
        ("sglang_0.5.23_detailed.jsonl", 7, {"mean": 92.88, "std": 56.52, "p50": 79.72, "p99": 249.4}),
        ("aiperf_0.13.0.json", 4, {"mean": 96.34, "std": 41.11, "p50": 90.41, "p99": 219.5, "max": 231.2}),
    ],
)
def test_files_of_todays_tools(name: str, unanswered: int | None, ttft_ms: dict[str, float]) -> None:
    """The tool's own figures, of all latencies; failures only where the file counts them; no file contradicts itself."""
    result = captured(name)
    (stage,) = result.stages
    assert stage.unanswered == unanswered
    own = stage.reported["ttft"]
    assert {figure: own[figure] * 1e3 for figure in ttft_ms} == pytest.approx(ttft_ms, rel=1e-3)
    assert set(stage.reported) == {"ttft", "tpot", "itl", "e2e"}
    assert list(contradictions(result)) == []
    assert from_json(to_json(result), "r.json") == result


def test_failures_that_a_file_does_not_count_are_unknown() -> None:
    """In the report, and in its CSV."""
    result = captured("sglang_0.5.23_summary.jsonl")
    assert "| 20/s | 118 ok | *unknown* |" in markdown([result])
    (row,) = csv.DictReader(stages([result]).splitlines())
    assert (row["completed"], row["num_prompts"], row["failed"]) == ("118", "", "")
    assert float(row["mean_ttft_ms"]) == pytest.approx(92.45, rel=1e-3)
    silent = {key: value for key, value in AIPERF.items() if key != "error_request_count"}
    assert of(silent).stages[0].unanswered is None
    assert of(silent | {"error_summary": []}).stages[0].unanswered == 0


def test_a_tools_figures_stand_beside_those_of_its_requests() -> None:
    """By their own definition of a quantile, with mean and deviation; none beyond p99 of so few requests, in any format."""
    result = captured("vllm_0.32.0_detailed.json")
    text = markdown([result])
    row = next(line for line in text.splitlines() if "| TTFT, as the file says |" in line)
    assert [cell.strip() for cell in row.split("|")[4:5]] == ["86 ms"]
    assert "| 205 ms | *unknown* | *unknown* | – | 90.4 ms | 36.2 ms |" in row
    assert "interpolates a quantile between two requests" in text
    assert "| 90.4 ms | 36.2 ms |" in next(line for line in text.splitlines() if "| TTFT | 114 |" in line)
    for written in (text, stages([result]), to_json(result)):
        assert not re.search(r"p99\.9_|0\.999|\b(220|222) ms \\\*", written)
    (columns,) = csv.DictReader(stages([result]).splitlines())
    assert float(columns["file_p99_ttft_ms"]) == pytest.approx(205.44, rel=1e-4)
    assert float(columns["p99_ttft_ms"]) > float(columns["file_p99_ttft_ms"])


def test_a_file_that_contradicts_itself_is_named() -> None:
    """Lists in milliseconds beside a summary in seconds: first in the report; a file that agrees with itself is not accused."""
    file = json.loads((CAPTURED / "vllm_0.32.0_detailed.json").read_text())
    result = of(file | {"ttfts": [seconds * 1e3 for seconds in file["ttfts"]]})
    said = next(contradictions(result))
    assert said.startswith(
        "20/s: the file contradicts itself, so do not rely on it: TTFT mean is 90.4 s by its requests, and 90.4 ms"
    )
    assert "the file contradicts itself" in markdown([result]).split("## Target and load")[0]
    (said,) = contradictions(of(file | {"p99_itl_ms": 60.0}))
    assert "ITL p99 is 27.4 ms by its requests, and 60 ms by its own figure" in said


def test_lengths_of_failed_requests_are_none() -> None:
    """Two runs with other seeds, in which some requests failed, have lengths of one distribution."""
    one, other = (captured(f"vllm_0.32.0_detailed{name}.json") for name in ("", "_other_seed"))
    assert one.load.output_tokens == "6–10, as seen"
    assert one.load.prompt_tokens != other.load.prompt_tokens
    assert incomparable(one, other) == []


ALL = [VLLM, DETAILED, SGLANG, AIPERF]
NAMES = ["vllm", "vllm-detailed", "sglang", "aiperf"]


@pytest.mark.parametrize("document", ALL, ids=NAMES)
def test_every_tools_file_becomes_one_of_ours(document: Any) -> None:
    """And is the same when it is read again; it says what its figures mean differently, and claims no hardware."""
    result = of(document)
    assert from_json(to_json(result), "r.json") == result
    assert result.differs
    checks = {each.name: each.done for each in audit(result)}
    assert checks["hardware"] is False
    assert checks["batch"] is False


@pytest.mark.parametrize(
    ("document", "said"),
    [
        (
            AIPERF | {"schema_version": "2.0"},
            "f.json: schema_version: is '2.0' .of aiperf 0.13.0., this prober reads AIPerf's 1.x",
        ),
        ({"aiperf_version": "0.5.0", "schema_version": "1.0"}, "f.json: request_latency: is missing"),
        (
            AIPERF | {"request_latency": metric("tokens", p50=1.0)},
            "f.json: request_latency.unit: is 'tokens', not one of",
        ),
        (DETAILED | {"errors": [""]}, "f.json: errors: is '1 values', not the 4 of ttfts"),
        (VLLM | {"p99_ttft_ms": "fast"}, "f.json: p99_ttft_ms: is 'fast', not a number"),
        (VLLM | {"completed": True}, "f.json: completed: is 'True', not a number"),
        ({"results": 1, "qps": 2}, "f.json: is a file of no tool that is known .* its first keys: results, qps"),
        ([], "f.json: holds no JSON object"),
        (7, "f.json: holds no JSON object"),
    ],
)
def test_what_cannot_be_read_is_refused(document: Any, said: str) -> None:
    """With the file, the key and what is wrong."""
    with pytest.raises(Unreadable, match=said):
        of(document)


def test_not_a_number_is_absent() -> None:
    """Tools write NaN where they have none; it is no figure."""
    text = json.dumps(VLLM | {"p99_tpot_ms": float("nan")})
    result = read(text, "f.json")
    assert result.stages[0].quantile("tpot", 0.99) is None
