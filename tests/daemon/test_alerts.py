"""Every alert in `promtool test rules`: firing, not firing, without traffic, and with the prober down.

The rules under test are the committed ones for the example configuration.
"""

import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache, reduce
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from prober.daemon.configuration_file import read_config
from prober.daemon.dashboards import documents
from prober.daemon.registry import ALL as ALL_SERIES
from prober.daemon.rules import groups
from prober.exposition.alerting import RuleOptions, what_happens_template
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
    Scene,
    answers,
    at,
    beside,
    burn,
    discovery,
    drift,
    failing,
    fires,
    other_instance,
    series_of,
    silent,
    up,
)
from tests.daemon.promtool import (
    JOB,
    PROBE,
    TARGET,
    Rules,
    Series,
    case,
    check_expressions,
    exhausted,
    groups_of,
    headroom,
    run,
    run_cases,
    slo,
    swept,
    traffic,
    write_cases,
)

ROOT = Path(__file__).parents[2]
RULES = ROOT / "deploy/prometheus/rules.yaml"
GROUPS = groups_of(RULES)
CONFIGURATION = read_config(str(ROOT / "deploy/prober.yaml"))
USES, TRAFFIC = CONFIGURATION.uses(), CONFIGURATION.traffic_slos()
ALERTS: list[Rules] = [rule for group in GROUPS for rule in group["rules"] if "alert" in rule]
both_releases = pytest.mark.parametrize("release", ["promtool", pytest.param("newer_promtool", marks=pytest.mark.slow)])


def expectation(alert: str, scene: Scene) -> dict[str, Any]:
    """Whether an alert with the labels of the scene fires."""
    labels = "".join(f',{name}="{value}"' for name, value in scene.labels.items())
    query = f'count(ALERTS{{alertname="{alert}",alertstate="firing"{labels}}} == 1)'
    expected: dict[str, Any] = {"expr": query, "eval_time": f"{scene.minute}m", "exp_samples": []}
    if scene.is_firing:
        expected |= {"expr": f"{query} > bool 0", "exp_samples": [{"labels": "{}", "value": 1}]}
    return expected


def rules_of(groups: list[Rules], alert: str, scene: Scene) -> tuple[int, ...]:
    """Places of the alert's rules and of all that they read, of the scene's SLO and of no other; of a page without its ticket."""
    slo = next((match[1] for name in scene.series if (match := re.search(r'slo="(\w+)"', name))), "")
    names = re.compile(rf"llm-slo-(prober|{slo}(:traffic)?(-slow)?)")
    rules = [rule | {"group": group["name"]} for group in groups for rule in group["rules"]]
    text, places = alert, set[int]()
    while new := {
        place
        for place, rule in enumerate(rules)
        if re.search(rf"\b{rule.get('record') or rule['alert']}\b", text)
        and (f'long="{rule["labels"]["long"]}"' in text if "long" in rule.get("labels", {}) else True)
        and not (scene.labels.get("severity") == "critical" and is_ticket(rule))
        and names.fullmatch(rule["group"])
        and place not in places
    }:
        places |= new
        text += "".join(rules[place]["expr"] for place in new)
    return tuple(sorted(places))


def is_ticket(rule: Rules) -> bool:
    """Whether the rule is the ticket about a burn."""
    return rule.get("alert") in (BURN, BURN_OF_TRAFFIC) and rule["labels"]["severity"] == "warning"


@cache
def groups_every(minutes: int) -> list[Rules]:
    """The committed rules with as many minutes between two evaluations of what can wait, whose sums are of tiles of that length."""
    return groups(USES, RuleOptions(slow_s=60 * minutes), TRAFFIC)


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
            has_tiles = any(":tile" in rules[place].get("record", "") for place in places)
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
                {
                    "expr": f'count(ALERTS{{alertname="{name}",alertstate="firing",severity="{severity}",{more}}})',
                    "eval_time": "62m",
                    "exp_samples": [{"labels": "{}", "value": count}] if alerts is expected and count else [],
                }
                for alerts in (expected, absent, others)
                for (name, severity, more), count in alerts.items()
            ],
        )
        for series, expected, absent in scenes
    ]
    groups = [group for group in GROUPS if group["name"] in ("llm-slo-ttft", "llm-slo-prober")]
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


