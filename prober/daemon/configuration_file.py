"""Reads the configuration file and the files that it names, and checks what depends on this machine."""

import logging
import os
from pathlib import Path

from prober.config.configuration import Configuration, GrafanaSpec
from prober.config.load import load
from prober.config.problems import ConfigError
from prober.config.target import TargetSpec
from prober.features.grafana import MISSING, available
from prober.measure.engines import DIALECTS
from prober.net.endpoint import BadEndpoint, endpoint
from prober.storage.watched_file import MAX_TEXT_BYTES, read_regular, read_text

MEMORY_LIMITS = (  # of this container, from control groups of version 2 and 1
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)
OWN_MB, TARGET_MB = 60.0, 0.6  # rather low: a sidecar takes 69 MB, and 500 targets 410 MB (bench/figures.md)
log = logging.getLogger(__name__)


def read_config(path: str, text: str | None = None, *, is_regular: bool = False) -> Configuration:
    """Read the configuration from the file. Raises ConfigError with all mistakes.

    text: text of the configuration; if given, path only names it in errors
    is_regular: refuse a pipe, which could block for ever
    """
    try:
        if text is None:
            text = _read(path) if is_regular else read_text(path)
    except (OSError, UnicodeDecodeError) as problem:
        raise ConfigError(f"--config.file {path}: cannot be read: {problem}; name a YAML file") from None
    return load(text, source=path, engines=DIALECTS, environment=os.environ, read=_read, examine=_examine)


def _examine(block: TargetSpec | GrafanaSpec) -> dict[str, str]:
    """{key: error} for files and libraries that a valid block needs and this machine lacks."""
    if isinstance(block, GrafanaSpec):
        return {} if available() else {"": MISSING}
    try:
        endpoint(block)
    except BadEndpoint as problem:
        key, _, message = str(problem).removeprefix(f"{block.url}: ").partition(" ")
        return {key: message}
    return {}


def read_config_safely(path: str, text: str | None = None, *, is_regular: bool) -> Configuration:
    """`read_config`, with every exception as a ConfigError, because no file content may end a running prober."""
    try:
        return read_config(path, text, is_regular=is_regular)
    except ConfigError:
        raise
    except MemoryError:
        raise ConfigError(f"{path}: cannot be read within the memory of this process; raise its limit") from None
    except Exception as problem:
        log.debug("the configuration cannot be read", exc_info=True)
        raise ConfigError(f"{path}: cannot be read: {problem!r}; please report this with the file") from problem


def _read(path: str) -> str:
    return read_regular(path, MAX_TEXT_BYTES).decode("utf-8-sig")


def memory_excess(targets: int) -> str:
    """Error if this many targets exceed the memory limit, at which the kernel kills the prober; else ""."""
    needed_mb, limit_mb = OWN_MB + TARGET_MB * targets, _limit_mb()
    if needed_mb <= limit_mb:
        return ""
    return (
        f"targets: {targets:,} take {needed_mb:,.0f} MB of memory or more after an hour, and this container may use "
        f"{limit_mb:,.0f} MB, beyond which the kernel kills it; raise its limit, or leave targets out"
    )


def _limit_mb() -> float:
    for path in MEMORY_LIMITS:
        try:
            return int(path.read_text(encoding="ascii")) / 1e6
        except (OSError, ValueError):  # the other version, or "max"
            continue
    return float("inf")
