"""The label `vantage` of every series about a target."""

import subprocess
from collections.abc import Iterable
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics
from prometheus_client.parser import text_string_to_metric_families as read_text

from prober.daemon.registry import ALL, registry, vantage_name
from prober.exposition.families import ConstantLabels, Registry, page
from prober.exposition.protobuf import page as protobuf_page

BOUNDS = (0.1, 1.0)


def filled(vantage: str = "", labels_of_target: ConstantLabels = ()) -> Registry:
    """A registry with one child of every family, whose labels are all `x`."""
    families = registry(vantage)
    families.label("x", labels_of_target)
    for declared in ALL:
        labels = tuple("x" for _ in declared.labels)
        if declared.kind == "histogram":
            families.histogram(declared, BOUNDS, *labels).observe(0.5)
        else:
            families.value(declared, *labels).inc()
    return families


def text(families: Registry, openmetrics: bool = False) -> str:
    body = b"".join(page(list(families.values()), openmetrics=openmetrics)).decode()
    return body + "# EOF\n" if openmetrics else body


@pytest.mark.parametrize("openmetrics", [False, True])
def test_every_series_about_a_target_has_the_vantage_and_no_other_has(openmetrics: bool) -> None:
    """Buckets, sums and counts too; values and all other labels are those of a prober without one."""
    read = read_openmetrics if openmetrics else read_text

    def samples(vantage: str) -> list[tuple[str, dict[str, str], float]]:
        families: Iterable = read(text(filled(vantage), openmetrics))  # type: ignore[type-arg]
        return [(sample.name, dict(sample.labels), sample.value) for family in families for sample in family.samples]

    expected = [
        (name, labels | ({"vantage": "paris"} if "target" in labels else {}), value)
        for name, labels, value in samples("")
    ]
    assert samples("paris") == expected
    assert {"target" in labels for _, labels, _ in expected} == {True, False}


def test_the_protobuf_page_has_it_too_and_only_there() -> None:
    """As a label pair after the others."""
    pair = b"\x0a\x10\x0a\x07vantage\x12\x05paris"
    for name, family in filled("paris").items():
        body = b"".join(protobuf_page([family]))
        assert body.count(pair) == ("target" in family.series.labels), name
    assert b"vantage" not in b"".join(protobuf_page(list(filled().values())))


def test_promtool_has_nothing_to_say_of_any_family(promtool: Path, newer_promtool: Path) -> None:
    """Names, units and labels of all of them, also of those that a short run does not show."""
    for release in (promtool, newer_promtool):
        command = [str(release), "check", "metrics"]
        checked = subprocess.run(command, input=text(filled()), capture_output=True, text=True, check=False)
        assert (checked.returncode, checked.stdout + checked.stderr) == (0, "")


def test_a_target_is_removed_with_its_vantage() -> None:
    """And its neighbour stays."""
    families = registry("paris")
    for target in ("a", "b"):
        families["llmslo_target_state"].value(target, "ready")
    families.remove("a")
    assert text(families).splitlines()[2:] == ['llmslo_target_state{target="b",state="ready",vantage="paris"} 0.0']


@pytest.mark.parametrize("vantage", ["", "paris"])
def test_every_series_of_a_target_has_the_labels_it_is_given(vantage: str) -> None:
    """In text and protobuf; a neighbour and the prober's own series are left alone."""

    def samples(families: Registry) -> list[tuple[str, dict[str, str], float]]:
        read = [sample for family in read_text(text(families)) for sample in family.samples]
        return [(sample.name, dict(sample.labels), sample.value) for sample in read]

    labelled, plain = filled(vantage, (("team", 'a "b"\\'), ("tier", "1"))), filled(vantage)
    for families in (labelled, plain):
        families["llmslo_target_state"].value("neighbour", "ready").inc(7)
    more = {"team": 'a "b"\\', "tier": "1"}
    expected = [(name, own | (more if own.get("target") == "x" else {}), value) for name, own, value in samples(plain)]
    assert samples(labelled) == expected
    assert b"\x0a\x04tier\x12\x011" in b"".join(protobuf_page(list(labelled.values())))


def test_labels_go_with_their_target() -> None:
    """One that comes again under the name has none of them."""
    families = registry()
    families.label("a", (("team", "search"),))
    families.remove("a")
    families["llmslo_target_state"].value("a", "ready")
    assert text(families).splitlines()[2:] == ['llmslo_target_state{target="a",state="ready"} 0.0']


@pytest.mark.parametrize("name", ["", "a", "eu-west-1", "Paris_2.dc", "7", "a" * 63])
def test_names_of_places_are_taken(name: str) -> None:
    """Short names in the letters that URLs and rules need not escape; empty is no vantage."""
    assert vantage_name(name) == name


@pytest.mark.parametrize(
    "name", [" ", "a b", 'a"b', "a\n", "-a", "a-", "a" * 64, "a,b", "{{a}}", "$(NODE_NAME)", "Zürich"]
)
def test_other_names_are_refused_with_an_example(name: str) -> None:
    """What Kubernetes left unexpanded too."""
    with pytest.raises(
        ValueError, match=r"is not the name of a place: write up to 63 letters, digits, .* such as eu-west-1"
    ):
        vantage_name(name)