OF_TTFT = re.compile(r"llm-slo-(prober|ttft(:traffic)?(-slow)?)")


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
        chosen = (group for group in groups_every(15 if is_long else 1) if OF_TTFT.fullmatch(group["name"]))
        rules = [rule for group in chosen for rule in group["rules"]]
        cases = [
            case(
                neighbour(scene.minute) | scene.series,
                name=name,
                promql_expr_test=[
                    expectation(name, scene),
                    {"expr": others, "eval_time": f"{scene.minute}m", "exp_samples": []},
                ],
            )
            for name, scene in first.items()
            if (scene.minute > 500) is is_long
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
        if scene.minute > 500 or not any('target="llama"' in series for series in scene.series):
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
                    {"expr": of_target, "eval_time": f"{scene.minute + 2}m", "exp_samples": []},
                ],
            )
        )
    assert len(cases) >= 16
    rules = [rule for group in groups_every(1) if OF_TTFT.fullmatch(group["name"]) for rule in group["rules"]]
    run_cases(promtool, tmp_path, [{"name": "all", "rules": rules}], cases)


def test_every_shipped_alert_has_scenes() -> None:
    """Of its own: at least one in which it fires, and one in which it does not. No scene is of an alert that is not shipped."""
    files = [path for path in (ROOT / "deploy").rglob("*.yaml") if "alert: LLM" in path.read_text()]
    assert len(files) >= 5
    shipped = {name for path in files for name in re.findall(r"alert: (\w+)", path.read_text())}
    kinds = {name: {scene.is_firing for scene in own} for name, own in OWN_SCENES.items()}
    assert kinds == {name: {True, False} for name in shipped}


BOARDS = {
    "slo": (BURN, BURN_OF_TRAFFIC, "LLMPercentileSLOBreach", "LLMSLONoData", "LLMRulesStale"),
    "capacity": ("LLMHeadroomLow", "LLMCapacityExhaustionForecast", "LLMSweepStale"),
    "engine": ("LLMKVCachePressure", "LLMGPUThrottling"),
    "drift": ("LLMTTFTP99Drift", "LLMITLP99Drift", "LLMAnswersChanged", "LLMProberUntrusted"),
}


def test_links_lead_to_the_dashboard_that_shows_what_the_alert_is_about() -> None:
    """Of alerts about targets, others about the prober; what a link chooses is a variable of that dashboard."""
    board_of = {alert: board for board, alerts in BOARDS.items() for alert in alerts}
    shown = documents()
    for rule in ALERTS:
        url = urlsplit(rule["annotations"]["dashboard_url"])
        is_about_a_target = "$labels.target" in rule["annotations"]["summary"]
        board = board_of.get(rule["alert"], "target" if is_about_a_target else "drift")
        assert url.path == f"/d/{UIDS[board]}", rule["alert"]
        chosen = {name.removeprefix("var-") for name in parse_qs(url.query) if name.startswith("var-")}
        assert chosen <= {variable["name"] for variable in shown[f"{board}.json"]["templating"]["list"]}
        assert ("target" in chosen) is is_about_a_target


def test_every_alert_has_its_annotations_and_runbook() -> None:
    """Summary, description, runbook, dashboard and severity; one runbook page per alert and no others."""
    for rule in ALERTS:
        notes = rule["annotations"]
        assert {"summary", "description", "runbook_url", "dashboard_url", "prober_url"} == set(notes)
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert notes["runbook_url"].endswith(f"/runbooks/{rule['alert']}")
    assert {rule["alert"] for rule in ALERTS} == set(NAMES)
    pages = {path.stem for path in (ROOT / "deploy/runbooks").glob("*.md")} - {"README"}
    assert pages == set(NAMES)
    for name in NAMES:
        text = (ROOT / f"deploy/runbooks/{name}.md").read_text()
        for heading in (f"# {name}\n", "## What it means\n", "## Look first\n", "## Do\n"):
            assert heading in text


