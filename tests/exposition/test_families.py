"""Text that Prometheus reads back as it was meant."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics
from prometheus_client.parser import text_string_to_metric_families as read_text

from prober.daemon.registry import ALL
from prober.exposition.families import Family, Histogram, Series, Value, number, page

BOUNDS = (0.1, 1.0)


def text(families: list[Family], *, openmetrics: bool = False) -> str:
    return b"".join(page(families, openmetrics=openmetrics)).decode() + ("# EOF\n" if openmetrics else "")


@given(st.text(st.characters(exclude_categories=["Cs", "Cc"]) | st.sampled_from('\n"\\')), st.floats(allow_nan=False))
def test_any_label_and_any_value_come_back(label: str, value: float) -> None:
    """Labels are escaped and floats written in full, in both forms."""
    family = Family(Series("x", "gauge", "x", ("a",)))
    family.value(label).value = value
    for read, openmetrics in ((read_text, False), (read_openmetrics, True)):
        (family_,) = read(text([family], openmetrics=openmetrics))
        (sample,) = family_.samples
        assert (sample.labels, sample.value) == ({"a": label}, value)


def test_every_declared_series_is_read_back_in_both_forms() -> None:
    """Names, kinds and help of all series of this prober are what both readers accept, with equal samples."""
    families = [Family(declared) for declared in ALL]
    for family in families:
        labels = tuple("v" for _ in family.series.labels)
        if family.series.kind == "histogram":
            family.histogram(BOUNDS, *labels).observe(0.05, 0.5, 7.0)
        else:
            family.value(*labels).inc(3)
    classic = list(read_text(text(families)))
    strict = list(read_openmetrics(text(families, openmetrics=True)))  # type: ignore[no-untyped-call]
    assert [(f.type, f.documentation) for f in classic] == [(f.type, f.documentation) for f in strict]
    assert [f.type for f in strict] == [declared.kind for declared in ALL]
    assert sorted(str(s) for f in classic for s in f.samples) == sorted(str(s) for f in strict for s in f.samples)
    units = {f.unit for f in strict}
    assert {"seconds", "ratio", "dollars"} <= units


def test_buckets_are_cumulative_and_a_value_on_a_bound_is_below_it() -> None:
    """`le` means at most; the last bucket, the count and the sum hold all."""
    family = Family(Series("y_seconds", "histogram", "y"))
    family.histogram(BOUNDS).observe(0.1, 0.100001, 1.0, 2.0)
    (family_,) = read_text(text([family]))
    buckets = {s.labels["le"]: s.value for s in family_.samples if s.name == "y_seconds_bucket"}
    assert buckets == {"0.1": 1, "1.0": 3, "+Inf": 4}
    assert {s.name: s.value for s in family_.samples if not s.labels} == {
        "y_seconds_count": 4,
        "y_seconds_sum": pytest.approx(3.200001),
    }


def test_an_exemplar_shows_at_once_and_only_in_openmetrics() -> None:
    """The latest request of a bucket is on its line, also if the page was written just before."""
    histogram = Histogram(Series("y_seconds", "histogram", "y"), (), BOUNDS)
    histogram.observe(0.5)
    before = histogram.text(True), histogram.text(False)
    histogram.exemplar(0.5, (("trace_id", "4b"), ("request_id", "slo-probe-1")), 1000.5)
    line = histogram.text(True).splitlines()[1]
    assert line == 'y_seconds_bucket{le="1.0"} 1.0 # {trace_id="4b",request_id="slo-probe-1"} 0.5 1000.500'
    assert histogram.text(False) == before[0] == before[1]


def test_a_page_grows_with_what_is_observed() -> None:
    """Text kept from an earlier page is not shown once a value has come."""
    histogram = Histogram(Series("y_seconds", "histogram", "y"), (), BOUNDS)
    first = histogram.text(False)
    assert histogram.text(False) is first
    histogram.observe(0.5)
    assert "y_seconds_count 1.0" in histogram.text(False)


def test_a_histogram_starts_anew_only_with_new_bounds() -> None:
    """The same bounds give the same histogram; others an empty one."""
    family = Family(Series("y_seconds", "histogram", "y", ("a",)))
    unchanged = family.histogram(BOUNDS, "b")
    assert family.histogram((0.1, 1.0), "b") is unchanged
    assert family.histogram((0.2, 1.0), "b") is not unchanged


@pytest.mark.parametrize(
    ("value", "text"), [(1, "1.0"), (0.05, "0.05"), (float("inf"), "+Inf"), (float("-inf"), "-Inf")]
)
def test_numbers_are_canonical(value: float, text: str) -> None:
    """Floats have the form of OpenMetrics."""
    assert number(value) == text


def test_a_series_without_labels_has_no_braces() -> None:
    """The line of a value without labels is its name and its number; a family without values has no line."""
    assert text([Family(Series("z_ratio", "gauge", "never made"))]) == ""
    assert Value(Series("x", "gauge", "x"), ()).text(False) == "x 0.0\n"


def test_histograms_with_equal_bounds_share_their_texts() -> None:
    """Ten thousand targets have the same buckets: what a line says of its bucket is kept once."""
    family = Family(Series("x_seconds", "histogram", "X.", ("target",)))
    first, second = family.histogram((0.1, 1.0), "a"), family.histogram((0.1, 1.0), "b")
    assert first._ends is second._ends
    assert second.text(False).splitlines()[0] == 'x_seconds_bucket{target="b",le="0.1"} 0.0'
    assert Histogram(Series("y", "histogram", "Y."), (), (0.5,)).text(False).splitlines()[-2:] == [
        "y_count 0.0",
        "y_sum 0.0",
    ]
