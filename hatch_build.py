"""Builds the compiled loop of `prober.simulation.serving` with the package where there is a C compiler.

Without one the package is complete, and estimates of sweeps take longer.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FOLDER = "prober/simulation"
# No fused operations: the numbers are those of the loop in Python, to the last bit.
FLAGS = ("-O2", "-std=c11", "-ffp-contract=off", "-shared", "-fPIC")


class CompiledLoop(BuildHookInterface):  # type: ignore[misc]
    """Compiles serving.c to _serving.so."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile before the files are collected; a wheel with it is for this platform."""
        if self.target_name != "wheel":
            return
        folder = Path(self.root, FOLDER)
        compiler = _compiler()
        built = folder / "_serving.so"
        built.unlink(missing_ok=True)
        if compiler is None:
            self.app.display_warning("no C compiler: estimates of sweeps will take longer")
            return
        command = [*compiler, *FLAGS, "-o", str(built), str(folder / "serving.c"), "-lm"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            self.app.display_warning(f"estimates of sweeps will take longer: {done.stderr.strip()}")
            return
        build_data["artifacts"].append(f"{FOLDER}/_serving.so")
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"


def _compiler() -> list[str] | None:
    """Command of a C compiler: the one of the environment or the system, else that of the package `ziglang`, as in the image."""
    if named := os.environ.get("CC"):
        return named.split()
    if path := next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None):
        return [path]
    return [sys.executable, "-m", "ziglang", "cc"] if find_spec("ziglang") else None
