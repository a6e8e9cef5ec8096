"""What the prober is made of: locked with hashes, fetched once, and asked about."""

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
LOCKS = ("requirements.lock", "requirements.image.lock", "requirements.build.lock")
FETCHING = re.compile(
    r"\b(curl|wget|pip3? download|npm|npx|git clone|urlretrieve|hf_hub|snapshot_download|playwright install)\b"
)


def audit() -> ModuleType:
    found = importlib.util.spec_from_file_location("audit", ROOT / "tools/audit.py")
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    sys.modules["audit"] = module
    found.loader.exec_module(module)
    return module


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


def test_all_that_is_installed_asks_for_the_hashes() -> None:
    """Of the Makefile and the image: every `pip install` of ours."""
    for name in ("Makefile", "Dockerfile"):
        for line in (ROOT / name).read_text().replace("\\\n", " ").splitlines():
            if "pip install" in line and "uv/bin/pip" not in line and not line.lstrip().startswith("#"):
                assert "--require-hashes" in line or "--no-deps" in line or "--no-index" in line, f"{name}: {line}"


def test_nothing_is_fetched_after_the_installation() -> None:
    """Neither the package nor what the image runs fetches code or data from somewhere else."""
    for path in [*(ROOT / "prober").rglob("*.py"), *(ROOT / "prober/static").iterdir()]:
        found = FETCHING.search(path.read_text())
        assert found is None, f"{path}: {found}"
    page = "".join(path.read_text() for path in (ROOT / "prober/static").iterdir())
    addresses = {each for each in re.findall(r"https?://[^\s\"')]+", page) if "www.w3.org/" not in each}
    assert addresses == set()


@pytest.mark.parametrize(
    ("pypi", "osv", "code", "said"),
    [
        ([{"name": "a", "version": "1", "vulns": []}], None, 0, "1 locked packages, no known weakness"),
        ([{"name": "a", "version": "1", "vulns": [{"id": "CVE-1"}]}], None, 1, "a 1: CVE-1"),
        ([{"name": "a", "skip_reason": "not found"}], None, 2, "no answer from osv; 1 of 1 packages"),
        (None, None, 2, "not audited: no answer from pypi, osv"),
        ([{"name": "a", "skip_reason": "x"}], [{"name": "a", "version": "1", "vulns": []}], 0, "no known weakness"),
        ([{"name": "a", "skip_reason": "x"}, {"name": "b", "version": "2", "vulns": []}], [], 2, "1 of 2 packages"),
    ],
)
def test_an_audit_that_could_not_ask_is_no_good_news(pypi: object, osv: object, code: int, said: str) -> None:
    """pip-audit itself ends with 0 where its service does not know a package."""
    found, sentence = audit().judged({"pypi": pypi, "osv": osv})
    assert (found, said in sentence) == (code, True), sentence
