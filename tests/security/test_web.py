"""`--web.config.file`: TLS and passwords of the prober's own pages, as Prometheus, promtool and strangers meet them."""

import asyncio
import base64
import contextlib
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import aiohttp
import bcrypt
import pytest
import trustme
import yaml
from aiohttp import web

from prober.config.problems import ConfigError
from prober.config.web import load_web
from prober.web import server
from prober.web.access_control import HEADERS, MAX_WAITING, PAGES_BURST, Passwords, missing_authentication
from prober.web.server import PageServer
from prober.web.site import Site
from prober.web.token_bucket import TooMany
from prober.web.web_config import Loaded, read
from tests.commands import prober
from tests.daemon.test_fleet import Watched
from tests.processes import HANG_S, Program, Prometheus, free_port, until
from tests.web.listening import listening

PASSWORD = "correct horse"
HASH = bcrypt.hashpw(PASSWORD.encode(), bcrypt.gensalt(4)).decode()
AUTHORITY = trustme.CA()


def basic(user: str = "prometheus", password: str = PASSWORD) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}


def write(folder: Path, **blocks: Any) -> Path:
    path = folder / "web.yml"
    path.write_text(yaml.safe_dump(blocks))
    return path


def certified(folder: Path, name: str = "server", authority: trustme.CA = AUTHORITY) -> dict[str, str]:
    """cert_file and key_file of a new certificate, relative to the folder."""
    issued = authority.issue_cert("127.0.0.1", "localhost", common_name=name)
    (folder / f"{name}.pem").write_bytes(b"".join(pem.bytes() for pem in issued.cert_chain_pems))
    (folder / f"{name}.key").write_bytes(issued.private_key_pem.bytes())
    return {"cert_file": f"{name}.pem", "key_file": f"{name}.key"}


def trusting(authority: trustme.CA = AUTHORITY, identity: trustme.LeafCert | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    if identity:
        identity.configure_cert(context)
    return context


@dataclass
class Served:
    seen: Watched
    site: Site
    server: PageServer
    session: aiohttp.ClientSession

    @property
    def port(self) -> int:
        return int(self.server.addresses[0][1])

    async def status(self, path: str = "/metrics", method: str = "GET", **more: Any) -> int:
        return (await self.answer(path, method, **more))[0]

    async def answer(self, path: str, method: str = "GET", **more: Any) -> tuple[int, dict[str, str], str]:
        scheme = "https" if self.site.access.file.now.tls else "http"
        async with self.session.request(method, f"{scheme}://127.0.0.1:{self.port}{path}", **more) as answer:
            return answer.status, dict(answer.headers), await answer.text()


@asynccontextmanager
async def served(path: Path | None, *, admin: bool = False) -> AsyncIterator[Served]:
    one, connector = "name: a, url: '{url}', rate: 1/s", aiohttp.TCPConnector(force_close=True)
    async with (
        listening(one, admin=admin, web=path) as (seen, site, server),
        aiohttp.ClientSession(connector=connector) as session,
    ):
        yield Served(seen, site, server, session)


# --- what the file says


def of(**blocks: Any) -> str:
    return yaml.safe_dump(blocks)


TLS = {"cert_file": "a", "key_file": "b"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (of(tls=1), 'w:1: tls: unknown key "tls"'),
        (of(basic_auth_users={"a": "plain"}), "w:2: basic_auth_users.a: is no bcrypt hash"),
        (of(basic_auth_users={"a": "$2y$18$" + "a" * 53}), "w:2: basic_auth_users.a: has cost 18"),
        (of(tls_server_config={"cert_file": "a"}), "w:1: tls_server_config.key_file: needed: one of key_file and key"),
        (
            of(tls_server_config=TLS | {"client_auth_type": "RequireAnyClientCert"}),
            "takes certificates that nobody vouches",
        ),
        (of(tls_server_config=TLS | {"client_auth_type": "Maybe"}), "'Maybe' is not one of NoClientCert"),
        (of(tls_server_config=TLS | {"client_auth_type": "RequireAndVerifyClientCert"}), "client_ca_file: needed"),
        (of(tls_server_config=TLS | {"client_ca_file": "c"}), "client_auth_type: needed with a client CA"),
        (
            of(tls_server_config=TLS | {"client_allowed_sans": ["x"]}),
            "needs client_auth_type: RequireAndVerifyClientCert",
        ),
        (of(tls_server_config=TLS | {"min_version": "TLS10"}), "'TLS10' is not offered; take from TLS12, TLS13"),
        (of(tls_server_config=TLS | {"min_version": "TLS13", "max_version": "TLS12"}), "is above max_version"),
        (of(tls_server_config=TLS | {"cipher_suites": ["a"]}), 'unknown key "cipher_suites"'),
        (of(http_server_config={"headers": {"Set-Cookie": "a"}}), "headers.Set-Cookie: cannot be set"),
        (of(http_server_config={"headers": {"X-Frame-Options": "maybe"}}), "'maybe' is not one of deny, sameorigin"),
        (of(rate_limit={"interval": "1s"}), "rate_limit.burst: is 0"),
    ],
)
def test_what_cannot_be_had_is_refused_by_its_name(text: str, message: str) -> None:
    """Never left out quietly: who writes it must know that it does not hold."""
    with pytest.raises(ConfigError) as refused:
        load_web(text, "w")
    assert message in str(refused.value)


