"""The target and the workload that the options of a command describe."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from prober.cli.exit_codes import ExitCode, fail
from prober.cli.options import EndpointOptions, WorkloadOptions
from prober.config.fields import Block, Document
from prober.config.load import ConfigError, load_workloads
from prober.config.problems import explain, no_such
from prober.config.target import TargetSpec
from prober.config.variables import expand, expand_url
from prober.storage.lock import Lock, LockHeld
from prober.workload.shapes import Fixed
from prober.workload.workloads import BUILT_IN, Mix, Workload

M = TypeVar("M", bound=Block)
# Options of the fields that a user sets; a path below a field follows its option.
OPTIONS = {
    "url": "URL",
    "model": "--model",
    "api": "--api",
    "engine": "--engine",
    "headers": "--header",
    "auth.bearer_token_file": "--bearer-token-file",
    "tls.ca_file": "--ca-file",
    "metrics.url": "--metrics-url",
    "sweep.mode": "--mode",
    "sweep.min_rate": "--min-rate",
    "sweep.max_rate": "--max-rate",
    "sweep.rates": "--rates",
    "sweep.step": "--step",
    "sweep.limits.time": "--max-time",
    "/slos": "--slo",
    "config_file": "--model-config",
    "gpu": "--gpu",
}


def target(
    command: str, url: str, endpoint: EndpointOptions, *, metrics_url: str = "auto", **fields: Any
) -> TargetSpec:
    """The target that these options describe. fields: further fields of the target. Raises ValueError, ConfigError."""
    return validated(
        command,
        TargetSpec,
        {
            "url": url,
            "name": command,
            "model": endpoint.model,
            "api": endpoint.api,
            "engine": endpoint.engine,
            "auth": {"bearer_token_file": endpoint.bearer_token_file} if endpoint.bearer_token_file else None,
            "tls": {"ca_file": endpoint.ca_file} if endpoint.ca_file else None,
            "headers": dict(_header(line) for line in endpoint.header or ()),
            "metrics": {"url": _expanded_url("--metrics-url", metrics_url), **fields.pop("metrics", {})},
            **fields,
        },
    )


def validated(command: str, model: type[M], fields: Mapping[str, Any], context: Document | None = None) -> M:
    """A model of the values of options. Raises ConfigError, which names the options."""
    try:
        return model.model_validate(fields, context=context)
    except ValidationError as error:
        mistakes = explain(error, model, fields).items()
        raise ConfigError("\n".join(f"prober {command}: {_option(path)}: {text}" for path, text in mistakes)) from None


def _option(path: str) -> str:
    path = path.removeprefix(".")
    return next((name + path[len(key) :] for key, name in OPTIONS.items() if path.startswith(key)), path)


def _header(line: str) -> tuple[str, str]:
    name, colon, value = line.partition(":")
    if not colon:
        raise ValueError("--header: one has no colon; write 'name: value'")  # its value may be a secret
    try:
        return name.strip(), expand(value.strip(), os.environ)
    except ValueError as problem:
        raise ValueError(f"--header {name.strip()}: {problem}") from None


def _expanded_url(option: str, url: str) -> str:
    try:
        return expand_url(url, os.environ)
    except ValueError as problem:
        raise ValueError(f"{option}: {problem}") from None


def workload(options: WorkloadOptions) -> Workload | Mix:
    """The workload to send. Raises ValueError, ConfigError."""
    if options.prompt_tokens or options.output_tokens:
        if not (options.prompt_tokens and options.output_tokens):
            raise ValueError("--prompt-tokens and --output-tokens go together; give both")
        if options.config_file:
            raise ValueError("--prompt-tokens and --output-tokens replace the workload; leave --config.file out")
        return Workload("asked", Fixed(options.prompt_tokens), Fixed(options.output_tokens))
    known = _declared(options.config_file) if options.config_file else BUILT_IN
    if options.workload not in known:
        raise ValueError(f"--workload: {no_such('workload', options.workload, known)}")
    return known[options.workload]


def _declared(config_file: str) -> Mapping[str, Workload | Mix]:
    """Workloads of a configuration file, and the built-in ones."""
    source = f"--config.file {config_file}"
    try:
        return load_workloads(read_file(config_file), source=source, read=read_file)
    except (OSError, UnicodeDecodeError) as problem:
        raise ConfigError(f"{source}: cannot be read: {problem}; name a YAML file") from None


def check_writable(option: str, path: Path) -> None:
    """Check before sending that the result can be written. Raises ValueError."""
    try:
        path.open("ab").close()
    except OSError as problem:
        raise ValueError(f"{option} {path}: cannot be written: {problem.strerror}") from None


@contextmanager
def only_load(command: str, url: str) -> Iterator[None]:
    """Hold the lock of the target while it is loaded; exit if another process of this machine and user loads it."""
    try:
        with Lock(url, f"prober {command}"):
            yield
    except LockHeld as other:
        fail(
            f"prober {command}: {url} is loaded by {other} on this machine, and each would disturb the other's "
            "measurement; wait until it ends",
            ExitCode.NOT_ENOUGH_DATA,
        )


def read_file(path: str) -> str:
    """Text of a file. Raises OSError."""
    return Path(path).read_text(encoding="utf-8")
