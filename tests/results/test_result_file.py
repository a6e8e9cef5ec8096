"""A result's file: read again it is the same, and vLLM's readers find what they look for."""

import csv
import json
from dataclasses import replace
from statistics import fmean
from typing import Any

import pytest

from prober.features.experiments.report.csv_export import stages
from prober.features.experiments.result_reader import read
from prober.results.result import Load, MeasuredTarget, RequestRow, Result, Throughput
from prober.results.result_file import KEY, from_json, from_object, to_json
from prober.results.stage import stage_of_requests
from prober.results.strict_json import Unreadable
from tests.results.samples import sweep


def one_stage() -> Result:
    """As `vllm bench serve` has one."""
    whole = sweep()
    return replace(whole, stages=whole.stages[:1])


@pytest.mark.parametrize(
    "result",
    [
        sweep(),
        one_stage(),
        sweep().without_requests(),
        replace(
            sweep(),
            stages=(replace(sweep().stages[0], load=Load("row", "256", sampling={"top_p": 0.9}), requests=()),),
        ),
        Result("bare", "run", 0.0, 0.0, "tool", MeasuredTarget(), Load(), ()),
    ],
    ids=["sweep", "one stage", "figures only", "a stage of its own load", "bare"],
)
def test_what_was_written_is_read(result: Result) -> None:
    """Every field, with its type; by the reader that finds out whose file it is, too."""
    assert from_json(to_json(result), "r.json") == result
    assert read(to_json(result), "r.json") == result


def test_odd_requests_survive() -> None:
    """Zero tokens, no tokens, no time, an error that is named like its outcome: what is unknown stays unknown."""
    rows = (
        RequestRow(0.0, "empty", "the answer had no content", output_tokens=0, prompt_tokens=4),
        RequestRow(None, "shed"),
        RequestRow(1.0, "reset", "reset"),
        RequestRow(2.0, "ok", ttft_s=0.1, e2e_s=0.2, warm_up=True),
    )
    stage = stage_of_requests("s", None, rows, begin_s=0.0, sending_s=3.0)
    result = Result("odd", "run", 0.0, 3.0, "tool", MeasuredTarget(), Load(), (stage,))
    again = from_json(to_json(result), "r.json")
    assert again.requests[:2] == list(rows[:2])
    assert again.requests[2].outcome == "reset"
    assert again.requests[3] == rows[3]


def test_vllms_readers_find_their_keys() -> None:
    """Per-request lists in seconds, statistics in milliseconds, an empty error for a success."""
    result = one_stage()
    file = json.loads(to_json(result))
    ttfts = [each.ttft_s for each in result.requests]
    assert file["ttfts"] == ttfts
    assert file["itls"][0] == list(result.requests[0].itls_s)
    assert file["input_lens"][:2] == [100, 101]
    assert set(file["errors"]) == {""}
    assert file["completed"] == file["num_prompts"] == 120
    assert file["failed"] == 0
    assert file["mean_ttft_ms"] == pytest.approx(fmean(each or 0 for each in ttfts) * 1e3)
    assert file["p99_ttft_ms"] == sorted(each or 0 for each in ttfts)[118] * 1e3
    assert file["median_e2el_ms"] == file["p50_e2el_ms"]
    assert {"p99_itl_ms", "std_tpot_ms", "request_throughput", "request_goodput", "total_token_throughput"} <= set(file)
    assert file["model_id"] == "org/model-7b"
    assert file["burstiness"] == 1.0


def test_throughput_is_measured_and_not_that_at_the_rate() -> None:
    """As vLLM divides: answers and their tokens by the time until the last one, whatever rate was planned; failures do not count."""
    stage = replace(sweep().stages[2], throughput=Throughput(20.0, 19.0, 2_000.0, 160.0), duration_s=9.0)
    file = json.loads(to_json(replace(sweep(), stages=(stage,))))
    assert (file["request_rate"], file["duration"], file["completed"], file["failed"]) == (16.0, 9.0, 108, 12)
    expected = {
        "request_throughput": 12.0,
        "request_goodput": 12.0,
        "output_throughput": file["total_output_tokens"] / 9,
        "total_token_throughput": (file["total_output_tokens"] + file["total_input_tokens"]) / 9,
    }
    assert {name: file[name] for name in expected} == expected
    (row,) = csv.DictReader(stages([replace(sweep(), stages=(stage,))]).splitlines())
    assert (row["request_throughput"], row["at_rate_request_throughput"]) == ("12.0", "20.0")
    unknown = json.loads(to_json(replace(sweep(), stages=(replace(stage, duration_s=None, output_tokens=None),))))
    assert (unknown["request_throughput"], unknown["output_throughput"]) == (None, None)


