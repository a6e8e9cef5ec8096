"""The compose file's parts are what their own programs take. No container was started; test_compose_running.py runs its commands."""

from pathlib import Path

import pytest
import yaml
from jsonschema import Draft202012Validator

from tests.deploy.schemas import TEXT, listed, record

ROOT = Path(__file__).parents[2]
COMPOSE = ROOT / "deploy/compose.yaml"
PARTS, RULES = ROOT / "deploy/compose", ROOT / "deploy/prometheus/rules.yaml"
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


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_is_of_this_machine_only_and_ours_are_hardened(name: str) -> None:
    """Mounted files are there (Docker would make folders of them); published ports are of loopback, and those at which the service
    listens. Our containers are read-only, without capabilities, and bounded in memory.
    """
    service = SERVICES[name]
    files = [volume.split(":")[0] for volume in service.get("volumes", ()) if volume.startswith(".")]
    assert [file for file in files if not (COMPOSE.parent / file).exists()] == []
    assert set(service.get("ports", ())) <= {f"127.0.0.1:{PORTS[name]}:{PORTS[name]}"}
    if name in ("prober", "engine", "slow-engine"):
        assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"])
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert "mem_limit" in service
