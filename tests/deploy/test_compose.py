"""The compose file's parts are what their own programs take. No container was started."""

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
COMPOSE = ROOT / "deploy/compose.yaml"
PARTS = ROOT / "deploy/compose"
SERVICES = yaml.safe_load(COMPOSE.read_text())["services"]


def done(*words: str | Path) -> None:
    ran = subprocess.run([str(word) for word in words], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_prometheus_takes_its_configuration_and_rules(promtool: Path) -> None:
    """By promtool, with the rule file that it names."""
    done(promtool, "check", "config", PARTS / "prometheus.yaml")


def test_alertmanager_takes_its_configuration(amtool: Path) -> None:
    """By amtool."""
    done(amtool, "check-config", PARTS / "alertmanager.yaml")


def test_the_prober_takes_its_configuration() -> None:
    """By `prober check`; the rules are those that `prober rules` writes for it."""
    config = f"--config.file={PARTS / 'prober.yaml'}"
    done(sys.executable, "-m", "prober", "check", config)
    done(sys.executable, "-m", "prober", "rules", config, f"--output={PARTS / 'rules.yaml'}", "--check")


@pytest.mark.parametrize("name", SERVICES)
def test_every_file_that_is_mounted_is_there(name: str) -> None:
    """Docker would make an empty folder of it."""
    for volume in SERVICES[name].get("volumes", ()):
        if isinstance(volume, str) and volume.startswith("."):
            assert (COMPOSE.parent / volume.split(":")[0]).exists(), volume


@pytest.mark.parametrize("name", SERVICES)
def test_nothing_listens_beyond_the_machine(name: str) -> None:
    """Every published port is of the loopback address."""
    assert all(port.startswith("127.0.0.1:") for port in SERVICES[name].get("ports", ()))


@pytest.mark.parametrize("name", ["prober", "engine", "slow-engine"])
def test_our_containers_are_hardened(name: str) -> None:
    """Read-only, without capabilities, bounded in memory and not in CPU."""
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert "mem_limit" in service
    assert "cpus" not in service


def test_addresses_are_names_of_services() -> None:
    """Whoever asks whom: targets, scrapes, alerts, the data source."""
    texts = [path.read_text() for path in PARTS.rglob("*.yaml") if path.name != "rules.yaml"]
    asked = {"engine:8000", "slow-engine:8000", "prober:9742", "alertmanager:9093", "prometheus:9090"}
    assert all(any(f"/{address}" in text or f'"{address}' in text for text in texts) for address in asked)
    assert {address.split(":")[0] for address in asked} <= SERVICES.keys()


@pytest.mark.parametrize("name", ["engine", "slow-engine"])
def test_every_flag_of_the_mock_exists(name: str) -> None:
    """As its help says."""
    helped = subprocess.run(
        [sys.executable, "-m", "prober", "mock", "--help"], capture_output=True, text=True, check=True
    ).stdout.split()
    assert {word.split("=")[0] for word in SERVICES[name]["command"][1:]} <= set(helped)
