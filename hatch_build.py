"""Makes the package's page of the README, and compiles the loop of `prober.simulation.serving` when a wheel is built.

The loop is compiled for this machine with its C compiler, or with that of the package `ziglang` where there is none.
PROBER_PLATFORM=manylinux2014_aarch64, or another key of PLATFORMS, makes the wheel of that platform, on any machine. Where nothing
compiles, the wheel is pure Python: it lacks the estimate of a sweep, which says so.
"""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

FOLDER = "prober/simulation"
# No fused operations: the numbers are the same on every machine. -s: no paths of the machine that built it.
FLAGS = ("-O2", "-std=c11", "-ffp-contract=off", "-shared", "-fPIC", "-s")
# The wheels of a release: what Zig compiles for. None for musl: google-re2 has none either, so pip would need a C++ compiler there.
PLATFORMS = {"manylinux2014_x86_64": "x86_64-linux-gnu.2.17", "manylinux2014_aarch64": "aarch64-linux-gnu.2.17"}
COMPILER_PACKAGE = "ziglang; sys_platform == 'linux' or sys_platform == 'darwin'"


class CompiledLoop(BuildHookInterface):  # type: ignore[misc]
    """Compiles serving.c to _serving.so."""

    PLUGIN_NAME = "custom"

    def dependencies(self) -> list[str]:
        """What the build needs beside hatchling."""
        return [] if _system_compiler() and "PROBER_PLATFORM" not in os.environ else [COMPILER_PACKAGE]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile before the files are collected; a wheel with the loop is for one platform."""
        if self.target_name != "wheel":
            return
        built = Path(self.root, FOLDER, "_serving.so")
        if platform := os.environ.get("PROBER_PLATFORM"):
            if platform not in PLATFORMS:
                raise ValueError(f"PROBER_PLATFORM={platform}: known are {', '.join(PLATFORMS)}")
            target = PLATFORMS[platform]
            compiler = [sys.executable, "-m", "ziglang", "cc", "-target", target]
            built = Path(self.root, "build", target, built.name)  # not beside the source, where this machine's is
            built.parent.mkdir(parents=True, exist_ok=True)
        else:
            platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
            compiler = _system_compiler() or ([sys.executable, "-m", "ziglang", "cc"] if find_spec("ziglang") else [])
        built.unlink(missing_ok=True)
        try:
            if not compiler:
                raise FileNotFoundError("no C compiler: install gcc, or name one in CC")
            subprocess.run(
                [*compiler, *FLAGS, "-o", str(built), str(Path(self.root, FOLDER, "serving.c")), "-lm"], check=True
            )
        except (OSError, subprocess.CalledProcessError) as problem:
            if "PROBER_PLATFORM" in os.environ:
                raise
            self.app.display_warning(f"{FOLDER}/serving.c is not compiled, so sweeps will have no estimate: {problem}")
            return
        build_data["force_include"][str(built)] = f"{FOLDER}/{built.name}"
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platform}"


class PackagePage(MetadataHookInterface):  # type: ignore[misc]
    """Sets the readme: that of the repository, without links and pictures that lead nowhere outside of it."""

    PLUGIN_NAME = "custom"

    def update(self, metadata: dict[str, Any]) -> None:
        """Keep the text of each relative link."""
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        text = re.sub(r"^!\[.*?\]\((?!https?:).*?\)\n+", "", text, flags=re.MULTILINE)
        text = re.sub(r"\[([^\]]*)\]\((?!https?:).*?\)", r"\1", text)
        metadata["readme"] = {"content-type": "text/markdown", "text": text}


def _system_compiler() -> list[str] | None:
    """Command of the C compiler of the environment or the system."""
    if named := os.environ.get("CC"):
        return named.split()
    path = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    return [path] if path else None
