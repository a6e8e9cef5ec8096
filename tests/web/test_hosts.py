"""By which names the site is asked: a name of another site may lead to the prober (DNS rebinding).

The rows of the tables are (Host, status of the page and the API, status of metrics).
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from prober.web.site import Site, external_address
from tests.web.listening import listening

EXTERNAL = "https://prober.example/slo"
PAGES = ("/", "/api/v1/targets", "/api/v1/openapi.json", "/static/page.js", "/runbooks/LLMProberDown")
OF_OTHERS = ["evil.example", "evil.example:9742", "127.0.0.1.nip.io", "localhost.evil.example", "evil.example."]
OWN = ["127.0.0.1", "127.0.0.1:9742", "localhost:9742", "LOCALHOST", "a.localhost", "[::1]:9742", "127.0.0.2"]
# Names that no site can have: of a kubelet, a Service, or a proxy beside the prober that keeps the Host of Prometheus.
PRIVATE = ["10.1.2.3:9742", "[fd00::1]:9742", "llm-slo-prober:9742", "llm-slo-prober.monitoring.svc"]
LOCAL = [
    *((host, 200, 200) for host in OWN),
    *((host, 403, 200) for host in PRIVATE),
    *((host, 403, 403) for host in OF_OTHERS),
]


@asynccontextmanager
async def site_of(listen: str, external: str = "", prefix: str = "") -> AsyncIterator[tuple[Site, int]]:
    address = external_address(external) if external else ""
    one = "name: a, url: 'http://127.0.0.1:1', rate: 1/h"
    async with listening(one, external=address, prefix=prefix, listen=listen) as (_, site, server):
        yield site, int(server.addresses[0][1])


async def ask(port: int, path: str, host: str | None, method: str = "GET", more: str = "") -> tuple[int, str]:
    """(status, text after the head) of an answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    names = f"HTTP/1.1\r\nHost: {host}" if host is not None else "HTTP/1.0"
    writer.write(f"{method} {path} {names}\r\nConnection: close\r\n{more}\r\n".encode())
    head, _, text = (await reader.read()).decode().partition("\r\n\r\n")
    writer.close()
    return int(head.split()[1]), text


async def check(port: int, host: str, page: int, metrics: int, paths: tuple[str, ...] = PAGES) -> None:
    for path in paths:
        status, text = await ask(port, path, host)
        assert status == page, (host, path)
        assert status == 200 or ("DNS rebinding" in text and "--web.external-url" in text)
    assert (await ask(port, "/metrics", host))[0] == metrics, host
    assert (await ask(port, "/-/healthy", host))[0] == 200, host
    assert (await ask(port, "/health/a", host))[0] in (200, 503), host


async def test_a_listener_on_loopback_answers_to_its_own_names_only() -> None:
    """Another name leads here only if its owner, or a proxy, makes it do so. Health is for all; an unknown path tells nothing."""
    async with site_of("127.0.0.1:0") as (_, port):
        for host, page, metrics in LOCAL:
            await check(port, host, page, metrics)
        for path in ("/", "/probe?target=a"):
            assert (await ask(port, path, None))[0] == 200  # HTTP/1.0: no browser
        for method in ("HEAD", "OPTIONS", "POST", "DELETE"):
            assert (await ask(port, "/api/v1/targets", "evil.example", method))[0] == 403
        assert (await ask(port, "/nowhere", "evil.example"))[0] == 403
        assert (await ask(port, "/probe?target=a", "evil.example"))[0] == 403
        same_origin = "Sec-Fetch-Site: same-origin\r\n"
        assert (await ask(port, "/", "evil.example", more=same_origin))[0] == 403


async def test_a_page_of_another_name_learns_of_a_targets_health_only_the_state() -> None:
    """The reason names what the page shows."""
    async with site_of("127.0.0.1:0") as (_, port):
        assert ":" not in (await ask(port, "/health/a", "evil.example"))[1]
        for host in ("localhost", "10.1.2.3:9742"):
            assert ": " in (await ask(port, "/health/a", host))[1]


