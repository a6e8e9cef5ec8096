"""The daemon's page for Prometheus: which form, and whole."""

import asyncio
import gzip
from typing import Any, cast

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics
from prometheus_client.parser import text_string_to_metric_families as read_text

from prober.exposition.families import AnySeries, Form, Registry, Series
from prober.web import answers
from prober.web.site import Site

PROTOBUF = "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited"
PROMETHEUS = "application/openmetrics-text;version=1.0.0;q=0.8,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"


def site(histograms: int) -> Site:
    declared: AnySeries = Series("y_seconds", "histogram", "y", ("a",))
    registry = Registry([declared])
    for i in range(histograms):
        registry.histogram(declared, (0.1, 1.0, *map(float, range(2, 50))), str(i)).observe(0.5)
    return Site(cast(Any, None), cast(Any, None), registry, cast(Any, None), "", "")


async def answered(tested: Site, **headers: str) -> tuple[web.Response, bytes]:
    """The answer, and its body without Content-Encoding."""
    answer = await answers.complete(await tested.metrics(make_mocked_request("GET", "/metrics", headers)))
    body = cast(bytes, answer.body)
    return answer, gzip.decompress(body) if "Content-Encoding" in answer.headers else body


def names(body: bytes) -> list[str]:
    """Of the delimited MetricFamily messages, whose first field is the name; the last ends where the body does."""
    names_, at = [], 0
    while at < len(body):
        length = shift = 0
        while True:
            byte = body[at]
            length, at, shift = length | (byte & 127) << shift, at + 1, shift + 7
            if byte < 128:
                break
        assert body[at] == 0x0A
        names_.append(body[at + 2 : at + 2 + body[at + 1]].decode())
        at += length
    assert at == len(body)
    return names_


async def test_prometheus_gets_the_form_it_prefers() -> None:
    """With native histograms on it names protobuf first, else OpenMetrics; the process's own series are in each form."""
    own = {"y_seconds", "process_resident_memory_bytes", "python_info"}
    answer, body = await answered(site(3), Accept=f"{PROTOBUF},{PROMETHEUS}")
    assert answer.headers["Content-Type"] == Form.PROTOBUF.value
    assert own | {"process_cpu_seconds_total", "python_gc_collections_total"} <= set(names(body))
    assert len(names(body)) == len(set(names(body)))
    answer, body = await answered(site(3), Accept=PROMETHEUS)
    assert answer.headers["Content-Type"] == Form.OPENMETRICS.value
    families = read_openmetrics(body.decode())  # type: ignore[no-untyped-call]
    assert own | {"process_cpu_seconds"} <= {family.name for family in families}
    for headers in ({}, {"Accept": "*/*"}, {"Accept": f"{PROTOBUF};q=0.1,text/plain"}):
        answer, body = await answered(site(3), **headers)
        assert answer.headers["Content-Type"] == Form.TEXT.value
        assert own <= {family.name for family in read_text(body.decode())}


async def test_a_page_that_takes_long_lets_others_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """After each step of its rendering, as a standing loop reads no answers."""
    monkeypatch.setattr(answers, "MAX_STEP_S", 0.0)
    task, turns = asyncio.create_task(answers.complete(answers.Pieces([b"x"] * 20, {}))), 0
    while not task.done():
        await asyncio.sleep(0)
        turns += 1
    assert turns >= 20


@pytest.mark.parametrize("name", ["LLMProberDown", "LLMProberDown.md"])
async def test_a_runbook_is_served_by_the_name_of_its_alert(name: str) -> None:
    """With and without `.md`, as runbooks link to each other."""
    answer = await site(0).runbook(make_mocked_request("GET", f"/runbooks/{name}", match_info={"alert": name}))
    assert (answer.status, answer.content_type) == (200, "text/html")
    assert "What it means" in (answer.text or "")


async def test_the_runbooks_are_listed() -> None:
    """At the folder; what leads to the repository's documentation, which the prober does not have, is no link."""
    folder = await site(0).slash(make_mocked_request("GET", "/x/runbooks"))
    assert (folder.status, folder.headers["Location"]) == (308, "runbooks/")
    answer = await site(0).runbook(make_mocked_request("GET", "/runbooks/", match_info={"alert": ""}))
    assert answer.status == 200
    assert '<a href="LLMProberDown.md">' in (answer.text or "")
    assert "../../docs" not in (answer.text or "")


@pytest.mark.parametrize("name", ["none", "README", "../runbooks/LLMProberDown"])
async def test_only_runbooks_of_alerts_are_served(name: str) -> None:
    """Any other name, paths included, is answered with 404 and the list of alerts."""
    answer = await site(0).runbook(make_mocked_request("GET", "/runbooks/x", match_info={"alert": name}))
    assert answer.status == 404
    assert "LLMErrorBudgetBurn" in (answer.text or "")
