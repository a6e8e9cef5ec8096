"""Every alert in `promtool test rules`: firing, not firing, without traffic, and with the prober down.

The rules under test are those of every feature and of several probers, as the chart has them.
"""

import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial, reduce
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from prober.daemon.dashboards import documents
from prober.daemon.registry import ALL as ALL_SERIES
from prober.daemon.rules import groups
from prober.exposition.alerting import RuleOptions
from prober.exposition.dashboards.board import UIDS
from tests.daemon.alert_scenes import (
    ANSWERS,
    BURN,
    BURN_OF_TRAFFIC,
    NAMES,
    OUTAGE,
    OWN_SCENES,
    QUIET,
    SCENES,
    SELDOM_BAD,
    Scene,
    answers,
    at,
    beside,
    burn,
    discovery,
    drift,
    efficiency,
    failing,
    fires,
    no_data,
    other_instance,
    series_of,
    silent,
    up,
)
from tests.daemon.promtool import (
    PROBE,
    TARGET,
    Rules,
    Series,
    alerts,
    case,
    check_expressions,
    exhausted,
    expects,
    groups_of,
    headroom,
    run,
    run_cases,
    slo,
    swept,
    write_cases,
)

ROOT = Path(__file__).parents[2]
GROUPS = groups_of(ROOT / "deploy/prometheus/rules.yaml")
ALERTS: list[Rules] = [rule for group in GROUPS for rule in group["rules"] if "alert" in rule]
LLAMA = 'target="llama",workload="probe",slo="ttft"'
both_releases = pytest.mark.parametrize("release", ["promtool", pytest.param("newer_promtool", marks=pytest.mark.slow)])


def expectation(alert: str, scene: Scene) -> dict[str, Any]:
    """Whether an alert with the labels of the scene fires."""
    labels = "".join(f',{name}="{value}"' for name, value in scene.labels.items())
    query = f'count(ALERTS{{alertname="{alert}",alertstate="firing"{labels}}} == 1)'
    if scene.is_firing:
        return expects(f"{query} > bool 0", f"{scene.minute}m", {"": 1})
    return expects(query, f"{scene.minute}m", {})


def rules_of(groups: list[Rules], alert: str, scene: Scene) -> tuple[int, ...]:
    """Places of the alert's rules and of all that they read; of a page without its ticket."""
    rules = [rule for group in groups for rule in group["rules"]]
    text, places = alert, set[int]()
    while new := {
        place
        for place, rule in enumerate(rules)
        if re.search(rf"\b{rule.get('record') or rule['alert']}\b", text)
        and not (scene.labels.get("severity") == "critical" and is_ticket(rule))
        and place not in places
    }:
        places |= new
        text += "".join(rules[place]["expr"] for place in new)
    return tuple(sorted(places))


def is_ticket(rule: Rules) -> bool:
    """Whether the rule is the ticket about a burn."""
    return rule.get("alert") in (BURN, BURN_OF_TRAFFIC) and rule["labels"]["severity"] == "warning"


@cache
def groups_every(minutes: int, *, has_several: bool = True) -> list[Rules]:
    """The rules with as many minutes between two evaluations of what can wait, whose sums are of tiles of that length."""
    return groups(None, RuleOptions(slow_s=60 * minutes, has_several_probers=has_several))


def play(promtool: Path, folder: Path, every: Callable[[int], list[Rules]], scenes: dict[str, list[Scene]]) -> None:
    """Run all scenes; those of the same series and rules are one case, those of the same rules one file.

    Rules of tiles are evaluated every other minute, since `increase()` needs two samples, and those of scenes of days every 15
    minutes, since promtool recomputes their windows at each step. every: the rules whose tiles have so many minutes
    """
    files: dict[tuple[tuple[int, ...], int], dict[frozenset[tuple[str, str]], list[tuple[str, Scene]]]] = {}
    for alert, its_scenes in scenes.items():
        for scene in its_scenes:
            places = rules_of(every(1), alert, scene)
            rules = [rule for group in every(1) for rule in group["rules"]]
            has_tiles = any(":increase" in rules[place].get("record", "") for place in places)
            minutes = 15 if scene.minute > 500 else 2 if has_tiles else 1
            files.setdefault((places, minutes), {}).setdefault(frozenset(scene.series.items()), []).append(
                (alert, scene)
            )
    paths = []
    for number, ((places, minutes), by_series) in enumerate(files.items()):
        rules = [rule for group in every(minutes) for rule in group["rules"]]
        cases = [
            case(
                dict(series),
                name="; ".join(f"{alert}: {scene.text}" for alert, scene in together),
                promql_expr_test=[expectation(alert, scene) for alert, scene in together],
            )
            for series, together in by_series.items()
        ]
        # As one group, since promtool takes groups in any order, and 15 minutes are beyond its look back for a recorded value.
        group = [{"name": "all", "rules": [rules[place] for place in places]}]
        (folder / str(number)).mkdir()
        paths.append(write_cases(folder / str(number), group, cases, f"{minutes}m"))
    run(promtool, "test", *paths)


