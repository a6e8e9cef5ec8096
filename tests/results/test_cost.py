"""Cost of tokens, recomputed here from price, GPUs and tokens; cost targets of a gate and of the rows of a matrix."""

from dataclasses import replace
from random import Random

import pytest

from prober.config.problems import ConfigError
from prober.config.rows import load_rows
from prober.features.experiments import gate, matrix
from prober.results.capacity import Capacity
from prober.results.context import with_context
from prober.results.cost import (
    CostFinding,
    judge_cost,
    output_cost_bounds,
    priced_stage,
    sentences,
    stage_cost,
    tokens_per_s_per_user,
)
from prober.results.result import DecodeLimit, Prices, RequestRow, Result
from prober.statistics.sequential_test import ERROR
from tests.known import known
from tests.results.samples import TTFT, sweep

PRICES = Prices(gpu_per_hour=3.0)


def priced(result: Result, **changes: object) -> Result:
    return replace(result, prices=PRICES, capacities=(), **changes)  # type: ignore[arg-type]


def test_each_price_bears_all_gpus() -> None:
    """$ per second ÷ tokens per second × a million."""
    stage = sweep().stages[1]
    cost = known(stage_cost(stage, PRICES))
    assert stage.gpus == 2
    assert cost.output == pytest.approx(2 * 3.0 / 3600 / (known(stage.output_tokens) / known(stage.duration_s)) * 1e6)
    assert cost.prompt == pytest.approx(2 * 3.0 / 3600 / (known(stage.prompt_tokens) / known(stage.duration_s)) * 1e6)
    assert 1 / (cost.total or 0) == pytest.approx(1 / known(cost.prompt) + 1 / known(cost.output))


def test_no_cost_without_throughput_price_or_gpus() -> None:
    """Nothing is made up."""
    stage = sweep().stages[1]
    assert stage_cost(stage, Prices()) is None
    assert stage_cost(replace(stage, gpus=None), PRICES) is None
    cost = known(stage_cost(replace(stage, output_tokens=None), PRICES))
    assert (cost.output, cost.total) == (None, None)


def test_a_user_gets_a_token_each_tpot() -> None:
    """1000 ÷ the median TPOT in ms."""
    stage = sweep().stages[0]
    tpot = known(stage.quantile("tpot", 0.5))
    assert tokens_per_s_per_user(stage) == pytest.approx(1000 / (tpot.estimate * 1e3))
    assert tokens_per_s_per_user(replace(stage, latencies={})) is None


def test_the_priced_stage_is_within_the_capacity() -> None:
    """The highest rate up to the lower bound of the capacity at all SLOs, not the luckiest stage. A gate has one rate, whatever it
    decides; a void sweep has none."""
    result = replace(sweep(), prices=PRICES, slos=(TTFT,), capacities=(Capacity("ttft", "found", 5.0, 6.0, 7.0),))
    lucky = replace(result.stages[0], output_tokens=1e9)

    def priced_per_s(changed: Result) -> float | None:
        stage = priced_stage(changed)
        return None if stage is None else stage.rate_per_s

    assert priced_per_s(replace(result, stages=(lucky, *result.stages[1:]))) == 4.0
    assert priced_per_s(replace(result, capacities=(Capacity("ttft", "not_reached", lower=2.0),))) == 1.0
    assert priced_per_s(replace(result, capacities=(Capacity("ttft", "not_enough_data"),))) is None
    void = replace(result, capacities=())
    assert priced_per_s(void) is None
    assert priced_per_s(replace(void, kind="gate", stages=result.stages[2:])) == 16.0


def test_sentences_say_why_there_is_no_cost() -> None:
    """A price without GPUs, or GPUs in dispute."""
    bare = priced(sweep(), slos=())
    without = replace(bare, stages=tuple(replace(stage, gpus=None) for stage in bare.stages))
    assert "the number of GPUs is not known" in " ".join(sentences(without))
    disputed = with_context(priced(sweep(), slos=()), (), {"gpu_count": "4"}, source="NVML")
    assert "the number of GPUs is in dispute, 2 (NVML) but 4 (configuration)" in " ".join(sentences(disputed))
    assert "$" not in " ".join(sentences(without))
    failing = replace(bare, slos=(TTFT,), capacities=(Capacity("ttft", "below", upper=1.0),))
    (text,) = sentences(failing)
    assert text.startswith("No cost is stated: the result shows no rate with a known throughput up to the lower bound")


def test_the_cost_of_output_has_its_interval() -> None:
    """Where the requests are known."""
    result = priced(sweep(), slos=())
    (text,) = [text for text in sentences(result) if "per million" in text]
    bounds = known(output_cost_bounds(result.stages[2], PRICES))
    assert f"(${bounds[0]:,.4g} to ${bounds[1]:,.4g}) per million output tokens, or $" in text
    (text,) = [text for text in sentences(result.without_requests()) if "per million" in text]
    assert " to $" not in text


def test_the_bound_stands_beside_the_measured() -> None:
    """As a share of it, or as a doubt where it is exceeded; nothing without a bound."""
    result = priced(sweep(), slos=())
    fast = DecodeLimit("NVIDIA L4", 1, 300e9, 1e9)
    (text,) = [text for text in sentences(replace(result, decode_limit=fast)) if "bandwidth" in text]
    assert text.startswith(
        "The memory bandwidth of NVIDIA L4 allows one stream at most 300 tokens/s, a TPOT of 3.33 ms or more"
    )
    slow = DecodeLimit("NVIDIA L4", 1, 300e9, 100e9)
    assert "are above it, so decoding is speculative or an input" in " ".join(
        sentences(replace(result, decode_limit=slow))
    )
    assert "bandwidth" not in " ".join(sentences(result))


