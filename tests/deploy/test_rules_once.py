"""A second copy of the chart's rules is noticed: by the name of the object, and by the Prometheus that loads both."""

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import newer, part
from tests.deploy.rendering import Refused, chart
from tests.deploy.shipped import one
from tests.processes import Prometheus, until

TOOLS = "`make tools` fetches it"
ENABLED = {"prometheusRule": {"enabled": True}}


def groups(release: str) -> list[dict[str, Any]]:
    """The groups of rules that a release brings, whose alert about copies does not wait."""
    rules: list[dict[str, Any]] = one(chart(release, **ENABLED), "PrometheusRule")["spec"]["groups"]
    (copies,) = (group for group in rules if group["name"] == "llm-slo-rules")
    del copies["rules"][0]["for"]
    return rules


def test_two_releases_of_a_namespace_collide() -> None:
    """Helm refuses to install an object that belongs to another release."""
    names = {one(chart(release, **ENABLED), "PrometheusRule")["metadata"]["name"] for release in ("llama", "qwen")}
    assert names == {"llm-slo-prober"}


@pytest.mark.parametrize("text", ["rules: []", "groups: []", "[", "groups", " \n"])
def test_a_text_without_groups_is_refused(text: str) -> None:
    """By the value's name."""
    with pytest.raises(Refused, match=r"prometheusRule\.rules: needed: the text of rules"):
        chart(prometheusRule={"enabled": True, "rules": text})


@pytest.mark.parametrize(
    ("copies", "program"),
    [(2, lambda: part("prometheus", TOOLS)), (2, lambda: newer("prometheus")), (1, lambda: newer("prometheus"))],
    ids=["2, Prometheus 2", "2, Prometheus 3", "1"],
)
def test_a_prometheus_that_loads_them_twice_says_so(copies: int, program: Callable[[], Path], tmp_path: Path) -> None:
    """By its own series of loaded groups, as it names them."""
    files = [tmp_path / f"{release}.yaml" for release in ("llama", "qwen")[:copies]]
    for file in files:
        file.write_text(json.dumps({"groups": groups(file.stem)}))
    document: dict[str, Any] = {
        "global": {"scrape_interval": "200ms", "scrape_timeout": "200ms", "evaluation_interval": "200ms"},
        "rule_files": [str(file) for file in files],
        "scrape_configs": [{"job_name": "prometheus", "static_configs": [{"targets": ["localhost:1"]}]}],
    }
    with Prometheus(program(), tmp_path, document) as prometheus:
        document["scrape_configs"][0]["static_configs"][0]["targets"] = [prometheus.url.removeprefix("http://")]
        (tmp_path / "prometheus.yml").write_text(json.dumps(document))
        prometheus.process.send_signal(signal.SIGHUP)
        firing = 'ALERTS{alertname="LLMRulesLoadedTwice", alertstate="firing"}'
        if copies > 1:
            until(lambda: prometheus.query(firing), "the alert")
        else:
            until(
                lambda: prometheus.query('prometheus_rule_group_iterations_total{rule_group=~".+llm-slo-rules"} > 5'),
                "rules",
            )
            assert prometheus.query(firing) == []
