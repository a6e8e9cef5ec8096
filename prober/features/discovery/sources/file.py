"""Targets in files, which are read again when they are replaced or change."""

import asyncio
import glob
from collections.abc import Container

from prober.config.discovery import FileSpec
from prober.features.discovery.sources.discovered_targets import DiscoveredTargets, TargetLabels
from prober.features.discovery.sources.groups import BadList, Form, read_targets
from prober.storage.watched_file import Stamp, read_regular, stamp

MAX_FILE_BYTES = 4 << 20


class Files:
    """Checks the files at the interval, in a thread because the disk may be slow.

    A missing file that is named is a failure; if a file that matches a pattern is deleted, its targets are removed.
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
        text = read_regular(path, MAX_FILE_BYTES)
        form: Form = "JSON" if path.endswith(".json") else "YAML"
        return read_targets(text, form, {"__meta_filepath": path}, self._label_names)
