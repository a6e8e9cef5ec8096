"""A target from the command line instead of a configuration file."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from prober.config.load import load
from prober.config.specs import TargetSpec
from prober.engines import DIALECTS

Url = Annotated[str, typer.Argument(help="Base address, such as http://localhost:8000.")]
Model = Annotated[str, typer.Option(help="auto asks /v1/models.")]
Api = Annotated[str, typer.Option(help="chat or completions.")]
Engine = Annotated[str, typer.Option(help="auto, or a dialect's name.")]
BearerTokenFile = Annotated[str, typer.Option(help="File with the bearer token.")]
CaFile = Annotated[str, typer.Option(help="Certificate authorities to trust.")]
Header = Annotated[list[str] | None, typer.Option(help="name: value, as often as needed.")]


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
        block["headers"] = {k.strip(): v.strip() for k, _, v in (item.partition(":") for item in header)}
    text = json.dumps({"targets": [block], "slos": slos or {}, "workloads": workloads or {}})
    return load(text, source=f"prober {command}", engines=DIALECTS, environment={}, read=_read).targets[0]


def _read(path: str) -> str:
    return Path(path).read_text(encoding="utf-8")
