"""Leases against an API server: the stand-in, in virtual time, or a real one (`KUBE_APISERVER`, see bench/figures.md)."""

import asyncio
import logging
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from typing import Any

import pytest

from prober.config.problems import ConfigError
from prober.daemon.registry import registry
from prober.exposition.families import Registry
from prober.features.replicas import series as replicas_series
from prober.features.replicas.leadership import (
    CLAIMS_ANNOTATION,
    Conflict,
    KubernetesLeadership,
    KubernetesLease,
    LeaseOptions,
    leadership,
    record_of,
)
from prober.features.replicas.lease_machine import Record, Timing, Write
from prober.net.kubernetes import KubernetesApiError, Unreachable
from prober.probing.replicas import Shard
from tests.kubernetes.leases import REAL, Cluster, cluster
from tests.kubernetes.link import Link
from tests.serving import until

pytestmark = () if REAL else pytest.mark.virtual_time

LEASE_S = 3.0
TIMING = Timing(LEASE_S)
MICRO_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")


@pytest.fixture
async def api_server() -> AsyncIterator[Cluster]:
    async with cluster() as found:
        yield found


class Replica:
    """One that wants the lease. told: what it was told, in order."""

    def __init__(self, server: Cluster, who: str, url: str | None = None) -> None:
        self.families: Registry = registry()
        kept = KubernetesLease(server.api(url), "default", f"{server.name}-0")
        self.part = KubernetesLeadership(kept, who, TIMING, self.families, clock=asyncio.get_running_loop().time)
        self.told: list[str] = []
        self.part.listen(lambda: self.told.append("lost"), lambda: self.told.append("won"))
        self.task: asyncio.Task[None] | None = None

    @property
    def holds(self) -> bool:
        return self.part.held() is not None

    def value(self, declared: Any) -> float:
        return self.families[declared.name].value().value


@asynccontextmanager
async def replica(server: Cluster, who: str, url: str | None = None) -> AsyncIterator[Replica]:
    made = Replica(server, who, url)
    made.task = asyncio.create_task(made.part.run())
    try:
        yield made
    finally:
        await made.part.close()


async def test_one_holds_it_and_says_so_as_kubernetes_does(api_server: Cluster) -> None:
    """The object as client-go writes it; who leaves is followed within two polls, with the next number."""
    begun = datetime.now(UTC)
    async with replica(api_server, "b") as second, replica(api_server, "a") as first:
        await until(lambda: first.holds or second.holds)
        one, other = (first, second) if first.holds else (second, first)
        await until(lambda: other.part.holder)
        assert not other.holds
        lease = await api_server.lease()
        assert lease["metadata"]["labels"] == {"app.kubernetes.io/name": "llm-slo-prober"}
        spec = lease["spec"]
        assert spec["holderIdentity"] == other.part.holder
        assert (spec["leaseDurationSeconds"], spec["leaseTransitions"]) == (3, 0)
        for key in ("acquireTime", "renewTime"):
            assert MICRO_TIME.fullmatch(spec[key]), spec[key]
            assert abs((datetime.fromisoformat(spec[key]) - begun).total_seconds()) < 30
        assert (one.value(replicas_series.LEASE_HELD), other.value(replicas_series.LEASE_HELD)) == (1, 0)
        renewed = spec["renewTime"]
        await asyncio.sleep(TIMING.retry_s * 2)
        spec = (await api_server.lease())["spec"]
        assert spec["renewTime"] > renewed
        assert spec["acquireTime"] <= renewed
        await one.part.close()
        assert one.told == ["won", "lost"]
        assert (await api_server.lease())["spec"].get("holderIdentity") != one.part.holder
        await until(lambda: other.holds)
        assert other.value(replicas_series.LEASE_TRANSITIONS) >= 1


