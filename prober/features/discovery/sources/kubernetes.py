"""Targets in a cluster: one list, then a watch from where that ended, taken up again after every end and every failure.

What was known stays while the server cannot be reached. A watch ends by itself every minute, so that a connection which died
without a word is noticed; a new list is made only when the server has forgotten where the watch was (410).
"""

import asyncio
from collections.abc import Collection
from random import Random
from typing import Any

from prober.config.discovery import KubernetesSpec
from prober.features.discovery.sources.findings import Findings
from prober.features.discovery.sources.objects import targets
from prober.net.kubernetes import WATCH_S as WATCH_S
from prober.net.kubernetes import Api, KubernetesApiError, Unreachable

FIRST_S, LONGEST_S = (
    0.5,
    30.0,
)  # of the pauses between two tries: each is twice the one before, and half of it by chance
PATHS = {"pod": ("/api/v1", "pods"), "endpointslice": ("/apis/discovery.k8s.io/v1", "endpointslices")}


class Kubernetes:
    """Follows the objects of one kind in one or more namespaces. watch_s: how long one watch is; None: a minute."""

    def __init__(
        self, spec: KubernetesSpec, kept: Collection[str], findings: Findings, *, watch_s: float | None = None
    ) -> None:
        self._spec, self._kept, self._findings, self._watch_s = spec, kept, findings, watch_s or WATCH_S
        self._params = {
            name: value
            for name, value in (("labelSelector", spec.label_selector), ("fieldSelector", spec.field_selector))
            if value
        }
        self._rng = Random()

    async def run(self) -> None:
        """Until cancelled."""
        api = self._api()
        if api is None:
            return
        group, resource = PATHS[self._spec.role]
        namespaces = self._spec.namespaces or (api.namespace,)
        scopes = [
            f"{group}/{resource}" if each == "*" else f"{group}/namespaces/{each}/{resource}" for each in namespaces
        ]
        self._findings.awaits(*scopes)
        try:
            await asyncio.gather(*(self._follow(api, scope) for scope in scopes))
        finally:
            await api.close()

    def _api(self) -> Api | None:
        """None outside a cluster where no server is named: that stays so."""
        spec = self._spec
        try:
            if spec.api_server is None:
                return Api.in_cluster()
            return Api(
                spec.api_server, token_file=spec.auth.bearer_token_file if spec.auth else None, ca_file=spec.ca_file
            )
        except (Unreachable, ValueError) as problem:
            self._findings.failed("", f"kubernetes: {problem}")
            return None

    async def _follow(self, api: Api, scope: str) -> None:
        version, tries = "", 0
        loop = asyncio.get_running_loop()
        while True:
            began, asked_s = loop.time(), 0.0
            try:
                if not version:
                    version = await self._list(api, scope)
                async for event in api.watch(scope, self._params, version=version, watch_s=self._watch_s):
                    self._findings.fine(scope)
                    tries = 0
                    if event.kind != "BOOKMARK":
                        gone = event.kind == "DELETED"
                        found = () if gone else targets(event.object, self._spec, self._kept)
                        self._findings.put(scope, _owner(event.object), found)
                    version = event.version or version
            except KubernetesApiError as refused:
                if refused.gone:
                    version = ""
                else:
                    self._findings.failed(scope, f"{api.url}{scope}: {refused}")
                    asked_s = min(refused.retry_after_s, 10 * LONGEST_S)
            except Unreachable as problem:
                self._findings.failed(scope, str(problem))
            if loop.time() - began < self._watch_s / 2:  # else it ended as it should
                pause = min(LONGEST_S, FIRST_S * 2**tries)
                tries = min(tries + 1, 10)
                await asyncio.sleep(max(asked_s, pause * self._rng.uniform(0.5, 1.0)))

    async def _list(self, api: Api, scope: str) -> str:
        """Take over all there is; where a watch may go on from."""
        listed = await api.list(scope, self._params)
        found: dict[str, Any] = {}
        for item in listed.items:
            if of_item := targets(item, self._spec, self._kept):
                found[_owner(item)] = of_item
            await asyncio.sleep(0)
        await self._findings.replace(scope, found)
        return listed.version


def _owner(item: dict[str, Any]) -> str:
    about = item.get("metadata") or {}
    return f"{about.get('namespace')}/{about.get('name')}"