def test_all_mistakes_at_once_and_no_secret_in_any() -> None:
    text = of(
        basic_auth_users={"a": "hunter2hunter2", "b:c": HASH},
        tls_server_config={"key": "-----BEGIN hunter2", "min_version": "SSL3"},
    )
    with pytest.raises(ConfigError) as refused:
        load_web(text, "w")
    assert len(str(refused.value).splitlines()) == 4
    assert "hunter2" not in str(refused.value)


def test_what_can_be_had_is_taken(tmp_path: Path) -> None:
    """Versions and client certificates; certificate and key also inline."""
    files = certified(tmp_path)
    AUTHORITY.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    tls = files | {
        "client_auth_type": "RequireAndVerifyClientCert", "client_ca_file": "ca.pem", "client_allowed_sans": ["x"],
        "min_version": "TLS12", "max_version": "TLS12",
    }  # fmt: skip
    context = read(str(write(tmp_path, tls_server_config=tls, http_server_config={"http2": True}))).tls
    assert context is not None
    assert (context.maximum_version, context.verify_mode) == (ssl.TLSVersion.TLSv1_2, ssl.CERT_REQUIRED)
    inline = {part: (tmp_path / files[f"{part}_file"]).read_text() for part in ("cert", "key")}
    assert read(str(write(tmp_path, tls_server_config=inline))).tls is not None
    with pytest.raises(ConfigError, match="give a PEM certificate and its own key"):
        read(str(write(tmp_path, tls_server_config=inline | {"key": certified_key(tmp_path)})))


def certified_key(folder: Path) -> str:
    return (folder / certified(folder, "other")["key_file"]).read_text()


def test_promtool_takes_the_same_file_and_prober_check_too(tmp_path: Path, promtool: Path) -> None:
    """The file works for Prometheus and for the prober; mistakes exit with 1."""
    path = write(
        tmp_path,
        tls_server_config=certified(tmp_path),
        basic_auth_users={"prometheus": HASH},
        http_server_config={"headers": {"Strict-Transport-Security": "max-age=3600"}},
    )
    assert subprocess.run([promtool, "check", "web-config", path], capture_output=True).returncode == 0
    (tmp_path / "prober.yaml").write_text("targets: [{url: 'http://127.0.0.1:1', rate: 1/s, model: m}]")
    command = ("check", f"--config.file={tmp_path}/prober.yaml", f"--web.config.file={path}")
    fine = prober(*command)
    assert fine.returncode == 0, fine.stderr
    path.write_text("basic_auth_users: {a: b}")
    wrong = prober(*command)
    assert (wrong.returncode, "basic_auth_users.a: is no bcrypt hash" in wrong.stderr) == (1, True)


# --- who comes in


