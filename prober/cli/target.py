"""Builds target and workload from the options of a command."""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from prober.cli.exit_codes import ExitCode, fail
from prober.cli.options import EndpointOptions, WorkloadOptions, quantity
from prober.config.problems import ConfigError, explain, no_such
from prober.config.server import expand, expand_url
from prober.config.target import TargetSpec
from prober.config.workloads import THINK_TIME_REFUSED
from prober.measure.quality import expectation_problem
from prober.storage.watched_file import Lock, LockHeld, read_text
from prober.workload.built_in import BUILT_IN
from prober.workload.prompts import parse_prompts
from prober.workload.shapes import Fixed
from prober.workload.trace import parse_trace
from prober.workload.workloads import FileWorkload, GoldenWorkload, Mix, TraceWorkload, Workload

GOLDEN_SHARE = 0.05  # of the requests, with --golden
# Option for each field that users set; a path below a field is appended to its option.
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
}


def target(
    command: str, url: str, endpoint: EndpointOptions, *, metrics_url: str = "auto", **fields: Any
) -> TargetSpec:
    """Build the target from these options. fields: further fields. Raises ValueError, ConfigError."""
    page_url = quantity("--metrics-url", metrics_url, partial(expand_url, environment=os.environ))
    described = endpoint_fields(endpoint)
    described["headers"] = {
        name: quantity(f"--header {name}", value, partial(expand, environment=os.environ))
        for name, value in described.get("headers", {}).items()
    }
    fields = {
        "url": url,
        "name": command,
        **described,
        **fields,
        "metrics": {"url": page_url, **fields.get("metrics", {})},
    }
    try:
        return TargetSpec.model_validate(fields)
    except ValidationError as error:
        mistakes = explain(error, TargetSpec, fields).items()
        raise ConfigError("\n".join(f"prober {command}: {_option(path)}: {text}" for path, text in mistakes)) from None


def _option(path: str) -> str:
    """Option for a field of a target, or the field's path without one."""
    path = path.removeprefix(".")
    return next((name + path[len(key) :] for key, name in OPTIONS.items() if path.startswith(key)), path)


def endpoint_fields(endpoint: EndpointOptions) -> dict[str, Any]:
    """Fields of a target set by these options; headers may refer to the environment. Raises ValueError."""
    fields = {
        "model": endpoint.model,
        "api": endpoint.api,
        "engine": endpoint.engine,
        "auth": {"bearer_token_file": endpoint.bearer_token_file} if endpoint.bearer_token_file else None,
        "tls": {"ca_file": endpoint.ca_file} if endpoint.ca_file else None,
        "headers": dict(map(_header, endpoint.header or ())),
    }
    return {name: value for name, value in fields.items() if value}


def _header(line: str) -> tuple[str, str]:
    name, colon, value = line.partition(":")
    if not colon:
        raise ValueError("--header: one has no colon; write 'name: value'")  # without the value, which may be a secret
    return name.strip(), value.strip()


def workload(options: WorkloadOptions, *, of_users: bool = False) -> Workload | Mix:
    """The workload to send. of_users: its sessions may have a think time. Raises ValueError, ConfigError."""
    known = known_workloads(options.config_file)
    sent = _described(options) or _known("--workload", options.workload, known)
    if sent.think_time is not None and not of_users:
        raise ValueError(f"--workload {options.workload}: {THINK_TIME_REFUSED}")
    if options.sampling:
        sent = with_sampling(sent, "--sampling", options.sampling)
    if not options.golden:
        return sent
    golden = _known("--golden", options.golden, known)
    if not isinstance(golden, GoldenWorkload):
        raise ValueError(f"--golden: workload {options.golden!r} has no `golden` prompts; name one that has")
    weight = GOLDEN_SHARE / (1 - GOLDEN_SHARE) * sum(weight for _, weight in sent.parts)
    return Mix(sent.name, (*sent.parts, (golden, weight)))


