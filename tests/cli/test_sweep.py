"""Sentences of `prober sweep` on its result."""

from dataclasses import replace

import pytest

from prober.cli.sweep import _sentences
from prober.results.capacity import Capacity
from tests.results.samples import sweep

HOLDS = Capacity("ttft", "not_reached", lower=16.0)


@pytest.mark.parametrize(
    ("capacities", "stop", "is_advised"),
    [
        ((HOLDS,), "highest_rate", True),
        ((HOLDS, Capacity("tpot", "not_enough_data")), "highest_rate", True),
        ((HOLDS,), "request_budget", False),
        ((Capacity("ttft", "below", upper=1.0),), "highest_rate", False),
        ((HOLDS, Capacity("tpot", "below", upper=4.0)), "highest_rate", False),
        ((), "highest_rate", False),  # too many requests were refused
    ],
)
def test_a_higher_rate_is_advised_only_where_no_slo_fails(
    capacities: tuple[Capacity, ...], stop: str, *, is_advised: bool
) -> None:
    """At the highest rate, where a knee may be above; not where one is shown to be below."""
    sentences = list(_sentences(replace(sweep(), capacities=capacities, stop=stop)))
    assert any("A higher --max-rate may reach the knee." in sentence for sentence in sentences) == is_advised
