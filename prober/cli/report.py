"""`prober report`: writes results side by side as Markdown, HTML with charts, CSV or JSON; also reads files of vLLM's client."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from enum import StrEnum
from itertools import chain
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from prober.cli.context import ContextOptions
from prober.cli.exit_codes import ExitCode, exit_on, fail, saved
from prober.cli.options import expand_options
from prober.cli.output import echo
from prober.config.problems import ConfigError
from prober.config.serving import ContextSpec
from prober.features.experiments.report import comparison_report
from prober.features.experiments.report.csv_export import requests as request_rows
from prober.features.experiments.report.csv_export import stages as stage_rows
from prober.features.experiments.report.report import html, markdown
from prober.features.experiments.report.stage_tables import contradictions
from prober.features.experiments.result_reader import KNOWN, read, read_all
from prober.results.comparison import Comparison
from prober.results.comparison import to_json as comparison_to_json
from prober.results.context import with_context
from prober.results.result import Result
from prober.results.result_file import to_json
from prober.results.strict_json import Unreadable

T = TypeVar("T")


class Format(StrEnum):
    """Output formats of the report, the values of `--format`."""

    MARKDOWN = "markdown"
    HTML = "html"
    CSV = "csv"
    JSON = "json"


@expand_options
def report(
    files: Annotated[list[Path], typer.Argument(help=f"Results of {KNOWN}, or comparisons of `prober compare`.")],
    form: Annotated[Format, typer.Option("--format", help="Output format; HTML has charts.")] = Format.MARKDOWN,
    output: Annotated[Path | None, typer.Option(help="File to write; default: standard output.")] = None,
    requests: Annotated[
        bool, typer.Option("--requests", help="CSV with a row for each request instead of each stage.")
    ] = False,
    *,
    context: ContextOptions,
) -> None:
    """Write a report of one result, of several side by side, or of comparisons. Exit codes: 0 written, 1 a file cannot be read
    or written, 2 wrong call."""
    with exit_on(ConfigError, ValueError, command="report"):
        if requests and form is not Format.CSV:
            raise ValueError("--requests: only --format csv has rows of requests")
        spec = context.spec("report")
        paths, documents = zip(*chain.from_iterable(all_of(files, _documents)), strict=True)
        if form is Format.JSON and len(documents) > 1:
            raise ValueError(f"--format json: writes one result, {len(documents)} are named; name one at a time")
        comparisons = [document for document in documents if isinstance(document, Comparison)]
        results = [_with_options(document, spec, context) for document in documents if isinstance(document, Result)]
        if comparisons and results:
            raise ValueError("results and comparisons have no common report: name one kind at a time")
        if comparisons and form is Format.CSV:
            raise ValueError("--format csv: a comparison has no stages; use markdown, html or json")
    write: dict[Format, Callable[[], str]] = {
        Format.MARKDOWN: lambda: comparison_report.markdown(comparisons) if comparisons else markdown(results),
        Format.HTML: lambda: comparison_report.html(comparisons) if comparisons else html(results),
        Format.CSV: lambda: _request_rows(paths, results) if requests else stage_rows(results),
        Format.JSON: lambda: (comparison_to_json(comparisons[0]) if comparisons else to_json(results[0])) + "\n",
    }
    if form in (Format.CSV, Format.JSON):
        for sentence in (sentence for result in results for sentence in contradictions(result)):
            echo(sentence, err=True)
    text = write[form]()
    if output is None:
        echo(text, end="")
        return
    with saved(text, output, "prober report: --output"):
        pass


def _with_options(result: Result, spec: ContextSpec, options: ContextOptions) -> Result:
    """Complete a result by the facts and the price in the options."""
    if options == ContextOptions():
        return result
    if spec.rollback is not None and result.decision is not None:
        result = replace(result, decision=replace(result.decision, rollback_risk=spec.rollback))
    return with_context(
        result,
        (),
        spec.configured | ({"gpu_count": str(options.gpus)} if options.gpus else {}),
        assumed=spec.checkpoint_facts,
        flags=spec.flags,
        gpu_price=options.gpu_price,
        decode_model=spec.decode_model,
        source="the file",
        configured_by="options of this report",
    )


def result_of(path: Path) -> Result:
    """Read the result in a file. Raises Unreadable."""
    return read(_text(path), str(path))


def _request_rows(paths: Sequence[Path], results: Sequence[Result]) -> str:
    """CSV of all requests. Files without requests are named on standard error; exits with FAILED if no file has any."""
    for path, result in zip(paths, results, strict=True):
        if not result.requests:
            echo(f"{path}: {result.why_no_requests}", err=True)
    if not any(result.requests for result in results):
        sys.exit(ExitCode.FAILED)
    return request_rows(results)


def _documents(path: Path) -> list[tuple[Path, Result | Comparison]]:
    """Read the documents in a file, each paired with the path."""
    return [(path, document) for document in read_all(_text(path), str(path))]


def all_of(files: Sequence[Path], open_: Callable[[Path], T]) -> list[T]:
    """Read all files with `open_`. Exits with FAILED, and a line per file, if any cannot be read."""
    documents, problems = [], []
    for path in files:
        try:
            documents.append(open_(path))
        except Unreadable as problem:
            problems.append(str(problem))
    if problems:
        fail("\n".join(problems), ExitCode.FAILED)
    return documents


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise Unreadable(f"{path}: is no text; name a result's JSON file") from None
    except OSError as problem:
        raise Unreadable(f"{path}: cannot be read: {problem.strerror}") from None
