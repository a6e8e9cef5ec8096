"""`prober dashboards`: writes or checks the dashboard files, or pushes them to a Grafana."""

import json
import os
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, NamedTuple, NoReturn

import typer

from prober.cli.exit_codes import ExitCode, fail
from prober.cli.options import ConfigFile
from prober.cli.output import echo
from prober.config.configuration import url_problem
from prober.config.problems import ConfigError
from prober.config.server import TlsSpec
from prober.daemon.configuration_file import read_config
from prober.daemon.dashboards import files
from prober.features.grafana import MISSING, GrafanaError, available
from prober.storage.watched_file import Secret, write_text

FOLDER = "LLM SLO prober"


class Action(StrEnum):
    """Action of the command: write or check the files, or push to a Grafana."""

    WRITE = "write"
    CHECK = "check"
    PUSH = "push"


def dashboards(
    action: Annotated[
        Action,
        typer.Argument(help="Write the files, check that they are up to date, or push them to a Grafana."),
    ],
    output: Annotated[Path, typer.Option(help="Directory of the files.")] = Path("dashboards"),
    config_file: ConfigFile = "",
    url: Annotated[str, typer.Option(help="push: base URL of Grafana.")] = "",
    token_file: Annotated[
        str,
        typer.Option(help="push: file with a service account token; default: the environment variable GRAFANA_TOKEN."),
    ] = "",
    folder: Annotated[str, typer.Option(help=f"push: title or uid of the folder ({FOLDER}).")] = "",
    datasource: Annotated[str, typer.Option(help="push: name or uid of the data source that is preselected.")] = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="push: print what would change and send nothing.")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="push: overwrite dashboards that were edited in Grafana.")
    ] = False,
) -> None:
    """Write, check or push the Grafana dashboards; push by --url, or by the `grafana:` block of --config.file. check and push exit
    with 1 and print what is wrong."""
    documents = files()
    if action is Action.WRITE:
        output.mkdir(parents=True, exist_ok=True)
        for name, text in documents.items():
            write_text(output / name, text)
        return
    if action is Action.PUSH:
        destination = _destination(config_file, url, token_file, folder, datasource)
        sys.exit(_push(destination, [json.loads(text) for text in documents.values()], dry_run=dry_run, force=force))
    differing = _differing(output, documents)
    if differing:
        fail("\n".join(differing), ExitCode.FAILED)


def _differing(folder: Path, documents: dict[str, str]) -> list[str]:
    """Messages about dashboard files that are missing, outdated or not generated."""
    problems = []
    for name, text in documents.items():
        path = folder / name
        if not path.exists():
            problems.append(f"{path} is missing; `prober dashboards write --output {folder}` writes it")
        elif path.read_text(encoding="utf-8") != text:
            problems.append(f"{path} is out of date; `prober dashboards write --output {folder}` writes it again")
    surplus = sorted(path for path in folder.glob("*.json") if path.name not in documents)
    return problems + [f"{path} is not a generated dashboard" for path in surplus]


class _Destination(NamedTuple):
    url: str
    token: str
    tls: TlsSpec
    folder: str
    datasource: str | None


def _destination(config_file: str, url: str, token_file: str, folder: str, datasource: str) -> _Destination:
    """The Grafana of --url, or the configured one. Exits if something is missing."""
    if not available():
        _fail(MISSING)
    if bool(url) is bool(config_file):
        _fail("give --url, such as https://grafana.example.org, or a --config.file with a `grafana:`")
    if url:
        if problem := url_problem(url):
            _fail(f"--url: {problem}")
        return _Destination(url, _token(token_file), TlsSpec(), folder or FOLDER, datasource or None)
    try:
        spec = read_config(config_file).grafana
    except ConfigError as error:
        _fail(str(error), code=ExitCode.FAILED)
    if spec is None:
        _fail(f"--config.file {config_file}: has no `grafana:`; add one with its `url`, or give --url")
    token = _token(token_file or spec.auth.secret_file)
    return _Destination(spec.url, token, spec.tls or TlsSpec(), folder or spec.folder, datasource or spec.datasource)


def _token(path: str) -> str:
    if path:
        secret = Secret(path, key="--token-file")
        token = secret.read()
        if token is None:
            _fail(secret.problem, code=ExitCode.FAILED)
        return token
    token = os.environ.get("GRAFANA_TOKEN", "").strip()
    if not token or not token.isascii() or any(character.isspace() for character in token):
        _fail("no token: give --token-file, or one without blanks in the environment's GRAFANA_TOKEN")
    return token


def _push(destination: _Destination, documents: list[dict[str, Any]], *, dry_run: bool, force: bool) -> ExitCode:
    """Push and print the results. Returns FAILED if a dashboard was not replaced, CHANGES_PENDING if a dry run finds changes."""
    from prober.features.grafana.client import connected
    from prober.features.grafana.push import NOT_REPLACED, SENT, push

    try:
        with connected(destination.url, destination.token, destination.tls) as api:
            results = push(api, documents, destination.folder, destination.datasource, dry_run=dry_run, force=force)
    except GrafanaError as error:
        _fail(str(error), code=ExitCode.FAILED)
    for result in results:
        would_be = "would be " if dry_run and result.state in SENT else ""
        detail = f": {result.detail}" if result.detail else ""
        text = f"{result.title} (/d/{result.uid}): {would_be}{result.state}{detail}"
        echo(text, err=result.state in NOT_REPLACED)
    states = {result.state for result in results}
    if states & NOT_REPLACED:
        return ExitCode.FAILED
    is_pending = dry_run and states & SENT
    return ExitCode.CHANGES_PENDING if is_pending else ExitCode.OK


def _fail(message: str, code: ExitCode = ExitCode.WRONG_CALL) -> NoReturn:
    fail(f"prober dashboards push: {message}", code)
