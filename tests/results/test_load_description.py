"""Lengths have one text, which files of earlier versions are mapped to."""

import json
from dataclasses import fields
from typing import Any

import pytest

from prober.features.experiments.compare import incomparable
from prober.features.experiments.result_reader import read_any
from prober.results.comparison import Comparison
from prober.results.conditions import conditions
from prober.results.facts import Context
from prober.results.load_description import current_lengths, describe_lengths, describe_load, has_varied_prompts
from prober.results.result import Result, Use
from prober.results.result_file import from_json, to_json
from prober.workload.shapes import Empirical, Fixed, LengthDistribution, Lognormal, Uniform
from prober.workload.workloads import BUILT_IN, Mix, Workload

TEXTS: list[tuple[LengthDistribution, str]] = [
    (Fixed(500), "fixed 500"),
    (Uniform(1, 9), "uniform 1 to 9"),
    (Lognormal(500, 0.8, 50, 4000), "lognormal median 500, sigma 0.8, 50 to 4000"),
    (Lognormal(512.5, 0.0, 1, 2_000_000), "lognormal median 512.5, sigma 0, 1 to 2000000"),
    (Empirical(((0.0, 10.0), (0.5, 100.0), (1.0, 1e6))), "quantiles 0: 10, 0.5: 100, 1: 1000000"),
]
# Files as earlier versions wrote them: the daemon of format 3, `prober compare` of format 2.
SWEEP_3 = """{"llm_slo_prober": {"format": 3, "stages": [], "requests": {"stage": [], "outcome": [], "tpot_s": [],
"send_lag_s": [], "prompt_tokens": [], "output_tokens": [], "warm_up": [], "cached": []}, "result": {"id": "sweep-1",
"kind": "sweep", "started_unix_s": 1760000000.0, "ended_unix_s": 1760000123.0, "tool": "llm-slo-prober 0.6.0",
"target": {"url": "http://a", "model": "m", "engine": null, "engine_version": null, "api": "chat", "flags": {}},
"load": {"workload": "chat", "prompt_tokens": "Lognormal(median=500, sigma=0.8, low=50, high=4000)",
"output_tokens": "Lognormal(median=150, sigma=0.6, low=16, high=800)", "varied": true, "arrivals": "poisson",
"max_in_flight": 2000, "seed": null, "sampling": {"temperature": 0}, "dataset": "generated"},
"stages": [], "configuration": "{\\"retry_after_s\\": 17.5, \\"why\\": \\"schedule\\"}", "slos": [], "warm_up": null,
"capacities": [{"slo": "ttft", "verdict": "not_reached", "lower": 5.0, "estimate": null, "upper": null,
"tokens_per_s": null, "confidence": 0.9, "samples": 900, "fit": "fractions", "evidence": null}],
"stop": "retry_after", "stop_detail": "30 s", "repeats": 1, "prices": {"gpu_per_hour": null,
"prompt_per_million": null, "completion_per_million": null}, "context": CONTEXT, "interference": null,
"decision": null, "differs": [], "requests": []}}, "ttfts": [], "itls": [], "latencies": [], "start_times": [],
"errors": []}"""
COMPARISON_2 = """{"llm_slo_prober": {"format": 2, "comparison": {"id": "compare-1", "started_unix_s": 1.0, "ended_unix_s": 2.0,
"tool": "llm-slo-prober 0.6.0", "a": TARGET, "b": TARGET, "load": {"workload": "asked",
"prompt_tokens": "Fixed(tokens=300)", "output_tokens": "Fixed(tokens=20)", "varied": false, "arrivals": "poisson",
"max_in_flight": null, "seed": null, "sampling": {"temperature": 0}, "dataset": "generated"}, "error": 0.05,
"compared": [], "differs": [], "said": [], "configuration": null}}}"""
TARGET = '{"url": "http://a", "model": "m", "engine": null, "engine_version": null, "api": "chat", "flags": {}}'
CONTEXT = json.dumps({field.name: None for field in fields(Context)})


def old_sweep(**load: str) -> Result:
    file: Any = json.loads(SWEEP_3.replace("CONTEXT", CONTEXT))
    file["llm_slo_prober"]["result"]["load"] |= load
    return from_json(json.dumps(file), "old.json")


@pytest.mark.parametrize(("shape", "text"), TEXTS, ids=lambda value: str(value))
def test_a_distribution_has_a_text_and_its_old_repr_is_mapped_to_it(shape: LengthDistribution, text: str) -> None:
    """Equal distributions have equal texts, whichever version wrote them."""
    assert describe_lengths(shape) == text
    assert current_lengths(repr(shape)) == text
    assert current_lengths(text) == text


