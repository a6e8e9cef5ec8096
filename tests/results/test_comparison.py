"""A comparison's file."""

import json
from typing import Any

import pytest

from prober.features.experiments.result_reader import read, read_all
from prober.results import comparison
from prober.results.comparison import Compared, ComparedAnswers, Comparison, Risk
from prober.results.result import Load, MeasuredTarget
from prober.results.result_file import KEY
from prober.results.strict_json import Unreadable
from prober.statistics.quantiles import Quantile

FOUND = Comparison(
    *("id", 1.0, 2.0, "tool", MeasuredTarget("http://a", "m"), MeasuredTarget("http://b", "m"), Load("probe"), 0.05),
    compared=(
        Compared("ttft_p50", 2.0, True, 12, 0.1, None, None, 0.5, 1.0, None, Quantile(0.5, 0.1, 0.09, None, 240)),
        Compared("failures", 2.0, False, 12, 0.0, 0.0, 0.0, 1.0, 1.0, "b", workload="row"),
    ),
    differs=(("engine", "vllm", ""),),
    remarks=("a sentence",),
    configuration="{}",
    risks=(Risk("adopt", "ttft_p50", 2.0, "", True, 0.1, None, None),),
    rollback="a restart",
    answers=(ComparedAnswers("golden", "text", 240, 1, 9, 3, 0.02, "a"),),
)


def test_what_was_kept_is_read() -> None:
    """Every field, by the reader that finds out whose file it is."""
    assert read_all(comparison.to_json(FOUND), "c.json") == [FOUND]


def test_it_is_no_result() -> None:
    """Where a result is asked for, it says what it is, and what shows it."""
    with pytest.raises(Unreadable, match=r"^c.json: is a comparison, not a result; `prober report` shows it$"):
        read(comparison.to_json(FOUND), "c.json")


def test_it_has_a_version_and_what_is_wrong_is_named() -> None:
    """Another format, a missing key."""
    file: Any = json.loads(comparison.to_json(FOUND))
    assert file[KEY]["format"] == 5
    del file[KEY]["comparison"]["error"]
    with pytest.raises(Unreadable, match=r"^c.json: llm_slo_prober.comparison.error: is missing$"):
        read_all(json.dumps(file), "c.json")
    file[KEY]["format"] = 99
    with pytest.raises(
        Unreadable, match="format: is 99, this prober reads comparisons of 5; use the version that wrote it"
    ):
        read_all(json.dumps(file), "c.json")
