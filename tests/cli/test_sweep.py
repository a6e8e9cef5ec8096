"""`prober sweep`: its sentences on a result, and a sweep beside a mock engine in virtual time."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from prober.cli.sweep import _sentences
from prober.mock.delays import Constant
from prober.mock.service import Behaviour, Settings
from prober.results.capacity import Capacity
from tests.commands import prober
from tests.results.samples import sweep
from tests.virtual_commands import beside, mock

HOLDS = Capacity("ttft", "not_reached", lower=16.0)


@pytest.mark.parametrize(
    ("capacities", "stop", "advice"),
    [
        ((HOLDS, replace(HOLDS, slo="tpot", lower=14.0)), "highest_rate", " The knee is above 14/s: raise --max-rate."),
        ((HOLDS, Capacity("tpot", "not_enough_data")), "highest_rate", " A higher --max-rate may reach the knee."),
        ((HOLDS,), "request_budget", ""),
        ((Capacity("ttft", "below", upper=1.0),), "highest_rate", ""),
        ((HOLDS, Capacity("tpot", "below", upper=4.0)), "highest_rate", ""),
        ((), "highest_rate", ""),  # too many requests were refused
    ],
)
def test_a_higher_rate_is_advised_only_where_no_slo_fails(
    capacities: tuple[Capacity, ...], stop: str, advice: str
) -> None:
    """At the highest rate, where the knee is or may be above; not where one is shown to be below."""
    result = replace(sweep(), capacities=capacities, stop=stop)
    assert f"{result.capacity_words()}.{advice}" in list(_sentences(result))


def test_a_target_that_fails_at_the_lowest_rate_is_told_with_its_figures(tmp_path: Path) -> None:
    """Exit code 1, the rate at which it fails, and the counts that say so."""
    saved = tmp_path / "kept.json"
    options = ("--slo", "ttft<300ms:99%", "--min-rate", "4/s", "--warm-up", "3", "--output", saved)
    shape = ("--prompt-tokens", "20", "--output-tokens", "4", "--header", "X-Mock-Fault: latency:8")
    with beside(mock(Settings(behaviour=Behaviour(ttft=Constant(0.05), itl=Constant(0.001), slots=4)))) as (url,):
        ended = prober("sweep", url, *options, *shape)
    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert "ttft: knee below 4/s by " in ended.stdout
    assert "ramp 4/s" in ended.stdout
    result = json.loads(saved.read_text())["llm_slo_prober"]["result"]
    assert [capacity["verdict"] for capacity in result["capacities"]] == ["below"]
    (stage,) = result["stages"]
    assert stage["sent"] >= stage["slos"]["ttft"][1] >= 2
