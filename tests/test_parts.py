"""Tests without the real program that they need."""

from pathlib import Path

import pytest

from tests.conftest import part


def test_without_a_part_a_test_is_skipped_and_in_ci_it_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With its name, where it was looked for, and what to do."""
    for ci, ends in (("", pytest.skip.Exception), ("true", pytest.fail.Exception)):
        monkeypatch.setenv("CI", ci)
        with pytest.raises(ends, match="no such-program on the PATH: install it"):
            part("such-program", "install it")
        with pytest.raises(ends, match=f"no sh in {tmp_path}: fetch it"):
            part("sh", "fetch it", tmp_path)


def test_a_part_is_taken_from_where_it_was_looked_for(tmp_path: Path) -> None:
    """From the PATH, or from a folder that is named, whatever is on the PATH."""
    (tmp_path / "sh").touch(0o755)
    assert part("sh", "") != tmp_path / "sh"
    assert part("sh", "", tmp_path) == tmp_path / "sh"
