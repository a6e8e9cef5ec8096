"""Targets in lists in the formats of Prometheus's file_sd and http_sd, from files or an HTTP server."""

import asyncio
import glob
from collections import Counter
from collections.abc import Callable, Container, Mapping
from functools import partial
from random import Random
from typing import Any, Literal

import orjson

from prober.config.discovery import MAX_TARGETS, FileSpec, HttpSpec
from prober.config.document import parse as parse_yaml
from prober.features.discovery.discovered_targets import DiscoveredTargets, TargetLabels
from prober.measure.printable import mask_secrets
from prober.net.certificates import client_tls
from prober.net.redaction import Redactor
from prober.net.scrape import UnreadablePage, fetch
from prober.storage.watched_file import Secret, Stamp, read_regular, stamp

Form = Literal["JSON", "YAML"]
_PARSERS: dict[Form, Callable[[str], Any]] = {"JSON": orjson.loads, "YAML": partial(parse_yaml, as_written=("labels",))}


class BadList(ValueError):
    """The text is no list of targets; the message names the place and the remedy."""


def read_targets(
    text: bytes, form: Form, extra: Mapping[str, str], label_names: Container[str]
) -> dict[str, TargetLabels]:
    """Parse a list and return the labels of each target, like `targets_of`. Call it in a thread. Raises only BadList, for any text."""
    try:
        document = _PARSERS[form](text.decode("utf-8-sig"))
        return targets_of(document, extra, label_names)
    except BadList:
        raise
    except ValueError as problem:
        raise BadList(f"is no {form}: {problem}") from None


def targets_of(document: Any, extra: Mapping[str, str], label_names: Container[str]) -> dict[str, TargetLabels]:
    """Labels of each target in a list, by address; repeated addresses get a number. Raises BadList.

    extra: labels of all targets
    label_names: the labels to keep
    """
    targets: dict[str, TargetLabels] = {}
    repeats = Counter[str]()
    if document is None:
        return targets
    if not isinstance(document, list):
        raise BadList('is not a list; write [{"targets": ["host:port"], "labels": {}}]')
    for index, group in enumerate(document):
        labels = _labels(group, f"[{index}]")
        labels = {name: value for name, value in {**labels, **extra}.items() if name in label_names}
        addresses = group.get("targets")
        if not isinstance(addresses, list) or not all(isinstance(address, str) and address for address in addresses):
            raise BadList(f"[{index}].targets: needed: a list of host:port, each in quotes")
        for address in addresses:
            owner = address
            while owner in targets:
                repeats[address] += 1
                owner = f"{address} {repeats[address] + 1}"
            targets[owner] = ({**labels, "__address__": address},)
        if len(targets) > MAX_TARGETS:
            raise BadList(f"has more than {MAX_TARGETS:,} targets")
    return targets


def _labels(group: Any, place: str) -> dict[str, str]:
    if not isinstance(group, dict):
        raise BadList(f"{place}: is not a mapping with `targets` and `labels`")
    if unknown := sorted(str(key) for key in group.keys() - {"targets", "labels"}):
        raise BadList(f"{place}: unknown key {unknown[0][:60]!r}; known: labels, targets")
    labels = group.get("labels") or {}
    if not isinstance(labels, dict):
        raise BadList(f"{place}.labels: is not a mapping of names to values")
    for name, value in labels.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise BadList(f"{place}.labels: {str(name)[:60]!r} has a value that is no text; write it in quotes")
    return labels


MAX_FILE_BYTES = 4 << 20


