"""Labels that users give their targets: what is taken, what is refused in words, and what a discovered list may say."""

import pytest

from prober.config.discovery import DiscoverySpec, Unfit, target_of
from prober.config.labels import MAX_LABELS, MAX_VALUE_CHARS, OWN_LABELS, label_name_problem
from prober.config.problems import ConfigError
from prober.daemon.registry import ALL
from prober.daemon.rules import example_rules
from tests.config.reading import loaded


def labels(text: str) -> list[dict[str, str]]:
    """Of each configured target, and of each discovery's template."""
    return [kind.labels for kind in loaded(text).kinds]


def discovery(more: str) -> DiscoverySpec:
    return loaded(f"discovery: [{{file: {{files: [a.json]}}, {more}}}]").discovery[0]


def test_a_target_has_its_own_labels_and_those_of_defaults() -> None:
    """Its own win; a neighbour without any has those of defaults."""
    text = """
defaults: {labels: {env: prod, team: core}}
targets: [{name: a, url: 'http://a', labels: {team: search, cost_center: 'R&D "7"'}}, {name: b, url: 'http://b'}]
"""
    assert labels(text) == [
        {"env": "prod", "team": "search", "cost_center": 'R&D "7"'},
        {"env": "prod", "team": "core"},
    ]
    assert loaded(text).label_names == ("cost_center", "env", "team")


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ("{target: x}", "labels.target: 'target' is a label of the prober itself; choose another name"),
        ("{le: x}", "labels.le: 'le' is a label of the prober itself"),
        ("{severity: x}", "labels.severity: 'severity' is a label of the prober itself"),
        (
            "{job: x}",
            "labels.job: 'job' is set by Prometheus, to that of the prober; choose another name, such as target_job",
        ),
        (
            "{__name__: x}",
            "labels.__name__: '__name__' is no name of a label: write up to 64 letters, digits and _, such as team",
        ),
        ("{cost-center: x}", "labels.cost-center: 'cost-center' is no name of a label"),
        ("{7: x}", "labels"),
        ("{équipe: x}", "labels.équipe: 'équipe' is no name of a label"),
        ('{team: "a\\nb"}', "labels.team: has characters that cannot be shown, or blanks around it"),
        ('{team: "\\u202edoogs"}', "labels.team: has characters that cannot be shown"),
        (f"{{team: {'x' * 129}}}", f"labels.team: is longer than {MAX_VALUE_CHARS} characters"),
        ("{team: 7}", "labels.team"),
        ("[team]", "labels"),
        (
            "{" + ", ".join(f"l{number}: x" for number in range(11)) + "}",
            f"labels: 11 labels; use {MAX_LABELS} or fewer, as every series about the target has them",
        ),
    ],
)
def test_what_cannot_be_a_label_is_refused_with_its_place(given: str, problem: str) -> None:
    """At the target and in defaults; a neighbour's good labels are not blamed."""
    with pytest.raises(ConfigError) as error:
        loaded(f"targets: [{{url: 'http://a', labels: {given}}}, {{url: 'http://b', labels: {{team: a}}}}]")
    lines = str(error.value).splitlines()
    assert any(line.startswith(f"c:1: targets[0].{problem}") for line in lines), lines
    assert not any("targets[1]" in line for line in lines), lines


def test_no_label_of_series_rules_or_alerts_is_free() -> None:
    """A user's label in place of one of them would merge or split what rules and dashboards join."""
    used = {name for series in ALL for name in series.labels} | {"le", "vantage"}
    for rule in example_rules():
        used |= rule.get("labels", {}).keys()
    assert {name for name in used if not label_name_problem(name)} == set()
    assert used - OWN_LABELS == set()


def test_a_list_fills_in_the_labels_that_the_template_names_and_no_others() -> None:
    """By their own name, or by a rule; what the list does not say is the template's."""
    rule = "relabel: [{source_labels: [__meta_kubernetes_pod_label_tier], target_label: tier}]"
    spec = discovery(f"{rule}, target: {{labels: {{team: nobody, tier: '', env: prod}}}}")
    found = {"__address__": "h:1", "team": "search", "__meta_kubernetes_pod_label_tier": "gold", "owner": "eve"}
    assert {"team", "tier", "env", "__meta_kubernetes_pod_label_tier"} <= spec.reads.names
    target, plain = target_of(found, spec), target_of({"__address__": "h:2"}, spec)
    assert target is not None
    assert target.labels == {"team": "search", "tier": "gold", "env": "prod"}
    assert plain is not None
    assert plain.labels == {"team": "nobody", "tier": "", "env": "prod"}


@pytest.mark.parametrize("value", ["x" * 129, "a\nb", "\u202ea", "\x00"])
def test_a_hostile_value_refuses_its_target_only(value: str) -> None:
    """With the name of the label; the same template takes a good neighbour."""
    spec = discovery("target: {labels: {team: ''}}")
    with pytest.raises(Unfit, match=r"^label team "):
        target_of({"__address__": "h:1", "team": value}, spec)
    neighbour = target_of({"__address__": "h:2", "team": "a"}, spec)
    assert neighbour is not None
    assert neighbour.labels == {"team": "a"}


def test_a_rule_cannot_make_up_a_label() -> None:
    """A misspelt `name` is a mistake, not a new label."""
    with pytest.raises(
        ConfigError, match=r"relabel\[0\].target_label: no label that is kept \"nmae\".*name it in `target.labels`"
    ):
        discovery("relabel: [{target_label: nmae, replacement: x}], target: {labels: {team: ''}}")
