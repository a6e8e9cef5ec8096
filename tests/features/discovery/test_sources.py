"""Sources of targets: files, lists of a real server, a DNS server on loopback, and a stand-in API server."""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any, Literal

import dns.flags
import dns.message
import dns.rcode
import dns.rrset
import pytest
from aiohttp import web

from prober.config.discovery import DnsSpec, FileSpec, HttpSpec, KubernetesSpec
from prober.config.server import Auth
from prober.features.discovery.dns import Dns
from prober.features.discovery.lists import Files, Http
from prober.features.discovery.objects import targets_of
from prober.net.kubernetes import KubernetesApiError
from tests.deploy.asking import Discovery, Following
from tests.kubernetes.apiserver import ApiServer
from tests.kubernetes.pods import endpoint_slice, pod
from tests.serving import serving

pytestmark = pytest.mark.virtual_time

LABEL_NAMES = frozenset(["__address__", "name", "model", "__meta_filepath", "__meta_url", "__meta_dns_name"])


def files(*names: object) -> tuple[Files, Discovery]:
    discovery = Discovery()
    return Files(FileSpec(files=tuple(map(str, names)), interval=1.0), LABEL_NAMES, discovery.discovered), discovery


async def test_files_of_both_kinds_are_read(tmp_path: Path) -> None:
    """JSON and YAML as Prometheus's file_sd has them, a number of YAML as it is written; labels that no rule reads are not kept."""
    (tmp_path / "a.json").write_text('[{"targets": ["a:1", "b:1"], "labels": {"model": "m", "env": "x"}}]')
    (tmp_path / "b.yaml").write_text("- targets: ['c:1']\n  labels: {name: 5, model: 1.10}\n- targets: []\n")
    source, discovery = files(tmp_path / "*.json", tmp_path / "*.yaml")
    await source.refresh()
    assert discovery.addresses() == ["a:1", "b:1", "c:1"]
    assert discovery.discovered.complete
    labels_by_address = {
        labels["__address__"]: labels for _, targets_of in discovery.discovered.items() for labels in targets_of
    }
    assert labels_by_address["a:1"] == {"model": "m", "__meta_filepath": str(tmp_path / "a.json"), "__address__": "a:1"}
    assert (labels_by_address["c:1"]["name"], labels_by_address["c:1"]["model"]) == ("5", "1.10")


async def test_a_symlink_that_points_elsewhere_is_another_file(tmp_path: Path) -> None:
    """Kubernetes replaces the content of a ConfigMap in this way; unchanged labels are the same object."""
    for name, addresses in (("one", ["a:1", "b:1"]), ("two", ["a:1", "c:1"])):
        (tmp_path / name).mkdir()
        (tmp_path / name / "t.json").write_text(json.dumps([{"targets": addresses}]))
    (tmp_path / "now").symlink_to(tmp_path / "one")
    source, discovery = files(tmp_path / "now" / "t.json")
    await source.refresh()
    before = dict(discovery.discovered.items())
    (tmp_path / "next").symlink_to(tmp_path / "two")
    os.replace(tmp_path / "next", tmp_path / "now")
    await source.refresh()
    after = dict(discovery.discovered.items())
    assert discovery.addresses() == ["a:1", "c:1"]
    key = (str(tmp_path / "now" / "t.json"), "a:1")
    assert after[key] is before[key]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is no JSON"),
        ('{"targets": []}', "is not a list"),
        ('[{"targets": "a:1"}]', "[0].targets: needed"),
        ('[{"targets": ["a:1"], "lables": {}}]', "unknown key 'lables'"),
        ('[{"targets": ["a:1"], "labels": {"a": [1]}}]', "has a value that is no text"),
        ('[{"targets": ["a:1"], "labels": {"version": 1.10}}]', "'version' has a value that is no text"),
        ('[{"targets": ["a:1"], "labels": {"a": "\\ud800"}}]', "is no JSON"),
    ],
)
async def test_a_bad_file_keeps_the_last_good_targets(tmp_path: Path, text: str, message: str) -> None:
    """It is told and counted; once it is right again it counts again."""
    path = tmp_path / "t.json"
    path.write_text('[{"targets": ["a:1"]}]')
    source, discovery = files(path)
    await source.refresh()
    for content in (text, None):
        path.write_text(content) if content is not None else path.unlink()
        failures = discovery.discovered.failures
        await source.refresh()
        assert discovery.addresses() == ["a:1"]
        assert discovery.discovered.failures == failures + 1
    path.write_text(text + " ")
    await source.refresh()
    assert message in discovery.discovered.problems[0]
    path.write_text("[]")
    await source.refresh()
    assert discovery.addresses() == []
    assert discovery.discovered.problems == []