async def test_without_a_password_only_health_is_told(tmp_path: Path) -> None:
    """All else is 401, an unknown page too; `/-/healthy`, `/-/ready` and `/health/TARGET` are for kubelets and proxies, which have no
    password.
    """
    async with served(write(tmp_path, basic_auth_users={"prometheus": HASH})) as site:
        for path in ("/", "/metrics", "/probe?target=a", "/api/v1/targets", "/static/page.css", "/nothing"):
            status, headers, body = await site.answer(path)
            assert (status, headers["WWW-Authenticate"], body) == (401, "Basic", "Unauthorized\n")
        for wrong in (
            basic(password="wrong"),
            basic("nobody"),
            {"Authorization": "Basic !"},
            {"Authorization": "Bearer x"},
        ):
            assert await site.status(headers=wrong) == 401
        assert await site.status(headers=basic()) == 200
        assert await site.status("/-/healthy") == 200
        assert await site.status("/-/ready") == 503  # not yet
        for headers in ({}, basic(password="wrong")):  # as for proxies: not why, and not which targets there are
            status, received, body = await site.answer("/health/a", headers=headers)
            assert (status, body) == (200, received["Prober-Health"] + "\n")
        site.site.ready = True
        assert (await site.answer("/health/b"))[2] == "no target of this name is configured\n"
        assert ": " in (await site.answer("/health/a", headers=basic()))[2]
        assert await site.status("/-/reload", "POST", headers={}) == 401


async def test_a_client_certificate_is_asked_for_and_its_name_looked_at(tmp_path: Path) -> None:
    """Without one, or with one of another authority, there is no connection; nor with a name that is not on the list."""
    AUTHORITY.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    tls = certified(tmp_path) | {"client_auth_type": "RequireAndVerifyClientCert", "client_ca_file": "ca.pem"}
    one, other = AUTHORITY.issue_cert("scraper.example"), AUTHORITY.issue_cert("other.example", "10.0.0.7")
    path = write(tmp_path, tls_server_config=tls | {"client_allowed_sans": ["scraper.example"]})
    async with served(path) as site:
        assert await site.status(ssl=trusting(identity=one)) == 200
        for identity in (None, other, trustme.CA().issue_cert("scraper.example")):
            with pytest.raises(aiohttp.ClientError):
                await site.status(ssl=trusting(identity=identity))
        write(tmp_path, tls_server_config=tls | {"client_allowed_sans": ["10.0.0.7"]})
        assert await site.status(ssl=trusting(identity=other)) == 200


@pytest.mark.parametrize("content", ["", "ü", "no PEM"])
def test_a_file_of_authorities_without_any_is_refused(tmp_path: Path, content: str) -> None:
    """An empty file, as while it is written anew, must not let clients in that show no certificate."""
    (tmp_path / "ca.pem").write_text(content)
    tls = certified(tmp_path) | {"client_auth_type": "RequireAndVerifyClientCert", "client_ca_file": "ca.pem"}
    with pytest.raises(ConfigError, match=r"client_ca_file ca\.pem: contains no PEM certificates"):
        read(str(write(tmp_path, tls_server_config=tls)))


