"""`/api/v1`: what is answered is what is documented; what changes something is guarded."""

import asyncio
import http.client
import json
import re
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, replace
from typing import Any, cast
from urllib.parse import quote

import aiohttp
import jsonschema
import pytest
from openapi_spec_validator import validate

from prober.config.target import needs_of
from prober.features.capacity.target_sweeps import TargetSweeps
from prober.features.health.series import HEALTHY
from prober.measure.chunk import Usage
from prober.measure.outcome import Outcome
from prober.probing.history import TargetHistory
from prober.probing.replicas import Shard, shard_of
from prober.probing.target_runner import TargetRunner
from prober.storage.watched_file import asset
from prober.web import on_demand
from prober.web.access_control import HEADERS
from prober.web.site import Site
from prober.web.token_bucket import Rates
from tests.daemon.test_fleet import SLOW, Watched, specs, watched
from tests.processes import HANG_S
from tests.results.samples import sweep
from tests.serving import until
from tests.web.listening import listening


@dataclass
class Answer:
    status: int
    text: str
    headers: dict[str, str]

    @property
    def data(self) -> Any:
        return json.loads(self.text)["data"]


class Requester:
    """A site that listens, over a fleet that probes."""

    def __init__(self, seen: Watched, site: Site, url: str, session: aiohttp.ClientSession) -> None:
        self.seen, self.site, self.url, self._session = seen, site, url, session

    async def ask(self, method: str, path: str, **headers: str) -> Answer:
        async with self._session.request(method, self.url + path, headers=headers, allow_redirects=False) as answer:
            return Answer(answer.status, await answer.text(), dict(answer.headers))


@asynccontextmanager
async def requesting(*targets: str, admin: bool = True, **more: Any) -> AsyncIterator[Requester]:
    async with listening(*targets, admin=admin, **more) as (seen, site, server), aiohttp.ClientSession() as session:
        yield Requester(seen, site, f"http://127.0.0.1:{server.addresses[0][1]}", session)


ONE = "name: a, url: '{url}'"


async def health(site: Requester, path: str, method: str = "GET") -> tuple[int, str, dict[str, str], str]:
    """Status, reason phrase, headers and body of `/health/` and `path`, which is sent as it is."""

    def ask() -> tuple[int, str, dict[str, str], str]:
        connection = http.client.HTTPConnection(site.url.removeprefix("http://"), timeout=HANG_S)
        with closing(connection):
            connection.request(method, f"/health/{path}")
            answer = connection.getresponse()
            return answer.status, answer.reason, dict(answer.headers), answer.read().decode()

    return await asyncio.to_thread(ask)


async def test_the_health_of_a_target_is_an_answer_of_its_own() -> None:
    """Status, reason phrase, headers and body; the API tells the same."""
    closed = "name: ns/x y, url: '{url}', health: {{fail_open: false}}"
    async with requesting(ONE, closed) as site:
        status, phrase, headers, text = await health(site, "b")
        assert (status, phrase, headers["Prober-Health"]) == (200, "OK", "unknown")  # the prober is not ready
        assert text == "unknown: the prober does not know all of its targets yet\n"
        site.site.ready = True
        assert (await health(site, "b"))[::3] == (404, "no target of this name is configured\n")
        site.site.knows_targets = lambda: False
        assert (await health(site, "b"))[::3] == (200, text)
        site.site.knows_targets = lambda: True
        site.seen.fleet.shard, site.seen.fleet._elsewhere = Shard(0, 2), {"b"}
        status, _, _, text = await health(site, "b")
        assert (status, text.startswith("unknown: shard ")) == (200, True)
        await until(lambda: site.seen.probes("a") >= 3 <= site.seen.probes("ns/x y"))
        for name in ("a", "ns/x%20y", "ns%2Fx%20y"):
            status, phrase, headers, text = await health(site, name)
            assert (status, phrase) == (200, "up")
            assert (headers["Cache-Control"], headers["Prober-Health"]) == ("no-store", "healthy")
            assert text.startswith("healthy: failed probes: 0 of the last ")
        for name, expected in (("a", (200, "OK")), ("ns/x y", (503, "down"))):
            await site.ask("POST", f"/api/v1/pauses?target={name}")
            status, phrase, headers, text = await health(site, quote(name))
            assert (status, phrase, "Retry-After" in headers) == (*expected, expected[0] == 503)
            assert text.startswith("unknown: paused")
            assert site.seen.families.family(HEALTHY).of(name) == []
            await site.ask("DELETE", f"/api/v1/pauses?target={name}")
        runner = site.seen.fleet.runners["a"]
        runner.end(True)
        status, phrase, headers, text = await health(site, "a")
        assert (status, phrase, int(headers["Retry-After"]) >= 1) == (503, "down", True)
        assert text == "unhealthy: draining: its server is being ended\n"
        assert (await health(site, "a", "HEAD"))[::3] == (503, "")
        assert site.seen.families.value(HEALTHY, "a").value == 0.0
        targets = (await site.ask("GET", "/api/v1/targets")).data
        told = {target["name"]: target["health"] for target in targets}
        assert told["a"] == {"state": "unhealthy", "reason": "draining: its server is being ended"}
        assert told["ns/x y"]["state"] == "healthy"


