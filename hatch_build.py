"""Compiles the loop of `prober.simulation.serving` when the package is built; the wheel of Zig is the compiler where there is none."""

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
# No fused operations: the numbers are the same on every machine.
FLAGS = ("-O2", "-std=c11", "-ffp-contract=off", "-shared", "-fPIC")


class CompiledLoop(BuildHookInterface):  # type: ignore[misc]
    """Compiles serving.c to _serving.so."""

    PLUGIN_NAME = "custom"

    def dependencies(self) -> list[str]:
        """What the build needs beside hatchling."""
        return [] if _compiler() else ["ziglang"]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile before the files are collected; a wheel with it is for this platform."""
        if self.target_name != "wheel":
            return
        folder = Path(self.root, FOLDER)
        built = folder / "_serving.so"
        built.unlink(missing_ok=True)
        if not (compiler := _compiler()) and not find_spec("ziglang"):
            raise OSError("no C compiler for prober/simulation/serving.c: apt-get install gcc, or name one in CC")
        compiler = compiler or [sys.executable, "-m", "ziglang", "cc"]
        subprocess.run([*compiler, *FLAGS, "-o", str(built), str(folder / "serving.c"), "-lm"], check=True)
        build_data["artifacts"].append(f"{FOLDER}/_serving.so")
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"


def _compiler() -> list[str] | None:
    """Command of the C compiler of the environment or the system."""
    if named := os.environ.get("CC"):
        return named.split()
    path = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    return [path] if path else None