async def test_certificates_and_passwords_rotate_and_a_broken_file_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The next connection has the new certificate, the next request needs the new password; a mistake is told once."""
    users = {"prometheus": HASH}
    path = write(tmp_path, tls_server_config=certified(tmp_path), basic_auth_users=users)
    renewed = trustme.CA()
    async with served(path) as site:
        assert await site.status(ssl=trusting(), headers=basic()) == 200
        await asyncio.sleep(0.01)
        certified(tmp_path, authority=renewed)
        assert await site.status(ssl=trusting(renewed), headers=basic()) == 200
        (tmp_path / "server.pem").write_text("half a certific")
        for _ in range(2):
            assert await site.status(ssl=trusting(renewed), headers=basic()) == 200
        assert sum("web configuration not applied" in record.message for record in caplog.records) == 1
        certified(tmp_path, authority=renewed)
        write(
            tmp_path,
            tls_server_config=certified(tmp_path, authority=renewed),
            basic_auth_users={"prometheus": bcrypt.hashpw(b"new", bcrypt.gensalt(4)).decode()},
        )
        assert await site.status(ssl=trusting(renewed), headers=basic()) == 401  # though it was right before
        assert await site.status(ssl=trusting(renewed), headers=basic(password="new")) == 200
        for half in ("", "basic_auth_users: {prometheus"):
            path.write_text(half)  # as an editor leaves it for a moment
            assert await site.status(ssl=trusting(renewed)) == 401
    assert "removes all authentication" in caplog.text or "turns TLS off" in caplog.text


async def test_headers_of_the_file_go_before_the_probers_own(tmp_path: Path) -> None:
    """A blank one leaves its header out, as in the toolkit."""
    headers = {"Strict-Transport-Security": "max-age=3600", "X-Frame-Options": ""}
    async with served(write(tmp_path, http_server_config={"headers": headers})) as site:
        _, received, _ = await site.answer("/metrics")
        assert received["Strict-Transport-Security"] == "max-age=3600"
        assert "X-Frame-Options" not in received
        assert received["X-Content-Type-Options"] == "nosniff"


async def test_the_files_own_rate_limit_holds_for_all_together(tmp_path: Path) -> None:
    async with served(write(tmp_path, rate_limit={"interval": "1h", "burst": 2})) as site:
        assert [await site.status() for _ in range(3)] == [200, 200, 429]
        assert await site.status("/-/healthy") == 200  # but not for a kubelet


def test_prometheus_scrapes_over_tls_with_a_password(tmp_path: Path, prometheus_binary: Path) -> None:
    """The distribution's Prometheus, by its own configuration; with a wrong password the target is down."""
    write(tmp_path, tls_server_config=certified(tmp_path), basic_auth_users={"prometheus": HASH})
    AUTHORITY.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    (tmp_path / "prober.yaml").write_text("targets: [{name: a, url: 'http://127.0.0.1:1', rate: 1/s, model: m}]")
    (tmp_path / "password").write_text(PASSWORD)
    port = free_port()
    job = {
        "job_name": "prober", "scrape_interval": "1s", "scheme": "https", "tls_config": {"ca_file": f"{tmp_path}/ca.pem"},
        "static_configs": [{"targets": [f"127.0.0.1:{port}"]}],
        "basic_auth": {"username": "prometheus", "password_file": f"{tmp_path}/password"},
    }  # fmt: skip
    wrong = job | {"job_name": "wrong", "basic_auth": {"username": "prometheus", "password": "wrong"}}
    words = (f"--config.file={tmp_path}/prober.yaml", f"--web.config.file={tmp_path}/web.yml")
    with (
        Program(tmp_path / "log", "run", *words, f"--web.listen-address=127.0.0.1:{port}"),
        Prometheus(prometheus_binary, tmp_path, {"scrape_configs": [job, wrong]}) as prometheus,
    ):

        def up() -> dict[str, str]:
            return {row["metric"]["job"]: row["value"][1] for row in prometheus.query("up")}

        until(lambda: len(up()) == 2 and up()["prober"] == "1", "both jobs to be scraped")
        assert up() == {"prober": "1", "wrong": "0"}


# --- what may be done


@pytest.mark.parametrize(
    ("address", "web", "refused"),
    [
        (":9742", {}, True),
        ("0.0.0.0:9742", {}, True),
        ("[::]:9742", {}, True),
        ("10.0.0.1:9742", {}, True),
        ("prober.example:9742", {}, True),
        ("127.0.0.1:9742", {}, False),
        ("[::1]:9742", {}, False),
        ("localhost:9742", {}, False),
        (":9742", {"basic_auth_users": {"a": HASH}}, False),
        (
            ":9742",
            {"tls_server_config": TLS | {"client_auth_type": "RequireAndVerifyClientCert", "client_ca_file": "c"}},
            False,
        ),
        (
            ":9742",
            {"tls_server_config": TLS | {"client_auth_type": "VerifyClientCertIfGiven", "client_ca_file": "c"}},
            True,
        ),
        (":9742", {"tls_server_config": TLS}, True),
    ],
)
def test_actions_beyond_this_machine_need_to_know_who_asks(address: str, web: dict[str, Any], refused: bool) -> None:
    why = missing_authentication(address, Loaded(load_web(of(**web), "w")))
    assert bool(why) == refused
    assert not refused or ("--web.config.file" in why and "127.0.0.1" in why and address in why)