DOCUMENT = json.loads(asset("openapi.json"))
OPERATIONS = [
    (method.upper(), path, operation)
    for path, methods in DOCUMENT["paths"].items()
    for method, operation in methods.items()
]
WRITES = [(method, path) for method, path, operation in OPERATIONS if operation["tags"] == ["write"]]


async def test_the_document_is_valid_and_complete() -> None:
    """By OpenAPI 3.1's own schema; it has every route of the API, and of actions also when they are refused."""
    validate(DOCUMENT)
    async with watched() as seen:
        site = Site(seen.fleet, seen.sweeps, seen.families, cast(Any, None), "", "")
        routes = sorted((method, path) for method, path, _ in site.api.routes())
    assert routes == sorted((method, path) for method, path, _ in OPERATIONS)
    for method, path, operation in OPERATIONS:
        assert (method, path) not in WRITES or {"403", "404"} <= set(operation["responses"])


def schema_of(path: str, method: str, status: int) -> Any:
    """The schema of an answer, with what it refers to."""
    reply = DOCUMENT["paths"][path][method.lower()]["responses"][str(status)]
    return {**reply["content"]["application/json"]["schema"], "components": DOCUMENT["components"]}


async def test_what_is_answered_is_what_is_documented() -> None:
    """Real answers over a real mock, each against its schema; no field that is not declared."""
    async with requesting(ONE) as site:
        await until(lambda: site.seen.probes("a") >= 3)
        for path in ("/api/v1/targets", "/api/v1/probes", "/api/v1/events", "/api/v1/sweeps", "/api/v1/openapi.json"):
            answer = await site.ask("GET", path)
            assert answer.status == 200, path
            jsonschema.validate(json.loads(answer.text), schema_of(path, "GET", 200))
        probe = await site.ask("POST", "/api/v1/probes?target=a")
        jsonschema.validate(json.loads(probe.text), schema_of("/api/v1/probes", "POST", 200))
        for method in ("POST", "DELETE"):
            answer = await site.ask(method, "/api/v1/pauses?target=a")
            jsonschema.validate(json.loads(answer.text), schema_of("/api/v1/pauses", method, 200))
        declared = DOCUMENT["components"]["schemas"]
        (target,) = (await site.ask("GET", "/api/v1/targets")).data
        assert set(target) == set(declared["TargetAnswer"]["properties"])
        assert set(probe.data) == set(declared["ProbeAnswer"]["properties"])


async def test_a_probe_on_request_is_shown_and_counted_nowhere() -> None:
    """Neither in series nor in outcomes nor in quantiles; it says of itself what it is."""
    async with requesting("name: a, url: '{url}', rate: 1/h") as site:
        await until(lambda: site.seen.probes("a") >= 1)
        counted, outcomes = site.seen.probes("a"), site.seen.outcomes("a")
        answer = await site.ask("POST", "/api/v1/probes?target=a")
        assert answer.status == 200
        assert (answer.data["outcome"], answer.data["on_request"], answer.data["target"]) == ("ok", True, "a")
        assert site.seen.probes("a") == counted
        assert site.seen.outcomes("a") == outcomes
        probes = (await site.ask("GET", "/api/v1/probes?target=a")).data
        assert [probe["on_request"] for probe in probes] == [True, False]
        assert "on request: not in any SLI" in (await site.ask("GET", "/")).text


