"""The example for Alertmanager is one that Alertmanager takes."""

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CONFIG = ROOT / "deploy/alertmanager/alertmanager.yaml"

ROUTED = [
    ("critical", "alertname=LLMErrorBudgetBurn severity=critical", "pager"),
    ("warning", "alertname=LLMTTFTP99Drift severity=warning", "tickets"),
]


def test_the_example_is_valid(amtool: Path) -> None:
    """By amtool."""
    done = subprocess.run([amtool, "check-config", CONFIG], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(("severity", "labels", "receiver"), ROUTED)
def test_each_severity_has_its_receiver(amtool: Path, severity: str, labels: str, receiver: str) -> None:
    """Pages wake somebody, tickets do not."""
    command = [str(amtool), "config", "routes", "test", f"--config.file={CONFIG}", *labels.split()]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert receiver in done.stdout, done.stdout + done.stderr
