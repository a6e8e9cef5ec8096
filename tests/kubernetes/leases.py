"""Where the tests of leases find an API server: the stand-in, or the real one that `KUBE_APISERVER` names."""

import os
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from prober.net.kubernetes import Api, Json
from tests.kubernetes.apiserver import ApiServer

REAL = os.environ.get("KUBE_APISERVER")
TOKEN_FILE, CA_FILE = os.environ.get("KUBE_TOKEN_FILE"), os.environ.get("KUBE_CA_FILE")


@dataclass(frozen=True, slots=True)
class Cluster:
    """An API server. name: of leases, new for each test; stand_in: None where it is a real one."""

    url: str
    name: str
    stand_in: ApiServer | None

    def api(self, url: str | None = None) -> Api:
        return Api(url or self.url, token_file=TOKEN_FILE, ca_file=CA_FILE)

    async def lease(self, shard: int = 0) -> Json:
        """As it is kept."""
        api = self.api()
        try:
            return await api.get(f"/apis/coordination.k8s.io/v1/namespaces/default/leases/{self.name}-{shard}")
        finally:
            await api.close()


@asynccontextmanager
async def cluster() -> AsyncIterator[Cluster]:
    name = f"test-{uuid.uuid4().hex[:10]}"
    if REAL:
        yield Cluster(REAL, name, None)
        return
    async with ApiServer() as server:
        yield Cluster(server.url("test"), name, server)
