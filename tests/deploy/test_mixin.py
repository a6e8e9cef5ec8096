"""The mixin, evaluated by jsonnet: the generated rules and dashboards, with the links that its user configures."""

import json
from pathlib import Path
from typing import Any

import _gojsonnet
import yaml

ROOT = Path(__file__).parents[2]
RULES = ROOT / "deploy/mixin/rules.yaml"


def evaluated(**config: str) -> dict[str, Any]:
    """Its three parts, which it hides as every mixin does."""
    mixin = json.dumps(str(ROOT / "deploy/mixin/mixin.libsonnet"))
    parts = f"local m = (import {mixin}) + {{ _config+:: {json.dumps(config)} }}; "
    parts += "{ alerts: m.prometheusAlerts, rules: m.prometheusRules, dashboards: m.grafanaDashboards }"
    result: dict[str, Any] = json.loads(_gojsonnet.evaluate_snippet("test", parts))
    return result


def groups(parts: dict[str, Any]) -> list[dict[str, Any]]:
    return [*parts["alerts"]["groups"], *parts["rules"]["groups"]]


def test_it_has_the_rules_and_dashboards_of_the_repository() -> None:
    """All groups, each once, and every dashboard."""
    parts = evaluated()
    by_name = {group["name"]: group for group in yaml.safe_load(RULES.read_text())["groups"]}
    assert {group["name"]: group for group in groups(parts)} == by_name
    assert len(groups(parts)) == len(by_name)
    assert all("alert" not in rule for group in parts["rules"]["groups"] for rule in group["rules"])
    files = [json.loads(path.read_text()) for path in sorted((ROOT / "dashboards").glob("*.json"))]
    assert parts["dashboards"] == {
        f"{'llm-slo-overview' if d['uid'] == 'llm-slo' else d['uid']}.json": d for d in files
    }


def test_links_go_where_its_user_says() -> None:
    """Runbooks are the prober's unless they are elsewhere; nothing but links differs."""
    text = json.dumps(groups(evaluated(proberUrl="https://prober.example", grafanaUrl="https://grafana.example/x")))
    assert "https://prober.example/runbooks/LLMErrorBudgetBurn" in text
    text = text.replace("https://grafana.example/x", "http://grafana:3000")
    assert json.loads(text.replace("https://prober.example", "http://llm-slo-prober:9742")) == groups(evaluated())
    elsewhere = json.dumps(groups(evaluated(runbookUrl="http://llm-slo-prober:9742/wiki")))
    assert elsewhere.count("http://llm-slo-prober:9742/wiki/LLM") == elsewhere.count('"runbook_url"')


def test_jsonnet_bundler_finds_it_without_dependencies() -> None:
    """`jb install` reads this file."""
    assert json.loads((ROOT / "deploy/mixin/jsonnetfile.json").read_text())["dependencies"] == []
