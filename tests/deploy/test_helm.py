"""The chart by both releases of Helm: what they make of it, and what they refuse."""

from pathlib import Path
from typing import Any

import pytest

from tests.deploy.rendering import HELM_3, HELM_4, Manifest, Refused, helm
from tests.deploy.shipped import CHARTS


def placed(manifests: list[Manifest]) -> dict[tuple[str, ...], Manifest]:
    """By what names one in a cluster."""
    by_name: dict[tuple[str, ...], Manifest] = {
        (manifest["kind"], manifest["metadata"].get("namespace", ""), manifest["metadata"]["name"]): manifest
        for manifest in manifests
    }
    assert len(by_name) == len(manifests)
    return by_name


@pytest.mark.parametrize("over", CHARTS.values(), ids=CHARTS)
def test_both_make_the_same(over: dict[str, Any]) -> None:
    """All other tests of the chart therefore hold for either."""
    assert placed(helm(HELM_3, "prober", over)) == placed(helm(HELM_4, "prober", over))


@pytest.mark.parametrize("program", [HELM_3, HELM_4], ids=["3", "4"])
@pytest.mark.parametrize(
    "over", [{"web": {"tlsSecret": "prober-tls"}}, {"config": {"targets": None}}, {"colour": "blue"}], ids=str
)
def test_helm_refuses_wrong_values(program: Path, over: dict[str, Any]) -> None:
    """By the chart's schema, in its own words."""
    with pytest.raises(Refused, match="values don't meet the specifications of the schema"):
        helm(program, "prober", over)