def test_the_daemon_does_not_start_with_actions_for_everybody(tmp_path: Path) -> None:
    """It says what to do, and exits with 1."""
    (tmp_path / "prober.yaml").write_text("targets: [{name: a, url: 'http://127.0.0.1:1', rate: 1/s, model: m}]")
    command = [sys.executable, "-m", "prober", "run", f"--config.file={tmp_path}/prober.yaml", "--web.enable-admin-api"]
    ended = subprocess.run([*command, "--web.listen-address=:0"], capture_output=True, text=True, timeout=HANG_S)
    assert ended.returncode == 1
    assert "--web.config.file" in ended.stderr


async def test_a_reload_is_for_this_machine_and_for_whom_we_know(monkeypatch: pytest.MonkeyPatch) -> None:
    """From elsewhere it is refused, in words that say what else there is."""
    async with served(None) as site:
        assert await site.status("/-/reload", "POST") == 200
        monkeypatch.setattr("prober.web.access_control.is_reachable", lambda host: True)
        status, _, text = await site.answer("/-/reload", "POST")
        assert (status, "--web.config.file" in text) == (403, True)
        site.site.api.admin = True
        assert await site.status("/-/reload", "POST") == 200


async def test_with_a_password_a_name_does_not_matter(tmp_path: Path) -> None:
    """A browser sends it to its own host only, and so never with the name of another site; a page elsewhere is refused still."""
    async with served(write(tmp_path, basic_auth_users={"prometheus": HASH})) as site:
        foreign = {"Host": "prober.example"}
        assert await site.status("/probe?target=a", headers=foreign) == 401
        assert await site.status("/probe?target=a", headers=foreign | basic()) == 200
        assert await site.status("/probe?target=a", headers=foreign | basic() | {"Sec-Fetch-Site": "cross-site"}) == 403


async def test_probes_and_actions_reach_configured_targets_only() -> None:
    """Neither an address nor a name of one makes the prober send anywhere else."""
    async with served(None, admin=True) as site:
        for name in ("http://127.0.0.1:1", "127.0.0.1:1", "a&url=http://x", ""):
            assert await site.status("/probe", params={"target": name}) == 404
            for path, method in (("probes", "POST"), ("pauses", "POST"), ("sweeps", "POST"), ("sweeps", "DELETE")):
                status, _, text = await site.answer(f"/api/v1/{path}", method, params={"target": name})
                assert (status, repr(name) in text) == (404, True)


# --- how much


async def test_who_asks_too_often_waits() -> None:
    """429 with Retry-After for probes and actions of one client; pages go on being answered. A connection outlives an answer, and not
    a 429: a new one is what there are few of.
    """
    async with served(None, admin=True) as site, aiohttp.ClientSession() as session:
        site.site.access.now = lambda: 0.0
        answers = []
        for _ in range(21):
            async with session.post(f"http://127.0.0.1:{site.port}/api/v1/pauses?target=none") as answer:
                answers.append((answer.status, answer.headers.get("Connection")))
        assert answers == [(404, None)] * 20 + [(429, "close")]
        assert int(answer.headers["Retry-After"]) >= 1
        assert await site.status("/probe?target=a") == 429
        assert await site.status("/metrics") == 200


async def test_who_guesses_passwords_waits_and_who_knows_it_does_not(tmp_path: Path) -> None:
    """A few wrong ones and then none is looked at; one that was right before still is."""
    async with served(write(tmp_path, basic_auth_users={"prometheus": HASH})) as site:
        site.site.access.now = lambda: 0.0
        assert await site.status(headers=basic()) == 200
        statuses = [await site.status(headers=basic(password=str(guess))) for guess in range(15)]
        assert (statuses[0], statuses[-1]) == (401, 429)
        assert await site.status(headers=basic()) == 200


async def test_a_body_is_not_read() -> None:
    """No operation takes one: 413, by its length, and one without a length is cut off."""
    async with served(None) as site:
        assert await site.status("/-/reload", "POST", data=b"x" * 100_000) == 413
        reader, writer = await asyncio.open_connection("127.0.0.1", site.port)
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n")
        for index in range(200):
            writer.write(b"X-%d: %s\r\n" % (index, b"y" * 1000))
        response = b""
        with contextlib.suppress(ConnectionError):
            response = await reader.read()
        assert response == b"" or response.startswith(b"HTTP/1.1 400")
        writer.close()


