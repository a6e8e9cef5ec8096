"""Leases against the stand-in API server, in virtual time; tests/cluster asks a real one."""

import asyncio
import re
from copy import deepcopy
from datetime import UTC, datetime
from typing import Any, Self

import pytest

from prober.config.problems import ConfigError
from prober.daemon.registry import registry
from prober.exposition.families import Registry
from prober.features.replicas import series as replicas_series
from prober.features.replicas.leadership import (
    CLAIMS_ANNOTATION,
    KubernetesLeadership,
    KubernetesLease,
    LeaseOptions,
    leadership,
    record_of,
)
from prober.features.replicas.lease_machine import Record, Timing
from prober.net.kubernetes import Api, Unreachable
from prober.probing.replicas import Shard
from tests.kubernetes.apiserver import ApiServer
from tests.serving import until

pytestmark = pytest.mark.virtual_time

LEASE = ("leases", "default", "prober-0")
LEASE_S = 3.0
TIMING = Timing(LEASE_S)
MICRO_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")


class Replica:
    """One that wants the lease. told: what it was told, in order."""

    def __init__(self, server: ApiServer, who: str) -> None:
        self.families: Registry = registry()
        kept = KubernetesLease(Api(server.url(who)), "default", "prober-0")
        self.part = KubernetesLeadership(kept, who, TIMING, self.families, clock=asyncio.get_running_loop().time)
        self.told: list[str] = []
        self.part.listen(lambda: self.told.append("lost"), lambda: self.told.append("won"))

    @property
    def holds(self) -> bool:
        return self.part.held() is not None

    def value(self, declared: Any) -> float:
        return self.families[declared.name].value().value

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self.part.run())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.part.close()


async def test_one_holds_it_and_says_so_as_kubernetes_does() -> None:
    """The object as client-go writes it; who leaves is followed within two polls, with the next number."""
    begun = datetime.now(UTC)
    async with ApiServer() as server, Replica(server, "b") as second, Replica(server, "a") as first:
        await until(lambda: first.holds or second.holds)
        one, other = (first, second) if first.holds else (second, first)
        await until(lambda: other.part.holder)
        assert not other.holds
        lease = server.objects[LEASE]
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
        spec = server.objects[LEASE]["spec"]
        assert spec["renewTime"] > renewed
        assert spec["acquireTime"] <= renewed
        await one.part.close()
        assert one.told == ["won", "lost"]
        assert server.objects[LEASE]["spec"].get("holderIdentity") != one.part.holder
        await until(lambda: other.holds)
        assert other.value(replicas_series.LEASE_TRANSITIONS) >= 1


async def test_what_others_write_into_it_is_kept_and_costs_a_try() -> None:
    """A label and an annotation of somebody else's: the next renewal is beaten, the one after it stands."""
    async with ApiServer() as server, Replica(server, "a") as first:
        await until(lambda: first.holds)
        others = deepcopy(server.objects[LEASE])
        others["metadata"].setdefault("labels", {})["team"] = "serving"
        others["metadata"].setdefault("annotations", {})["note"] = "here"
        server.put("leases", others)
        await asyncio.sleep(1.5 * LEASE_S)
        await until(lambda: first.holds)
        about = server.objects[LEASE]["metadata"]
        assert (about["labels"]["team"], about["annotations"]["note"]) == ("serving", "here")
        assert first.told == ["won"]


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