def test_bounds_of_the_cost_hold_the_cost_of_the_distribution() -> None:
    """Of 400 runs with random arrivals and lengths, about 5% miss the true cost on either side."""
    below = above = 0
    stage = replace(sweep().stages[0], gpus=1)
    for seed in range(400):
        rng = Random(seed)
        rows, at_s = [], rng.expovariate(2.0)
        while at_s < 100.0:
            rows.append(RequestRow(at_s, output_tokens=rng.randint(10, 90)))
            at_s += rng.expovariate(2.0)
        total = sum(row.output_tokens or 0 for row in rows)
        bounds = known(
            output_cost_bounds(replace(stage, output_tokens=total, duration_s=100.0, requests=tuple(rows)), PRICES)
        )
        true = 3.0 / 3600 / (2.0 * 50.0) * 1e6
        below += bounds[1] < true
        above += bounds[0] > true
    assert below <= 36  # 9%
    assert above <= 36


def test_few_answers_have_no_bounds() -> None:
    """30 are needed."""
    stage = sweep().stages[0]
    assert output_cost_bounds(replace(stage, requests=stage.requests[:29]), PRICES) is None
    assert output_cost_bounds(replace(stage, requests=stage.requests[:30]), PRICES) is not None


ROW = "rows: [{{name: a, prompt_tokens: 8, output_tokens: 8, rate: 2/s, requests: 50, accept: {accept}}}]"


@pytest.mark.parametrize(
    ("share", "evidence"), [(0.5, "fails"), (0.99, "undecided"), (1.01, "undecided"), (2.0, "holds")]
)
def test_a_target_is_judged_by_the_interval_of_the_cost(share: float, evidence: str) -> None:
    """Holds or fails only if all of it is on one side."""
    result = sweep()
    stage = result.stages[0]
    cost = known(stage_cost(stage, PRICES))
    assert judge_cost(stage, PRICES, share * known(cost.output)).evidence == evidence


def test_a_cost_that_is_not_known_decides_nothing() -> None:
    """Without a stage, a price, GPUs, tokens or answers; the reason says which."""
    stage = sweep().stages[0]
    for judged, why in (
        (judge_cost(None, PRICES, 1.0), "throughput is not known"),
        (judge_cost(stage, Prices(), 1.0), "price or number of GPUs is not known"),
        (judge_cost(replace(stage, gpus=None), PRICES, 1.0), "price or number of GPUs is not known"),
        (judge_cost(replace(stage, output_tokens=None), PRICES, 1.0), "throughput is not known"),
        (judge_cost(replace(stage, requests=stage.requests[:29]), PRICES, 1.0), "fewer than 30 counted answers"),
    ):
        assert judged.evidence == "undecided"
        assert judged.why.endswith(why)


@pytest.mark.parametrize(
    ("evidence", "gated", "accepted"),
    [
        ("holds", "ready", "accepted"),
        ("fails", "degraded", "rejected"),
        ("undecided", "not_enough_data", "not_enough_data"),
    ],
)
def test_a_cost_counts_only_where_all_else_is_good(evidence: str, gated: str, accepted: str) -> None:
    """A cheap target that fails is not ready."""
    finding = CostFinding(evidence, "cost")  # type: ignore[arg-type]
    ready = gate.GateVerdict("ready", "fine", 50, 0, 0.03, ())
    verdict = gate.with_cost(ready, finding)
    assert verdict.state == gated
    assert verdict.error == (None if evidence == "undecided" else ERROR)
    failing = replace(ready, state="not_ready")
    assert gate.with_cost(failing, finding) == failing
    row = matrix.RowVerdict("a", "accepted", "fine", ())
    assert matrix.with_cost(row, finding).state == accepted
    assert matrix.with_cost(replace(row, state="rejected"), finding) == replace(row, state="rejected")


def test_a_row_has_a_cost_target_beside_its_objectives() -> None:
    """In dollars per million output tokens."""
    (row,) = load_rows(ROW.format(accept="['success:90%', 'cost<2.50']"), source="rows.yaml")
    assert (row.max_cost, [slo.name for slo in row.accept]) == (2.5, ["success"])
    (row,) = load_rows(ROW.format(accept="['success:90%']"), source="rows.yaml")
    assert row.max_cost is None


@pytest.mark.parametrize(
    ("accept", "message"),
    [
        ("['cost<2']", "rows[0].accept: needed: a list of what must hold"),
        ("['success:90%', 'cost<2', 'cost<3']", "rows[0].accept: has 2 cost targets; keep one"),
        ("['success:90%', 'cost<cheap']", "rows[0].accept[1]: 'cost<cheap' is no objective"),
    ],
)
def test_wrong_cost_targets_are_refused(accept: str, message: str) -> None:
    """A cost alone says nothing about answers."""
    with pytest.raises(ConfigError) as raised:
        load_rows(ROW.format(accept=accept), source="rows.yaml")
    assert str(raised.value).startswith(f"rows.yaml:1: {message}")