def with_sampling(sent: Workload | Mix, option: str, text: str) -> Workload | Mix:
    """Add request fields from an option to a workload. Raises ValueError."""
    document = file_text(option, text[1:]) if text.startswith("@") else text
    try:
        fields = json.loads(document)
    except ValueError as problem:
        raise ValueError(f"{option}: {problem}; write a JSON object, or @FILE of one") from None
    if not isinstance(fields, dict) or "seed" in fields:
        why = "`seed` is never sent; remove it" if isinstance(fields, dict) else "is not a JSON object"
        raise ValueError(f"{option}: {why}")
    changed = sent.with_parts(lambda part: replace(part, sampling={**part.sampling, **fields}))
    for part, _ in changed.parts:
        if part.expectation is not None and (bad_format := expectation_problem(part.expectation)):
            raise ValueError(f"{option}: {bad_format}")
    return changed


def _known(option: str, name: str, known: Mapping[str, Workload | Mix]) -> Workload | Mix:
    if name not in known:
        raise ValueError(f"{option}: {no_such('workload', name, known)}")
    return known[name]


def _described(options: WorkloadOptions) -> Workload | None:
    """The workload given by lengths, prompts or a trace; None if the options name a workload. Raises ValueError."""
    values = {"--prompts": options.prompts, "--trace": options.trace, "--prompt-tokens": options.prompt_tokens}
    sources = [option for option, value in values.items() if value]
    if len(sources) > 1:
        raise ValueError(f"{' and '.join(sources)} are each a workload; keep one of them")
    if not sources and options.output_tokens:
        raise ValueError("--output-tokens goes with --prompt-tokens or --prompts; give one of them")
    if not sources:
        return None
    if options.config_file and not options.golden:
        raise ValueError(f"{sources[0]} replaces the workload; leave --config.file out")
    if options.trace:
        if options.output_tokens:
            raise ValueError("--trace has output lengths of its own; leave --output-tokens out")
        trace = parse_trace(file_text("--trace", options.trace), options.trace)
        return TraceWorkload("trace", Fixed(1), Fixed(1), trace=trace)
    if not options.output_tokens:
        raise ValueError(f"{sources[0]} and --output-tokens go together; give both")
    output = Fixed(options.output_tokens)
    if options.prompts:
        prompts = parse_prompts(file_text("--prompts", options.prompts), options.prompts)
        return FileWorkload("prompts", Fixed(1), output, prompts=prompts)
    return Workload("asked", Fixed(options.prompt_tokens), output)


def file_text(option: str, path: str | Path) -> str:
    """Text of the file named by an option. Raises ValueError."""
    try:
        return read_text(path)
    except (OSError, UnicodeDecodeError) as problem:
        why = "is not text" if isinstance(problem, UnicodeDecodeError) else f"cannot be read: {problem.strerror}"
        raise ValueError(f"{option} {path}: {why}; name a text file that is there") from None


def known_workloads(config_file: str) -> Mapping[str, Workload | Mix]:
    """The built-in workloads, with those of the configuration file, if given. Raises ConfigError."""
    if not config_file:
        return BUILT_IN
    from prober.config.load import load_workloads  # here, as few commands name a file

    source = f"--config.file {config_file}"
    try:
        return load_workloads(read_text(config_file), source=source, read=read_text)
    except (OSError, UnicodeDecodeError) as problem:
        raise ConfigError(f"{source}: cannot be read: {problem}; name a YAML file") from None


@contextmanager
def only_load(command: str, url: str) -> Iterator[None]:
    """Hold the target's lock during the block. Exits if another process of this machine and user holds it."""
    try:
        with Lock(url, f"prober {command}"):
            yield
    except LockHeld as other:
        fail(
            f"prober {command}: {url} is loaded by {other} on this machine, and each would disturb the other's "
            "measurement; wait until it ends",
            ExitCode.NOT_JUDGED,
        )
