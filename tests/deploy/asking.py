"""Requests of the prober to an API server, recorded from real calls."""

import asyncio
from collections.abc import Callable
from contextlib import suppress

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


class Following:
    """Discovery at work. discovered: what it knows."""

    def __init__(self, spec: KubernetesSpec) -> None:
        self._changed = asyncio.Event()
        self.discovered = DiscoveredTargets("test", self._changed.set)
        self._spec = spec

    async def __aenter__(self) -> "Following":
        self._task = asyncio.create_task(Kubernetes(self._spec, (), self.discovered, watch_s=2.0).run())
        await self.until(lambda: self.discovered.complete or bool(self.discovered.problems))
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task

    async def until(self, true: Callable[[], bool]) -> None:
        """Wait for it, as long as discovered change before it counts as a hang."""
        while not true():
            self._changed.clear()
            await asyncio.wait_for(self._changed.wait(), HANG_S)


async def leased(api: Api, namespace: str, name: str) -> Record:
    """A lease that is not there is made, and renewed once; as it is then."""
    lease = KubernetesLease(api, namespace, name)
    assert await lease.read(5.0) is None
    version = await lease.write(Write(Record("one", 15.0, 1), begins=True), 5.0)
    await lease.write(Write(Record("one", 15.0, 1, version), begins=False), 5.0)
    record = await lease.read(5.0)
    assert record is not None
    return record
