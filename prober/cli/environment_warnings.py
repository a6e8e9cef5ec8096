"""Warnings on a valid configuration that may not work where the prober runs: missing files, refused addresses."""

from collections.abc import Iterator
from glob import glob, has_magic
from pathlib import Path
from urllib.parse import urlsplit

from prober.config.configuration import Configuration
from prober.config.problems import path_of, shown_path
from prober.config.variables import texts
from prober.net.address import Forbidden, check

SECRET_FILES = ("bearer_token_file", "key_file")
FILES = (*SECRET_FILES, "ca_file", "cert_file")
Located = Iterator[tuple[str, str]]  # path in the configuration, and the message or value at it


def missing_files(written: object) -> Located:
    """Warnings about files that a configuration, as it is written, names and this machine lacks."""
    for keys, path in texts(written):
        shown = shown_path(path) if keys[-1] in SECRET_FILES else path
        if keys[-1] not in FILES and keys[-3:-1] != ("file", "files"):
            continue
        if has_magic(path) and not glob(path):
            yield path_of(keys), f"nothing on this machine fits {shown}; there must be something where the prober runs"
        elif not has_magic(path) and not Path(path).exists():
            yield path_of(keys), f"{shown} is not on this machine; it must be there where the prober runs"


def refused_addresses(specs: Configuration) -> Located:
    """Warnings about addresses that the prober connects to and that must not be link-local."""
    for place, url in _addresses(specs):
        try:
            check(urlsplit(url).hostname or "")
        except Forbidden as refusal:
            yield place, str(refusal.strerror)


def _addresses(specs: Configuration) -> Located:
    for place, spec in specs.places.items():
        if spec.allow_link_local:
            continue
        yield f"{place}.url", spec.url
        if spec.proxy_url:
            yield f"{place}.proxy_url", spec.proxy_url
        if spec.metrics and spec.metrics.url:
            yield f"{place}.metrics.url", spec.metrics.url
