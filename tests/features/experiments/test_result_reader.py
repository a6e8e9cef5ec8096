"""Files of vLLM's client, with the keys that they have: what they say, what they do not say, what is refused."""

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
from prober.features.experiments.report.trade_offs import changes
from prober.features.experiments.result_reader import read, read_all
from prober.results.result import Result
from prober.results.result_file import from_json, to_json
from prober.results.strict_json import Unreadable
from tests.known import known

VLLM = json.loads((Path(__file__).parent / "tool_results" / "vllm.json").read_text())  # as its client writes it
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


def of(document: Any) -> Result:
    return read(json.dumps(document), "f.json")


def p(result: Result, latency: str, q: float, stage: int = 0) -> tuple[float, int]:
    found = known(result.stages[stage].quantile(latency, q))
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
    assert stage.at_rate.output_tokens_per_s == 4.5
    assert stage.at_rate.good_per_s == 1.0
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
        ({"burstiness": 0.5}, "gamma (burstiness 0.5)", "2/s"),
        (
            {"request_rate": "inf", "ramp_up_strategy": "linear", "ramp_up_start_rps": 1, "ramp_up_end_rps": 9},
            "poisson (linear rise from 1/s to 9/s)",
            "1/s to 9/s",
        ),
    ],
)
def test_vllms_arrivals(keys: dict[str, Any], arrivals: str, name: str) -> None:
    """A cap on concurrency makes requests wait in the client: no open loop."""
    result = of(VLLM | keys)
    assert (result.load.arrivals, result.stages[0].name) == (arrivals, name)
    (open_loop,) = (check.done for check in audit(result) if check.name == "open loop")
    assert open_loop == (arrivals.partition(" ")[0] in ("poisson", "gamma"))


@pytest.mark.parametrize(
    ("keys", "change"),
    [
        ({"tokenizer_id": "org/other"}, "tokenizer from org/model-7b to org/other"),
        ({"model_id": "org/model-8b"}, "model from org/model-7b to org/model-8b"),
        ({"request_rate": 8.0}, "rate from 2/s to 8/s"),
        ({"request_rate": "inf"}, "rate from 2/s to no limit"),
        ({"max_concurrency": 9}, "requests in flight at most from 8 to 9"),
        ({"max_concurrency": None}, "requests in flight at most from 8 to no limit"),
        ({"burstiness": 0.5}, "arrivals from gamma (burstiness 2) to gamma (burstiness 0.5)"),
        ({"endpoint_type": "openai"}, "API from chat to completions"),
        ({"backend": "tensorrt-llm"}, "engine from vllm to tensorrt-llm"),
        ({"label": "new"}, "label from old to new"),
        ({"tp": "4"}, "tp from 2 to 4"),
        ({"date": "20261121-101500", "num_prompts": 4}, "no known change of settings"),
    ],
)
def test_each_setting_that_changed_is_named(keys: dict[str, Any], change: str) -> None:
    """In the report of two runs, also where they stand in one file, as `--append-result` writes it."""
    before = VLLM | {"backend": "vllm", "label": "old", "tp": "2", "burstiness": 2.0, "max_concurrency": 8}
    if "burstiness" in keys or "request_rate" in keys:
        before["max_concurrency"] = None
    text = "\n".join(json.dumps(document) for document in (before, before | keys))
    results = [result for result in read_all(text, "f.json") if isinstance(result, Result)]
    assert [result.id for result in results] == ["f.json, run 1", "f.json, run 2"]
    (sentence,) = changes([(result.id, result) for result in results])
    assert change in sentence


@pytest.mark.parametrize(
    ("document", "latencies"),
    [
        (
            VLLM
            | {f"{figure}_{name}_ms": 0.0 for figure in ("mean", "median", "std", "p99") for name in ("tpot", "itl")},
            ["ttft"],
        ),
        (
            {key: 0.0 if key.endswith("_ms") else value for key, value in VLLM.items()} | {"completed": 0, "failed": 4},
            [],
        ),
        (
            {key: value for key, value in DETAILED.items() if not key.endswith(("_tpot_ms", "_itl_ms"))}
            | {"itls": [[], [], [], []], "latencies": [0.05, 0.08, 0.05, 0.0]},
            ["ttft", "e2e"],
        ),
        (VLLM, ["ttft", "tpot", "itl"]),
    ],
    ids=["not streamed", "nothing answered", "not streamed, detailed", "streamed"],
)
def test_figures_without_samples_are_absent(document: dict[str, Any], latencies: list[str]) -> None:
    """The client writes 0 ms where no request has the latency."""
    (stage,) = of(document).stages
    assert list(stage.latencies) == latencies
    assert "tpot" in latencies or "| TPOT |" not in markdown([of(document)])


def test_older_vllm_has_no_latencies_and_no_times() -> None:
    """E2E is TTFT and gaps, as its client had it; when requests were sent stays unknown."""
    document = {key: value for key, value in DETAILED.items() if key not in ("latencies", "start_times")}
    result = of(document)
    assert result.requests[1].e2e_s == pytest.approx(0.12)
    assert result.requests[1].start_s is None


@pytest.mark.parametrize(
    ("name", "unanswered", "ttft_ms"),
    [
        ("vllm_0.32.0_summary.json", 4, {"mean": 96.2, "std": 45.81, "p50": 85.18, "p99": 260.4}),
        ("vllm_0.32.0_detailed.json", 6, {"mean": 90.42, "std": 36.19, "p50": 85.96, "p99": 205.4}),
    ],
)
def test_files_of_todays_client(name: str, unanswered: int | None, ttft_ms: dict[str, float]) -> None:
    """Its own figures, of all latencies; no file contradicts itself."""
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
    silent = {key: value for key, value in VLLM.items() if key not in ("failed", "num_prompts")}
    result = of(silent)
    assert "| 2/s | 3 ok | *unknown* |" in markdown([result])
    (row,) = csv.DictReader(stages([result]).splitlines())
    assert (row["completed"], row["num_prompts"], row["failed"]) == ("3", "", "")
    assert float(row["mean_ttft_ms"]) == 60.0
    assert of(silent | {"num_prompts": 4}).stages[0].unanswered == 1


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


@pytest.mark.parametrize("document", [VLLM, DETAILED], ids=["summary", "detailed"])
def test_its_file_becomes_one_of_ours(document: Any) -> None:
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
        (DETAILED | {"errors": [""]}, "f.json: errors: is a list of 1, not of 4 as ttfts"),
        (VLLM | {"p99_ttft_ms": "fast"}, "f.json: p99_ttft_ms: is 'fast', not a number"),
        (VLLM | {"completed": True}, "f.json: completed: is True, not a number"),
        (VLLM | {"model_id": 7}, "f.json: model_id: is 7, not a text"),
        ({"results": 1, "qps": 2}, "f.json: is a file of no tool that is known .* its first keys: results, qps"),
        ([VLLM, {"results": 1}], "f.json: is a file of no tool that is known .* its first keys: results"),
        # Of clients that write other figures under vLLM's names, or under their own.
        (VLLM | {"input_throughput": 30.0}, "is a file of no tool"),
        ({"backend": "sglang", "request_throughput": 4.0, "total_input_tokens": 5}, "is a file of no tool"),
        ({"aiperf_version": "0.13.0", "request_latency": {"unit": "ms", "p50": 1.0}}, "is a file of no tool"),
        ({"metadata": {"request_start_ns": 1}, "metrics": {}}, "is a file of no tool"),
        ([VLLM, VLLM], "f.json: has 2 runs; write the run that is meant to a file of its own"),
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
