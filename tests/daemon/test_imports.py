"""Libraries that the daemon's own process does not load."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize("module", ["prober.daemon.app", "prober.cli.run", "prober.features.capacity.sweep_runner"])
def test_the_daemon_does_not_load_numpy(module: str) -> None:
    """It costs 8 MB or more and is needed by commands and by the process of an estimate."""
    code = f"import sys, {module}; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_an_estimate_loads_numpy() -> None:
    """The module that the daemon does not load is the one that the estimate's process runs."""
    code = "import sys, prober.features.capacity.estimate; sys.exit('numpy' not in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
