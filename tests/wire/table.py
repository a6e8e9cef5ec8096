"""The table of cases."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from tests.wire.case import Case


def read_cases() -> tuple[Case, ...]:
    """All cases, in the order of the modules' names."""
    names = sorted(path.stem for path in Path(__file__).parent.glob("cases_*.py"))
    return tuple(case for name in names for case in import_module(f"tests.wire.{name}").CASES)
