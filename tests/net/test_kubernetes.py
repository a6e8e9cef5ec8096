"""The client for a Kubernetes API server, against a stand-in."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from prober.net.kubernetes import Api, KubernetesApiError, Unreachable
from tests.kubernetes.apiserver import ApiServer

PODS = "/api/v1/namespaces/default/pods"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/default/leases"


def pod(name: str, **labels: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "labels": labels}, "status": {"phase": "Running"}}


async def collect(api: Api, version: str, *, watch_s: float = 1.0, **params: str) -> list[tuple[str, str]]:
    found = [event async for event in api.watch(PODS, params, version=version, watch_s=watch_s)]
    return [(event.kind, event.object["metadata"].get("name", "")) for event in found if event.kind != "BOOKMARK"]


async def test_a_list_is_read_page_by_page_at_one_version() -> None:
    """120 objects take three pages; what is added meanwhile is not among them, and comes by the watch that follows."""
    async with ApiServer() as server:
        for index in range(120):
            server.put("pods", pod(f"p{index:03}"))
        api = Api(server.url("a"))
        listed = await api.list("/api/v1/pods")
        server.put("pods", pod("later"))
        assert [each["metadata"]["name"] for each in listed.items] == [f"p{index:03}" for index in range(120)]
        assert server.asked["LIST pods"] == 3
        assert await collect(api, listed.version) == [("ADDED", "later")]
        await api.close()


async def test_a_watch_sees_what_a_selector_lets_through() -> None:
    """An object that stops to fit is DELETED, one that begins to fit is ADDED."""
    async with ApiServer() as server:
        api = Api(server.url("a"))
        version = server.version
        server.put("pods", pod("one", app="llm"))
        server.put("pods", pod("other", app="web"))
        server.put("pods", pod("one", app="web"))
        server.put("pods", pod("other", app="llm"))
        server.delete("pods", "default", "other")
        seen = await collect(api, version, labelSelector="app=llm")
        assert seen == [("ADDED", "one"), ("DELETED", "one"), ("ADDED", "other"), ("DELETED", "other")]
        await api.close()


async def test_an_idle_watch_brings_bookmarks() -> None:
    """The version moves on while other kinds change, so that a watch can be taken up again after a compaction."""
    async with ApiServer(bookmark_s=0.05) as server:
        api = Api(server.url("a"))
        version = server.version
        server.put("leases", {"metadata": {"name": "l"}, "spec": {"holderIdentity": "a"}})
        last = [event async for event in api.watch(PODS, version=version, watch_s=1.0)][-1]
        assert (last.kind, last.version) == ("BOOKMARK", server.version)
        assert server.version != version
        await api.close()


@pytest.mark.parametrize("as_status", [False, True])
async def test_a_forgotten_past_is_told(as_status: bool) -> None:
    """410 is `gone`, whether it comes as a status or inside the watch."""
    async with ApiServer() as server:
        server.gone_as_status = as_status
        api, version = Api(server.url("a")), server.version
        server.put("pods", pod("one"))
        server.compact()
        with pytest.raises(KubernetesApiError) as refused:
            await collect(api, version)
        assert refused.value.gone
        assert refused.value.reason == "Expired"
        await api.close()


async def test_a_stale_object_is_not_written() -> None:
    """Two that replace one version: the second is refused with Conflict, and so is a second creation."""
    async with ApiServer() as server:
        api = Api(server.url("a"))
        lease = await api.create(LEASES, {"metadata": {"name": "l"}, "spec": {"holderIdentity": "a"}})
        taken = {**lease, "spec": {"holderIdentity": "b"}}
        assert (await api.replace(f"{LEASES}/l", taken))["spec"] == {"holderIdentity": "b"}
        for call in (api.replace(f"{LEASES}/l", lease), api.create(LEASES, {"metadata": {"name": "l"}})):
            with pytest.raises(KubernetesApiError) as refused:
                await call
            assert refused.value.status == 409
        assert (await api.get(f"{LEASES}/l"))["spec"]["holderIdentity"] == "b"
        await api.close()


async def test_a_lost_answer_is_no_lost_request() -> None:
    """Cut off on the way back, what was asked has been done; cut off on the way there, it has not."""
    async with ApiServer() as server:
        api = Api(server.url("a"))
        for cut, kept in (("requests", False), ("answers", True)):
            server.faults("a").cut = cut  # type: ignore[assignment]
            with pytest.raises(Unreachable, match="no answer within"):
                await api.create(LEASES, {"metadata": {"name": cut}}, timeout_s=0.2)
            server.heal("a")
            assert (("leases", "default", cut) in server.objects) == kept
        await api.close()


async def test_failures_say_what_happened() -> None:
    """A closed connection, a busy server with its wish, a server error, an event cut in the middle."""
    async with ApiServer() as server:
        api, faults = Api(server.url("a")), server.faults("a")
        await api.get(PODS)
        faults.drop = 2  # aiohttp takes a reused connection that closes for a race, and asks once more
        with pytest.raises(Unreachable):
            await api.get(PODS)
        faults.drop, faults.refuse, faults.retry_after = 0, [429, 500], 3
        with pytest.raises(KubernetesApiError) as busy:
            await api.get(PODS)
        assert (busy.value.status, busy.value.retry_after_s) == (429, 3.0)
        with pytest.raises(KubernetesApiError, match="HTTP 500 InternalError"):
            await api.get(PODS)
        faults.broken_watches = 1
        with pytest.raises(Unreachable):
            await collect(api, server.version)
        with pytest.raises(KubernetesApiError, match="NotFound"):
            await api.get(f"{PODS}/none")
        await api.close()


async def test_a_rotated_token_is_used(tmp_path: Path) -> None:
    """The file is read again when it changes; the old token is refused, and no token at all is not sent."""
    token = tmp_path / "token"
    async with ApiServer(token="second") as server:
        api = Api(server.url("a"), token_file=str(token))
        with pytest.raises(Unreachable, match="no token"):
            await api.get(PODS)
        token.write_text("first")
        with pytest.raises(KubernetesApiError, match="HTTP 401"):
            await api.get(PODS)
        token.write_text("second-")
        token.write_text("second")
        assert (await api.get(PODS))["items"] == []
        await api.close()


def test_a_token_is_not_sent_in_the_clear() -> None:
    """Over plain HTTP a token goes to this machine only."""
    with pytest.raises(ValueError, match="use https"):
        Api("http://10.0.0.1:8080", token_file="token")


def test_outside_a_cluster_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the environment of a pod there is no server to ask."""
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(Unreachable, match="KUBERNETES_SERVICE_HOST"):
        Api.in_cluster()


async def test_two_clients_fail_apart() -> None:
    """One that is cut off hears nothing, its watch too; the other goes on; healed, the watch goes on where it was."""
    async with ApiServer() as server:
        one, other = Api(server.url("one")), Api(server.url("other"))
        watch = asyncio.create_task(collect(one, server.version, watch_s=1.0))
        await server.watched("one")
        server.faults("one").cut = "answers"
        server.put("pods", pod("unheard"))
        assert len((await other.list(PODS)).items) == 1
        server.heal("one")
        assert await watch == [("ADDED", "unheard")]
        await one.close()
        await other.close()
