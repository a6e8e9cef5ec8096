"""The compose file's chain without containers: its commands and files as they are, with this machine's addresses and folders."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.test_compose import PARTS, PORTS, RULES, SERVICES
from tests.processes import Process, Program, free_port, get, until, value

LISTENING = {"engine": "--port={port}", "slow-engine": "--port={port}"}
# Whoever has no other flag for it has that of Prometheus's projects.
LISTEN = "--web.listen-address=127.0.0.1:{port}"


class Chain:
    """The services of the compose file as processes of this machine."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.ports = {name: free_port() for name in PORTS.keys() - {"grafana"}}
        for file in (*PARTS.glob("*.yaml"), RULES):
            text = file.read_text()
            for name in sorted(self.ports, key=len, reverse=True):  # slow-engine before engine
                text = text.replace(f"{name}:{PORTS[name]}", f"127.0.0.1:{self.ports[name]}")
            (folder / file.name).write_text(text)

    def url(self, name: str, path: str = "") -> str:
        return f"http://127.0.0.1:{self.ports[name]}{path}"

    def answer(self, name: str, path: str) -> Any:
        """The answer of its API."""
        return json.loads(get(self.url(name, path)))

    def command(self, name: str) -> list[str]:
        """The `command` of a service, with its mounted and written files in this folder."""
        volumes = [volume.split(":") for volume in SERVICES[name].get("volumes", ()) if volume.startswith("./")]
        mounts = {inside: str(self._folder / Path(outside).name) for outside, inside, *_ in volumes}
        words = []
        for word in SERVICES[name]["command"]:
            flag, equals, value_ = str(word).partition("=")
            if flag == "--host":
                value_ = "127.0.0.1"
            elif value_.startswith("/"):
                value_ = mounts.get(value_) or str(self._folder / value_.strip("/").replace("/", "-"))
            words.append(flag + equals + value_)
        return [*words, LISTENING.get(name, LISTEN).format(port=self.ports[name])]


@pytest.fixture
def chain(tmp_path: Path, prometheus_binary: Path, alertmanager_binary: Path) -> Iterator[Chain]:
    """All of it but Grafana, which is not to be had here."""
    chain = Chain(tmp_path)
    with ExitStack() as running:
        for name in ("engine", "slow-engine", "prober"):
            running.enter_context(Program(tmp_path / f"{name}.log", *chain.command(name)))
        # Without other Alertmanagers to find it needs no address of this machine.
        for name, binary, *flags in (
            ("alertmanager", alertmanager_binary, "--cluster.listen-address="),
            ("prometheus", prometheus_binary),
        ):
            running.enter_context(Process(tmp_path / f"{name}.log", binary, *chain.command(name), *flags))
        for name in ("prober", "prometheus", "alertmanager"):
            until(lambda name=name: get(chain.url(name, "/-/ready")), f"{name}; its log is in {tmp_path}")  # type: ignore[misc]
        yield chain


def test_the_chain_hangs_together(chain: Chain) -> None:
    """Both engines are probed, the prober is scraped as the rules' job, every rule is loaded, alerts have somewhere to go."""
    for target in ("healthy", "slow"):
        until(lambda target=target: value(chain.url("prober"), "llmslo_probes_total", target=target) > 0, target)  # type: ignore[misc]
    (alertmanager,) = until(lambda: alertmanagers(chain), "Prometheus to know the Alertmanager")
    assert alertmanager["url"].startswith(chain.url("alertmanager"))
    assert "receiver: nobody" in chain.answer("alertmanager", "/api/v2/status")["config"]["original"]
    expected = yaml.safe_load(RULES.read_text())["groups"]

    def groups() -> list[dict[str, Any]]:
        return list(chain.answer("prometheus", "/api/v1/rules")["data"]["groups"])

    def rules(groups: list[dict[str, Any]]) -> list[tuple[str, str]]:
        names = ((group["name"], rule) for group in groups for rule in group["rules"])
        return sorted((group, rule.get("record") or rule.get("alert") or rule["name"]) for group, rule in names)

    assert rules(groups()) == rules(expected)
    (scraped,) = until(lambda: scrapes(chain), "the prober to be scraped")
    assert scraped["metric"]["job"] == "llm-slo-prober"
    assert scraped["metric"]["instance"] == "localhost:9742", "where links of alerts open outside the containers"
    until(
        lambda: any(rule["health"] == "ok" for group in groups() for rule in group["rules"]), "a rule to be evaluated"
    )
    assert [rule["lastError"] for group in groups() for rule in group["rules"] if rule.get("lastError")] == []


def alertmanagers(chain: Chain) -> list[dict[str, str]]:
    """The Alertmanagers that Prometheus knows."""
    return list(chain.answer("prometheus", "/api/v1/alertmanagers")["data"]["activeAlertmanagers"])


def scrapes(chain: Chain) -> list[dict[str, Any]]:
    """The scraped targets."""
    return list(chain.answer("prometheus", "/api/v1/query?query=up==1")["data"]["result"])