def test_every_alert_has_somebody_who_acts_on_it() -> None:
    """The table of alerts names each of them, and no other, with who acts."""
    table = re.findall(r"^\| (`LLM.*?) \|.*\| ([^|]+) \|$", (ROOT / "docs/guides/slos.md").read_text(), re.MULTILINE)
    named = [name for names, actor in table for name in re.findall(r"`(\w+)`", names) if actor]
    assert sorted(named) == NAMES


CAPACITY_DESCRIPTIONS = [
    (
        "LLMHeadroomLow",
        20,
        headroom("0.15+0x30") | headroom("0.1+0x30", "lower"),
        "15% of the capacity that sweeps found is free for traffic like that of now, by its estimate, or by its upper bound "
        "where only that is known (below 0%: the load is higher than that capacity), by the lower bound of the capacity 10%.",
    ),
    (
        "LLMHeadroomLow",
        20,
        headroom("0.15+0x30"),
        "15% of the capacity that sweeps found is free for traffic like that of now, by its estimate, or by its upper bound "
        "where only that is known (below 0%: the load is higher than that capacity).",
    ),
    (
        "LLMCapacityExhaustionForecast",
        70,
        exhausted("950400+0x99") | exhausted("777600+0x99", "earliest"),
        "The daily peaks of demand grow towards the capacity that the last successful sweep found. They are expected to reach it on "
        "1970-01-12 00:00:00 +0000 UTC, earliest 1970-01-10 00:00:00 +0000 UTC. Method: a straight line through at most 35 days.",
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
        "No capacity has been found for 18h 30m 0s, over three times the period of the schedule. Headroom is computed from an old "
        "capacity, or unknown. Since the prober's start, sweeps ended: not_reached 3; refused: none.",
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
    notes = of_llama(rule["annotations"])
    expected = {
        "exp_labels": {"severity": "warning", "target": "llama"},
        "exp_annotations": notes | {"description": description},
    }
    firing = {"eval_time": f"{minute}m", "alertname": alert, "exp_alerts": [expected]}
    run_cases(
        request.getfixturevalue(release),
        tmp_path,
        [{"name": "one", "rules": [rule]}],
        [case(series, alert_rule_test=[firing])],
    )


def of_llama(notes: dict[str, str]) -> dict[str, str]:
    """Annotations with the labels of the tests' target in them."""
    for name, value in {"target": "llama", "workload": "probe", "slo": "ttft"}.items():
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


LEFT = " Of the budget for 30d, by the events counted so far, nothing is left."
UNMEASURED = " In the last 5 minutes p50 was not measured, p99 was not measured; the limit is 500ms."
KNOWN = (
    histogram("2", "0+12x60")
    | series_of("probe_failures_total", "0+3x60", PROBE, reason="http_5xx")
    | series_of("probe_failures_total", "0+1x60", PROBE, reason="timeout_total")
    | series_of("engine_info", "1+0x60", engine="vllm", version="0.11.0", model="m")
    | series_of("engine_last_change_timestamp_seconds", "1200+0x60", what="restart")
    | series_of("engine_last_change_timestamp_seconds", "600+0x60", what="version")
    | series_of("cause_info", "1+0x200", cause="slow_decode", state="confirmed")
)
ALL_KNOWN = (
    " In the last 5 minutes p50 was 1.25s, p99 was 1.985s (of about 60 values); the limit is 500ms. "
    "Most frequent failure in 15 minutes: HTTP 5xx (45). "
    "Engine: vllm 0.11.0. Its last change (restart) was at 1970-01-01 00:20:00 +0000 UTC. What happens: slow decode."
)
# Half of the events are bad, then a tenth: the pair of the shorter windows fires, then that of the longer ones.
HALF_BAD = slo("ttft", "0+12x200", "0+6x60 361.2+1.2x140")
BURN_DESCRIPTIONS = {
    "12 minutes of data": (
        "critical", 12, slo("ttft", "0+12x60", "0+10.8x60"), "90.0",
        "90% of about 144 events of workload probe in the last 12m 0s were bad, and 90% of those in the last 5m", UNMEASURED,
    ),
    "all is known": (
        "critical", 30, slo("ttft", "0+12x60", "0+10.8x60") | KNOWN, "90.0",
        "90% of about 360 events of workload probe in the last 30m 0s were bad, and 90% of those in the last 5m", ALL_KNOWN,
    ),
    "an hour of data": (
        "critical", 60, HALF_BAD, "50.0",
        "50% of about 720 events of workload probe in the last 1h were bad, and 50% of those in the last 5m", UNMEASURED,
    ),
    "the next pair goes on": (
        "critical", 96, HALF_BAD, "10.0",
        "35% of about 1152 events of workload probe in the last 1h 36m 0s were bad, and 10% of those in the last 30m", UNMEASURED,
    ),
    "a ticket": (
        "warning", 40, slo("ttft", "0+12x60", "0+0.6x60"), "5.0",
        "5% of about 480 events of workload probe in the last 40m 0s were bad", UNMEASURED,
    ),
}  # fmt: skip


def test_the_alert_of_all_requests_has_both_shares_side_by_side(promtool: Path, tmp_path: Path) -> None:
    """Of all requests by the bound of the histogram, and of the probes, as far as there are some."""
    rule = next(
        rule for rule in ALERTS if rule["alert"] == BURN_OF_TRAFFIC and rule["labels"]["severity"] == "critical"
    )
    users = traffic("ttft", "0+600x200", "0+300x200")
    probes = " Of the probes' events 5% were bad in that time."
    rules = [rule for group in GROUPS if OF_TTFT.fullmatch(group["name"]) for rule in group["rules"]]
    cases = []
    for of_probes, sentence in ((slo("ttft", "0+12x200", "0+0.6x200"), probes), ({}, "")):
        description = (
            "50% of the events of all requests in the last 20m 0s were bad, and 50% of those in the last 5m (TTFT up to 500ms by the "
            f"engine's own histogram; budget 1%).{sentence} Users may send longer prompts than the probes, want longer answers, or "
            "find less in the prefix cache. Engine: vllm 0.33.0."
        )
        notes = of_llama(rule["annotations"]) | {
            "summary": "All requests to llama burn the error budget of SLO ttft 50.0 times as fast as it allows",
            "description": description,
        }
        expected = {
            "exp_labels": {"severity": "critical", "slo": "ttft", "source": "traffic", "target": "llama"},
            "exp_annotations": notes,
        }
        firing = {"eval_time": "20m", "alertname": BURN_OF_TRAFFIC, "exp_alerts": [expected]}
        known = series_of("engine_info", "1+0x60", engine="vllm", version="0.33.0", model="m")
        cases.append(case(users | of_probes | known, alert_rule_test=[firing]))
    soon = [rule for rule in rules if rule.get("labels", {}).get("severity") != "warning"]
    run_cases(promtool, tmp_path, [{"name": "all", "rules": soon}], cases)


@pytest.mark.parametrize("name", BURN_DESCRIPTIONS)
@both_releases
def test_descriptions_of_burn_alerts(release: str, name: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """The alert names the windows of the pair that fired, none of them longer than the data, and what else is known, in words.

    Its labels are the same whichever pair fires. What happens is by the diagnosis.
    """
    severity, minute, series, times, share, rest = BURN_DESCRIPTIONS[name]
    (notes,) = (rule["annotations"] for rule in ALERTS if rule["alert"] == BURN and rule["labels"] == burn(severity))
    expected = {
        "exp_labels": burn(severity) | {"target": "llama", "workload": "probe"},
        "exp_annotations": of_llama(notes)
        | {
            "summary": f"llama burns the error budget of SLO ttft {times} times as fast as it allows",
            "description": f"{share} (TTFT up to 500ms; budget 1%).{LEFT}{rest}",
        },
    }
    firing = {"eval_time": f"{minute}m", "alertname": BURN, "exp_alerts": [expected]}
    minutes = 2 if release == "newer_promtool" else 1  # a tile needs two samples
    groups = [group for group in groups_every(minutes) if group["name"] in ("llm-slo-ttft", "llm-slo-ttft-slow")]
    all_rules = [{"name": "all", "rules": [rule for group in groups for rule in group["rules"]]}]
    run_cases(
        request.getfixturevalue(release), tmp_path, all_rules, [case(series, alert_rule_test=[firing])], f"{minutes}m"
    )


@both_releases
def test_an_alert_says_what_happens_and_how_sure_that_is(
    release: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """A probable name until it is confirmed, then the name; nothing of a target whose diagnosis is `unknown`."""
    template = what_happens_template(RuleOptions().selector)
    of_burns = [rule["annotations"]["description"] for rule in ALERTS if rule["alert"] == BURN]
    assert all(template in text for text in of_burns)
    series = failing("1+0x90") | beside(failing("1+0x90") | series_of("cause_info", "1+0x90", cause="unknown"))
    series |= series_of("cause_info", "1+0x44", cause="cache_pressure", state="probable")
    series |= series_of("cause_info", "_x45 1+0x45", cause="cache_pressure", state="confirmed")
    rule = {
        "alert": "A",
        "expr": 'max by (target) (llmslo_target_state{state="failing"}) == 1',
        "annotations": {"says": template},
    }

    def said(text: str) -> list[dict[str, Any]]:
        texts = {"llama": text, "other": ""}
        return [{"exp_labels": {"target": target}, "exp_annotations": {"says": texts[target]}} for target in texts]

    firing = [
        {"eval_time": "20m", "alertname": "A", "exp_alerts": said(" Probably cache pressure, confirming.")},
        {"eval_time": "40m", "alertname": "A", "exp_alerts": said(" What happens: cache pressure.")},
    ]
    half_minutes = case(series, alert_rule_test=firing) | {"interval": "30s"}
    run_cases(request.getfixturevalue(release), tmp_path, [{"name": "one", "rules": [rule]}], [half_minutes], "30s")


OTHER_DESCRIPTIONS = {
    "half bad from one place": (
        "LLMErrorBudgetBurnFromVantage",
        60,
        at("paris", slo("ttft", "0+12x60", "0+6x60")) | at("tokyo", slo("ttft", "0+12x60", "0+0x60")),
        {"vantage": "paris"},
        "By what this vantage recorded 50% of about 720 events of workload probe in the last 1h were bad, "
        "and 50% of those in the last 5m (TTFT up to 500ms; budget 1%). "
        "All vantages together do not page: look at the way from this one first.",
    ),
    "a twelfth bad from one place for hours: too little for the window of an hour": (
        "LLMErrorBudgetBurnFromVantage",
        400,
        at("paris", slo("ttft", "0+12x400", "0+1x400")) | at("tokyo", slo("ttft", "0+12x400", "0+0x400")),
        {"vantage": "paris"},
        "By what this vantage recorded 8.333% of about 4320 events of workload probe in the last 6h were bad, "
        "and 8.333% of those in the last 30m (TTFT up to 500ms; budget 1%). "
        "All vantages together do not page: look at the way from this one first.",
    ),
    "1.4% bad": (
        "LLMPercentileSLOBreach",
        102,
        slo("ttft", "0+12x200", "0+0.168x200"),
        {},
        "1.4% of the events of workload probe in the last 1h 42m 0s were bad (TTFT up to 500ms; budget 1%). "
        "There were at least 1,000, enough for this percentile.",
    ),
}  # fmt: skip


@pytest.mark.parametrize("scene", OTHER_DESCRIPTIONS)
def test_descriptions_of_the_other_alerts_on_an_slo(promtool: Path, tmp_path: Path, scene: str) -> None:
    """The window in a text is one that fired, and never longer than the data."""
    alert, minute, series, labels, text = OTHER_DESCRIPTIONS[scene]
    (rule,) = (rule for rule in ALERTS if rule["alert"] == alert and rule["labels"]["slo"] == "ttft")
    notes = of_llama(rule["annotations"]) | {"description": text}
    if labels:
        notes["summary"] = notes["summary"].replace("{{ $labels.vantage }}", labels["vantage"])
    expected = {
        "exp_labels": burn("warning") | {"target": "llama", "workload": "probe"} | labels,
        "exp_annotations": notes,
    }
    firing = {"eval_time": f"{minute}m", "alertname": alert, "exp_alerts": [expected]}
    groups = [group for group in groups_every(1) if group["name"] in ("llm-slo-ttft", "llm-slo-ttft-slow")]
    all_rules = [{"name": "all", "rules": [rule for group in groups for rule in group["rules"]]}]
    run_cases(promtool, tmp_path, all_rules, [case(series, alert_rule_test=[firing])])


@pytest.mark.parametrize(
    ("recorded", "lasts"),
    [
        ({"events:window": 518_400}, ", at this rate for 3h 36m 0s"),
        ({"events:window": 17_280}, ", at this rate for 7m 12s"),
        ({}, ""),
    ],
    ids=["30 days", "a day", "unknown"],
)
def test_a_burn_alert_says_what_is_left_and_for_how_long(
    promtool: Path, tmp_path: Path, recorded: dict[str, int], lasts: str
) -> None:
    """A quarter of 1% of what was counted in 30 days or one, at 12 events a minute of which one half is bad."""
    rule = next(rule for rule in ALERTS if rule["alert"] == BURN and rule["labels"] == burn("critical"))
    known = {
        f'target_workload_slo:llmslo_slo_{name}{{target="llama",workload="probe",slo="ttft"}}': f"{value}+0x60"
        for name, value in ({"error_budget_remaining:ratio": 0.25} | recorded).items()
    }
    labelled = rule | {"expr": f"50 + 0 * {next(iter(known))}", "for": "0m"}
    notes = of_llama(rule["annotations"]) | {
        "summary": "llama burns the error budget of SLO ttft 50.0 times as fast as it allows",
        "description": f" Of the budget for 30d, by the events counted so far, 25% is left{lasts}.{UNMEASURED}",
    }
    expected = {"exp_labels": rule["labels"] | {"target": "llama", "workload": "probe"}, "exp_annotations": notes}
    firing = {"eval_time": "15m", "alertname": BURN, "exp_alerts": [expected]}
    series = known | slo("ttft", "0+12x60", "0+6x60")
    run_cases(promtool, tmp_path, [{"name": "one", "rules": [labelled]}], [case(series, alert_rule_test=[firing])])


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
    firing = {
        "eval_time": "10m",
        "alertname": rule["alert"],
        "exp_alerts": [{"exp_labels": labels, "exp_annotations": notes}],
    }
    run_cases(promtool, tmp_path, [{"name": "one", "rules": [rule]}], [case(series, alert_rule_test=[firing])])


@pytest.mark.parametrize(("signal", "what"), [("ttft", "TTFT"), ("itl", "ITL (the p99 of each answer)")])
@pytest.mark.parametrize(
    ("load", "why"),
    [
        ("within", "Slower at the same load."),
        ("outside", "The load is outside what was learnt, so neither cause nor size is stated."),
        ("missing", "The load is not known at the moment, so neither cause nor size is stated."),
        ("unlearnt", "The load was not known when the baseline was learnt, so more load may be the cause."),
        ("unknown", "The load is not known, so more load may be the cause."),
    ],
)
def test_a_drift_alert_says_the_one_thing_that_the_load_tells(
    promtool: Path, tmp_path: Path, load: str, why: str, signal: str, what: str
) -> None:
    """What has drifted, its start, its size if one is stated, and one sentence on the load; of two probers that disagree, too."""
    (rule,) = (rule for rule in ALERTS if rule["alert"] == f"LLM{signal.upper()}P99Drift")
    is_sized = load not in ("outside", "missing")
    series = {name: values for name, values in drift(signal, "1+0x60", load).items() if is_sized or "shift" not in name}
    series |= other_instance(drift(signal, "1+0x60", load)) if is_sized else {}
    size = " p50: ×1.31 (95% interval ×1.20 to ×1.42)." if is_sized else ""
    notes = of_llama(rule["annotations"]) | {
        "description": f"{what} of workload probe is slower than its own baseline since 1970-01-01 00:01:00 +0000 UTC."
        f"{size} {why}",
    }
    labels = {"severity": "warning", "target": "llama", "workload": "probe", "signal": signal}
    firing = {
        "eval_time": "10m",
        "alertname": rule["alert"],
        "exp_alerts": [{"exp_labels": labels, "exp_annotations": notes}],
    }
    run_cases(promtool, tmp_path, [{"name": "one", "rules": [rule]}], [case(series, alert_rule_test=[firing])])


@pytest.mark.parametrize(
    ("cause", "change"),
    [("engine_change", " It began about when the engine changed at 1970-01-01 07:41:00 +0000 UTC."), ("unknown", "")],
)
def test_an_alert_about_answers_has_both_shares_and_the_engines_change_if_it_began_then(
    promtool: Path, tmp_path: Path, cause: str, change: str
) -> None:
    """Of two probers too, and of one check while another one's answers are as they were."""
    (rule,) = (rule for rule in ALERTS if rule["alert"] == "LLMAnswersChanged")
    series = (
        answers("1+0x60", cause=cause) | other_instance(answers("1+0x60", cause=cause)) | answers("0+0x60", "regex")
    )
    golden = {
        key: text.replace("{{ $labels.workload | urlquery }}", "golden") for key, text in rule["annotations"].items()
    }
    notes = of_llama(golden) | {
        "description": "Answers of workload golden checked by text are wrong more often than in their baseline since "
        f"1970-01-01 08:01:00 +0000 UTC. Wrong since then: 25%. In the baseline: 2%.{change}",
    }
    labels = {"severity": "warning", "target": "llama", "workload": "golden", "check": "text"}
    firing = {
        "eval_time": "10m",
        "alertname": rule["alert"],
        "exp_alerts": [{"exp_labels": labels, "exp_annotations": notes}],
    }
    run_cases(promtool, tmp_path, [{"name": "one", "rules": [rule]}], [case(series, alert_rule_test=[firing])])


STATES = [
    ("met", 60, slo("ttft", "0+20x60", "0+0x60"), "1+0x60"),
    ("met", 60, slo("ttft", "0+20x60", "0+0.1x60"), "1+0x60"),
    ("no_data", 60, slo("ttft", "0+12x60", "0+0.1x60"), "1+0x60"),  # too few events, and too few bad ones
    ("missed", 60, slo("ttft", "0+12x60", "0+1x60"), "1+0x60"),
    ("no_data", 60, slo("ttft", "0+12x10 120+0x60", "0+0x70"), "1+0x70"),
    ("no_data", 60, slo("ttft", "0+20x60", "0+0x60"), "1+0x30 0+0x30"),
    ("missed", 60, slo("ttft", "0+12x60", "0+1x60"), "1+0x30 0+0x30"),
]


@pytest.mark.parametrize(("state", "minute", "series", "trusted"), STATES)
def test_an_slo_is_met_missed_or_has_no_data(
    promtool: Path, tmp_path: Path, state: str, minute: int, series: Series, trusted: str
) -> None:
    """Exactly one state is 1. A silent target and one whose latencies are not judged give no_data, never met; another one is judged."""
    name = "target_workload_slo:llmslo_slo_state:window"
    labels = f'{{__name__="{name}",slo="ttft",state="{state}",target="llama",workload="probe"}}'
    expected = {"expr": name, "eval_time": f"{minute}m", "exp_samples": [{"labels": labels, "value": 1}]}
    inputs = {
        **series,
        f'llmslo_trusted{{{JOB},target="llama"}}': trusted,
        f'llmslo_trusted{{{JOB},target="other"}}': "0+0x60",
    }
    run_cases(promtool, tmp_path, GROUPS, [case(inputs, promql_expr_test=[expected])], "4m")


def test_nothing_is_met_when_the_prober_is_down(promtool: Path, tmp_path: Path) -> None:
    """Without its series there is no state, although the budget over 30 days can still be computed."""
    inputs = {**slo("ttft", "0+12x60", "0+0x60"), f'llmslo_trusted{{{JOB},target="llama"}}': "1+0x60"}
    query = 'target_workload_slo:llmslo_slo_state:window{state="met"}'
    expected = {"expr": query, "eval_time": "120m", "exp_samples": []}
    run_cases(promtool, tmp_path, GROUPS, [case(inputs, promql_expr_test=[expected])], "4m")


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
