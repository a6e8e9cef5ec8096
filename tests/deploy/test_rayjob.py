"""The RayJob. KubeRay's own schema is in no package, so its fields are checked against a list written by hand; pods by Kubernetes'."""

import copy
import shlex
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from jsonschema import Draft202012Validator

from prober import __version__
from prober.cli.options import WorkerOptions
from tests.deploy.schemas import TEXT, TEXTS, listed, record

ROOT = Path(__file__).parents[2]
COUNT = {"type": "integer", "minimum": 0}
POD = {"type": "object"}  # see test_kubernetes_knows_every_field_of_the_pods
HEAD = record("rayStartParams", "template", rayStartParams=TEXTS, template=POD)
GROUP = record(
    *("groupName", "replicas", "minReplicas", "maxReplicas", "rayStartParams", "template"),
    groupName=TEXT,
    replicas=COUNT,
    minReplicas=COUNT,
    maxReplicas=COUNT,
    rayStartParams=TEXTS,
    template=POD,
)
CLUSTER = record(
    *("rayVersion", "headGroupSpec", "workerGroupSpecs"),
    rayVersion=TEXT,
    headGroupSpec=HEAD,
    workerGroupSpecs=listed(GROUP),
)
SPEC = record(
    *("entrypoint", "rayClusterSpec"),
    entrypoint=TEXT,
    shutdownAfterJobFinishes={"type": "boolean"},
    ttlSecondsAfterFinished=COUNT,
    activeDeadlineSeconds=COUNT,
    backoffLimit=COUNT,
    rayClusterSpec=CLUSTER,
)


@pytest.fixture
def job() -> dict[str, Any]:
    parsed: dict[str, Any] = yaml.safe_load((ROOT / "deploy/ray/rayjob.yaml").read_text())
    return parsed


def problems(job: dict[str, Any]) -> list[str]:
    return [error.message for error in Draft202012Validator(SPEC).iter_errors(job["spec"])]


def test_its_fields_are_those_of_a_rayjob(job: dict[str, Any]) -> None:
    """And a slip of the pen is refused."""
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    assert problems(job) == []
    wrong = copy.deepcopy(job)
    wrong["spec"]["rayClusterSpec"]["workerGroupSpecs"][0]["rayStartParam"] = {}
    wrong["spec"]["rayClusterSpec"]["headGroupSpec"]["rayStartParams"]["num-cpus"] = 0
    assert len(problems(wrong)) == 2, "KubeRay wants texts in rayStartParams"


def test_kubernetes_knows_every_field_of_the_pods(job: dict[str, Any]) -> None:
    """As pods of their own, unknown fields refused."""
    cluster = job["spec"]["rayClusterSpec"]
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod"}, "spec": group["template"]["spec"]}
        kubernetes_validate.validate(pod, "1.28", strict=True)
        pod["spec"]["containers"][0]["resource"] = {}
        with pytest.raises(kubernetes_validate.ValidationError):
            kubernetes_validate.validate(pod, "1.28", strict=True)


def test_its_command_can_run_in_its_cluster(job: dict[str, Any]) -> None:
    """There is a processor for each worker, none on the head, and the pods request what Ray gives out."""
    words = shlex.split(job["spec"]["entrypoint"])
    options = WorkerOptions(words[words.index("--workers") + 1], words[words.index("--ray") + 1])
    cluster = job["spec"]["rayClusterSpec"]
    (group,) = cluster["workerGroupSpecs"]
    assert words[:2] == ["prober", "sweep"]
    assert options.count() == group["replicas"] * int(group["rayStartParams"]["num-cpus"])
    assert cluster["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"
    (container,) = group["template"]["spec"]["containers"]
    assert int(container["resources"]["requests"]["cpu"]) > int(group["rayStartParams"]["num-cpus"])
    images = {g["template"]["spec"]["containers"][0]["image"] for g in (cluster["headGroupSpec"], group)}
    assert images == {f"registry.example/llm-slo-prober-ray:{__version__}"}
