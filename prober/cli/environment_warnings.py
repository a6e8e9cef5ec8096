"""Warnings on a valid configuration that may not work where the prober runs: missing files, refused addresses."""

from collections.abc import Iterator
from glob import glob, has_magic
from pathlib import Path
from urllib.parse import urlsplit

from prober.config.configuration import Configuration
from prober.config.discovery import DiscoverySpec, FileSpec, HttpSpec, KubernetesSpec
from prober.config.problems import shown_path
from prober.config.server import Auth, TlsSpec
from prober.net.address import Forbidden, check

SECRET_FILES = ("bearer_token_file", "key_file")
Named = Iterator[tuple[str, str]]  # place in the configuration, value at that place


def environment_warnings(specs: Configuration) -> Iterator[str]:
    """Warnings, each as `path: message`."""
    for place, path in _files(specs):
        shown = shown_path(path) if place.endswith(SECRET_FILES) else path
        if has_magic(path) and not glob(path):
            yield f"{place}: nothing on this machine fits {shown}; there must be something where the prober runs"
        elif not has_magic(path) and not Path(path).exists():
            yield f"{place}: {shown} is not on this machine; it must be there where the prober runs"
    for place, url in _addresses(specs):
        try:
            check(urlsplit(url).hostname or "")
        except Forbidden as refusal:
            yield f"{place}: {refusal.strerror}"


def _files(specs: Configuration) -> Named:
    for place, spec in specs.places.items():
        yield from _of_server(place, spec.auth, spec.tls)
    for index, discovery in enumerate(specs.discovery):
        yield from _of_discovery(f"discovery[{index}]", discovery)
    if specs.grafana is not None:
        yield from _of_server("grafana", specs.grafana.auth, specs.grafana.tls)


def _of_discovery(place: str, spec: DiscoverySpec) -> Named:
    match spec.source:
        case FileSpec() as source:
            yield from ((f"{place}.file.files", path) for path in source.files)
        case HttpSpec() as source:
            yield from _of_server(f"{place}.http", source.auth, source.tls)
        case KubernetesSpec() as source:
            yield from _of_server(f"{place}.kubernetes", source.auth, None)
            if source.ca_file:
                yield f"{place}.kubernetes.ca_file", source.ca_file


def _of_server(place: str, auth: Auth | None, tls: TlsSpec | None) -> Named:
    files = {f"auth.{auth.secret_key}": auth.secret_file} if auth is not None else dict[str, str | None]()
    if tls is not None:
        files |= {"tls.ca_file": tls.ca_file, "tls.cert_file": tls.cert_file, "tls.key_file": tls.key_file}
    yield from ((f"{place}.{key}", path) for key, path in files.items() if path)


def _addresses(specs: Configuration) -> Named:
    """Addresses that the prober connects to and that must not be link-local."""
    for place, spec in specs.places.items():
        if spec.allow_link_local:
            continue
        yield f"{place}.url", spec.url
        if spec.proxy_url:
            yield f"{place}.proxy_url", spec.proxy_url
        if spec.metrics and spec.metrics.url:
            yield f"{place}.metrics.url", spec.metrics.url