@pytest.mark.parametrize(
    ("old", "text"),
    [
        ("Fixed(tokens=10), Uniform(low=1, high=9)", "fixed 10; uniform 1 to 9"),
        (
            "a.b: Fixed(tokens=10), 5 of them shared by 50% of the requests; c: Uniform(low=1, high=9)",
            "a.b: fixed 10, 5 of them shared by 50% of the requests; c: uniform 1 to 9",
        ),
        ("1–9, as seen", "1–9, as seen"),
        ("normal, mean 5, standard deviation 0", "normal, mean 5, standard deviation 0"),
        ("Fixed(tokens=ten)", "Fixed(tokens=ten)"),
        ("Fixed(other=1)", "Fixed(other=1)"),
        ("Lognormal(((((", "Lognormal((((("),
    ],
)
def test_mixes_rows_and_texts_of_other_tools(old: str, text: str) -> None:
    """Every part is mapped; what no version wrote stays as it is."""
    assert current_lengths(old) == text


def test_an_old_result_is_compared_with_a_new_one_of_the_same_lengths() -> None:
    """The built-in workload of that version has the same identity today, and another one still differs."""
    old = old_sweep(workload="w")
    shapes = Lognormal(500, 0.8, 50, 4000), Lognormal(150, 0.6, 16, 800)
    new = describe_load(Workload("w", *shapes), arrivals="poisson", max_in_flight=2000)
    assert old.load == new
    assert incomparable(old.load, new) == []
    longer = describe_load(Workload("w", Lognormal(501, 0.8, 50, 4000), shapes[1]), arrivals="poisson")
    assert len(incomparable(old.load, longer)) == 1


def test_an_old_stage_has_the_text_of_today_too() -> None:
    """The conditions under which it is pooled with others."""
    file: Any = json.loads(SWEEP_3.replace("CONTEXT", CONTEXT))
    result = file["llm_slo_prober"]["result"]
    result["stages"] = [
        {"name": "a", "rate_per_s": 1.0, "begin_s": 0.0, "sending_s": 1.0, "duration_s": 1.0, "sent": 0, "answered": 0}
        | {"outcomes": {}, "latencies": {}, "prompt_tokens": None, "output_tokens": None, "demand_per_s": None}
        | {
            "gpus": None,
            "use": {field.name: None for field in fields(Use)},
            "slos": {},
            "good": None,
            "repeat": 1,
            "ended": "",
        }
        | {"load": result["load"] | {"prompt_tokens": "Fixed(tokens=7)"}, "throughput": None}
    ]
    old = from_json(json.dumps(file), "old.json")
    assert conditions(old, old.stages[0])["prompt tokens"] == "fixed 7"
    assert old.stages[0].throughput is None, "only formats before 3 had a wrong one"


def test_what_format_3_says_otherwise_is_kept() -> None:
    """Its capacities have evidence; the wait that the target asked for was in the text of the configuration."""
    old = old_sweep()
    assert [(each.verdict, each.lower) for each in old.capacities] == [("not_reached", 5.0)]
    assert old.retry_after_s == 17.5
    assert from_json(to_json(old), "new.json") == old


def test_an_old_comparison_has_the_text_of_today() -> None:
    """It is shown beside new ones."""
    old = read_any(COMPARISON_2.replace("TARGET", TARGET), "old.json")
    assert isinstance(old, Comparison)
    assert old.load is not None
    assert (old.load.prompt_tokens, old.load.output_tokens) == ("fixed 300", "fixed 20")


@pytest.mark.parametrize(
    ("workload", "varied"),
    [
        (Workload("a", Fixed(100), Fixed(10)), False),
        (Workload("a", Fixed(100), Uniform(1, 9)), False),
        (Workload("a", Uniform(1, 9), Fixed(10)), True),
        (Workload("a", Fixed(1), Fixed(1), prompts=((("user", "two words"),), (("user", "one"),))), True),
        (Workload("a", Uniform(1, 9), Fixed(1), prompts=((("user", "two words"),), (("user", "one more"),))), False),
        (Mix("m", ((Workload("a", Fixed(100), Fixed(10)), 0.5), (Workload("b", Fixed(100), Fixed(20)), 0.5))), False),
        (Mix("m", ((Workload("a", Fixed(100), Fixed(10)), 0.5), (Workload("b", Fixed(200), Fixed(20)), 0.5))), True),
        (BUILT_IN["chat"], True),
    ],
)
def test_varied_means_that_prompts_differ_in_length(workload: Workload | Mix, varied: bool) -> None:
    """Lengths of answers are no part of it, as other tools' files tell only those of prompts."""
    assert has_varied_prompts(workload) is varied
    assert describe_load(workload, arrivals="poisson").varied is varied