async def test_a_file_that_only_fitted_a_pattern_takes_its_targets_with_it(tmp_path: Path) -> None:
    """Whoever removes it means that; a list too long to be one is not read."""
    for name in ("a", "b"):
        (tmp_path / f"{name}.json").write_text(json.dumps([{"targets": [f"{name}:1"]}]))
    source, discovery = files(tmp_path / "*.json")
    await source.refresh()
    (tmp_path / "a.json").unlink()
    await source.refresh()
    assert discovery.addresses() == ["b:1"]
    (tmp_path / "b.json").write_text("[" + " " * (5 << 20) + "]")
    await source.refresh()
    assert discovery.addresses() == ["b:1"]
    assert "is longer than" in discovery.discovered.problems[0]


@asynccontextmanager
async def list_server(answer: Callable[[web.Request], web.StreamResponse]) -> AsyncIterator[str]:
    async def handle(request: web.Request) -> web.StreamResponse:
        return answer(request)

    async with serving(handle) as url:
        yield f"{url}/list"


async def test_a_list_on_a_server_is_followed(tmp_path: Path) -> None:
    """The token goes along; what is no list, has the wrong type, is refused or leads elsewhere leaves all as it was."""
    (tmp_path / "token").write_text("secret")
    seen: list[str] = []
    answers: list[web.StreamResponse] = [
        web.json_response([{"targets": ["a:1"], "labels": {"name": "n"}}]),
        web.Response(text="[]", content_type="text/html"),
        web.json_response([{"targets": [1]}]),
        web.Response(text="{", content_type="application/json"),
        web.Response(status=503),
        web.Response(status=302, headers={"Location": "http://elsewhere.invalid/"}),
        web.json_response([{"targets": ["b:1"]}]),
    ]

    def answer(request: web.Request) -> web.StreamResponse:
        seen.append(request.headers.get("Authorization", ""))
        return answers.pop(0)

    discovery = Discovery()
    async with list_server(answer) as url:
        source = Http(
            HttpSpec(url=url, auth=Auth(bearer_token_file=str(tmp_path / "token"))), LABEL_NAMES, discovery.discovered
        )
        await source.refresh()
        assert discovery.names() == {"n": "a:1"}
        for failures in range(1, 6):
            await source.refresh()
            assert discovery.names() == {"n": "a:1"}
            assert discovery.discovered.failures == failures
        await source.refresh()
    assert discovery.addresses() == ["b:1"]
    assert set(seen) == {"Bearer secret"}
    await source.refresh()
    assert discovery.addresses() == ["b:1"]
    assert discovery.discovered.problems


