"""Sentences of `prober sweep` on its result."""

from dataclasses import replace

import pytest

from prober.cli.sweep import _sentences
from prober.results.capacity import Capacity
from tests.results.samples import sweep

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