async def test_an_external_address_is_one_more_name_of_a_listener_on_loopback() -> None:
    """With the port that a proxy adds, in any case, and with the address's path and without it."""
    async with site_of("127.0.0.1:0", EXTERNAL) as (_, port):
        for host, page, metrics in LOCAL:
            await check(port, host, page, metrics)
        for host in ("prober.example", "PROBER.example:443", "prober.example."):
            await check(port, host, 200, 200)
            await check(port, host, 200, 200, tuple(f"/slo{path}" for path in PAGES))
        _, text = await ask(port, "/", "evil.example")
        assert f"use {EXTERNAL}" in text
        for host in ("prober.example.evil.example", "evilprober.example", "other.example"):
            await check(port, host, 403, 403)


async def test_a_listener_for_all_answers_to_every_name_as_no_name_is_its_own() -> None:
    """Without an external address nothing tells by which names people come."""
    async with site_of(":0") as (_, port):
        for host in (*OWN, *PRIVATE, *OF_OTHERS):
            await check(port, host, 200, 200)


async def test_a_listener_for_all_behind_an_external_address_answers_to_that_and_to_private_names() -> None:
    """Links of alerts lead to a Service or a pod. Metrics and health are for names that a site could have, too."""
    async with site_of(":0", EXTERNAL) as (_, port):
        for host in (*OWN, *PRIVATE, "prober.example", "prober.example:443"):
            await check(port, host, 200, 200)
        for host in OF_OTHERS:
            await check(port, host, 403, 200)
        assert (await ask(port, "/-/ready", "10.1.2.3:9742"))[0] == 503  # not ready, and not refused


async def test_a_prefix_of_its_own_replaces_the_path_of_the_external_address() -> None:
    """`/` is none; health checks are answered with it and without, as a kubelet's must not fail."""
    async with site_of("127.0.0.1:0", EXTERNAL, "/llm") as (_, port):
        for path, status in (
            ("/llm/", 200),
            ("/llm", 308),
            ("/", 404),
            ("/slo/", 404),
            ("/-/healthy", 200),
            ("/llm/-/healthy", 200),
        ):
            assert (await ask(port, path, "prober.example"))[0] == status, path
    async with site_of("127.0.0.1:0", EXTERNAL, "/") as (_, port):
        for path, status in (("/", 200), ("/slo/", 404)):
            assert (await ask(port, path, "prober.example"))[0] == status, path


async def test_the_external_address_is_the_server_of_the_api_s_document() -> None:
    """Without one the server is relative to the document."""
    for external, server in ((EXTERNAL, EXTERNAL), ("", "../..")):
        async with site_of("127.0.0.1:0", external) as (_, port):
            assert f'"servers": [{{"url": "{server}"' in (await ask(port, "/api/v1/openapi.json", "localhost"))[1]


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("https://prober.example", "https://prober.example"),
        ("https://prober.example/slo/", "https://prober.example/slo"),
        ("HTTPS://Prober.Example:443/", "https://prober.example"),
        ("http://prober.example:80", "http://prober.example"),
        ("http://prober.example:443", "http://prober.example:443"),
        ("https://[FD00::1]:8443/a", "https://[fd00::1]:8443/a"),
        ("https://pr\xfcfer.example", "https://xn--prfer-lva.example"),
    ],
)
def test_an_external_address_has_the_form_of_browsers(text: str, address: str) -> None:
    """So that what they send as Host and Origin is recognised."""
    assert external_address(text) == address


@pytest.mark.parametrize(
    "text",
    ["javascript:alert(1)", "prober.example", "prober.example:9742", "//prober.example", "/slo", "ftp://prober.example", "https://",
     "https:///slo", "https://prober.example:port", "https://user:hunter22@prober.example", "https://prober.example/?a=1",
     "https://prober.example/#a", "https://prober.example/a b", "https://prober.example\n", " https://prober.example",
     "https://prober.example/\xfc", "https://${HOST}"],
)  # fmt: skip
def test_what_is_no_whole_http_address_is_refused(text: str) -> None:
    """Each would make links that lead nowhere, or run a script; no password is shown."""
    with pytest.raises(ValueError, match=r"http|query|password|blank|variable") as error:
        external_address(text)
    assert "hunter22" not in str(error.value)