def test_stages_of_several_rates_are_never_pooled() -> None:
    """Percentiles of different rates together mean nothing: each stage has its own."""
    file = json.loads(to_json(sweep()))
    assert not [key for key in file if key.endswith("_ms")]
    assert [each["request_rate"] for each in file[KEY]["stages"]] == [1.0, 4.0, 16.0]
    assert all(each["p99_ttft_ms"] > 0 for each in file[KEY]["stages"])
    assert file["num_prompts"] == 360
    assert file["failed"] == 12
    assert file["errors"][240] == "HTTP 503: busy"


ABSENT = object()
OWN: tuple[str | int, ...] = (KEY, "result")


def broken(path: tuple[str | int, ...], value: object) -> Any:
    """A file with another value at a path."""
    file = part = json.loads(to_json(sweep()))
    for each in path[:-1]:
        part = part[each]
    if value is ABSENT:
        del part[path[-1]]
    else:
        part[path[-1]] = value
    return file


@pytest.mark.parametrize(
    ("path", "value", "text"),
    [
        ((KEY, "format"), 5, "llm_slo_prober.format: is 5, this prober reads 10; use the version that wrote it"),
        (
            (KEY, "format"),
            ABSENT,
            "llm_slo_prober.format: is None, this prober reads 10; use the version that wrote it",
        ),
        ((*OWN, "target", "engine_version"), ABSENT, "llm_slo_prober.result.target.engine_version: is missing"),
        (
            (*OWN, "stages", 1, "sent"),
            "many",
            "llm_slo_prober.result.stages[1].sent: is 'many'; input should be a valid integer",
        ),
        (("ttfts",), ABSENT, "ttfts: is missing"),
        (("itls",), [], "itls: has 0 values, llm_slo_prober.requests.stage has 360"),
        ((KEY, "requests", "stage", 3), 9, "llm_slo_prober.requests.stage[3]: is 9, but there are 3 stages"),
        (OWN, ABSENT, "llm_slo_prober.result: is missing"),
        (
            (*OWN, "slos", 0, "objective"),
            "Infinity",
            "llm_slo_prober.result.slos[0].objective: is 'Infinity'; input should be a finite number",
        ),
        (
            (KEY, "requests", "output_tokens", 2),
            1.5,
            "llm_slo_prober.requests.output_tokens[2]: is 1.5; input should be a valid integer",
        ),
    ],
)
def test_a_file_that_is_not_right_is_named_with_its_key(path: tuple[str | int, ...], value: object, text: str) -> None:
    """File, path, the value there, and what is expected."""
    with pytest.raises(Unreadable) as raised:
        from_json(json.dumps(broken(path, value)), "r.json")
    assert str(raised.value) == f"r.json: {text}"


@pytest.mark.parametrize(
    "value", [10**30, "\ud800", json.loads("[" * 400 + "]" * 400)], ids=["integer", "text", "nesting"]
)
def test_values_that_no_result_has_are_refused(value: Any) -> None:
    """Integers beyond 64 bits, halves of characters and deep nesting, as a lenient parser returns them."""
    file = json.loads(to_json(sweep()))
    file[KEY]["result"]["load"]["sampling"] = {"top_p": value}
    with pytest.raises(Unreadable, match=r"^r.json: has a value that no result has: .*; write the file again$"):
        from_object(file, "r.json")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "r.json: is no JSON"),
        ('{"llm_slo_prober": {"format": NaN}}', "r.json: is no JSON"),
        ('{"llm_slo_prober": {"format": 1e999}}', "r.json: is no JSON"),
        ("[]", "r.json: llm_slo_prober: is missing"),
        ("{}", "r.json: llm_slo_prober: is missing"),
    ],
)
def test_what_is_no_result_is_refused(text: str, said: str) -> None:
    """Not guessed at."""
    with pytest.raises(Unreadable, match=said):
        from_json(text, "r.json")