async def test_the_last_probes_are_filtered() -> None:
    """By outcome and workload, on the page as in the API, a failure behind many successes too; a neighbour's stay apart."""
    async with requesting("name: a, url: '{url}', rate: 1/h", "name: b, url: '{url}', rate: 1/h") as site:
        await until(lambda: site.seen.probes("a") >= 1 and site.seen.probes("b") >= 1)
        history, other = (site.seen.fleet.find(name).find(TargetHistory) for name in "ab")  # type: ignore[union-attr]
        assert history is not None
        assert other is not None
        (sample,) = history.recent()
        added = 0

        def add(to: TargetHistory, outcome: Outcome, workload: str, detail: str) -> None:
            nonlocal added
            added += 1
            timeline = replace(sample.timeline, intended_ns=sample.timeline.intended_ns + added)
            to.add(
                replace(sample, target=to.name, outcome=outcome, workload=workload, detail=detail, timeline=timeline)
            )

        add(history, Outcome.HTTP_5XX, "chat", "the oldest")
        add(history, Outcome.INVALID, "chat", "not its fault")
        add(other, Outcome.RESET, "chat", "of the neighbour")
        for _ in range(110):
            add(history, Outcome.HTTP_429, "long", "often")
        limit = "limit=1000"

        async def details(query: str) -> set[str]:
            return {probe["detail"] for probe in (await site.ask("GET", f"/api/v1/probes?{limit}&{query}")).data}

        assert await details("target=a&outcome=failed") == {"the oldest", "often"}
        assert await details("target=a&outcome=failed&workload=chat") == {"the oldest"}
        assert await details("outcome=failed&workload=chat") == {"the oldest", "of the neighbour"}
        assert await details("target=a&outcome=invalid") == {"not its fault"}
        assert await details("target=a&workload=chat&outcome=") == {"the oldest", "not its fault"}
        assert await details("target=a&workload=unknown") == set()
        (only,) = (await site.ask("GET", "/api/v1/probes?limit=1&outcome=failed&workload=chat&target=a")).data
        assert only["detail"] == "the oldest"
        page = (await site.ask("GET", "/?target=a&outcome=failed&workload=chat")).text
        assert "the oldest" in page
        assert "not its fault" not in page
        fleet = (await site.ask("GET", "/?outcome=failed&workload=chat")).text
        assert "of the neighbour" in fleet
        for path in ("/", "/api/v1/probes"):
            answer = await site.ask("GET", f"{path}?outcome=nope")
            assert (answer.status, "outcome='nope' is not known; there are: failed, " in answer.text) == (400, True)
            assert (await site.ask("GET", f"{path}?workload={'w' * 201}")).status == 400


def line_of(site: Requester, name: str) -> TargetRunner:
    line = site.seen.fleet.find(name)
    assert line is not None
    return line


def on_request(site: Requester, now_s: float = 0.0) -> on_demand.OnRequest:
    """The sender of probes on request, with a stopped clock."""
    probes_on_request = site.site.api.on_request
    probes_on_request.now = lambda: now_s
    return probes_on_request


async def flooded() -> tuple[float, Counter[int], list[dict[str, Any]], float]:
    """Request 60 probes of one of two targets; the longest pause of the loop, statuses, the targets at the end, and failures."""
    victim, now_s = "url: '{url}', rate: 5/s, max_in_flight: 3", asyncio.get_running_loop().time
    slos = "{all: {signal: success, objective: 99%}}"
    async with requesting(f"name: a, {victim}", f"name: b, {victim}", slos=slos, mock=SLOW, admin=False) as site:
        await until(lambda: site.seen.probes("a") >= 1 and site.seen.probes("b") >= 1)
        # A second passes with each request: only the limits of probes on request hold.
        site.site.access.now = iter(range(10**6)).__next__
        pauses_s, flood = [0.0], list[asyncio.Task[Answer]]()
        async with asyncio.TaskGroup() as group:
            for _ in range(60):
                flood.append(group.create_task(site.ask("GET", "/probe?target=a")))
                begin_s = now_s()
                await asyncio.sleep(0.04)
                pauses_s.append(now_s() - begin_s - 0.04)
        await until(lambda: site.seen.probes("a") >= 10 and site.seen.probes("b") >= 10)
        targets = (await site.ask("GET", "/api/v1/targets")).data
        failures = sum(site.seen.count("llmslo_probe_failures_total", name) for name in ("a", "b"))
        return max(pauses_s), Counter(task.result().status for task in flood), targets, failures


async def test_a_flood_of_requests_for_probes_takes_nothing_from_the_schedule() -> None:
    """Targets that use half their in-flight cap: none of their probes is shed or late, and every SLO stays met, of neighbours too."""
    for _ in range(5):  # again where the machine stood still, which takes the rest of the cap
        pause_s, statuses, targets, failures = await flooded()
        if pause_s < 0.1:
            break
    for target in targets:
        assert set(target["outcomes"]) == {"ok"}, pause_s
        assert target["state"] == "ready"
        assert [(slo["slo"], slo["bad_events"]) for slo in target["slos"]] == [("all", 0)]
        assert target["slos"][0]["state"] != "missed"
    assert failures == 0
    assert set(statuses) == {200, 429}
    assert statuses[429] >= 40, statuses


