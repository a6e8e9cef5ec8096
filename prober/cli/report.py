"""`prober report`: results side by side, as Markdown, HTML with charts, CSV or JSON; other tools' files too."""

import sys
from collections.abc import Callable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from prober.generate.report import html, markdown
from prober.generate.sheet import requests as request_rows
from prober.generate.sheet import stages as stage_rows
from prober.results.reading import KNOWN, read
from prober.results.result import Result
from prober.results.stored import Unreadable, to_json


class Format(StrEnum):
    """What is written."""

    MARKDOWN = "markdown"
    HTML = "html"
    CSV = "csv"
    JSON = "json"


def report(
    files: Annotated[list[Path], typer.Argument(help=f"Results of {KNOWN}.")],
    form: Annotated[Format, typer.Option("--format", help="HTML has the charts.")] = Format.MARKDOWN,
    output: Annotated[Path | None, typer.Option(help="File to write; standard output if absent.")] = None,
    requests: Annotated[bool, typer.Option("--requests", help="CSV with a row a request, not a stage.")] = False,
) -> None:
    """Write a report of one result, or of several side by side."""
    if requests and form is not Format.CSV:
        _wrong("--requests: only --format csv has rows of requests")
    if form is Format.JSON and len(files) > 1:
        _wrong(f"--format json: writes one result, {len(files)} files are named; name one at a time")
    results = results_of(files)
    write: dict[Format, Callable[[Sequence[Result]], str]] = {
        Format.MARKDOWN: markdown,
        Format.HTML: html,
        Format.CSV: request_rows if requests else stage_rows,
        Format.JSON: lambda found: to_json(found[0]) + "\n",
    }
    text = write[form](results)
    if output is None:
        print(text, end="")
        return
    try:
        output.write_text(text, encoding="utf-8")
    except OSError as problem:
        print(f"--output {output}: cannot be written: {problem.strerror}", file=sys.stderr)
        sys.exit(1)


def results_of(files: Sequence[Path]) -> list[Result]:
    """What the files hold. Ends the command with 1 and every file that cannot be read."""
    found, problems = [], []
    for path in files:
        try:
            found.append(read(path.read_text(encoding="utf-8"), str(path)))
        except Unreadable as problem:
            problems.append(str(problem))
        except UnicodeDecodeError:
            problems.append(f"{path}: is no text; name a result's JSON file")
        except OSError as problem:
            problems.append(f"{path}: cannot be read: {problem.strerror}")
    if problems:
        print("\n".join(problems), file=sys.stderr)
        sys.exit(1)
    return found


def _wrong(what: str) -> None:
    print(what, file=sys.stderr)
    sys.exit(2)