@both_releases
def test_every_alert_fires_when_it_should_and_only_then(
    release: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Each alert: firing, not firing, no traffic, prober down, exactly at its threshold; in Prometheus 2 and 3."""
    play(request.getfixturevalue(release), tmp_path, groups_every, SCENES)


def test_the_rules_of_a_single_prober_decide_alike(promtool: Path, tmp_path: Path) -> None:
    """Pages of a prober beside which there is no other."""
    chosen = {name: SCENES[name] for name in (BURN, "LLMTargetFailing", "LLMProberDown")}
    alone = {
        name: [scene for scene in scenes if not re.search('vantage=|instance="[bz]"', "".join(scene.series))]
        for name, scenes in chosen.items()
    }
    play(promtool, tmp_path, partial(groups_every, has_several=False), alone)


def test_two_copies_of_the_rules_change_no_figure(promtool: Path, tmp_path: Path) -> None:
    """Prometheus loads what two releases of a chart install; the copies are evaluated at other times."""
    kind = slo("ttft", "0+12x500", "0+0.96x500")
    rules = [rule for group in groups_every(4) for rule in group["rules"] if "slo:llmslo_" in rule.get("record", "")]
    names = [rule["record"] for rule in rules if "bad:ratio" in rule["record"] and "traffic" not in rule["record"]]
    figures = []
    for count in (1, 2):
        folder = tmp_path / str(count)
        folder.mkdir()
        expected = [
            expects(f"round({name}, 0.001)", "420m", {LLAMA: 0.08})
            for name in names
            if "d" not in name.rpartition("ratio")[2]
        ]
        figures.append(len(expected))
        copies = [{"name": f"copy {number}", "rules": rules} for number in range(count)]
        run_cases(promtool, folder, copies, [case(kind, promql_expr_test=expected)], "2m")
    assert figures == [5, 5]


@both_releases
def test_one_outage_is_one_page_from_however_many_places(
    release: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """An outage that three vantages see is one alert of each kind, as if one prober saw it; one that a single one sees is a warning."""
    seen, unseen = OUTAGE | failing("0+0x44 1+0x75"), slo("ttft", "0+12x120", "0+0x120") | failing("0+0x120")
    unseen |= series_of("target_state", "1+0x120", state="ready") | series_of("probes_total", "0+12x120", PROBE)
    pages = {("LLMTargetFailing", "critical", 'target="llama"'): 1}
    others = {(BURN, "critical", 'target="llama"'): 0}  # the bad events of an outage are told by its own page
    warnings = {
        ("LLMErrorBudgetBurnFromVantage", "warning", 'vantage="paris"'): 1,
        ("LLMTargetFailingFromVantage", "warning", 'vantage="paris",target="llama"'): 1,
    }
    scenes = [(OUTAGE | failing("0+0x44 1+0x75"), pages, warnings)]
    scenes += [
        (at("paris", seen) | at("tokyo", other) | at("lima", third), expected, absent)
        for other, third, expected, absent in ((seen, seen, pages, warnings), (unseen, unseen, warnings, pages))
    ]
    cases = [
        case(
            series,
            promql_expr_test=[
                expects(
                    f'count(ALERTS{{alertname="{name}",alertstate="firing",severity="{severity}",{more}}})',
                    "62m",
                    {"": count} if kind is expected and count else {},
                )
                for kind in (expected, absent, others)
                for (name, severity, more), count in kind.items()
            ],
        )
        for series, expected, absent in scenes
    ]
    groups = [group for group in GROUPS if group["name"] in ("llm-slo-probes", "llm-slo-prober")]
    run_cases(request.getfixturevalue(release), tmp_path, groups, cases)


@pytest.mark.parametrize(
    ("alert", "wrong"),
    [
        (BURN, fires("expected, does not fire", 30, QUIET, **burn("critical"))),
        ("LLMProberDown", silent("fires, not expected", 8, {"other": "0+0x20"})),
    ],
)
def test_wrong_expectations_fail(promtool: Path, tmp_path: Path, alert: str, wrong: Scene) -> None:
    """A missing alert and an unexpected alert both fail."""
    with pytest.raises(AssertionError, match="FAILED"):
        play(promtool, tmp_path, groups_every, {alert: [wrong]})


def neighbour(minutes: int) -> Series:
    """A target, a prober and a discovery without trouble."""
    series = QUIET | discovery("a", "1+0x60") | swept("60+60x60", "21600+0x60")
    other = {"llama": "other", "pods": "other", 'instance="a"': 'instance="b"'}
    return {
        reduce(lambda name, pair: name.replace(*pair), other.items(), name): values.replace("x60", f"x{minutes}")
        for name, values in series.items()
    }


def test_a_neighbour_of_trouble_stays_silent(promtool: Path, tmp_path: Path) -> None:
    """Beside the first scene in which each alert fires, no alert is about others."""
    first = {name: scene for name in SCENES for scene in reversed(SCENES[name]) if scene.is_firing}
    assert set(first) == set(NAMES)
    about = ('target="other"', 'instance="b"', 'discovery="other"')
    others = f"count({' or '.join(f'ALERTS{{{label}}}' for label in about)})"
    for is_long in (True, False):
        rules = [rule for group in groups_every(15 if is_long else 1) for rule in group["rules"]]
        cases = [
            case(
                neighbour(scene.minute) | scene.series,
                name=name,
                promql_expr_test=[expectation(name, scene), expects(others, f"{scene.minute}m", {})],
            )
            for name, scene in first.items()
            if (scene.minute > 500) is is_long and 'target="other"' not in "".join(scene.series)
        ]
        run_cases(promtool, tmp_path, [{"name": "all", "rules": rules}], cases, "15m" if is_long else "1m")


def samples(values: str) -> list[str]:
    """The samples of promtool's notation."""
    found: list[str] = []
    for part in values.split():
        if match := re.fullmatch(r"(_|-?[\d.]+)(?:([+-][\d.]+))?x(\d+)", part):
            start, step, count = match[1], float(match[2] or 0), int(match[3])
            found += ["_"] * count if start == "_" else [f"{float(start) + step * i:g}" for i in range(count + 1)]
        else:
            found.append(part)
    return found


def test_no_alert_is_about_a_target_that_was_removed(promtool: Path, tmp_path: Path) -> None:
    """Each alert that fires is gone two minutes after its target is, while the prober and another target stay."""
    cases = []
    for name, scenes in OWN_SCENES.items():
        scene = next(scene for scene in scenes if scene.is_firing)
        of_one = "target" in scene.labels or "workload" in scene.labels or "slo" in scene.labels
        if scene.minute > 500 or not of_one or not any('target="llama"' in series for series in scene.series):
            continue
        removed = {
            series: " ".join([*samples(values)[: scene.minute + 1], "stale"]) if 'target="llama"' in series else values
            for series, values in scene.series.items()
        }
        alive = up("1+0x600", "1+0x600")
        for instance in set(re.findall(r'instance="(\w+)"', "".join(scene.series))):
            alive |= {
                series.replace('instance="a"', f'instance="{instance}"'): values for series, values in alive.items()
            }
        others = alive | beside(scene.series)
        of_target = 'ALERTS{alertstate="firing",target="llama"}'
        cases.append(
            case(
                others | removed,
                name=name,
                promql_expr_test=[
                    expectation(name, replace(scene, labels=scene.labels | {"target": "llama"})),
                    expectation(name, replace(scene, labels=scene.labels | {"target": "other"})),
                    expects(of_target, f"{scene.minute + 2}m", {}),
                ],
            )
        )
    assert len(cases) >= 15
    rules = [rule for group in groups_every(1) for rule in group["rules"]]
    run_cases(promtool, tmp_path, [{"name": "all", "rules": rules}], cases)


def test_every_shipped_alert_has_scenes() -> None:
    """Of its own: at least one in which it fires, and one in which it does not. No scene is of an alert that is not shipped."""
    files = [path for path in (ROOT / "deploy").rglob("*.yaml") if "alert: LLM" in path.read_text()]
    assert {path.name for path in files} == {"rules.yaml", "prometheusrule.yaml"}
    shipped = {name for path in files for name in re.findall(r"alert: (\w+)", path.read_text())}
    kinds = {name: {scene.is_firing for scene in own} for name, own in OWN_SCENES.items()}
    assert kinds == {name: {True, False} for name in shipped - {COPIES}}


LINKS = ("dashboard_url", "prober_url")
COPIES = "LLMRulesLoadedTwice"
"""The chart's own alert: tests/deploy/test_rules_once.py has its scenes."""
BOARDS = {
    "slo": (BURN, BURN_OF_TRAFFIC, "LLMSLONoData"),
    "capacity": ("LLMHeadroomLow", "LLMCapacityExhaustionForecast", "LLMSweepStale"),
    "engine": ("LLMKVCachePressure", "LLMGPUThrottling", "LLMEnginePageUnreadable"),
    "drift": ("LLMTTFTP99Drift", "LLMITLP99Drift", "LLMEfficiencyDropped", "LLMAnswersChanged", "LLMProberUntrusted"),
}


def test_links_lead_to_the_dashboard_that_shows_what_the_alert_is_about() -> None:
    """Of alerts about targets, others about the prober; what a link chooses is a variable of that dashboard."""
    board_of = {alert: board for board, alerts in BOARDS.items() for alert in alerts}
    shown = documents()
    assert "dashboard_url" not in str(ALERTS), "a Grafana that nobody named"
    linked = (
        rule for group in groups_of(ROOT / "deploy/mixin/rules.yaml") for rule in group["rules"] if "alert" in rule
    )
    for rule in linked:
        is_about_a_target = "$labels.target" in rule["annotations"]["summary"]
        assert ("dashboard_url" in rule["annotations"]) is (is_about_a_target and rule["labels"]["severity"] != "none")
        if "dashboard_url" not in rule["annotations"]:
            continue
        url = urlsplit(rule["annotations"]["dashboard_url"])
        board = board_of.get(rule["alert"], "target")
        assert url.path == f"/d/{UIDS[board]}", rule["alert"]
        chosen = {name.removeprefix("var-") for name in parse_qs(url.query) if name.startswith("var-")}
        assert chosen <= {variable["name"] for variable in shown[f"{board}.json"]["templating"]["list"]}
        assert ("target" in chosen) is is_about_a_target


def test_every_alert_has_its_annotations_and_runbook() -> None:
    """Summary, description, runbook and severity, and one runbook per alert. One that is sent to nobody has a summary."""
    for rule in ALERTS:
        notes = rule["annotations"]
        if rule["labels"]["severity"] == "none":
            assert set(notes) == {"summary"}
            continue
        assert (
            {"summary", "description", "runbook_url"} <= set(notes) <= {"summary", "description", "runbook_url", *LINKS}
        )
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert notes["runbook_url"].endswith(f"}}}}/runbooks/{rule['alert']}{{{{ end }}}}")
    assert {rule["alert"] for rule in ALERTS} == set(NAMES)
    pages = {path.stem for path in (ROOT / "deploy/runbooks").glob("*.md")} - {"README"}
    sent = {rule["alert"] for rule in ALERTS if rule["labels"]["severity"] != "none"} | {COPIES}
    assert pages == sent
    for name in sent:
        text = (ROOT / f"deploy/runbooks/{name}.md").read_text()
        for heading in (f"# {name}\n", "## What it means\n", "## Look first\n", "## Do\n"):
            assert heading in text


def test_every_alert_has_somebody_who_acts_on_it() -> None:
    """The table of alerts names each of them, and no other, with who acts."""
    table = re.findall(
        r"^\| (\[?LLM.*?) \|.*\| ([^|]+) \|$", (ROOT / "deploy/runbooks/README.md").read_text(), re.MULTILINE
    )
    named = [name for names, actor in table for name in set(re.findall(r"LLM\w+", names)) if actor]
    assert sorted(named) == sorted([*NAMES, COPIES])


CAPACITY_DESCRIPTIONS = [
    (
        "LLMHeadroomLow",
        20,
        headroom("-0.05+0x30", "lower") | headroom("0.1+0x30", "estimate") | headroom("0.22+0x30", "upper"),
        "10% of the capacity that sweeps found is free for traffic like that of now, at least -5%, at most 22% (below 0%: the load is "
        "higher than the capacity).",
    ),
    (
        "LLMHeadroomLow",
        20,
        headroom("0.1+0x30", "upper"),
        "10% of the capacity that sweeps found is free for traffic like that of now, at most 10% (below 0%: the load is higher than "
        "the capacity).",
    ),
    (
        "LLMCapacityExhaustionForecast",
        70,
        exhausted("950400+0x99") | exhausted("777600+0x99", "earliest") | failing("0+0x99"),
        "The daily peaks of demand grow towards the capacity that the last successful sweep found, and reach it on "
        "1970-01-12 00:00:00 +0000 UTC, earliest 1970-01-10 00:00:00 +0000 UTC, by a line through at most 35 days.",
    ),
    (
        "LLMSweepStale",
        1110,
        swept("0+0x2000")
        | {
            f'llmslo_sweeps_total{{{TARGET},verdict="not_reached"}}': "3+0x2000",
            f'llmslo_sweeps_total{{{TARGET},verdict="found"}}': "0+0x2000",
            f'llmslo_sweeps_refused_total{{{TARGET},reason="blackout"}}': "0+0x2000",
        },
        "No sweep has given an estimate with an interval for 18h 30m 0s, over three times the period of the "
        "schedule. Headroom is computed from an old figure, or unknown. Since the prober's start, sweeps ended: not_reached 3; "
        "refused: none.",
    ),
]


@pytest.mark.parametrize(("alert", "minute", "series", "description"), CAPACITY_DESCRIPTIONS)
@both_releases
def test_descriptions_of_capacity_alerts(
    release: str,
    alert: str,
    minute: int,
    series: Series,
    description: str,
    request: pytest.FixtureRequest,
    tmp_path: Path,
) -> None:
    """A description contains the figures that exist and omits the others."""
    rule = next(rule for rule in ALERTS if rule["alert"] == alert)
    labels = {"severity": "warning", "target": "llama"}
    firing = alerts(alert, f"{minute}m", labels, of_llama(rule["annotations"]) | {"description": description})
    check_one(request.getfixturevalue(release), tmp_path, rule, series, firing)


def check_one(promtool: Path, folder: Path, rule: Rules, series: Series, firing: dict[str, Any]) -> None:
    """What one rule makes of the series."""
    run_cases(promtool, folder, [{"name": "one", "rules": [rule]}], [case(series, alert_rule_test=[firing])])


def of_llama(notes: dict[str, str], workload: str = "probe") -> dict[str, str]:
    """Annotations with the labels of the tests' target in them, without the links to a prober, which `run_cases` leaves out."""
    notes = {key: text for key, text in notes.items() if key not in ("prober_url", "runbook_url")}
    for name, value in {"target": "llama", "workload": workload, "slo": "ttft"}.items():
        notes = {
            key: text.replace(f"{{{{ $labels.{name} }}}}", value).replace(f"{{{{ $labels.{name} | urlquery }}}}", value)
            for key, text in notes.items()
        }
    return notes


def histogram(seconds: str, values: str) -> Series:
    """TTFT of `values` answers, all of them up to `seconds`."""
    bounds = {"0.25": seconds <= "0.25", "0.5": seconds <= "0.5", "2": True, "+Inf": True}
    return {
        f'llmslo_ttft_seconds_bucket{{{PROBE},le="{le}"}}': values if is_in else "0+0x60"
        for le, is_in in bounds.items()
    } | series_of("ttft_seconds_count", values, PROBE)


CAUSE = series_of(
    "cause_since_timestamp_seconds",
    "9360+0x60",
    cause="queueing",
    state="confirmed",
    text="requests wait for a place",
)
FAILURE = series_of("failure_info", "1+0x60", reason="http_5xx", text="no backend is available")
WORDS = (
    " confirmed: requests wait for a place (since 1970-01-01 02:36:00 +0000 UTC). http_5xx: no backend is available."
)
HALF_BAD = slo("ttft", "0+12x200", "0+6x60 361.2+1.2x140")  # then a tenth
BURN_DESCRIPTIONS = {
    "nothing is known": ("critical", 12, slo("ttft", "0+12x60", "0+10.8x60"), "90%", "Last 5 min: 54 of 60 events bad."),
    "all is known": (
        "critical", 30, slo("ttft", "0+12x60", "0+10.8x60") | CAUSE | FAILURE, "90%", f"Last 5 min: 54 of 60 events bad.{WORDS}",
    ),
    "another target's cause": (
        "critical", 30, slo("ttft", "0+12x60", "0+10.8x60") | beside(CAUSE | FAILURE), "90%", "Last 5 min: 54 of 60 events bad.",
    ),
    "the pair of longer windows": ("critical", 96, HALF_BAD, "10%", "Last 5 min: 6 of 60 events bad."),
    "none of a few": ("critical", 246, SELDOM_BAD, "0%", "Last 5 min: 0 of 5 events bad."),
    "the prober has ended": ("critical", 25, slo("ttft", "0+12x20", "0+10.8x20"), "90%", "Last 5 min: no events."),
    "a ticket": ("warning", 60, slo("ttft", "0+12x60", "0+0.6x60"), "5%", "Bad is the share of the last 2h."),
}  # fmt: skip


@pytest.mark.parametrize("name", BURN_DESCRIPTIONS)
@both_releases
def test_descriptions_of_burn_alerts(release: str, name: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """The alert says whether the trouble is still there, what happens since when, and what the server says, as far as it is known."""
    severity, minute, series, share, text = BURN_DESCRIPTIONS[name]
    (notes,) = (
        rule["annotations"] for rule in ALERTS if rule["alert"] == BURN and rule["labels"] == {"severity": severity}
    )
    texts = {
        "summary": f"llama: {share} of the events of workload probe are bad for SLO ttft",
        "description": f"{text} Burns over {'1h and 5m or 6h and 30m' if severity == 'critical' else '1d and 2h or 3d and 6h'}.",
    }
    labels = burn(severity) | {"target": "llama", "workload": "probe"}
    firing = alerts(BURN, f"{minute}m", labels, of_llama(notes) | texts)
    minutes = 2 if release == "newer_promtool" else 1  # a tile needs two samples
    rules = [rule for group in groups_every(minutes) for rule in group["rules"]]
    if severity == "critical":
        rules = [rule for rule in rules if not is_ticket(rule)]
    cases = [case(series, alert_rule_test=[firing])]
    run_cases(request.getfixturevalue(release), tmp_path, [{"name": "all", "rules": rules}], cases, f"{minutes}m")


@pytest.mark.parametrize(
    ("place", "text"), [("paris", "vantage paris"), ("", "the prober without a vantage")], ids=["paris", "none"]
)
def test_the_summary_of_a_target_that_fails_from_one_place_names_it(
    promtool: Path, tmp_path: Path, place: str, text: str
) -> None:
    """Also if the place is the one without a name."""
    (rule,) = (rule for rule in ALERTS if rule["alert"] == "LLMTargetFailingFromVantage")
    series = at("tokyo", ANSWERS) | at("lima", ANSWERS)
    series |= at(place, failing("1+0x20")) if place else failing("1+0x20")
    description = rule["annotations"]["description"].partition("{{")[0]
    notes = of_llama(rule["annotations"]) | {
        "summary": f"llama fails every probe from {text}",
        "description": description,
    }
    labels = {"severity": "warning", "target": "llama"} | ({"vantage": place} if place else {})
    check_one(promtool, tmp_path, rule, series, alerts(rule["alert"], "10m", labels, notes))


@pytest.mark.parametrize(("signal", "named"), [("ttft", "TTFT"), ("itl", "ITL (p99 of each answer)")])
@pytest.mark.parametrize("is_sized", [True, False])
def test_a_drift_alert_says_since_when_and_how_much(
    promtool: Path, tmp_path: Path, signal: str, named: str, is_sized: bool
) -> None:
    """What has drifted, its start, and its size if one is stated; of two probers, too."""
    (rule,) = (rule for rule in ALERTS if rule["alert"] == f"LLM{signal.upper()}P99Drift")
    series = {name: values for name, values in drift(signal, "1+0x60").items() if is_sized or "shift" not in name}
    series |= other_instance(series)
    size = ", p50 ×1.31" if is_sized else ""
    text = f"{named} of workload probe is slower since 1970-01-01 00:01:00 +0000 UTC{size}."
    labels = {"severity": "warning", "target": "llama", "workload": "probe", "signal": signal}
    firing = alerts(rule["alert"], "10m", labels, of_llama(rule["annotations"]) | {"description": text})
    check_one(promtool, tmp_path, rule, series, firing)


def test_an_alert_about_answers_has_both_shares(promtool: Path, tmp_path: Path) -> None:
    """Of two probers too, and of one check while another one's answers are as they were."""
    (rule,) = (rule for rule in ALERTS if rule["alert"] == "LLMAnswersChanged")
    series = answers("1+0x60") | other_instance(answers("1+0x60")) | answers("0+0x60", "regex")
    text = (
        "Answers of workload golden checked by text are wrong more often than in their baseline since "
        "1970-01-01 08:01:00 +0000 UTC: 2% before, 25% since."
    )
    labels = {"severity": "warning", "target": "llama", "workload": "golden", "check": "text"}
    notes = of_llama(rule["annotations"], workload="golden") | {"description": text}
    check_one(promtool, tmp_path, rule, series, alerts(rule["alert"], "10m", labels, notes))


KEY_REFUSED = " access: HTTP 401: no; give a key in auth.key_file"
REFUSAL = series_of("refusal_info", "1+0x60", reason="access", text="HTTP 401: no; give a key in auth.key_file")
REJECTED = series_of("target_state", "1+0x60", state="rejected") | no_data("rejected", "1+0x60")
REJECTED_DESCRIPTIONS = {
    "every probe of the target": (REJECTED | REFUSAL, " Nothing is measured." + KEY_REFUSED),
    "one of its workloads": (no_data("rejected", "1+0x60") | REFUSAL, KEY_REFUSED),
    "another prober of it has a valid key": (REJECTED | other_instance(series_of("target_state", "0+0x60", state="rejected")), ""),
    "another target": (no_data("rejected", "1+0x60") | beside(series_of("target_state", "1+0x60", state="rejected") | REFUSAL), ""),
}  # fmt: skip


@pytest.mark.parametrize("name", REJECTED_DESCRIPTIONS)
def test_an_alert_about_refusals_says_what_is_not_measured_and_what_to_change(
    name: str, promtool: Path, tmp_path: Path
) -> None:
    """After ten minutes. That nothing is measured is said only where no prober of the target has another answer."""
    (rule,) = (rule for rule in ALERTS if rule["alert"] == "LLMProbeRejected")
    series, text = REJECTED_DESCRIPTIONS[name]
    begin = rule["annotations"]["description"].partition("{{ range")[0].replace("{{ $labels.workload }}", "probe")
    labels = {"severity": "warning", "target": "llama", "workload": "probe"}
    notes = of_llama(rule["annotations"]) | {"description": begin + text}
    check_one(promtool, tmp_path, rule, series, alerts(rule["alert"], "12m", labels, notes))


def test_an_alert_about_efficiency_has_both_values(promtool: Path, tmp_path: Path) -> None:
    """Of two probers too, and of one measure while another is usual; with a word on the engine's change only if there was one."""
    (rule,) = (rule for rule in ALERTS if rule["alert"] == "LLMEfficiencyDropped")
    for cause, more in (("engine_change", ", about when the engine changed"), ("unknown", "")):
        series = efficiency("1+0x60", cause=cause) | efficiency("0+0x60", "step_seconds")
        series |= other_instance(series)
        text = f"prefix_hit_ratio since 1970-01-01 00:01:00 +0000 UTC{more}, present 0.0301, usual 0.62."
        labels = {"severity": "warning", "target": "llama", "measure": "prefix_hit_ratio", "cause": cause}
        notes = of_llama(rule["annotations"]) | {"description": text}
        check_one(promtool, tmp_path, rule, series, alerts(rule["alert"], "10m", labels, notes))


def test_runbook_queries_are_valid_promql(promtool: Path, tmp_path: Path) -> None:
    """promtool accepts every backquoted query of a runbook, and its series exist."""
    queries = sorted(
        query
        for path in (ROOT / "deploy/runbooks").glob("*.md")
        for query in re.findall(r"`([^`]+)`", path.read_text())
        if re.search(r"\[\w+\]|llmslo_\w+\{|== \d", query) and not query.startswith("[")
    )
    assert len(queries) > 20
    check_expressions(promtool, tmp_path, queries)
    names = {name for query in queries for name in re.findall(r"\bllmslo_\w+", query) if ":" not in name}
    known = {declared.name for declared in ALL_SERIES}
    for name in names:
        assert re.sub(r"_(bucket|count|sum)$", "", name) in known or name.startswith("llmslo_slo_"), name