class Zone(asyncio.DatagramProtocol):
    """A DNS server that answers from a table; `rcode` instead where it is set."""

    def __init__(self) -> None:
        self.records: dict[tuple[str, str], list[str]] = {}
        self.rcode: dns.rcode.Rcode | None = None
        self._transport: Any = None

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def datagram_received(self, data: bytes, addr: Any) -> None:
        query = dns.message.from_wire(data)
        answer = dns.message.make_response(query)
        answer.flags |= dns.flags.RA
        question = query.question[0]
        name, kind = question.name.to_text(omit_final_dot=True), question.rdtype.name
        if self.rcode is not None:
            answer.set_rcode(self.rcode)
        elif texts := self.records.get((name, kind)):
            answer.answer.append(dns.rrset.from_text(question.name, 5, "IN", kind, *texts))
        elif not any(known == name for known, _ in self.records):
            answer.set_rcode(dns.rcode.NXDOMAIN)
        self._transport.sendto(answer.to_wire(), addr)


@asynccontextmanager
async def zone() -> AsyncIterator[tuple[Zone, tuple[str, int]]]:
    loop = asyncio.get_running_loop()
    transport, protocol = await loop.create_datagram_endpoint(Zone, ("127.0.0.1", 0))
    host, port = transport.get_extra_info("sockname")
    yield protocol, (host, port)
    transport.close()


async def test_srv_records_have_host_and_port() -> None:
    """Each record is a target; `.` says that there is no such service."""
    async with zone() as (server, at):
        server.records["_llm._tcp.example", "SRV"] = ["0 5 8000 a.example.", "1 5 8001 b.example.", "0 0 0 ."]
        discovery = Discovery()
        await Dns(DnsSpec(names=("_llm._tcp.example.",), server=at), LABEL_NAMES, discovery.discovered).refresh()
        assert discovery.addresses() == ["a.example:8000", "b.example:8001"]


@pytest.mark.parametrize(
    ("kind", "record", "address"), [("A", "10.0.0.1", "10.0.0.1:80"), ("AAAA", "fd00::1", "[fd00::1]:80")]
)
async def test_addresses_get_the_configured_port(kind: Literal["A", "AAAA"], record: str, address: str) -> None:
    """Of both families."""
    async with zone() as (server, at):
        server.records["llm.example", kind] = [record]
        discovery = Discovery()
        await Dns(
            DnsSpec(names=("llm.example.",), type=kind, port=80, server=at), LABEL_NAMES, discovery.discovered
        ).refresh()
        assert discovery.addresses() == [address]


async def test_a_name_that_is_gone_is_no_failure() -> None:
    """SERVFAIL keeps what was known, of that name only; NXDOMAIN and an empty answer are the truth."""
    async with zone() as (server, at):
        server.records["llm.example", "A"] = ["10.0.0.1"]
        discovery = Discovery()
        source = Dns(
            DnsSpec(names=("llm.example.", "none.example."), type="A", port=80, server=at),
            LABEL_NAMES,
            discovery.discovered,
        )
        await source.refresh()
        assert discovery.discovered.complete
        assert discovery.discovered.problems == []
        server.rcode = dns.rcode.SERVFAIL
        await source.refresh()
        assert discovery.addresses() == ["10.0.0.1:80"]
        assert len(discovery.discovered.problems) == 2
        server.rcode = None
        server.records = {("llm.example", "TXT"): ["x"]}
        await source.refresh()
        assert discovery.addresses() == []
        assert discovery.discovered.problems == []


def kubernetes_spec(url: str, role: Literal["pod", "endpointslice"] = "pod", **more: Any) -> KubernetesSpec:
    return KubernetesSpec(role=role, namespaces=("default",), api_server=url, **more)


