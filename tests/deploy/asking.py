"""Requests of the prober to an API server, recorded from real calls."""

import asyncio
from collections.abc import Callable, Collection
from typing import Any, Self

from prober.config.discovery import KubernetesSpec
from prober.config.server import Auth
from prober.features.discovery.discovered_targets import DiscoveredTargets
from prober.features.discovery.kubernetes import Kubernetes
from prober.features.replicas.leadership import KubernetesLease
from prober.features.replicas.lease_machine import Record, Write
from prober.net.kubernetes import Api
from tests.processes import HANG_S


def discovery(
    role: str, api_server: str, *namespaces: str, token_file: str | None = None, ca_file: str | None = None
) -> KubernetesSpec:
    """All objects of that role in the namespaces."""
    return KubernetesSpec(
        role="pod" if role == "pod" else "endpointslice",
        namespaces=namespaces,
        port=8000,
        api_server=api_server,
        auth=Auth(bearer_token_file=token_file) if token_file else None,
        ca_file=ca_file,
    )


class Discovery:
    """What a source discovers."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self.discovered = DiscoveredTargets("test", self._event.set)

    def addresses(self) -> list[str]:
        """Of all targets."""
        return sorted(labels.get("__address__", "") for _, found in self.discovered.items() for labels in found)

    def names(self) -> dict[str, str]:
        """Addresses by name."""
        found = [labels for _, targets in self.discovered.items() for labels in targets]
        return {labels["name"]: labels.get("__address__", "") for labels in found}

    async def until(self, true: Callable[[], bool]) -> None:
        """Wait for it, as long as anything changes before it counts as a hang."""
        while not true():
            self._event.clear()
            await asyncio.wait_for(self._event.wait(), HANG_S)


class Following(Discovery):
    """Discovery from an API server at work, once it has listed or failed. more: for `Kubernetes`"""

    def __init__(
        self, spec: KubernetesSpec, label_names: Collection[str] = (), watch_s: float = 2.0, **more: Any
    ) -> None:
        super().__init__()
        self._source = Kubernetes(spec, label_names, self.discovered, watch_s=watch_s, **more)

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._source.run())
        await self.until(lambda: self.discovered.complete or bool(self.discovered.problems))
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


async def leased(api: Api, namespace: str, name: str) -> Record:
    """A lease that is not there is made, and renewed once; as it is then."""
    lease = KubernetesLease(api, namespace, name)
    assert await lease.read(5.0) is None
    version = await lease.write(Write(Record("one", 15.0, 1), begins=True), 5.0)
    await lease.write(Write(Record("one", 15.0, 1, version), begins=False), 5.0)
    record = await lease.read(5.0)
    assert record is not None
    return record
