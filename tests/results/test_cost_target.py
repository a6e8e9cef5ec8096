"""Cost targets of a gate and of the rows of a matrix."""

from dataclasses import replace

import pytest

from prober.config.problems import ConfigError
from prober.config.rows import load_rows
from prober.features.experiments import gate, matrix
from prober.results.cost import CostFinding, judge_cost, stage_cost
from prober.results.result import Prices
from prober.statistics.sequential_test import ERROR
from tests.results.samples import sweep

PRICES = Prices(gpu_per_hour=3.0)
ROW = "rows: [{{name: a, prompt_tokens: 8, output_tokens: 8, rate: 2/s, requests: 50, accept: {accept}}}]"


@pytest.mark.parametrize(
    ("share", "evidence"), [(0.5, "fails"), (0.99, "undecided"), (1.01, "undecided"), (2.0, "holds")]
)
def test_a_target_is_judged_by_the_interval_of_the_cost(share: float, evidence: str) -> None:
    """Holds or fails only if all of it is on one side."""
    result = sweep()
    stage = result.stages[0]
    cost = stage_cost(stage, PRICES)
    assert cost is not None
    assert cost.output is not None
    assert judge_cost(stage, PRICES, share * cost.output).evidence == evidence


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
