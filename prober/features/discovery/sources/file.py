"""Targets in files: read again when what their names lead to is another file, or has other content."""

import asyncio
import gc
import glob
from collections.abc import Collection
from pathlib import Path
from typing import Any

import orjson
import yaml

from prober.config.discovery import FileSpec
from prober.features.discovery.sources.findings import Findings, Found
from prober.features.discovery.sources.groups import BadList, targets
from prober.storage.watched_file import Stamp, stamp

LIMIT_BYTES = 4 << 20
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class Files:
    """Looks every few seconds, in a thread: the disk may be a slow one.

    A file that is named and is not there is a failure; one that only fits a pattern takes its targets with it when it goes.
    """

    def __init__(self, spec: FileSpec, kept: Collection[str], findings: Findings) -> None:
        self._spec, self._kept, self._findings = spec, kept, findings
        self._stamps: dict[str, Stamp | None] = {}

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(self._spec.interval)

    async def look(self) -> None:
        """Once at all of them."""
        stamps = await asyncio.to_thread(self._look)
        self._findings.awaits(*stamps)
        for path, now in stamps.items():
            if now is None:
                self._findings.failed(path, f"{path}: is not there; put it back, or remove it from `files`")
            elif now != self._stamps.get(path):
                try:
                    found = await asyncio.to_thread(self._read, path)
                except (OSError, ValueError) as problem:
                    self._findings.failed(path, f"{path}: {problem}")
                    continue  # looked at again next time: whoever writes it may not be done
                await self._findings.replace(path, found)
            self._stamps[path] = now
        self._stamps = {path: self._stamps.get(path) for path in stamps}

    def _look(self) -> dict[str, Stamp | None]:
        found: dict[str, Stamp | None] = {}
        for name in self._spec.files:
            paths = sorted(glob.glob(name)) if glob.has_magic(name) else [name]
            found |= {path: stamp(path) for path in paths}
        return found

    def _read(self, path: str) -> dict[str, Found]:
        with Path(path).open("rb") as file:
            text = file.read(LIMIT_BYTES + 1)
        if len(text) > LIMIT_BYTES:
            raise BadList(f"is longer than {LIMIT_BYTES:,} bytes; make several files of it")
        try:
            document = orjson.loads(text) if path.endswith(".json") else _yaml(text)
        except (yaml.YAMLError, RecursionError) as problem:
            raise BadList(f"is no YAML: {' '.join(str(problem).split())[:200]}") from None
        except orjson.JSONDecodeError as problem:
            raise BadList(f"is no JSON: {problem}") from None
        return targets(document, {"__meta_filepath": path}, self._kept)


def _yaml(text: bytes) -> Any:
    """Without a walk of the collector over what is half made: it would stop all threads, the one that takes stamps too."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        return yaml.load(text, Loader=_LOADER)
    finally:
        if enabled:
            gc.enable()
