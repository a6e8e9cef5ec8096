"""The chart by real Helm: what it makes of it is what the own reader of templates says, and what it refuses."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import absent
from tests.deploy.rendering import CHART, ROOT, Manifest, chart, documents
from tests.deploy.shipped import CHARTS

FETCHED = ROOT / ".tools"
Render = Callable[[dict[str, Any]], list[Manifest]]


class Refused(Exception):
    """Helm will not render it; in its words."""


def template(words: list[str], values: dict[str, Any], **env: str) -> list[Manifest]:
    done = subprocess.run(
        words, input=json.dumps(values), capture_output=True, text=True, check=False, env={**os.environ, **env}
    )
    if done.returncode:
        raise Refused(done.stderr)
    return documents(done.stdout)


@pytest.fixture(scope="module", params=["3", "4"])
def helm(request: pytest.FixtureRequest) -> Render:
    """`helm template prober deploy/chart --namespace llm` of that major version."""
    if request.param == "4":
        library = FETCHED / "helm4"
        if not library.exists():
            absent("no Helm 4: `make test` fetches it")
        words = [sys.executable, str(Path(__file__).with_name("helm4.py")), str(CHART), "prober", "llm"]
        return lambda values: template(words, values, PYTHONPATH=str(library))
    program = FETCHED / "usr/bin/helm"
    if not program.exists():
        absent("no Helm 3: `make test` fetches it where npm is")
    # It holds itself for a release of Kubernetes of its own time, before the chart's `kubeVersion`.
    words = [str(program), "template", "prober", str(CHART), "--namespace=llm", "--kube-version=1.30", "--values=-"]
    return lambda values: template(words, values)


def placed(manifests: list[Manifest]) -> dict[tuple[str, ...], Manifest]:
    """By what names one in a cluster."""
    return {
        (manifest["kind"], manifest["metadata"].get("namespace", ""), manifest["metadata"]["name"]): manifest
        for manifest in manifests
    }


@pytest.mark.parametrize("over", CHARTS.values(), ids=CHARTS)
def test_helm_makes_what_the_reader_says(helm: Render, over: dict[str, Any]) -> None:
    """All other tests of the chart therefore hold for Helm."""
    theirs, ours = helm(over), chart(**over)
    assert placed(theirs) == placed(ours)
    assert len(theirs) == len(ours) == len(placed(ours))


@pytest.mark.parametrize(
    "over",
    [
        {"resources": {"limits": {"cpu": "1"}}},
        {"replicas": 0},
        {"web": {"tlsSecret": "prober-tls"}},
        {"extraArgs": ["--web.enable-admin-api"]},
        {"replicas": 2, "probe": {"enabled": True, "targets": ["llama"]}},
        {"config": {"targets": None}},
        {"colour": "blue"},
    ],
    ids=str,
)
def test_helm_refuses_wrong_values(helm: Render, over: dict[str, Any]) -> None:
    """By the chart's schema, in its own words."""
    with pytest.raises(Refused, match="values don't meet the specifications of the schema"):
        helm(over)
