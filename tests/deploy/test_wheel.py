"""The wheel: built with a compiler, without one, for a named platform, and what an installation without the compiled loop says."""

import re
import shutil
import subprocess
import sys
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest

from prober.features.capacity.estimate_process import EstimateFailed, estimate_in_process
from tests.features.capacity.test_replay import QUIET, record

ROOT = Path(__file__).parents[2]
BUILT_FROM = ("pyproject.toml", "hatch_build.py", "README.md", "LICENSE", "prober", "deploy/runbooks")
LOOP = "prober/simulation/_serving.so"


def build(folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Build a wheel from a copy of the tree into `folder`/dist, with no program on the path but those of `environment`."""
    tree = folder / "tree"
    tree.mkdir(parents=True)
    for name in BUILT_FROM:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__", "_serving.so"))
        else:
            shutil.copy(ROOT / name, tree)
    command = (sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder / "dist"))
    variables = {"PATH": "", "HOME": str(folder), "PYTHONDONTWRITEBYTECODE": "1"} | environment
    return subprocess.run(command, cwd=tree, env=variables, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def pure(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """A wheel that was built where there is no compiler."""
    folder = tmp_path_factory.mktemp("pure")
    done = build(folder)
    assert done.returncode == 0, done.stderr
    assert "no C compiler: install gcc, or name one in CC" in done.stdout + done.stderr
    (wheel,) = (folder / "dist").iterdir()
    assert wheel.name.endswith("-py3-none-any.whl")
    return zipfile.ZipFile(wheel)


async def test_without_a_compiler_only_the_estimate_is_missing(
    pure: zipfile.ZipFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The estimate says what is missing and how to get it, and asks nobody to report a fault."""
    assert LOOP not in pure.namelist()
    pure.extractall(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    remedy = (
        r"^this installation lacks the compiled loop .*install a wheel for this platform, or gcc and then the prober"
    )
    with pytest.raises(EstimateFailed, match=remedy) as failed:
        await estimate_in_process(record(QUIET), 1)
    assert f"{tmp_path}/{LOOP}" in str(failed.value)
    assert "report" not in str(failed.value)


def test_the_package_has_a_page_without_links_into_the_repository(pure: zipfile.ZipFile) -> None:
    """Of the README, the text of each link is kept; links to other sites stay links."""
    (name,) = (name for name in pure.namelist() if name.endswith("METADATA"))
    metadata = message_from_bytes(pure.read(name))
    page = str(metadata.get_payload())
    assert not re.findall(r"\]\((?!https?:)", page)
    assert "| `prober run` | runs the daemon |" in page
    assert metadata["Description-Content-Type"] == "text/markdown"


@pytest.mark.parametrize(
    ("environment", "refusal"),
    [
        (
            {"PROBER_PLATFORM": "win32"},
            "PROBER_PLATFORM=win32: known are manylinux2014_x86_64, manylinux2014_aarch64",
        ),
        ({"PROBER_PLATFORM": "manylinux2014_aarch64"}, "ziglang"),
    ],
)
def test_the_wheel_of_a_platform_is_never_one_without_the_loop(
    environment: dict[str, str], refusal: str, tmp_path: Path
) -> None:
    """An unknown platform, or no compiler for it, ends the build: a release has no wheel that lacks something."""
    done = build(tmp_path, **environment)
    assert done.returncode != 0
    assert refusal in done.stdout + done.stderr
    assert not (tmp_path / "dist").exists() or not list((tmp_path / "dist").iterdir())


def test_a_compiler_makes_a_wheel_of_this_machine(tmp_path: Path) -> None:
    """With the loop, and a tag by which no other platform installs it. A compiler that fails is as good as none."""
    compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    if compiler is None:
        pytest.skip("no C compiler")
    for name, command, tag in (("good", compiler, "-py3-none-linux_"), ("bad", "false", "-py3-none-any.")):
        done = build(tmp_path / name, CC=command, PATH="/usr/bin:/bin")
        assert done.returncode == 0, done.stderr
        (wheel,) = (tmp_path / name / "dist").iterdir()
        assert tag in wheel.name
        assert (LOOP in zipfile.ZipFile(wheel).namelist()) == (name == "good")
