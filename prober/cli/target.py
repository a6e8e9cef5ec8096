"""A target from the command line instead of a configuration file."""

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from prober.config.document import BadYaml, parse
from prober.config.load import ConfigError, load
from prober.config.specs import TargetSpec
from prober.measure.engines import DIALECTS
from prober.workload.workloads import BUILT_IN

Url = Annotated[str, typer.Argument(help="Base address, such as http://localhost:8000.")]
Model = Annotated[str, typer.Option(help="auto asks /v1/models.")]
Api = Annotated[str, typer.Option(help="chat or completions.")]
Engine = Annotated[str, typer.Option(help=f"auto, or {', '.join(DIALECTS)}.")]
BearerTokenFile = Annotated[str, typer.Option(help="File with the bearer token.")]
CaFile = Annotated[str, typer.Option(help="Certificate authorities to trust.")]
Header = Annotated[list[str] | None, typer.Option(help="name: value, as often as needed.")]
BuiltIn = Annotated[str, typer.Option(help=f"What is sent: {', '.join(BUILT_IN)}.")]
WorkloadName = Annotated[str, typer.Option(help=f"What is sent: {', '.join(BUILT_IN)}, or one of --config.file.")]
PromptTokens = Annotated[int, typer.Option(min=0, help="Instead of the workload's; with --output-tokens.")]
OutputTokens = Annotated[int, typer.Option(min=0, help="Instead of the workload's; with --prompt-tokens.")]
ConfigFile = Annotated[str, typer.Option("--config.file", help="Configuration whose workloads can be named.")]


# Keys that have an option of their name, or of another one.
_KEY = re.compile(
    r"targets\[0\]\.(?:probes\[0\]\.|sweep\.|auth\.|tls\.)?"
    r"(metrics\.url|url|model|api|engine|rate|workload|bearer_token_file|ca_file|headers|min_rate|max_rate|max_in_flight)\b"
)
_OPTIONS = {"url": "URL", "metrics.url": "--metrics-url", "headers": "--header"}


def target(
    command: str,
    url: str,
    *,
    model: str = "auto",
    api: str = "chat",
    engine: str = "auto",
    bearer_token_file: str = "",
    ca_file: str = "",
    header: list[str] | None = None,
    slos: Mapping[str, Mapping[str, Any]] | None = None,
    workloads: Mapping[str, Mapping[str, Any]] | None = None,
    **more: Any,
) -> TargetSpec:
    """The target that these options describe; `slos`, `workloads` as in a configuration, `more`: target keys. Raises ConfigError."""
    block: dict[str, Any] = {"url": url, "name": command, "model": model, "api": api, "engine": engine, **more}
    if bearer_token_file:
        block["auth"] = {"bearer_token_file": bearer_token_file}
    if ca_file:
        block["tls"] = {"ca_file": ca_file}
    if header:
        if any(":" not in each for each in header):
            raise ConfigError(
                f"prober {command}: --header: one has no colon; write 'name: value'"
            )  # its value may be a secret
        block["headers"] = {k.strip(): v.strip() for k, _, v in (item.partition(":") for item in header)}
    text = json.dumps({"targets": [block], "slos": slos or {}, "workloads": workloads or {}})
    source = f"prober {command}"
    try:
        return load(text, source=source, engines=DIALECTS, environment=os.environ, read=_read).targets[0]
    except ConfigError as problem:
        raise ConfigError("\n".join(f"{source}: {_as_option(line)}" for line in _told(problem, source))) from None


def _told(problem: ConfigError, source: str) -> list[str]:
    return [line.removeprefix(f"{source}: ") for line in str(problem).splitlines()]


def _as_option(line: str) -> str:
    """A mistake that names a key of the configuration, with the option that it was given by."""
    match = _KEY.match(line)
    if match is None:
        return line
    option = _OPTIONS.get(match[1], f"--{match[1].replace('_', '-')}")
    return f"{option}{line[match.end() :]}"


def workloads(
    name: str, prompt_tokens: int, output_tokens: int, config_file: str = ""
) -> tuple[str, dict[str, dict[str, Any]]]:
    """What is to be sent: the workload's name, and the block `workloads` that declares it. Raises ValueError, ConfigError."""
    if prompt_tokens or output_tokens:
        if not (prompt_tokens and output_tokens):
            raise ValueError("--prompt-tokens and --output-tokens go together; give both")
        if config_file:
            raise ValueError("--prompt-tokens and --output-tokens stand instead of a workload: leave --config.file out")
        return "asked", {"asked": {"prompt_tokens": prompt_tokens, "output_tokens": output_tokens}}
    return name, _declared(config_file) if config_file else {}


def _declared(config_file: str) -> dict[str, dict[str, Any]]:
    """The workloads of a configuration, which `target` checks."""
    try:
        found = parse(_read(config_file))
    except (OSError, UnicodeDecodeError) as problem:
        raise ConfigError(f"--config.file {config_file}: cannot be read: {problem}; name a YAML file") from None
    except BadYaml as problem:
        raise ConfigError(f"--config.file {config_file}: {problem}") from None
    declared = found.get("workloads") if isinstance(found, dict) else None
    if not isinstance(declared, dict) or not declared:
        raise ConfigError(f"--config.file {config_file}: workloads: none is there; leave it out to use a built-in one")
    return declared


def check_writable(option: str, path: Path) -> None:
    """Before anything is sent, or what was measured would be lost. Raises ValueError."""
    try:
        path.open("ab").close()
    except OSError as problem:
        raise ValueError(f"{option} {path}: cannot be written: {problem.strerror}") from None


def _read(path: str) -> str:
    return Path(path).read_text(encoding="utf-8")
