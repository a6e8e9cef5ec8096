"""The table of cases: all of them, and as Markdown."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from pathlib import Path

from tests.wire.case import Case


def read_cases() -> tuple[Case, ...]:
    """All cases, in the order of the modules' names."""
    names = sorted(path.stem for path in Path(__file__).parent.glob("cases_*.py"))
    return tuple(case for name in names for case in import_module(f"tests.wire.{name}").CASES)


def markdown(cases: Iterable[Case]) -> str:
    """A table of what servers do, the verdict, and the rule that decides."""
    rows = [
        f"| {_cell(case.name)} | {_cell(case.engine or 'any')} | {case.api} | {_verdict(case)} | {_cell(case.why)} |"
        for case in cases
    ]
    return "\n".join(("| what the server does | engine | API | verdict | why |", "|---|---|---|---|---|", *rows)) + "\n"


def _verdict(case: Case) -> str:
    return " or ".join(f"`{outcome}`" for outcome in case.verdict.split("|"))


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")