class Files:
    """Checks the configured files at the interval, in a thread because the disk may be slow.

    A missing file configured by name is a failure. If a file that matched a pattern is deleted, its targets are removed.
    """

    def __init__(self, spec: FileSpec, label_names: Container[str], discovered: DiscoveredTargets) -> None:
        self._spec, self._label_names, self._discovered = spec, label_names, discovered
        self._stamps: dict[str, Stamp | None] = {}

    async def run(self) -> None:
        """Check until cancelled."""
        while True:
            await self.refresh()
            await asyncio.sleep(self._spec.interval)

    async def refresh(self) -> None:
        """Check every file once and read those that changed."""
        stamps = await asyncio.to_thread(self._stat)
        self._discovered.expect(*stamps)
        for path, now in stamps.items():
            if now is None:
                self._discovered.failed(path, f"{path}: does not exist; restore it, or remove it from `files`")
            elif now != self._stamps.get(path):
                try:
                    targets = await asyncio.to_thread(self._read, path)
                except (OSError, BadList) as problem:
                    why = problem.strerror if isinstance(problem, OSError) else problem
                    self._discovered.failed(path, f"{path}: {why}")
                    continue  # read again next time, as it may be incomplete
                self._discovered.replace(path, targets)
            self._stamps[path] = now
        self._stamps = {path: self._stamps.get(path) for path in stamps}

    def _stat(self) -> dict[str, Stamp | None]:
        stamps: dict[str, Stamp | None] = {}
        for name in self._spec.files:
            paths = sorted(glob.glob(name)) if glob.has_magic(name) else [name]
            stamps |= {path: stamp(path) for path in paths}
        return stamps

    def _read(self, path: str) -> dict[str, TargetLabels]:
        text = read_regular(path, MAX_FILE_BYTES)
        form: Form = "JSON" if path.endswith(".json") else "YAML"
        return read_targets(text, form, {"__meta_filepath": path}, self._label_names)


MAX_BODY_BYTES = 4 << 20
TIMEOUT_S = 10.0
MAX_MESSAGE_CHARS = 500


class Http:
    """Requests the list at the interval, ±10%, so that many probers do not ask at the same time.

    Messages never contain the token or the query of the URL, even if the server repeats them.
    """

    def __init__(self, spec: HttpSpec, label_names: Container[str], discovered: DiscoveredTargets) -> None:
        self._spec, self._label_names, self._discovered = spec, label_names, discovered
        self._token = Secret(spec.auth.secret_file) if spec.auth else None
        self._rng = Random()
        self._where, self._redactor = mask_secrets(spec.url), Redactor()
        self._redactor.add_url(spec.url)
        discovered.expect(self._where)

    async def run(self) -> None:
        """Request the list at the interval until cancelled."""
        while True:
            await self.refresh()
            await asyncio.sleep(self._spec.interval * self._rng.uniform(0.9, 1.1))

    async def refresh(self) -> None:
        """Request the list once."""
        headers = {"Accept": "application/json", "X-Prometheus-Refresh-Interval-Seconds": f"{self._spec.interval:g}"}
        token = self._token.read() if self._token else None
        if self._token is not None and token is None:
            self._discovered.failed(self._where, self._token.problem)
            return
        if token is not None:
            self._redactor.add_rotating(token)
            headers["Authorization"] = f"Bearer {token}"
        try:
            tls = client_tls(self._spec.tls).context() if self._spec.tls is not None else None
            page = await fetch(self._spec.url, headers=headers, tls=tls, timeout_s=TIMEOUT_S, limit=MAX_BODY_BYTES)
            kind = page.headers.get("content-type", "").partition(";")[0].strip()
            if kind.lower() != "application/json":
                raise BadList(f"its Content-Type is {kind[:60]!r}; a list of targets has application/json")
            extra = {"__meta_url": self._where}
            targets = await asyncio.to_thread(read_targets, page.body, "JSON", extra, self._label_names)
        except UnreadablePage as problem:
            self._discovered.failed(self._where, self._redactor.redact(str(problem)[:MAX_MESSAGE_CHARS]))
        except ValueError as problem:
            self._discovered.failed(
                self._where, f"{self._where}: {self._redactor.redact(str(problem)[:MAX_MESSAGE_CHARS])}"
            )
        else:
            self._discovered.replace(self._where, targets)
