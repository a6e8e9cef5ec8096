"""Dependencies are locked with hashes, fetched once and audited."""

import re
import shlex
from importlib import import_module
from pathlib import Path

import pytest

from tools.audit import LOCKS

ROOT = Path(__file__).parents[2]
RECIPES = ("Makefile", "Dockerfile", *(f"tools/{path.name}" for path in sorted((ROOT / "tools").glob("*.sh"))))
INSTALLING = re.compile(
    r"\bpip3?\b.*\b(install|wheel|download)\b|\buv\b.* (pip install|pip sync|sync|add|run|tool)\b|\b(uvx|pipx)\b"
)
FETCHED = re.compile(r"^\W*(curl|wget|npm|npx|git clone)\b")
FETCHING = re.compile(
    r"\b(curl|wget|pip3? download|npm|npx|git clone|urlretrieve|hf_hub|snapshot_download|playwright install)\b"
)


@pytest.mark.parametrize("name", LOCKS)
def test_every_line_of_a_lock_has_a_version_and_a_hash(name: str) -> None:
    """Nothing is installed that is not what was looked at: no range, no address, no local path, no option."""
    text = (ROOT / name).read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    assert lines
    for line in lines:
        assert re.match(r"[A-Za-z0-9._-]+(\[[a-z,-]+\])?==[A-Za-z0-9.+!-]+ ", line), line
        assert re.search(r"--hash=sha256:[0-9a-f]{64}\b", line), line
        assert "://" not in line.partition("#")[0], line


def commands(text: str) -> list[str]:
    """Each command of a recipe by itself, on one line; comments are none."""
    lines = [line for line in text.replace("\\\n", " ").splitlines() if not line.lstrip().startswith("#")]
    return [command.strip() for line in lines for command in re.split(r"&&|\|\||[;|]", line)]


def careless(text: str) -> list[str]:
    """Commands that would take a package without its hash: from an index, or to build a wheel with."""
    return [
        command
        for command in commands(text)
        if INSTALLING.search(command) and not _held(shlex.split(command, comments=True))
    ]


def _held(words: list[str]) -> bool:
    if "--require-hashes" in words:
        return True
    verb = next((place for place, word in enumerate(words) if word in ("install", "wheel", "download")), len(words))
    arguments = [word for word in words[verb + 1 :] if not word.startswith("-")]
    if "--no-index" in words:
        return bool(arguments) and all(word.startswith("/") and word.endswith(".whl") for word in arguments)
    return arguments == ["."] and {"--no-deps", "--no-build-isolation"} <= set(words)


@pytest.mark.parametrize("name", RECIPES)
def test_all_that_is_installed_asks_for_the_hashes(name: str) -> None:
    """Of the Makefile, the image and the tools: every command by itself, but for what was made here just before."""
    text = (ROOT / name).read_text()
    assert careless(text) == []
    if any(FETCHED.search(command) for command in commands(text)):
        assert "sha256sum --check" in text


@pytest.mark.parametrize(
    "command",
    [
        "python -m pip install --no-deps x",
        "pip install --no-deps .",  # what builds it would come without a hash
        "pip3 install --quiet x==1.0",
        "pip install --no-index x",
        "pip download x",
        "uv pip install x",
        "uv tool install x",
        "true && pip install x; pip install --require-hashes -r lock",
        "RUN pip install --require-hashes -r lock \\\n && pip install --no-deps x",
    ],
)
def test_what_is_careless_is_known(command: str) -> None:
    assert len(careless(command)) == 1


def test_nothing_is_fetched_after_the_installation() -> None:
    """Neither the package nor what the image runs fetches code or data from somewhere else."""
    for path in [*(ROOT / "prober").rglob("*.py"), *(ROOT / "prober/static").iterdir()]:
        match = FETCHING.search(path.read_text())
        assert match is None, f"{path}: {match}"
    page = "".join(path.read_text() for path in (ROOT / "prober/static").iterdir())
    addresses = {address for address in re.findall(r"https?://[^\s\"')]+", page) if "www.w3.org/" not in address}
    assert addresses == set()


@pytest.mark.parametrize(
    ("pypi", "osv", "code", "message"),
    [
        ([{"name": "a", "version": "1", "vulns": []}], None, 0, "1 locked packages, no known weakness"),
        ([{"name": "a", "version": "1", "vulns": [{"id": "CVE-1"}]}], None, 1, "a 1: CVE-1"),
        ([{"name": "a", "skip_reason": "not found"}], None, 2, "no answer from osv; 1 of 1 packages"),
        (None, None, 2, "not audited: no answer from pypi, osv"),
        ([{"name": "a", "skip_reason": "x"}], [{"name": "a", "version": "1", "vulns": []}], 0, "no known weakness"),
        ([{"name": "a", "skip_reason": "x"}, {"name": "b", "version": "2", "vulns": []}], [], 2, "1 of 2 packages"),
    ],
)
def test_an_audit_that_could_not_ask_is_no_good_news(pypi: object, osv: object, code: int, message: str) -> None:
    """pip-audit itself ends with 0 where its service does not know a package."""
    exit_code, sentence = import_module("tools.audit").judge({"pypi": pypi, "osv": osv})
    assert (exit_code, message in sentence) == (code, True), sentence
