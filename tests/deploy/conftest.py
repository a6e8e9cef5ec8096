"""The programs that put the manifests together, and what they give."""

from pathlib import Path

import pytest

from tests.conftest import part
from tests.deploy.rendering import Manifest
from tests.deploy.shipped import sets


@pytest.fixture(scope="session")
def kubectl() -> Path:
    """kubectl 1.27 or later, for its `kustomize`."""
    return part("kubectl", "`make tools` fetches it, or install 1.27 or later")


@pytest.fixture(scope="session")
def shipped(kubectl: Path) -> dict[str, list[Manifest]]:
    """Every set of manifests that a reader could apply, by where it comes from."""
    return sets(kubectl)
