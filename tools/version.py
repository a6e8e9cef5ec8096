"""The places that name the prober's version: lists those that disagree with prober/__init__.py, or sets all of them.

python -m tools.version          list the places that disagree, and fail if there are any
python -m tools.version 0.7.0    set the version everywhere; then run `make generated`
"""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
SEARCHED = (
    "Dockerfile",
    "README.md",
    "deploy",
    "docs/*.md",
    "docs/guides",
    "prober/__init__.py",
    "prober/static/openapi.json",
)
VERSION = r"\d+\.\d+\.\d+"  # of pip, Helm and image tags alike, so without a suffix
PLACE = re.compile(
    r"((?:llm-slo-prober(?:-ray)?:|llm_slo_prober-|llm-slo-prober-sidecar-|"
    r"newTag: |(?<![a-z-])tag: |^version: |^appVersion: |-sidecar, version: |ARG VERSION=|"
    rf'^  "version": "|__version__ = "))({VERSION})(?!\.?\d)',
    re.MULTILINE,
)


def places(root: Path) -> Iterator[tuple[Path, int, str]]:
    """Yield file, line number and version of each place in the tracked files."""
    listed = subprocess.run(("git", "ls-files", "-z", *SEARCHED), cwd=root, capture_output=True, check=True, text=True)
    for name in filter(None, listed.stdout.split("\0")):
        path = root / name
        if path.is_file() and not path.is_symlink():
            text = path.read_text(encoding="utf-8")
            for match in PLACE.finditer(text):
                yield path, text.count("\n", 0, match.start(2)) + 1, match[2]


def disagreeing(root: Path, version: str) -> list[str]:
    """One line per place that has another version."""
    return [
        f"{path.relative_to(root)}:{line}: {found}, not {version}"
        for path, line, found in places(root)
        if found != version
    ]


def set_everywhere(root: Path, version: str) -> None:
    """Write the version to every place."""
    for path in {path for path, _, _ in places(root)}:
        path.write_text(PLACE.sub(rf"\g<1>{version}", path.read_text(encoding="utf-8")), encoding="utf-8")


def version_of(root: Path) -> str:
    """The version of prober/__init__.py. Raises ValueError if it is not three numbers."""
    text = (root / "prober/__init__.py").read_text(encoding="utf-8")
    if not (match := re.search(rf'^__version__ = "({VERSION})"$', text, re.MULTILINE)):
        raise ValueError("prober/__init__.py: no __version__ of three numbers, such as 0.7.0")
    return match[1]


def main(arguments: list[str]) -> int:
    """Return the exit code."""
    if not arguments:
        problems = disagreeing(ROOT, version_of(ROOT))
        sys.stdout.writelines(f"{problem}\n" for problem in problems)
        return 1 if problems else 0
    if len(arguments) > 1 or not re.fullmatch(VERSION, arguments[0]):
        sys.stderr.write("usage: python -m tools.version [VERSION], where VERSION is three numbers, such as 0.7.0\n")
        return 2
    set_everywhere(ROOT, arguments[0])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