def test_what_was_ready_stays_a_target_until_it_is_ended() -> None:
    """An engine in trouble is when the figures matter. Others at the same time: never ready, another port, ended, finished."""
    spec = kubernetes_spec("http://h")
    known = targets_of(pod("p"), spec, LABEL_NAMES)
    (labels,) = targets_of(pod("p", ready=False), spec, LABEL_NAMES, known)
    assert labels["__address__"] == known[0]["__address__"]
    assert targets_of(pod("p", ready=False, port=9999), spec, LABEL_NAMES, known) == ()
    for changed in ({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}, {"status": {"phase": "Failed"}}):
        item = pod("p", ready=False)
        for part, values in changed.items():
            item[part] |= values
        assert targets_of(item, spec, LABEL_NAMES, known) == (), changed
    slices = kubernetes_spec("http://h", "endpointslice")
    before = targets_of(endpoint_slice("s", "llm", "10.0.0.1"), slices, LABEL_NAMES)
    both = endpoint_slice("s", "llm", "10.0.0.1", "10.0.0.2", ready=False)
    (labels,) = targets_of(both, slices, LABEL_NAMES, before)
    assert labels["__address__"] == before[0]["__address__"]
    for endpoint in both["endpoints"]:
        endpoint["conditions"]["terminating"] = True
    assert targets_of(both, slices, LABEL_NAMES, before) == ()


def test_a_pod_is_a_target_where_it_is_ready() -> None:
    """With the port that is meant: the only one, by name, by number, by annotation; else it has no address."""
    spec = kubernetes_spec("http://h")
    one = pod("p", address="10.0.0.9", port=8000)
    two = pod("p", address="10.0.0.9", annotations={"x/port": "9000", "x/probe": "true"})
    two["spec"]["containers"][0]["ports"].append({"name": "other", "containerPort": 9999})
    terminating = pod("p")
    terminating["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    for item, change, address in (
        (one, {}, "10.0.0.9:8000"),
        (two, {}, None),
        (two, {"port": "other"}, "10.0.0.9:9999"),
        (two, {"port": 1234}, "10.0.0.9:1234"),
        (two, {"port": "none"}, None),
        (two, {"port": "other", "port_annotation": "x/port"}, "10.0.0.9:9000"),
        (one, {"port": "http", "port_annotation": "x/port"}, "10.0.0.9:8000"),
        (pod("p", ready=False), {"unready": True}, "10.0.0.1:8000"),
    ):
        (labels,) = targets_of(item, kubernetes_spec("http://h", **change), LABEL_NAMES)
        assert labels.get("__address__") == address
        assert labels["name"] == "default/p"
    for text in ("٨٠٨٠", "9" * 5_000):
        (labels,) = targets_of(
            pod("p", annotations={"x/port": text}), kubernetes_spec("http://h", port_annotation="x/port"), LABEL_NAMES
        )
        assert "__address__" not in labels, "not a port number"
    for item in (pod("p", ready=False), terminating, pod("p", address="")):
        assert targets_of(item, spec, LABEL_NAMES) == ()
    assert targets_of(one, kubernetes_spec("http://h", annotations={"x/probe": "true"}), LABEL_NAMES) == ()
    assert len(targets_of(two, kubernetes_spec("http://h", annotations={"x/probe": "true"}), LABEL_NAMES)) == 1


def test_labels_of_pods_are_called_as_prometheus_calls_them() -> None:
    """Those that rules look at; long values are cut."""
    item = pod("p", labels={"app.kubernetes.io/name": "vllm"}, annotations={"a/b": "x" * 5_000})
    item["metadata"]["ownerReferences"] = [{"kind": "ReplicaSet", "name": "rs", "controller": True}]
    prefix = "__meta_kubernetes_pod_"
    expected = {
        f"{prefix}label_app_kubernetes_io_name": "vllm",
        f"{prefix}annotation_a_b": "x" * 1_024,
        f"{prefix}controller_kind": "ReplicaSet",
        f"{prefix}container_port_number": "8000",
        f"{prefix}node_name": "n1",
        f"{prefix}ready": "true",
        "__meta_kubernetes_namespace": "default",
    }
    (labels,) = targets_of(item, kubernetes_spec("http://h"), expected.keys())
    assert labels == {**expected, "__address__": "10.0.0.1:8000", "name": "default/p"}