async def test_who_says_nothing_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a request, byte by byte or not at all, has its time and no more; so has a connection between two requests."""
    monkeypatch.setattr(server, "REQUEST_TIMEOUT_S", 0.3)
    async with served(None) as site:
        for start in (b"", b"GET / HT", b"GET /nothing HTTP/1.1\r\nHost: x\r\n\r\n"):
            reader, writer = await asyncio.open_connection("127.0.0.1", site.port)
            writer.write(start)
            async with asyncio.timeout(HANG_S):
                with contextlib.suppress(ConnectionError):
                    await reader.read()
            writer.close()
        async with asyncio.timeout(HANG_S):
            while site.server.open_connections:  # noqa: ASYNC110 - a number has no event
                await asyncio.sleep(0.01)


async def test_of_too_many_connections_the_one_that_was_silent_longest_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whosever it is: a new one is answered, and the others stay."""
    monkeypatch.setattr(server, "MAX_OPEN", 3)
    async with served(None) as site:
        opened = [await asyncio.open_connection("127.0.0.1", site.port) for _ in range(3)]
        for number in (1, 2, 0):  # the second has been silent longest
            await answer_on(opened[number])
        assert await site.status() == 200
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await opened[1][0].readexactly(1)
        for pair in (opened[0], opened[2]):
            await answer_on(pair)
        for _, writer in opened:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()


async def answer_on(pair: tuple[asyncio.StreamReader, asyncio.StreamWriter]) -> None:
    """Ask on an open connection for a page that there is not, and read its answer."""
    pair[1].write(b"GET /nothing HTTP/1.1\r\nHost: localhost\r\n\r\n")
    await pair[0].readuntil(b": Not Found")


# --- health checks, whose address a kubelet shares with other clients of its node

KUBE_PROBE = "GET {path} HTTP/1.1\r\nHost: 10.0.0.5:9742\r\nUser-Agent: kube-probe/1.31\r\nAccept: */*\r\nConnection: close\r\n\r\n"
KUBELET_TIMEOUT_S = 5.0  # of the manifests in deploy/; what is promised is 1 s


async def health_check(port: int, path: str, tls: ssl.SSLContext | None) -> int:
    """Status of one health check as a kubelet sends it. Raises TimeoutError."""
    async with asyncio.timeout(KUBELET_TIMEOUT_S):
        name = "localhost" if tls else None
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=tls, server_hostname=name)
        try:
            writer.write(KUBE_PROBE.format(path=path).encode())
            head, _, text = (await reader.read()).partition(b"\r\n\r\n")
        finally:
            writer.transport.abort()
    status = int(head.split()[1])
    assert text == {200: b"Healthy\n", 503: b"Not ready\n"}[status]
    return status


class Flood(asyncio.Protocol):
    """A connection of the attacker, which says something and waits."""

    def __init__(self, says: bytes, opened: list[asyncio.BaseTransport]) -> None:
        self._says, self._opened = says, opened

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._opened.append(transport)
        cast(asyncio.Transport, transport).write(self._says)


async def attack(port: int, says: bytes, tls: ssl.SSLContext | None, opened: list[asyncio.BaseTransport]) -> None:
    """Open 200 connections a second for two seconds, say something on each, and keep them open."""
    loop = asyncio.get_running_loop()

    async def one() -> None:
        name = "localhost" if tls else None
        with contextlib.suppress(OSError):
            await loop.create_connection(lambda: Flood(says, opened), "127.0.0.1", port, ssl=tls, server_hostname=name)

    async with asyncio.TaskGroup() as group:
        for _ in range(400):
            group.create_task(one())
            await asyncio.sleep(0.005)


IDLE, BEGUN, BUSY = b"", b"GET /metrics HTTP/1.1\r\nHost: x\r\nX-Slow: ", b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.mark.parametrize(
    ("says", "secured"),
    [
        (BEGUN, False),
        (BUSY, True),
        *(
            pytest.param(*each, marks=pytest.mark.slow)
            for each in ((IDLE, False), (BUSY, False), (IDLE, True), (BEGUN, True))
        ),
    ],
)
async def test_a_flood_from_a_kubelets_address_makes_no_health_check_fail(
    tmp_path: Path, says: bytes, secured: bool
) -> None:
    """Idle, slow or busy connections of its own address, more than all limits: 20 of 20 checks have their true answer."""
    path = write(tmp_path, tls_server_config=certified(tmp_path)) if secured else None
    tls = trusting() if secured else None
    opened: list[asyncio.BaseTransport] = []
    async with served(path) as site:
        flood = asyncio.create_task(attack(site.port, says, tls, opened))
        await asyncio.sleep(0.5)
        answers = []
        for _ in range(10):
            answers.append(await health_check(site.port, "/-/healthy", tls))
            answers.append(await health_check(site.port, "/-/ready", tls))
            await asyncio.sleep(0.15)
        await flood
        for transport in opened:
            cast(asyncio.Transport, transport).abort()
    assert answers == [200, 503] * 10


