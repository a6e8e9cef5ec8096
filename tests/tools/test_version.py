"""The version stands in many files, and is the same in all of them."""

import subprocess
from pathlib import Path

from prober import __version__
from tools.version import ROOT, disagreeing, places, set_everywhere, version_of

# Answers and results that were recorded with a version, which no later version changes.
RECORDED = (":!tests", ":!docs/examples", ":!requirements*.lock", ":!CHANGELOG.md", ":!bench")


def git(root: Path, *arguments: str) -> str:
    return subprocess.run(("git", *arguments), cwd=root, capture_output=True, check=False, text=True).stdout


def test_all_places_name_one_version() -> None:
    """The package, the chart, the images' tags in manifests and documentation, and the image's label."""
    assert version_of(ROOT) == __version__
    assert disagreeing(ROOT, __version__) == []
    assert {"Dockerfile", "Chart.yaml", "kustomization.yaml"} <= {path.name for path, _, _ in places(ROOT)}


def test_one_command_changes_all_places(tmp_path: Path) -> None:
    """In a copy: nothing is left of the old version, and a file that was left out is named with its line."""
    git(ROOT, "checkout-index", "--all", f"--prefix={tmp_path}/")
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", "--force", ".")
    (tmp_path / "Dockerfile").write_text("FROM scratch\nARG VERSION=0.0.1\n")
    assert disagreeing(tmp_path, __version__) == [f"Dockerfile:2: 0.0.1, not {__version__}"]
    set_everywhere(tmp_path, "98.76.54")
    assert version_of(tmp_path) == "98.76.54"
    assert disagreeing(tmp_path, "98.76.54") == []
    assert (
        git(tmp_path, "grep", "--line-number", "--fixed-strings", "--word-regexp", __version__, "--", ".", *RECORDED)
        == ""
    )