async def test_probes_on_request_have_a_rate_for_the_whole_prober() -> None:
    """A burst, then one a second, by GET and POST together; refused ones say when to try again, and nothing is sent."""
    async with requesting("name: a, url: '{url}', rate: 1/h", "name: b, url: '{url}', rate: 1/h") as site:
        await until(lambda: site.seen.probes("a") >= 1 and site.seen.probes("b") >= 1)
        on_request(site)
        assert (await site.ask("GET", "/probe?target=none")).status == 404  # takes nothing of the rate
        asks = [("GET", "/probe?target=a"), ("POST", "/api/v1/probes?target=b")] * 3
        answers = [await site.ask(*ask) for ask in asks]
        assert [answer.status for answer in answers] == [200] * on_demand.PROBES_BURST + [429]
        assert (answers[-1].headers["Retry-After"], "nothing was sent" in answers[-1].text) == ("2", True)
        recent = len(site.seen.recent("a"))
        assert (await site.ask("GET", "/probe?target=a")).status == 429
        assert len(site.seen.recent("a")) == recent
        on_request(site, now_s=1.0)
        assert [(await site.ask("GET", "/probe?target=a")).status for _ in range(2)] == [200, 429]


async def test_a_probe_on_request_that_does_not_end_may_have_been_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer does not say that nothing was sent, and the probe's slot is free again."""

    async def never(*_: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(on_demand, "run_probe", never)
    async with requesting(ONE + ", timeouts: {{connect: 50ms, first_token: 50ms, stall: 50ms, total: 50ms}}") as site:
        await until(lambda: site.seen.probes("a") >= 1)
        for _ in range(on_demand.MAX_IN_FLIGHT_PER_TARGET + 1):
            answer = await site.ask("POST", "/api/v1/probes?target=a")
            assert (answer.status, "a request may have been sent" in answer.text) == (504, True)
            assert "nothing" not in answer.text
        assert "probe_success 0" in (await site.ask("GET", "/probe?target=a")).text


async def test_probes_on_request_are_two_at_a_time_of_a_target() -> None:
    """A third is refused, one of another target is not; ended ones give their slots back."""
    async with requesting("name: a, url: '{url}', rate: 1/h", "name: b, url: '{url}', rate: 1/h", mock=SLOW) as site:
        await until(lambda: site.seen.probes("a") >= 1 and site.seen.probes("b") >= 1)
        on_request(site)
        answers = await asyncio.gather(*(site.ask("GET", f"/probe?target={name}") for name in "aaab"))
        assert sorted(answer.status for answer in answers[:3]) == [200, 200, 429]
        assert answers[3].status == 200
        assert (await site.ask("GET", "/probe?target=a")).status == 200


@pytest.mark.parametrize("url", ["'{url}'", "'http://127.0.0.1:1/v1', model: m, starting_timeout: 0s"])
async def test_a_probe_on_request_changes_nothing_of_its_target(url: str) -> None:
    """Not state, failures in a row, in-flight count, identity or warm-up, whether it ends well or not."""
    async with requesting(f"name: a, url: {url}, rate: 1/h, warmup: 5") as site:
        await until(lambda: site.seen.probes("a") >= 1)

        async def told() -> dict[str, Any]:
            (target,) = (await site.ask("GET", "/api/v1/targets")).data
            return {
                name: target[name]
                for name in ("state", "reason", "health", "outcomes", "model", "engine", "no_latency")
            }

        before = await told()
        assert before["no_latency"]
        answers = [await site.ask("POST", "/api/v1/probes?target=a") for _ in range(4)]
        assert {answer.data["outcome"] for answer in answers} == ({"ok"} if "{url}" in url else {"connect_refused"})
        assert not any(answer.data["warm_up"] for answer in answers)
        assert await told() == before
        assert not line_of(site, "a").target.in_flight


async def test_a_probe_on_request_is_charged_what_it_used() -> None:
    """To the target's own budget, and settled by the server's count; one that never left costs nothing."""
    budget = "budget: {{tokens_per_day: 10000000}}"
    refused = f"name: b, url: 'http://127.0.0.1:1/v1', starting_timeout: 0s, rate: 1/h, model: m, {budget}"
    async with requesting(f"name: a, url: '{{url}}', rate: 1/h, {budget}", refused) as site:
        await until(lambda: site.seen.probes("a") >= 1 and site.seen.probes("b") >= 1)
        for name in ("a", "b"):
            target = line_of(site, name).target
            before = target.budgets["tokens"].spent(target.clock.now_ns())
            answer = await site.ask("POST", f"/api/v1/probes?target={name}")
            used = target.budgets["tokens"].spent(target.clock.now_ns()) - before
            usage = answer.data["usage"]
            assert used == (usage["prompt_tokens"] + usage["completion_tokens"] if name == "a" else 0)
            assert (used > 0) == (name == "a")


HOURLY = "probes: [{workload: phase_256_128, rate: 1/h}]"


async def test_probes_on_request_use_only_what_the_schedule_leaves_of_a_budget() -> None:
    """Then each ends as over_budget and sends nothing, while the schedule goes on; the page says so too."""
    # Requests of equal length: where one does not fit, the next one does not either.
    spec = specs(f"name: a, url: 'http://h', {HOURLY}, budget: {{tokens_per_day: 10000000}}")[0]
    needed = needs_of(spec)["tokens"].max_over(25 * 3600)  # hours that count
    limit = round(needed + 4 * 400)  # a few probes
    hourly = HOURLY.replace("{", "{{").replace("}", "}}")
    async with requesting(f"name: a, url: '{{url}}', {hourly}, budget: {{{{tokens_per_day: {limit}}}}}") as site:
        await until(lambda: site.seen.probes("a") >= 1)
        answers = []
        for _ in range(12):
            site.site.api.on_request._rate = Rates(1.0, 1)
            answers.append((await site.ask("POST", "/api/v1/probes?target=a")).data)
        outcomes = [answer["outcome"] for answer in answers]
        assert outcomes[0] == "ok"
        assert outcomes[-1] == "over_budget"
        assert "schedule leaves" in answers[-1]["detail"]
        site.site.api.on_request._rate = Rates(1.0, 1)
        page = await site.ask("GET", "/probe?target=a")
        assert page.status == 200
        assert "probe_success 0.0" in page.text
        assert 'probe_outcome{outcome="over_budget"} 1.0' in page.text
        target = line_of(site, "a").target
        assert target.budgets["tokens"].spent(target.clock.now_ns()) < 4 * 400 + needed / 24 * 3
        assert target.reserve(256, 128) is not None  # a probe of the schedule


HOSTS = {
    200: (
        "10.1.2.3:9742", "10.1.2.3", "[fd00::1]:9742", "[::1]", "localhost:9742", "LOCALHOST", "llm-slo-prober:9742",
        "llm_slo_prober", "llm-slo-prober.monitoring.svc", "llm-slo-prober.monitoring.svc:9742",
        "llm-slo-prober.monitoring.svc.cluster.local", "llm-slo-prober.monitoring.svc.cluster.local.:9742",
        "prober.corp.internal", "nas.home.arpa", "prober.local", "a.localhost", "prober.example", "PROBER.example:443",
        "the.machine.example:9742",
    ),
    403: (
        "evil.example", "evil.example:9742", "10.1.2.3.evil.example", "localhost.evil.example", "svc.evil.example",
        "a.svc.cluster.local.evil.example", "prober.example.evil.example", "evilprober.example", "a.notlocal", "127.1",
        "127.0.0.1.nip.io:9742", "evil.example.",
    ),
    400: (
        "[", "[::1", "::1", "[::1]x", "[evil]", "[1.2.3.4]", "a@10.1.2.3", "10.1.2.3/x", "10.1.2.3?", "a b", "a:b", "a:1:2",
        "a:123456", "ä.local", ".", "a," + "b", "x" * 300,
    ),
}  # fmt: skip


@pytest.mark.parametrize("status", HOSTS)
async def test_a_probe_is_not_for_a_name_of_another_site(status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prometheus may by every name that it has for a prober; a page elsewhere may not, by any name (DNS rebinding)."""
    monkeypatch.setattr("socket.gethostname", lambda: "The.Machine.example")
    async with requesting(
        "name: a, url: '{url}', rate: 1/h", external="https://prober.example/slo", admin=False
    ) as site:
        await until(lambda: site.seen.probes("a") >= 1)
        site.site.api.on_request._rate = Rates(1e6, 1_000)
        for host in HOSTS[status]:
            answer = await site.ask("GET", "/probe?target=a", Host=host)
            assert answer.status == status, (host, answer.text)
            assert status != 403 or "--web.external-url" in answer.text
            health = await site.ask("GET", "/-/healthy", Host=host)
            assert health.status in (200, 400)  # 400: of the server's own parser


async def test_a_paused_target_is_sent_nothing() -> None:
    """Until it is resumed: no probe of the schedule, none on request, no sweep; over a reload too, and it is told everywhere."""
    async with requesting(ONE) as site:
        await until(lambda: site.seen.probes("a") >= 3)
        begun = await site.ask("POST", "/api/v1/pauses?target=a")
        assert begun.data["paused"] > 1.6e9
        line = site.seen.fleet.find("a")
        assert line is not None
        await until(lambda: not line.target.in_flight)
        async with asyncio.timeout(HANG_S):  # what had begun to connect may still end
            before = -1.0
            while site.seen.probes("a") != before:
                before = site.seen.probes("a")
                await site.seen.clock.sleep_until(site.seen.clock.now_ns() + 200_000_000)  # ten due times
        refused = await site.ask("POST", "/api/v1/probes?target=a")
        assert (refused.status, refused.text) == (409, "nothing was sent: target 'a' is paused\n")
        assert (await site.ask("GET", "/probe?target=a")).status == 409
        assert (await site.ask("GET", "/api/v1/targets")).data[0]["paused"] == begun.data["paused"]
        assert "paused on request" in [event["text"] for event in (await site.ask("GET", "/api/v1/events")).data]
        assert "No probes and no sweeps start until it is resumed" in (await site.ask("GET", "/")).text
        spec = line.target.spec
        await site.seen.reconcile(specs(f"name: a, url: '{spec.url}', rate: 60/s"), 1.0)
        again = site.seen.fleet.find("a")
        assert again is not None
        assert again is not line
        assert again.target.paused_unix_s == begun.data["paused"]
        assert (await site.ask("DELETE", "/api/v1/pauses?target=a")).data == {"name": "a", "paused": None}
        await until(lambda: site.seen.probes("a") > before)


@pytest.mark.parametrize(("method", "path"), WRITES)
async def test_nothing_can_be_changed_unless_it_is_allowed(method: str, path: str) -> None:
    """Without --web.enable-admin-api each action is refused, in words that name the flag."""
    async with requesting(ONE, admin=False) as site:
        answer = await site.ask(method, f"{path}?target=a")
        assert answer.status == 403
        assert "--web.enable-admin-api" in answer.text
        line = site.seen.fleet.find("a")
        assert line is not None
        assert line.target.paused_unix_s is None


@pytest.mark.parametrize(
    ("headers", "is_allowed"),
    [
        ({}, True),
        ({"Sec-Fetch-Site": "none"}, True),
        ({"Sec-Fetch-Site": "same-origin"}, True),
        ({"Sec-Fetch-Site": "same-origin", "Origin": "http://behind.a.proxy"}, True),
        ({"Origin": "{own}"}, True),
        ({"Origin": "https://prober.example"}, True),
        ({"Sec-Fetch-Site": "cross-site"}, False),
        ({"Sec-Fetch-Site": "cross-site", "Origin": "https://evil.example"}, False),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}, False),
        ({"Sec-Fetch-Site": "CROSS-SITE"}, False),
        ({"Sec-Fetch-Site": "same-site"}, False),
        ({"Sec-Fetch-Site": "same-site", "Origin": "http://other.prober.example"}, False),
        ({"Origin": "https://evil.example"}, False),
        ({"Origin": "null"}, False),
        ({"Origin": "http://["}, False),
        ({"Origin": "https://prober.example.evil.example"}, False),
        ({"Origin": "http://prober.example"}, False),
    ],
)
async def test_another_sites_page_can_probe_and_change_nothing(headers: dict[str, str], *, is_allowed: bool) -> None:
    """A browser says where a request comes from; programs say nothing, and may."""
    async with requesting("name: a, url: '{url}', rate: 1/h", external="https://prober.example/slo") as site:
        await until(lambda: site.seen.probes("a") >= 1)
        own = {name: value.format(own=site.url) if "{own}" in value else value for name, value in headers.items()}
        for method, path in (
            ("GET", "/probe?target=a"),
            ("POST", "/-/reload"),
            ("PUT", "/-/reload"),
            ("POST", "/api/v1/pauses?target=a"),
        ):
            answer = await site.ask(method, path, **own)
            assert answer.status == (200 if is_allowed else 403), answer.text
            assert is_allowed or "--web.external-url" in answer.text
        is_paused = (await site.ask("GET", "/api/v1/targets")).data[0]["paused"] is not None
        assert is_paused is is_allowed


async def test_reading_changes_nothing() -> None:
    """No GET of the API, with whatever parameters, pauses, probes or sweeps; and an action has no GET."""
    async with requesting("name: a, url: '{url}', rate: 1/h") as site:
        await until(lambda: site.seen.probes("a") >= 1)
        before = len(site.seen.recent("a"))
        for _, path, _ in OPERATIONS:
            await site.ask("GET", path.replace("{id}", "x") + "?target=a&method=POST")
        assert (await site.ask("GET", "/api/v1/pauses?target=a")).status == 405
        assert (await site.ask("GET", "/-/reload")).status == 405
        assert len(site.seen.recent("a")) == before
        line = site.seen.fleet.find("a")
        assert line is not None
        assert line.target.paused_unix_s is None


@pytest.mark.parametrize(
    "path", ["/", "/metrics", "/nowhere", "/static/page.js", "/api/v1/targets", "/runbooks/LLMProberDown"]
)
async def test_every_answer_is_guarded(path: str) -> None:
    """Nothing may be loaded from elsewhere, nothing framed, no type guessed; no inline script anywhere."""
    async with requesting(ONE) as site:
        answer = await site.ask("GET", path)
        assert {name: answer.headers.get(name) for name in HEADERS} == HEADERS
        policy = dict(part.strip().split(" ", 1) for part in HEADERS["Content-Security-Policy"].split(";"))
        assert (policy["default-src"], policy["script-src"], policy["frame-ancestors"]) == (
            "'none'",
            "'self'",
            "'none'",
        )


async def test_all_is_below_the_prefix() -> None:
    """With and without its slash; what the page loads is found from there, and its addresses change with what is in them."""
    async with requesting(ONE, prefix="/slo/prober") as site:
        turned = await site.ask("GET", "/slo/prober")
        assert (turned.status, turned.headers["Location"]) == (308, "prober/")
        page = (await site.ask("GET", "/slo/prober/")).text
        style = page.split('rel="stylesheet" href="')[1].split('"')[0]
        answer = await site.ask("GET", f"/slo/prober/{style}")
        assert answer.status == 200
        assert "immutable" in answer.headers["Cache-Control"]
        assert (await site.ask("GET", "/slo/prober/static/page.css")).headers["Cache-Control"] == "no-cache"
        assert (await site.ask("GET", "/slo/prober/static/..%2f__init__.py")).status == 404
        assert (await site.ask("GET", "/")).status == 404


async def test_the_page_filters_and_finds() -> None:
    """By every word, in name, model, engine and state; a target that there is not is a 404 with those that there are."""
    async with requesting("name: alpha, url: '{url}', rate: 1/h", "name: beta, url: '{url}', rate: 1/h") as site:
        await until(lambda: site.seen.probes("alpha") >= 1 and site.seen.probes("beta") >= 1)
        both = (await site.ask("GET", "/")).text
        assert both.count('<li class="card') == 2
        one = (await site.ask("GET", "/?q=READY+alp")).text
        assert (one.count('<li class="card'), "1 of 2 targets" in one) == (1, True)
        assert '<span id="target"><bdi>beta</bdi>' in (await site.ask("GET", "/?target=beta")).text
        lost = await site.ask("GET", "/?target=%3Cb%3E")
        assert lost.status == 404
        assert "<bdi>&lt;b&gt;</bdi>" in lost.text
        assert "alpha" in lost.text
        assert (await site.ask("GET", "/?page=minus+one")).status == 200
        assert (await site.ask("GET", "/?page=99")).status == 200


async def test_labels_are_shown_and_found() -> None:
    """Of its target only, as `name:value`, on the page and in the API; one without a value is none."""
    labels = 'labels: {{team: "R&D <b>search", env: prod, tier: ""}}'
    async with requesting(
        "name: alpha, url: '{url}', rate: 1/h, " + labels, "name: beta, url: '{url}', rate: 1/h, labels: {{env: dev}}"
    ) as site:
        answer = await site.ask("GET", "/api/v1/targets")
        jsonschema.validate(json.loads(answer.text), schema_of("/api/v1/targets", "GET", 200))
        assert [target["labels"] for target in answer.data] == [
            {"env": "prod", "team": "R&D <b>search"},
            {"env": "dev"},
        ]
        shown = "<bdi>env:prod</bdi> · <bdi>team:R&amp;D &lt;b&gt;search</bdi>"
        page = (await site.ask("GET", "/?target=alpha")).text
        assert (shown in page, "env:dev" in page, "tier" in page) == (True, False, False)
        for query in ("env:prod", "Team:r%26d", "env:+search"):
            found = (await site.ask("GET", f"/?q={query}")).text
            assert (found.count('<li class="card'), shown in found) == (1, True), query
        assert (await site.ask("GET", "/?q=env:")).text.count('<li class="card') == 2
        assert (await site.ask("GET", "/?q=env:pro+team:chat")).text.count('<li class="card') == 0


async def test_the_page_lets_others_run() -> None:
    """However many targets: at least one turn of other work a target, an SLO or a card."""
    async with requesting(*(f"name: t{i}, url: '{{url}}', rate: 1/h" for i in range(30))) as site:
        turns = 0

        async def count_turns() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        view = await site.site.views.page("", 1, "", admin=False)
        assert view is not None
        site.site.views.forget()
        other = asyncio.create_task(count_turns())
        await site.site.views.page("", 1, "", admin=False)
        other.cancel()
        assert turns >= 30


async def test_the_result_of_a_sweep_is_served_and_drawn() -> None:
    """In brief, in full, in words, and as curves over load on the target's page."""
    slo = "{quick: {signal: ttft, threshold: 1s, objective: 99%}}"
    async with requesting(ONE + ", sweep: {{max_rate: 5/s}}", slos=slo) as site:
        await until(lambda: site.seen.probes("a") >= 1)
        runner = site.seen.fleet.runners["a"]
        sweeps, result = runner.find(TargetSweeps), sweep("c0ffee")
        assert sweeps is not None
        await sweeps.results.keep(replace(result, target=replace(result.target, url=runner.spec.url)))
        brief = await site.ask("GET", "/api/v1/sweeps")
        jsonschema.validate(json.loads(brief.text), schema_of("/api/v1/sweeps", "GET", 200))
        assert brief.data[0]["id"] == "c0ffee"
        answer = await site.ask("GET", "/api/v1/sweeps/c0ffee")
        jsonschema.validate(json.loads(answer.text), schema_of("/api/v1/sweeps/{id}", "GET", 200))
        (target,) = (await site.ask("GET", "/api/v1/targets")).data
        assert target["capacity"].startswith("ttft: estimated knee 12/s, 90% interval 10 to 13")
        page = (await site.ask("GET", "/")).text
        assert page.count('<svg class="chart"') == 4
        assert "TTFT over load" in page
        assert "ttft: estimated knee 12/s, 90% interval 10 to 13" in page
        assert (await site.ask("GET", "/")).text.count('<svg class="chart"') == 4


CHART = re.compile(r'<svg class="chart".*?</svg>')


async def test_an_aborted_sweep_stands_beside_the_last_good_one() -> None:
    """In the API and on the page: the capacity, with its time, and its curves stay; why the later one ended is told."""
    slo = "{quick: {signal: ttft, threshold: 1s, objective: 99%}}"
    async with requesting(ONE + ", sweep: {{max_rate: 5/s}}", slos=slo) as site:
        await until(lambda: site.seen.probes("a") >= 1)
        runner = site.seen.fleet.runners["a"]
        sweeps, good = runner.find(TargetSweeps), sweep("c0ffee")
        assert sweeps is not None
        good = replace(good, target=replace(good.target, url=runner.spec.url))
        aborted = replace(
            good, id="dead", capacities=(), stages=good.stages[:1], stop="guard", stop_detail="alerts fire"
        )
        aborted = replace(aborted, started_unix_s=good.ended_unix_s + 60, ended_unix_s=good.ended_unix_s + 90)
        await sweeps.results.keep(good)
        curves = CHART.findall((await site.ask("GET", "/")).text)
        await sweeps.results.keep(aborted)
        (target,) = (await site.ask("GET", "/api/v1/targets")).data
        assert target["capacity"].startswith("ttft: estimated knee 12/s")
        assert (target["last_sweep"]["id"], target["last_sweep"]["stop_detail"]) == ("dead", "alerts fire")
        # "/" is shared for a while after it was asked for.
        page = (await site.ask("GET", "/?target=a")).text
        assert len(curves) == 4
        assert CHART.findall(page) == curves
        assert "Of the sweep that ended at 2025-10-09 08:5" in page
        assert "The last sweep found no capacity" in page
        assert "stopped by an external condition: alerts fire" in page


async def test_an_answer_that_is_no_utf_8_is_answered_all_the_same() -> None:
    """Half a character, a number beyond 64 bits: as JSON can say them."""
    async with requesting(ONE) as site:
        await until(lambda: site.seen.probes("a") >= 1)
        last = site.seen.recent("a")[0]
        odd = replace(last.timeline, usage=Usage(10**30, 1))
        history = site.seen.fleet.runners["a"].find(TargetHistory)
        assert history is not None
        history.add(replace(last, detail="\ud800", timeline=odd, on_request=True))
        probes = (await site.ask("GET", "/api/v1/probes?target=a")).data
        assert ("\ud800", 10**30) in [(probe["detail"], probe["usage"]["prompt_tokens"]) for probe in probes]
        assert (await site.ask("GET", "/?target=a")).status == 200


async def test_a_target_of_another_shard_is_told_where_it_is() -> None:
    """It is configured, only not here; what nobody has is not."""
    names = [f"t{index}" for index in range(8)]
    mine, foreign = ([name for name in names if (shard_of(name, 2) == 0) is own] for own in (True, False))
    async with requesting(f"name: {mine[0]}, url: '{{url}}'") as site:
        site.seen.fleet.shard = Shard(0, 2)
        await site.seen.reconcile(specs(*(f"name: {name}, url: 'http://127.0.0.1:1'" for name in foreign)), 1.0)
        answer = await site.ask("GET", f"/probe?target={foreign[0]}")
        message = f"target '{foreign[0]}' is configured, but shard 1/2 has it, and this is 0/2\n"
        assert (answer.status, answer.text) == (404, message)
        answer = await site.ask("GET", f"/probe?target={mine[0]}")
        assert (answer.status, answer.text) == (404, f"target '{mine[0]}' is not configured; known: none\n")


@pytest.mark.parametrize(
    ("address", "advice"),
    [
        ("9811", "write host:9811 or :9811"),
        ("localhost", "write host:port or :port"),
        (":70000", "with a port up to 65535"),
    ],
)
async def test_an_address_to_listen_on_has_a_host_or_a_colon(address: str, advice: str) -> None:
    """A number alone may be meant as a port, and would open the pages to everybody."""
    async with watched() as seen:
        site = Site(seen.fleet, seen.sweeps, seen.families, cast(Any, None), "", "")
        with pytest.raises(ValueError, match=advice):
            await site.serve(address)
