"""The compose file's parts are what their own programs take. No container was started; test_compose_running.py runs its commands."""

import subprocess
from pathlib import Path

import pytest
import yaml
from jsonschema import Draft202012Validator

from tests.commands import prober
from tests.deploy.schemas import TEXT, listed, record

ROOT = Path(__file__).parents[2]
COMPOSE = ROOT / "deploy/compose.yaml"
PARTS = ROOT / "deploy/compose"
DOCUMENT = yaml.safe_load(COMPOSE.read_text())
SERVICES = DOCUMENT["services"]
PORTS = {"engine": 8000, "slow-engine": 8000, "prober": 9742, "prometheus": 9090, "alertmanager": 9093, "grafana": 3000}
"""What each service listens at."""
# The keys that are used, as the Compose Specification types them; it refuses those that it does not know, too.
SERVICE = record(
    "image",
    image=TEXT,
    build=record("context", context=TEXT),
    command=listed(TEXT),
    environment={"type": "object", "additionalProperties": {"type": "string"}},
    ports=listed(TEXT),
    tmpfs=listed(TEXT),
    volumes=listed(TEXT),
    depends_on=listed({"enum": sorted(SERVICES)}),
    healthcheck=record("disable", disable={"type": "boolean"}),
    read_only={"type": "boolean"},
    cap_drop=listed(TEXT),
    security_opt=listed(TEXT),
    mem_limit={"type": "string", "pattern": "^[0-9]+[bkmg]$"},
    restart={"enum": ["no", "always", "on-failure", "unless-stopped"]},
    stop_grace_period={"type": "string", "pattern": "^[0-9]+s$"},
)
SCHEMA = record(
    "name",
    "services",
    name={"type": "string", "pattern": "^[a-z0-9][-_a-z0-9]*$"},
    services={"type": "object", "additionalProperties": SERVICE},
    volumes={"type": "object", "additionalProperties": {"type": "null"}},
) | {"patternProperties": {"^x-": {}}}


def done(*words: str | Path) -> None:
    ran = subprocess.run([str(word) for word in words], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_every_key_is_one_of_compose() -> None:
    """Named volumes are declared, and what a service is called is no key."""
    assert list(Draft202012Validator(SCHEMA).iter_errors(DOCUMENT)) == []
    used = {volume.split(":")[0] for service in SERVICES.values() for volume in service.get("volumes", ())}
    assert {name for name in used if not name.startswith(".")} == DOCUMENT["volumes"].keys()


@pytest.mark.parametrize("key", ["read_onli", "mem_limits", "deploy.cpus"])
def test_a_key_that_does_not_exist_is_told(key: str) -> None:
    """The test above can fail."""
    wrong = DOCUMENT | {"services": {"prober": SERVICES["prober"] | {key: True}}}
    assert list(Draft202012Validator(SCHEMA).iter_errors(wrong))


def test_the_prober_takes_its_configuration() -> None:
    """By `prober check`; the rules are those that `prober rules` writes for it."""
    config = f"--config.file={PARTS / 'prober.yaml'}"
    for words in (("check", config), ("rules", config, f"--output={PARTS / 'rules.yaml'}", "--check")):
        ended = prober(*words)
        assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize("name", SERVICES)
def test_every_file_that_is_mounted_is_there(name: str) -> None:
    """Docker would make an empty folder of it."""
    for volume in SERVICES[name].get("volumes", ()):
        if isinstance(volume, str) and volume.startswith("."):
            assert (COMPOSE.parent / volume.split(":")[0]).exists(), volume


@pytest.mark.parametrize("name", SERVICES)
def test_nothing_listens_beyond_the_machine(name: str) -> None:
    """Every published port is of the loopback address, and is the one at which the service listens."""
    assert set(SERVICES[name].get("ports", ())) <= {f"127.0.0.1:{PORTS[name]}:{PORTS[name]}"}


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
    addresses = {f"{name}:{port}" for name, port in PORTS.items() if name != "grafana"}
    assert all(any(f"/{address}" in text or f'"{address}' in text for text in texts) for address in addresses)
    assert SERVICES.keys() == PORTS.keys()