def test_each_endpoint_of_a_slice_is_a_target() -> None:
    """Ready, or not known not to be; named by service and pod."""
    spec = kubernetes_spec("http://h", "endpointslice")
    targets = targets_of(endpoint_slice("s-1", "llm", "10.0.0.1", "10.0.0.2"), spec, LABEL_NAMES)
    assert {target["name"]: target["__address__"] for target in targets} == {
        "default/llm/llm-1": "10.0.0.1:8000",
        "default/llm/llm-2": "10.0.0.2:8000",
    }
    assert len(targets_of(endpoint_slice("s", "llm", "10.0.0.1", ready=None), spec, LABEL_NAMES)) == 1
    assert targets_of(endpoint_slice("s", "llm", "10.0.0.1", ready=False), spec, LABEL_NAMES) == ()
    unready = kubernetes_spec("http://h", "endpointslice", unready=True)
    assert len(targets_of(endpoint_slice("s", "llm", "10.0.0.1", ready=False), unready, LABEL_NAMES)) == 1


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prober.features.discovery.kubernetes.MIN_PAUSE_S", 0.01)
    monkeypatch.setattr("prober.features.discovery.kubernetes.MAX_PAUSE_S", 0.1)


@pytest.mark.usefixtures("quick")
async def test_pods_come_and_go() -> None:
    """Objects are listed once, then watched; an unreachable server changes nothing, and the watch resumes without a new list."""
    async with ApiServer() as server:
        server.put("pods", pod("a", address="10.0.0.1"))
        spec = kubernetes_spec(server.url("p"), label_selector="app=llm")
        async with Following(spec, LABEL_NAMES, 60.0) as discovery:
            await discovery.until(lambda: discovery.names() == {"default/a": "10.0.0.1:8000"})
            await server.watched("p")
            server.put("pods", pod("b", address="10.0.0.2"))
            server.put("pods", pod("other", labels={"app": "web"}))
            ending = pod("a", address="10.0.0.1", ready=False)
            server.put("pods", ending)
            await discovery.until(lambda: len(discovery.names()) == 2)
            ending["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
            server.put("pods", ending)
            await discovery.until(lambda: discovery.names() == {"default/b": "10.0.0.2:8000"})
            faults = server.faults("p")
            faults.broken_watches, faults.refuse, faults.drop = 1, [500, 429, 503], 2
            server.put("pods", pod("c", address="10.0.0.3"))
            await discovery.until(lambda: bool(discovery.discovered.problems))
            assert "default/b" in discovery.names()
            await discovery.until(lambda: "default/c" in discovery.names() and not discovery.discovered.problems)
            server.delete("pods", "default", "b")
            await discovery.until(lambda: discovery.names() == {"default/c": "10.0.0.3:8000"})
            assert server.asked["LIST pods"] == 1


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("away", ["stopped", "starting", "asks_for_an_hour"])
async def test_targets_are_followed_seconds_after_the_server_is_back(away: str, seed: int) -> None:
    """After 45 s without its process, or with refusals, and in at most 20 requests: a pod that came meanwhile is found within 6 s."""
    loop = asyncio.get_running_loop()
    server = ApiServer()
    await server.__aenter__()
    async with Following(kubernetes_spec(server.url("p")), LABEL_NAMES, 60.0, rng=Random(seed)) as discovery:
        server.put("pods", pod("a"))
        await server.watched("p")
        if away == "stopped":
            await server.__aexit__()
            await asyncio.sleep(45)
            await server.__aenter__()
        else:
            faults = server.faults("p")
            faults.refuse, faults.broken_watches = [503] * 1000, 1
            faults.retry_after = 3600 if away == "asks_for_an_hour" else None
            server.put("pods", pod("noticed"))
            await asyncio.sleep(45)
            assert 1000 - len(faults.refuse) <= 20
            server.heal("p")
        back_s = loop.time()
        server.put("pods", pod("b"))
        async with asyncio.timeout(600):
            await discovery.until(lambda: "default/b" in discovery.names())
        assert loop.time() - back_s <= (31 if away == "asks_for_an_hour" else 6)
    await server.__aexit__()


@pytest.mark.parametrize(
    ("status", "message", "gone"),
    [
        (410, "too old resource version: 5 (9)", True),
        (504, "Timeout: Too large resource version: 9000, current: 507", True),
        (504, "Timeout: request did not complete within the allotted timeout", False),
        (500, "etcd is away", False),
    ],
)
def test_a_version_of_a_lost_future_is_gone_too(status: int, message: str, gone: bool) -> None:
    """An etcd that was restored counts from before: whoever waits for a number that it had is never told anything again."""
    assert KubernetesApiError(status, "", message).gone is gone


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("refused", [False, True])
async def test_a_restored_past_is_read_anew(refused: bool) -> None:
    """It counts from before: a watch of a number that it has not yet is refused, or told nothing. A pod that stayed is kept."""
    async with (
        ApiServer() as server,
        Following(kubernetes_spec(server.url("p")), LABEL_NAMES, 1.0) as discovery,
    ):
        server.refuses_future = refused
        for name in ("a", "b", *(f"old-{number}" for number in range(20))):
            server.put("pods", pod(name))
        for number in range(20):
            server.delete("pods", "default", f"old-{number}")
        await discovery.until(lambda: discovery.names().keys() == {"default/a", "default/b"})
        server.faults("p").cut = "requests"
        server.restore()
        server.delete("pods", "default", "a")
        server.put("pods", pod("c"))
        server.heal("p")
        await discovery.until(lambda: "default/b" in discovery.names() and "default/c" in discovery.names())
        assert discovery.names().keys() == {"default/b", "default/c"}
        assert server.asked["LIST pods"] == 2


@pytest.mark.usefixtures("quick")
async def test_a_connection_that_died_without_a_word_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A watch that does not end when it should is given up, told, and taken up again."""
    monkeypatch.setattr("prober.net.kubernetes.WATCH_GRACE_S", 0.2)
    async with (
        ApiServer() as server,
        Following(kubernetes_spec(server.url("p")), LABEL_NAMES, 1.0) as discovery,
    ):
        await server.watched("p")
        server.faults("p").cut = "answers"
        server.put("pods", pod("a"))
        await discovery.until(lambda: bool(discovery.discovered.problems))
        server.heal("p")
        await discovery.until(lambda: "default/a" in discovery.names())


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("seed", range(4))
async def test_after_any_events_the_targets_are_the_truth(seed: int) -> None:
    """Pods at random, faults at random; once the server is left alone, what is found is what there is. The past that it forgets is told
    as 410, by the status or within the watch, and read anew.
    """
    rng = Random(seed)
    async with (
        ApiServer(bookmark_s=0.02) as server,
        Following(kubernetes_spec(server.url("p")), LABEL_NAMES, 1.0) as discovery,
    ):
        server.gone_as_status = seed % 2 == 0
        for _ in range(300):
            key = ("pods", "default", f"p{rng.randrange(12)}")
            if key in server.objects and rng.random() < 0.4:
                server.delete(*key)
            else:
                address = f"10.0.0.{rng.randrange(1, 250)}"
                server.put("pods", pod(key[2], address=address, ready=rng.random() < 0.8))
            faults = server.faults("p")
            match rng.randrange(40):
                case 0:
                    faults.broken_watches = 1
                case 1:
                    server.compact()
                case 2:
                    faults.refuse = [rng.choice((429, 500))]
                case 3:
                    faults.cut = rng.choice(("requests", "answers"))
                case 4 | 5:
                    server.heal("p")
            await asyncio.sleep(rng.choice((0.0, 0.0, 0.003)))
        server.heal("p")
        truth = {
            f"default/{name}": f"{item['status']['podIP']}:8000"
            for (_, _, name), item in server.objects.items()
            if item["status"]["conditions"][0]["status"] == "True"
        }
        await discovery.until(lambda: discovery.names() == truth)
