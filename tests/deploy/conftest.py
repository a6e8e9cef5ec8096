"""The program that puts the manifests together."""

import shutil
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def kubectl() -> Path:
    """kubectl 1.27 or later, for its `kustomize`: not every distribution has one, so its absence is never a failure."""
    found = shutil.which("kubectl")
    if found is None:
        pytest.skip("no kubectl on the PATH: install 1.27 or later to have deploy/ checked")
    return Path(found)