async def test_a_server_that_is_away_at_the_start_is_waited_for(
    api_server: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    """It is said once, with what waits; and once it answers, it is held."""
    caplog.set_level(logging.INFO)
    async with Link(api_server.url) as link:
        link.cut = True
        async with replica(api_server, "a", link.url) as first:
            await until(lambda: first.value(replicas_series.LEASE_FAILURES) >= 2)
            assert not first.holds
            said = [each for each in caplog.messages if "sweeps and Grafana wait for it" in each]
            assert len(said) == 1
            link.cut = False
            await until(lambda: first.holds)
            assert "the API server answers again" in caplog.text


async def test_what_others_write_into_it_is_kept_and_costs_a_try(api_server: Cluster) -> None:
    """A label and an annotation of somebody else's: the next renewal is beaten, the one after it stands."""
    async with replica(api_server, "a") as first:
        await until(lambda: first.holds)
        api = api_server.api()
        body = await api.get(path := f"/apis/coordination.k8s.io/v1/namespaces/default/leases/{api_server.name}-0")
        body["metadata"].setdefault("labels", {})["team"] = "serving"
        body["metadata"].setdefault("annotations", {})["note"] = "here"
        while True:
            with suppress(KubernetesApiError):  # it was renewed between reading and writing
                await api.replace(path, body)
                break
            body["metadata"]["resourceVersion"] = (await api.get(path))["metadata"]["resourceVersion"]
        await asyncio.sleep(1.5 * LEASE_S)
        await until(lambda: first.holds)
        about = (await api.get(path))["metadata"]
        assert (about["labels"]["team"], about["annotations"]["note"]) == ("serving", "here")
        await api.close()


async def test_a_write_with_an_old_version_is_beaten(api_server: Cluster) -> None:
    """So is making what is there already; times are never those of before."""
    kept = KubernetesLease(api_server.api(), "default", f"{api_server.name}-0")
    try:
        assert await kept.read(5) is None
        made = await kept.write(Write(Record("a", 3, 0), begins=True), 5)
        with pytest.raises(Conflict):
            await kept.write(Write(Record("b", 3, 0), begins=True), 5)
        again = await kept.write(Write(Record("a", 3, 0, made), begins=False), 5)
        assert again != made
        with pytest.raises(Conflict):
            await kept.write(Write(Record("b", 3, 1, made), begins=True), 5)
        found = await kept.read(5)
        assert found == Record("a", 3.0, 0, again)
        await kept.write(Write(Record("", 1, 0, again), begins=False), 5)
        released = await kept.read(5)
        assert released is not None
        assert (released.holder, released.lease_s) == ("", 1.0)
    finally:
        await kept.close()


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"metadata": {"resourceVersion": "1"}, "spec": {"leaseTransitions": "many"}},
        {"metadata": {"resourceVersion": "1"}, "spec": {"leaseDurationSeconds": "long"}},
    ],
)
def test_what_is_no_lease_is_not_believed(body: dict[str, Any]) -> None:
    """It counts as no answer."""
    with pytest.raises(Unreachable, match="not a Lease"):
        record_of(body)


@pytest.mark.parametrize("text", ["[]", "nonsense", '{"a": "x"}', "null"])
def test_claims_that_somebody_spoilt_are_none(text: str) -> None:
    """The lease itself still counts."""
    body = {
        "metadata": {"resourceVersion": "1", "annotations": {CLAIMS_ANNOTATION: text}},
        "spec": {"holderIdentity": "a"},
    }
    assert record_of(body) == Record("a", 0.0, 0, "1", {})


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        (LeaseOptions(name="a", duration_s=2.0), "--lease.duration 2s: whole seconds, 3s at least"),
        (LeaseOptions(name="a", duration_s=15.5), "whole seconds"),
        (LeaseOptions(duration_s=1.0), "--lease.duration 1s: whole seconds, 3s at least"),
        (LeaseOptions(name="Not_A_Name"), "--lease.name Not_A_Name: lower-case"),
        (LeaseOptions(name="a"), "--lease.api-server: KUBERNETES_SERVICE_HOST is not set"),
        (LeaseOptions(name="a", api_server="http://10.0.0.1", token_file="t"), "plain HTTP"),
    ],
)
def test_what_cannot_be_a_lease_is_told(wanted: LeaseOptions, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With what to write."""
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(ConfigError, match=message):
        leadership(wanted, Shard(), "me", registry())