async def test_where_all_connections_are_busy_a_health_check_replaces_the_oldest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It has its true answer."""
    monkeypatch.setattr(server, "MAX_OPEN", 4)
    begun, go_on = asyncio.Event(), asyncio.Event()
    async with served(None) as site:

        async def busy(*_: object) -> None:
            begun.set()
            await go_on.wait()
            raise web.HTTPConflict

        site.site.api.probe_once = busy  # type: ignore[method-assign, assignment]
        waiting = []
        for _ in range(4):
            begun.clear()
            waiting.append(asyncio.create_task(site.status("/probe?target=a")))
            await begun.wait()
        assert await health_check(site.port, "/-/healthy", None) == 200
        go_on.set()
        await asyncio.gather(*waiting, return_exceptions=True)


async def test_health_checks_have_no_rate_but_each_takes_a_connection() -> None:
    """A client that used up its requests is refused pages and not health, whose cost the limit of connections bounds."""
    async with served(None) as site, aiohttp.ClientSession() as session:
        site.site.access.now = lambda: 0.0
        for path in ("/health/a", "/-/healthy", "/-/healthy?a=b"):
            for _ in range(PAGES_BURST // 2):
                async with session.get(f"http://127.0.0.1:{site.port}{path}") as answer:
                    assert (answer.status, answer.headers["Connection"]) == (200, "close")
                    assert answer.headers.items() >= HEADERS.items()
        for _ in range(PAGES_BURST):
            assert await site.status("/nothing") == 404
        for path in ("/metrics", "/-/healthy/x", "/-/healthyx", "/x?/-/healthy", "//-/healthy", "/health/"):
            status, headers, text = await site.answer(path)
            assert (status, headers["Retry-After"], "try again" in text) == (429, "1", True), path
        assert await site.status("/-/healthy", "POST") == 429
        assert await site.status("/health/a", "POST") == 429
        assert await site.status("/-/healthy", "HEAD") == 200
        assert await site.status("/-/ready") == 503


# --- passwords


async def test_nobody_learns_who_is_there_and_the_loop_goes_on() -> None:
    """An unknown user costs a look at a hash too, beside the event loop, which takes turns meanwhile."""
    users = {"a": HASH}
    passwords = Passwords()
    seen: list[str] = []
    look = asyncio.create_task(passwords.is_correct(users, "nobody", PASSWORD))
    look.add_done_callback(lambda _: seen.append("looked"))
    for _ in range(3):
        await asyncio.sleep(0)
        seen.append("turn")
    assert await look is False
    assert seen[:3] == ["turn"] * 3
    assert not passwords.is_known(users, "nobody", PASSWORD)
    passwords.close()


async def test_what_was_right_is_known_again() -> None:
    """The last one of each user, against the hash of now; a few may wait, the next is told to come again."""
    passwords = Passwords()
    users = {"u": HASH}
    assert not passwords.is_known(users, "u", PASSWORD)
    assert await passwords.is_correct(users, "u", PASSWORD)
    assert passwords.is_known(users, "u", PASSWORD)
    assert not passwords.is_known(users, "u", "wrong")
    assert not passwords.is_known(users | {"u": "$2b$04$" + "a" * 53}, "u", PASSWORD)
    waiting = [asyncio.create_task(passwords.is_correct(users, "u", "wrong")) for _ in range(MAX_WAITING)]
    await asyncio.sleep(0)
    with pytest.raises(TooMany):
        await passwords.is_correct(users, "u", PASSWORD)
    assert await asyncio.gather(*waiting) == [False] * MAX_WAITING
    passwords.close()
