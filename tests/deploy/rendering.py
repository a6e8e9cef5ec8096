"""Rendered manifests: by kubectl's kustomize, and the chart by Helm 3 or, where there is no npm to fetch it with, by Helm 4."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from tests.conftest import absent

ROOT = Path(__file__).parents[2]
KUSTOMIZE = ROOT / "deploy/kustomize"
CHART = ROOT / "deploy/chart"
RELEASE = "prober"
FULLNAME = "prober-llm-slo-prober"
"""Name of the objects of that release."""
MINIMAL: dict[str, Any] = yaml.safe_load((CHART / "ci/minimal-values.yaml").read_text())
HELM_3, HELM_4 = ROOT / ".tools/usr/bin/helm", ROOT / ".tools/helm4"

Manifest = dict[str, Any]
LOADER: type[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # dashboards are long


def documents(text: str) -> list[Manifest]:
    """Those of a YAML stream that say something."""
    return [document for document in yaml.load_all(text, LOADER) if document]


def built(kubectl: Path, folder: Path) -> list[Manifest]:
    """The manifests that `kubectl apply -k` would send. Raises RuntimeError with its message if it refuses."""
    done = subprocess.run([kubectl, "kustomize", folder], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{folder}: {done.stderr}")
    return documents(done.stdout)


def merged(values: Manifest, over: Mapping[str, Any]) -> Manifest:
    """Values with others laid over them, as Helm does: maps are merged, None takes a value away, the rest is replaced."""
    both = {
        name: merged(values[name], value) if isinstance(value, dict) and isinstance(values.get(name), dict) else value
        for name, value in over.items()
    }
    return {name: value for name, value in {**values, **both}.items() if value is not None}


def values(**over: Any) -> Manifest:
    """The chart's values with the least that it needs, and others, laid over them."""
    return merged(merged(yaml.safe_load((CHART / "values.yaml").read_text()), MINIMAL), over)


class Refused(Exception):
    """Helm will not render it; in its words."""


def rendered_text(program: Path, release: str, over: Mapping[str, Any], *options: str, folder: Path = CHART) -> str:
    """A chart rendered by HELM_3, with options of `helm template`, or HELM_4, in the namespace `llm`. Raises Refused."""
    if not program.exists():
        absent(f"no {program}: `make tools` fetches it; Helm 3 where npm is")
    if program == HELM_4:
        words = [sys.executable, str(Path(__file__).with_name("helm4.py")), str(folder), release, "llm"]
    else:  # for a Kubernetes of its own time, 1.25
        words = [str(program), "template", release, str(folder), "--namespace=llm", "--values=-", *options]
    env = {**os.environ, "PYTHONPATH": str(HELM_4)}
    done = subprocess.run(words, input=json.dumps(over), capture_output=True, text=True, check=False, env=env)
    if done.returncode:
        raise Refused(done.stderr)
    return done.stdout


def helm(program: Path, release: str, over: Mapping[str, Any], *options: str, folder: Path = CHART) -> list[Manifest]:
    """The manifests of a rendered chart. Raises Refused."""
    return documents(rendered_text(program, release, over, *options, folder=folder))


def chart(release: str = RELEASE, **over: Any) -> list[Manifest]:
    """The chart's manifests, of the least values that it needs with others laid over them."""
    return helm(HELM_3 if HELM_3.exists() else HELM_4, release, merged(MINIMAL, over))
