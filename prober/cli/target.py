"""The target that the options of a command describe."""

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from prober.cli.exit_codes import ExitCode, fail
from prober.cli.options import EndpointOptions, WorkloadOptions
from prober.config.document import BadYaml, parse
from prober.config.load import ConfigError, load
from prober.config.specs import TargetSpec
from prober.measure.engines import DIALECTS
from prober.storage.lock import Lock, LockHeld

# Configuration keys that are options of a command.
_KEY = re.compile(
    r"targets\[0\]\.(?:probes\[0\]\.|sweep\.|auth\.|tls\.)?"
    r"(metrics\.url|url|model|api|engine|rate|workload|bearer_token_file|ca_file|headers|min_rate|max_rate|max_in_flight)\b"
)
_OPTIONS = {"url": "URL", "metrics.url": "--metrics-url", "headers": "--header"}


def target(
    command: str,
    url: str,
    endpoint: EndpointOptions,
    *,
    slos: Mapping[str, Mapping[str, Any]] | None = None,
    workloads: Mapping[str, Mapping[str, Any]] | None = None,
    **more: Any,
) -> TargetSpec:
    """The target that these options describe; `slos`, `workloads` as in a configuration, `more`: target keys. Raises ConfigError."""
    block: dict[str, Any] = {
        "url": url,
        "name": command,
        "model": endpoint.model,
        "api": endpoint.api,
        "engine": endpoint.engine,
        **more,
    }
    if endpoint.bearer_token_file:
        block["auth"] = {"bearer_token_file": endpoint.bearer_token_file}
    if endpoint.ca_file:
        block["tls"] = {"ca_file": endpoint.ca_file}
    if endpoint.header:
        if any(":" not in line for line in endpoint.header):
            raise ConfigError(
                f"prober {command}: --header: one has no colon; write 'name: value'"
            )  # its value may be a secret
        block["headers"] = {k.strip(): v.strip() for k, _, v in (line.partition(":") for line in endpoint.header)}
    text = json.dumps({"targets": [block], "slos": slos or {}, "workloads": workloads or {}})
    source = f"prober {command}"
    try:
        return load(text, source=source, engines=DIALECTS, environment=os.environ, read=_read).targets[0]
    except ConfigError as problem:
        raise ConfigError("\n".join(f"{source}: {_as_option(line)}" for line in _mistakes(problem, source))) from None


def _mistakes(problem: ConfigError, source: str) -> list[str]:
    return [line.removeprefix(f"{source}: ") for line in str(problem).splitlines()]


def _as_option(line: str) -> str:
    """A mistake that names a configuration key, with the name of the option instead."""
    match = _KEY.match(line)
    if match is None:
        return line
    option = _OPTIONS.get(match[1], f"--{match[1].replace('_', '-')}")
    return f"{option}{line[match.end() :]}"


def workloads(options: WorkloadOptions) -> tuple[str, dict[str, dict[str, Any]]]:
    """The name of the workload to send, and the block `workloads` that declares it. Raises ValueError, ConfigError."""
    lengths = {"prompt_tokens": options.prompt_tokens, "output_tokens": options.output_tokens}
    if any(lengths.values()):
        if not all(lengths.values()):
            raise ValueError("--prompt-tokens and --output-tokens go together; give both")
        if options.config_file:
            raise ValueError("--prompt-tokens and --output-tokens replace the workload; leave --config.file out")
        return "asked", {"asked": lengths}
    return options.workload, _declared(options.config_file) if options.config_file else {}


def _declared(config_file: str) -> dict[str, dict[str, Any]]:
    """The block `workloads` of a configuration file; `target` validates it."""
    try:
        document = parse(_read(config_file))
    except (OSError, UnicodeDecodeError) as problem:
        raise ConfigError(f"--config.file {config_file}: cannot be read: {problem}; name a YAML file") from None
    except BadYaml as problem:
        raise ConfigError(f"--config.file {config_file}: {problem}") from None
    declared = document.get("workloads") if isinstance(document, dict) else None
    if not isinstance(declared, dict) or not declared:
        raise ConfigError(f"--config.file {config_file}: workloads: none is there; leave it out to use a built-in one")
    return declared


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


def _read(path: str) -> str:
    return Path(path).read_text(encoding="utf-8")
