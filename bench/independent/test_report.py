"""Tests of how benchmarks write what they measure."""

import json

import pytest

from bench.report import part, require


def test_a_part_is_written_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    """A line of JSON on standard error, beside the result on standard output; also of figures that JSON does not know."""
    assert part("costs", {"ms": 1.5}) == {"ms": 1.5}
    assert part("kinds", frozenset({"a"})) == {"a"}
    out, err = capsys.readouterr()
    assert out == ""
    first, second = map(json.loads, err.splitlines())
    assert first == {"part": "costs", "figures": {"ms": 1.5}}
    assert second["part"] == "kinds"


def test_a_missing_program_ends_a_benchmark_before_it_measures() -> None:
    """With its name, and what to do; a program that is there does not."""
    require("sh")
    with pytest.raises(SystemExit, match="no such-program here: `make tools` fetches Prometheus"):
        require("sh", "such-program")
