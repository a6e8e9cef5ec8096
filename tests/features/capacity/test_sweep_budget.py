"""Sweeps spend the daily budgets of their target, and leave its scheduled probes what they need."""

from dataclasses import replace

import pytest

from prober.features.capacity.actions import Refused, StartRequest
from prober.measure.chunk import Usage
from prober.measure.outcome import Outcome
from prober.measure.result import ProbeResult
from prober.measure.timeline import Timeline
from tests.features.capacity.stage import SLOTS, Stage, behind_a_gateway, staged, until
from tests.virtual import running

pytestmark = pytest.mark.virtual_time

# 24 tokens a request; probes of 24 tokens every 100 s: 25 hours of them are 21,600, and 24,500 at four standard deviations.
FEW = "rate: 36/h, probes: [{workload: tiny}],"


async def settled(stage: Stage) -> float:
    """Tokens spent once the sweep is over."""
    await until(stage.is_swept)
    return stage.target.budgets["tokens"].spent(stage.clock.now_ns())


async def test_each_request_of_a_sweep_spends_the_targets_budget() -> None:
    """Warm-up, stages and cut requests, by the server's count where there is one; the series show the rest."""
    async with (
        behind_a_gateway(10**6) as (url, received),
        staged(url, "limits: {requests: 40}", budget="tokens_per_day: 1M, cost_per_day: 100, ", probes=FEW) as stage,
    ):
        stage.sweeps.start("t")
        spent = await settled(stage)
        assert len(received) >= 35
        # One whose connection was cut may have come or not, and costs what it received of its 4 tokens; the server counts a prompt as
        # 20 or 21. At $10 and $100 a million, both sums tell prompts and outputs apart.
        dollars = stage.target.budgets["cost"].spent(stage.clock.now_ns())
        outputs = round((dollars * 1e6 - 10 * spent) / 90)
        assert len(received) * 20 <= spent - outputs <= 40 * 21
        assert 0.8 * 4 * len(received) <= outputs <= 40 * 4
        assert stage.value("llmslo_budget_remaining_ratio", "tokens") == pytest.approx(1 - spent / 1e6)
        assert stage.value("llmslo_sweep_tokens_total") == pytest.approx(spent, abs=0.2 * 160), (
            "warm-up and cut requests too"
        )
        assert len(received) <= stage.value("llmslo_sweep_requests_total") <= 40


async def test_a_sweep_leaves_the_scheduled_probes_what_they_need() -> None:
    """Without limits of its own it ends at what the budget leaves, and says so; the share of the probes is untouched."""
    async with (
        behind_a_gateway(10**6) as (url, received),
        staged(url, budget="tokens_per_day: 26000, ", probes=FEW) as stage,
    ):
        stage.sweeps.start("t")
        spent = await settled(stage)
        (result,) = stage.sweeps.results()
        assert result.stop == "token_budget"
        assert "the rest of the target's daily budget is for its probes" in result.stop_detail
        assert 0 < len(received) * 20 <= spent <= 26_000 - 25 * 36 * 24
        assert spent > 500, "and it uses what is left"
        for _ in range(25 * 36):
            assert stage.target.reserve(20, 4) is not None
        with pytest.raises(Refused, match=r"leave .* tokens of budget.tokens_per_day") as refusal:
            stage.sweeps.start("t")
        assert refusal.value.reason == "over_budget"
        assert stage.refused() == {"over_budget": 1}


async def test_a_cost_budget_ends_a_sweep() -> None:
    """Without a budget of tokens; each request costs $0.0006."""
    async with (
        behind_a_gateway(10**6) as (url, received),
        staged(url, budget="cost_per_day: 0.65, ", probes=FEW) as stage,
    ):
        stage.sweeps.start("t")
        await until(stage.is_swept)
        (result,) = stage.sweeps.results()
        assert result.stop == "cost_budget"
        assert 0 < len(received) * 0.0006 <= 0.65 - 25 * 36 * 0.0006


async def test_probes_that_use_more_tokens_than_requested_need_more() -> None:
    """A chat template makes 120 tokens of 24: the sweep must leave five times as much."""
    async with running(SLOTS) as url, staged(url, budget="tokens_per_day: 100000, ", probes=FEW) as stage:
        stage.target_sweeps.check(StartRequest("request"))
        now = stage.clock.now_ns()
        timeline = Timeline(now, end_ns=now + 10**9, usage=Usage(116, 4, None))
        probe = ProbeResult("t", "tiny", "i", 0.0, Outcome.OK, "", timeline)
        for _ in range(5):
            stage.observed.probe_ended(replace(probe, requested_prompt_tokens=20, requested_output_tokens=4))
        with pytest.raises(Refused, match="raise the budget"):
            stage.sweeps.start("t")
