"""The client of the Kubernetes API against a server that refuses requests."""

import tracemalloc

import orjson
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from prober.net import kubernetes
from prober.net.kubernetes import Api, Json, KubernetesApiError, Unreachable


async def refused_pause_s(headers: dict[str, str], text: str) -> float:
    """The pause that the client reads from a refusal."""

    async def refuse(_: web.Request) -> web.Response:
        return web.Response(status=429, text=text, headers=headers)

    app = web.Application()
    app.router.add_get("/api", refuse)
    async with TestServer(app) as server:
        api = Api(str(server.make_url("")))
        with pytest.raises(KubernetesApiError) as raised:
            await api.get("/api")
        await api.close()
    return raised.value.retry_after_s


@pytest.mark.parametrize(
    ("header", "details", "retry_after_s"),
    [
        ("7", None, 7.0),
        ("7", 9, 9.0),
        ("3600", None, 30.0),
        ("", 3600, 30.0),
        ("٧", None, 0.0),
        ("inf", None, 0.0),
        ("9" * 400, None, 0.0),
        ("", 10**400, 0.0),
        ("7", -5, 7.0),
        ("Fri, 31 Dec 1999 23:59:59 GMT", None, 0.0),
        ("Fri, 31 Dec 2100 23:59:59 GMT", None, 0.0),
    ],
)
async def test_only_a_time_of_at_most_a_year_is_a_retry_after(
    header: str, details: int | None, retry_after_s: float
) -> None:
    """Seconds or a date in the header, seconds in the Status object."""
    text = "{}" if details is None else f'{{"details": {{"retryAfterSeconds": {details}}}}}'
    assert await refused_pause_s({"Retry-After": header} if header else {}, text) == retry_after_s


async def test_a_date_is_a_retry_after_by_the_clock_of_the_server() -> None:
    """That clock may be wrong by years."""
    dates = {"Retry-After": "Fri, 07 Jan 2000 00:00:09 GMT", "Date": "Fri, 07 Jan 2000 00:00:00 GMT"}
    assert await refused_pause_s(dates, "{}") == 9.0


def pages_of(objects: int | None, size: int = 0) -> web.Application:
    """A collection of so many objects, None: without end, each with `size` bytes that nobody needs."""

    async def page(request: web.Request) -> web.Response:
        start = int(request.query.get("continue", "0"))
        end = start + int(request.query["limit"])
        items = [
            {"metadata": {"name": str(number), "annotations": {"filler": "x" * size}}}
            for number in range(start, end if objects is None else min(end, objects))
        ]
        metadata = {"resourceVersion": "7"}
        if objects is None or end < objects:
            metadata["continue"] = str(end)
        return web.json_response({"metadata": metadata, "items": items})

    app = web.Application()
    app.router.add_get("/pods", page)
    return app


async def test_a_long_list_is_in_memory_one_page_at_a_time() -> None:
    """3,000 objects of 20 kB, which are 60 MB."""
    names: list[str] = []
    async with TestServer(pages_of(3_000, 20_000)) as server:
        api = Api(str(server.make_url("")))
        tracemalloc.start()
        try:
            version = await api.list("/pods", lambda item: names.append(item["metadata"]["name"]))
            _, peak_bytes = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
            await api.close()
    assert version == "7"
    assert names == [str(number) for number in range(3_000)]
    assert peak_bytes < 20e6


async def test_a_list_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kubernetes, "MAX_OBJECTS", 1_000)
    taken: list[Json] = []
    async with TestServer(pages_of(None)) as server:
        api = Api(str(server.make_url("")))
        with pytest.raises(Unreachable, match="more than 1,000 objects"):
            await api.list("/pods", taken.append)
        await api.close()
    assert len(taken) == 1_000


@pytest.mark.parametrize("path", ["/pods", "/watched"])
async def test_a_response_of_very_many_values_is_refused(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They would take thirty times the memory of their text: 12 MB of one pod took 444 MB. A response beside the limit is read."""
    monkeypatch.setattr(kubernetes, "MAX_VALUES", 1_000)

    def item(values: int) -> Json:
        return {"metadata": {"name": "a", "managedFields": [{}] * values}}

    async def answer(request: web.Request) -> web.Response:
        if request.path == "/watched":
            return web.Response(body=orjson.dumps({"type": "ADDED", "object": item(values)}) + b"\n")
        return web.json_response({"metadata": {"resourceVersion": "7"}, "items": [item(values)]})

    async def read() -> None:
        if path == "/pods":
            await api.list(path, names.append)
        else:
            names.extend([event.object async for event in api.watch(path, version="7")])

    names: list[Json] = []
    app = web.Application()
    app.router.add_get("/{any:.*}", answer)
    async with TestServer(app) as server:
        api = Api(str(server.make_url("")))
        values = 400
        await read()
        assert len(names) == 1
        values = 2_000
        with pytest.raises(Unreachable, match="more than 1,000 values"):
            await read()
        await api.close()
