"""Warnings on a valid configuration that may not work where the prober runs: missing files, refused addresses."""

from collections.abc import Iterator
from glob import glob, has_magic
from pathlib import Path
from urllib.parse import urlsplit

from prober.config.configuration import Configuration
from prober.config.document import texts
from prober.config.hosts import Forbidden, check
from prober.config.problems import path_of, shown_path

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
    for place, spec in specs.places.items():
        urls = {"url": spec.url, "proxy_url": spec.proxy_url, "metrics.url": spec.metrics and spec.metrics.url}
        for key, url in urls.items():
            try:
                check(urlsplit(url or "").hostname or "", allow_link_local=spec.allow_link_local)
            except Forbidden as refusal:
                yield f"{place}.{key}", str(refusal.strerror)
