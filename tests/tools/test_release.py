"""What tools/release.sh refuses, in a repository that has nothing else. CI makes a whole release by `make release ARGS=--dry-run`."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HEADING = "CHANGELOG.md:3:## Unreleased: the first heading has to be '## 0.6.0', with the day of the release"
TAGGED = "the tag v0.6.0 exists, of "
CHANGED = "uncommitted changes: commit or remove them\n?? left.txt"


class Repository:
    """A repository of version 0.6.0 that may be released."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("tools/release.sh", "tools/version.py"):
            (folder / name).parent.mkdir(exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
        self.write("prober/__init__.py", '"""The prober."""\n\n__version__ = "0.6.0"\n')
        self.write("Dockerfile", "FROM scratch\nARG VERSION=0.6.0\n")
        self.write("CHANGELOG.md", "# Changes\n\n## 0.6.0 (2027-01-31)\n")
        self.git("init", "--quiet")
        self.commit()

    def write(self, name: str, text: str) -> None:
        (self.folder / name).parent.mkdir(exist_ok=True)
        (self.folder / name).write_text(text)

    def git(self, *arguments: str) -> None:
        who = ("-c", "user.name=n", "-c", "user.email=e", "-c", "commit.gpgsign=false")
        subprocess.run(("git", *who, *arguments), cwd=self.folder, check=True)

    def commit(self) -> None:
        self.git("add", ".")
        self.git("commit", "--quiet", "--message=x")

    def release(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run the script, with a packager that does not exist: after the refusals it ends there."""
        environment = os.environ | {"PYTHON": sys.executable, "PACKAGER": str(self.folder / "no-packager")}
        command = (str(self.folder / "tools/release.sh"), *arguments)
        return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path)


def unreleased(repository: Repository) -> None:
    repository.write("CHANGELOG.md", "# Changes\n\n## Unreleased\n\n## 0.6.0 (2027-01-31)\n")
    repository.commit()


def other_version(repository: Repository) -> None:
    repository.write("Dockerfile", "FROM scratch\nARG VERSION=0.5.9\n")
    repository.commit()


def neglected(repository: Repository) -> None:
    unreleased(repository)
    repository.git("tag", "v0.6.0")
    repository.write("left.txt", "")


REFUSED: dict[str, tuple[Callable[[Repository], object], tuple[str, ...], list[str]]] = {
    "an unreleased heading": (unreleased, ("0.6.0",), [HEADING]),
    "an existing tag": (lambda r: r.git("tag", "v0.6.0"), ("0.6.0",), [TAGGED]),
    "a dirty tree": (lambda r: r.write("left.txt", ""), ("0.6.0",), [CHANGED]),
    "another version": (
        lambda r: None,
        ("0.6.1",),
        ["prober/__init__.py has version 0.6.0, not 0.6.1: run python -m tools"],
    ),
    "places that disagree": (other_version, ("0.6.0",), ["not one version", "Dockerfile:2: 0.5.9, not 0.6.0"]),
    "a base that can move": (
        lambda r: None,
        ("0.6.0", "--base", "python:3"),
        ["--base python:3: give the base of the image by"],
    ),
    "all at once": (neglected, ("0.6.0",), [HEADING, TAGGED, CHANGED]),
}


@pytest.mark.parametrize("case", REFUSED)
def test_it_refuses_and_says_why(case: str, repository: Repository) -> None:
    """Every reason at once, before anything is made."""
    change, arguments, reasons = REFUSED[case]
    change(repository)
    done = repository.release(*arguments)
    assert done.returncode == 1
    assert all(f"refused: {reason}" in done.stderr or f"\n{reason}" in done.stderr for reason in reasons), done.stderr
    assert done.stderr.count("refused: ") == len([reason for reason in reasons if not reason.startswith("Dockerfile")])
    assert not (repository.folder / "dist").exists()


def test_a_sound_tree_is_not_refused(repository: Repository) -> None:
    """It goes on to the programs that it needs, and names the one that is missing."""
    done = repository.release("0.6.0")
    assert done.stderr.endswith("/no-packager is missing: make release fetches it\n")
    assert "refused" not in done.stderr + done.stdout


def test_a_dry_run_says_what_would_be_refused_and_goes_on(repository: Repository) -> None:
    """Between releases the heading is another one; places that disagree end a dry run too, as they are a mistake at any time."""
    unreleased(repository)
    done = repository.release("--dry-run")
    assert f"A release would be refused: {HEADING}" in done.stdout
    assert "no-packager is missing" in done.stderr
    other_version(repository)
    assert "Dockerfile:2: 0.5.9, not 0.6.0" in repository.release("--dry-run").stderr


@pytest.mark.parametrize("arguments", [(), ("--publish",), ("--base",)])
def test_a_wrong_call_says_how_it_is_called(arguments: tuple[str, ...], repository: Repository) -> None:
    """Nothing is made by accident."""
    done = repository.release(*arguments)
    assert done.returncode != 0
    assert "usage: tools/release.sh VERSION" in done.stderr
