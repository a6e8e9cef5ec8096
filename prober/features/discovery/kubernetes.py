"""Targets in a Kubernetes cluster: one list, then a watch from its version, resumed after every end and failure.

While the server cannot be reached, known targets stay. A watch ends every minute, so that a connection that died silently is
noticed. Objects are listed again only if the server does not know the watch's version any longer (410) or yet: after etcd was restored
from a backup, the server refuses the version (504), or sends nothing, not even a bookmark, until it reaches the version.
"""

import asyncio
import logging
from collections.abc import Container
from random import Random
from typing import Any

from prober.config.discovery import KubernetesSpec
from prober.features.discovery.discovered_targets import DiscoveredTargets, TargetLabels
from prober.features.discovery.objects import targets_of
from prober.net.kubernetes import WATCH_S as WATCH_S
from prober.net.kubernetes import Api, KubernetesApiError, Unreachable

# Between attempts: doubled after each failure, plus a random part of up to half. Until then changes of targets are missed; a prober
# that asks every few seconds is no load for an API server.
MIN_PAUSE_S, MAX_PAUSE_S = 0.5, 5.0
MAX_SILENT_WATCHES = 5  # in a row without a bookmark
MAX_ODD_OWNERS = 100  # with logged odd objects
PATHS = {"pod": ("/api/v1", "pods"), "endpointslice": ("/apis/discovery.k8s.io/v1", "endpointslices")}
log = logging.getLogger(__name__)


class Kubernetes:
    """Follows the objects of one kind in one or more namespaces. watch_s: duration of a watch; None: a minute"""

    def __init__(
        self,
        spec: KubernetesSpec,
        label_names: Container[str],
        discovered: DiscoveredTargets,
        *,
        watch_s: float | None = None,
        rng: Random | None = None,
    ) -> None:
        self._spec, self._label_names, self._discovered = spec, label_names, discovered
        self._watch_s = watch_s or WATCH_S
        selectors = {"labelSelector": spec.label_selector, "fieldSelector": spec.field_selector}
        self._params = {name: selector for name, selector in selectors.items() if selector}
        self._rng = rng or Random()
        self._odd_owners = set[str]()

    async def run(self) -> None:
        """Follow until cancelled."""
        api = self._api()
        if api is None:
            return
        group, resource = PATHS[self._spec.role]
        namespaces = self._spec.namespaces or (api.namespace,)
        scopes = [
            f"{group}/{resource}" if namespace == "*" else f"{group}/namespaces/{namespace}/{resource}"
            for namespace in namespaces
        ]
        self._discovered.expect(*scopes)
        try:
            await asyncio.gather(*(self._follow(api, scope) for scope in scopes))
        finally:
            await api.close()

    def _api(self) -> Api | None:
        """The client; None, permanently, outside a cluster without a configured server."""
        spec = self._spec
        try:
            if spec.api_server is None:
                return Api.in_cluster()
            return Api(spec.api_server, token_file=spec.auth.secret_file if spec.auth else None, ca_file=spec.ca_file)
        except (Unreachable, ValueError) as problem:
            self._discovered.failed("", f"kubernetes: {problem}")
            return None

    async def _follow(self, api: Api, scope: str) -> None:
        version, tries, silent = "", 0, 0
        loop = asyncio.get_running_loop()
        while True:
            began, retry_after_s = loop.time(), 0.0
            try:
                if not version:
                    version, silent = await self._list(api, scope), 0
                silent += 1
                async for event in api.watch(scope, self._params, version=version, watch_s=self._watch_s):
                    self._discovered.answered(scope)
                    tries = silent = 0
                    if event.kind != "BOOKMARK":
                        owner = _owner(event.object)
                        labels = () if event.kind == "DELETED" else self._targets_of(scope, owner, event.object)
                        self._discovered.put(scope, owner, labels)
                    version = event.version or version
                if silent >= MAX_SILENT_WATCHES:
                    version = ""
            except KubernetesApiError as refusal:
                if refusal.gone:
                    version = ""
                else:
                    self._discovered.failed(scope, f"{api.url}{scope}: {refusal}")
                    retry_after_s = refusal.retry_after_s
            except Unreachable as problem:
                self._discovered.failed(scope, str(problem))
            if loop.time() - began < self._watch_s / 2:  # a watch this long ended normally
                pause = min(MAX_PAUSE_S, MIN_PAUSE_S * 2**tries)
                tries = min(tries + 1, 10)
                await asyncio.sleep(max(retry_after_s, pause * self._rng.uniform(0.5, 1.0)))

    async def _list(self, api: Api, scope: str) -> str:
        """List all objects of a scope; return the version from which to watch."""
        targets: dict[str, TargetLabels] = {}

        def take(item: dict[str, Any]) -> None:
            owner = _owner(item)
            if labels := self._targets_of(scope, owner, item):
                targets[owner] = labels

        version = await api.list(scope, take, self._params)
        self._discovered.replace(scope, targets)
        return version

    def _targets_of(self, scope: str, owner: str, item: dict[str, Any]) -> TargetLabels:
        """Targets of an object. An object with values of wrong types keeps its last targets; others are not affected."""
        known = self._discovered.labels(scope, owner)
        try:
            return targets_of(item, self._spec, self._label_names, known)
        except (AttributeError, KeyError, TypeError, ValueError) as problem:
            if owner not in self._odd_owners and len(self._odd_owners) < MAX_ODD_OWNERS:
                self._odd_owners.add(owner)
                log.warning(
                    "%s: %s is no %s of Kubernetes: %s; its last targets are kept",
                    scope,
                    owner,
                    self._spec.role,
                    problem,
                )
            return known


def _owner(item: dict[str, Any]) -> str:
    metadata = item.get("metadata")
    names = metadata if isinstance(metadata, dict) else {}
    return f"{names.get('namespace')}/{names.get('name')}"
