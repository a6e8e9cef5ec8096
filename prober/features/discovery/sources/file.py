"""Targets in files, which are read again when they are replaced or change."""

import asyncio
import gc
import glob
from collections.abc import Collection
from pathlib import Path
from typing import Any

import orjson
import yaml

from prober.config.discovery import FileSpec
from prober.features.discovery.sources.discovered_targets import DiscoveredTargets, TargetLabels
from prober.features.discovery.sources.groups import BadList, targets_of
from prober.storage.watched_file import Stamp, stamp

MAX_FILE_BYTES = 4 << 20
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class Files:
    """Checks the files at the interval, in a thread because the disk may be slow.

    A missing file that is named is a failure; if a file that matches a pattern is deleted, its targets are removed.
    """

    def __init__(self, spec: FileSpec, label_names: Collection[str], discovered: DiscoveredTargets) -> None:
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
                except (OSError, ValueError) as problem:
                    self._discovered.failed(path, f"{path}: {problem}")
                    continue  # read again next time: it may be half written
                await self._discovered.replace(path, targets)
            self._stamps[path] = now
        self._stamps = {path: self._stamps.get(path) for path in stamps}

    def _stat(self) -> dict[str, Stamp | None]:
        stamps: dict[str, Stamp | None] = {}
        for name in self._spec.files:
            paths = sorted(glob.glob(name)) if glob.has_magic(name) else [name]
            stamps |= {path: stamp(path) for path in paths}
        return stamps

    def _read(self, path: str) -> dict[str, TargetLabels]:
        with Path(path).open("rb") as file:
            text = file.read(MAX_FILE_BYTES + 1)
        if len(text) > MAX_FILE_BYTES:
            raise BadList(f"is longer than {MAX_FILE_BYTES:,} bytes; split it")
        try:
            document = orjson.loads(text) if path.endswith(".json") else _yaml(text)
        except (yaml.YAMLError, RecursionError) as problem:
            raise BadList(f"is no YAML: {' '.join(str(problem).split())[:200]}") from None
        except orjson.JSONDecodeError as problem:
            raise BadList(f"is no JSON: {problem}") from None
        return targets_of(document, {"__meta_filepath": path}, self._label_names)


def _yaml(text: bytes) -> Any:
    """The parsed document. Garbage collection is off meanwhile: it would stop all threads, including the one that takes timestamps."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        return yaml.load(text, Loader=_LOADER)
    finally:
        if enabled:
            gc.enable()
