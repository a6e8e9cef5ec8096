"""Axes: where values stand, and that labels are few and round."""

import pytest

from prober.features.experiments.report.svg_chart import Scale, around


@pytest.mark.parametrize(
    ("scale", "value", "at"),
    [
        (Scale(0.0, 10.0), 2.5, 0.25),
        (Scale(0.0, 10.0), 11.0, 1.0),
        (Scale(0.01, 1.0, "log"), 0.1, 0.5),
        (Scale(0.01, 1.0, "log"), 0.0, 0.0),
        (Scale(0.0, 0.99, "tail"), 0.9, 0.5),
        (Scale(0.0, 0.999, "tail"), 0.99, 2 / 3),
        (Scale(0.0, 0.999, "tail"), 1.0, 1.0),
        (Scale(1.0, 1.0), 1.0, 0.5),
    ],
)
def test_where_a_value_stands(scale: Scale, value: float, at: float) -> None:
    """0 to 1; what is outside stands on the edge; each further nine is as wide as the first."""
    assert scale.at(value) == pytest.approx(at)


@pytest.mark.parametrize(
    ("scale", "labels"),
    [
        (Scale(0.0, 17.5), ["0", "5", "10", "15"]),
        (Scale(0.0, 0.35), ["0", "0.1", "0.2", "0.3"]),
        (Scale(0.0, 4321.0), ["0", "1,000", "2,000", "3,000", "4,000"]),
        (Scale(0.04, 2.0, "log"), ["50 ms", "100 ms", "200 ms", "500 ms", "1 s", "2 s"]),
        (Scale(0.001, 10.0, "log"), ["1 ms", "10 ms", "100 ms", "1 s", "10 s"]),
        (Scale(0.0, 0.9999, "tail"), ["p50", "p90", "p99", "p99.9"]),
    ],
)
def test_labels_are_round_and_few(scale: Scale, labels: list[str]) -> None:
    """At most eight, in the unit of the axis."""
    assert [label for _, label in scale.ticks()] == labels


@pytest.mark.parametrize("values", [[], [0.0], [5.0], [5.0, 5.0], [1e-9, 1e9], [0.0, 1e-12]])
@pytest.mark.parametrize("form", ["linear", "log"])
def test_any_values_make_an_axis(values: list[float], form: str) -> None:
    """None, one, equal or extreme ones: within it, with labels."""
    scale = around(values, form)  # type: ignore[arg-type]
    assert scale.high > scale.low
    assert 1 <= len(scale.ticks()) <= 20
    assert all(scale.low <= value <= scale.high for value in values if value > 0 or form == "linear")
