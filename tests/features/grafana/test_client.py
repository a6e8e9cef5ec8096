"""Push of dashboards and annotations, against a stand-in that checks each request by Grafana's documentation."""

import asyncio
import json
import logging
import re
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme

from prober.config.server import TlsSpec
from prober.daemon.dashboards import files
from prober.features.grafana import GrafanaError, client
from prober.features.grafana.client import connected
from prober.features.grafana.push import NOT_REPLACED, PushResult, State, message_of, push
from prober.features.grafana.sync import mark_of
from prober.measure.target_state import TargetEvent
from tests.features.grafana.grafana_server import LOGIN, PASSWORD, TOKEN, USER, Fault, Grafana, standing_in
from tests.scripted import scripted

DOCUMENTS: list[dict[str, Any]] = [json.loads(text) for text in files().values()]
FOLDER = "LLM SLO prober"
UID = re.compile(r"(/folders|/dashboards/uid)/[^/]+")


@pytest.fixture
def grafana() -> Iterator[Grafana]:
    with standing_in(Grafana()) as server:
        yield server


def pushed(grafana: Grafana, documents: list[dict[str, Any]] | None = None, **options: Any) -> list[PushResult]:
    with connected(grafana.url, TOKEN) as api:
        return push(api, documents or DOCUMENTS, **{"folder": FOLDER, **options})


def states(results: list[PushResult]) -> list[State]:
    return [result.state for result in results]


def not_replaced(results: list[PushResult]) -> list[PushResult]:
    return [result for result in results if result.state in NOT_REPLACED]


def newer(documents: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Dashboards of another version of the prober."""
    return [{**document, "description": "a later one"} for document in documents]


@pytest.mark.parametrize("old", [False, True], ids=["now", "Grafana 10"])
@pytest.mark.parametrize("hides", [False, True], ids=["404", "403"])
def test_all_are_created_and_a_second_push_sends_nothing(grafana: Grafana, old: bool, hides: bool) -> None:
    """In their folder, with their uids; also if Grafana answers 403 for what does not exist."""
    grafana.old, grafana.hides = old, hides
    report = pushed(grafana)
    assert states(report) == ["created"] * len(DOCUMENTS)
    assert set(grafana.dashboards) == {document["uid"] for document in DOCUMENTS}
    assert {dashboard.folder_uid for dashboard in grafana.dashboards.values()} == {"llm-slo-prober"}
    assert grafana.folders["llm-slo-prober"]["title"] == FOLDER
    assert all(request.path in ("/api/folders", "/api/dashboards/db") for request in grafana.writes)
    grafana.asked.clear()
    assert states(pushed(grafana)) == ["unchanged"] * len(DOCUMENTS)
    assert grafana.asked
    assert grafana.writes == []


def test_an_older_version_of_ours_is_replaced(grafana: Grafana) -> None:
    """Without --force, with the version that is replaced; dashboards that people edited meanwhile are left alone."""
    pushed(grafana, newer(DOCUMENTS))
    grafana.edit("llm-slo-target", title="My own")
    report = pushed(grafana)
    assert {result.uid: result.state for result in report} == {
        uid: "edited" if uid == "llm-slo-target" else "updated" for uid in (document["uid"] for document in DOCUMENTS)
    }
    assert grafana.dashboards["llm-slo"].document["description"] == DOCUMENTS[0].get("description", "")
    assert grafana.dashboards["llm-slo"].document["version"] == 2
    assert not any(request.body.get("overwrite") for request in grafana.writes if "overwrite" in request.body)


@pytest.mark.parametrize("how", ["saved", "imported"])
def test_an_edited_dashboard_is_left_alone(grafana: Grafana, how: str) -> None:
    """Whatever kind of edit; the others are pushed, and --force overwrites it."""
    first = DOCUMENTS[0]["uid"]
    if how == "imported":
        grafana._keep(first, {**DOCUMENTS[0], "title": "Imported"}, "", "", "jane")
    else:
        pushed(grafana, newer(DOCUMENTS))
        grafana.edit(first, title="Imported", message="tidied; was: " + message_of(DOCUMENTS[0]))
    before = json.dumps(grafana.dashboards[first].document)
    report = pushed(grafana)
    (edited,) = not_replaced(report)
    assert (edited.uid, edited.state) == (first, "edited")
    assert json.dumps(grafana.dashboards[first].document) == before
    assert set(states(report)) - {"edited"} <= {"created", "updated"}
    assert states(pushed(grafana, force=True))[0] == "overwritten"
    assert grafana.dashboards[first].document["title"] == DOCUMENTS[0]["title"]
    grafana.asked.clear()
    assert states(pushed(grafana)) == ["unchanged"] * len(DOCUMENTS)
    assert grafana.writes == []


# A fault of one call, which dashboards were there before, what becomes of the first or the named one, and why.
REFUSED: dict[str, tuple[tuple[str, str], Fault, bool, State, str]] = {
    "no history: it is not known who saved it last": (
        ("GET", "/api/dashboards/uid/llm-slo-drift/versions"), Fault(403, '{"message": "Access denied"}'),
        True, "edited", "cannot be read",
    ),
    "a save in between wins": (
        ("POST", "/api/dashboards/db"),
        Fault(412, '{"status": "version-mismatch", "message": "The dashboard has been changed by someone else"}', times=1),
        True, "edited", "changed by someone else",
    ),
    "a failure": (("POST", "/api/dashboards/db"), Fault(500, times=1), False, "failed", "HTTP 500"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_dashboard_that_is_not_pushed_does_not_affect_the_others(grafana: Grafana, name: str) -> None:
    """It is left as it was, with the reason, and the next push has it."""
    call, fault, was_there, state, reason = REFUSED[name]
    if was_there:
        pushed(grafana, newer(DOCUMENTS))
    grafana.faults[call] = fault
    report = pushed(grafana)
    (refused,) = not_replaced(report)
    assert (refused.state, reason in refused.detail) == (state, True), refused
    assert refused.uid == ("llm-slo-drift" if "drift" in call[1] else DOCUMENTS[0]["uid"])
    assert set(states(report)) - {state} == {"updated" if was_there else "created"}
    grafana.faults.clear()
    again = pushed(grafana)
    assert [result.state for result in again if result.state != "unchanged"] == ["updated" if was_there else "created"]


def test_a_dry_run_sends_nothing(grafana: Grafana) -> None:
    """The report has what would be created, and what would be replaced."""
    report = pushed(grafana, dry_run=True)
    assert states(report) == ["created"] * len(DOCUMENTS)
    pushed(grafana, newer(DOCUMENTS))
    grafana.asked.clear()
    report = pushed(grafana, dry_run=True)
    assert states(report) == ["updated"] * len(DOCUMENTS)
    assert grafana.writes == []


def test_a_folder_is_found_by_title_or_uid_and_a_moved_dashboard_stays(grafana: Grafana) -> None:
    """Also if somebody else created the folder; --force moves a dashboard back."""
    grafana.folders["team-7"] = {"id": 1, "uid": "team-7", "title": "Team Seven", "version": 1}
    pushed(grafana, folder="Team Seven")
    assert {dashboard.folder_uid for dashboard in grafana.dashboards.values()} == {"team-7"}
    assert list(grafana.folders) == ["team-7"]
    grafana.dashboards["llm-slo"].folder_uid = ""
    pushed(grafana, newer(DOCUMENTS), folder="team-7")
    assert grafana.dashboards["llm-slo"].folder_uid == ""
    assert grafana.dashboards["llm-slo-drift"].folder_uid == "team-7"
    pushed(grafana, folder="team-7", force=True)
    assert grafana.dashboards["llm-slo"].folder_uid == "team-7"


def test_a_provisioned_dashboard_is_not_replaced(grafana: Grafana) -> None:
    """Nothing is sent, with --force neither."""
    pushed(grafana, newer(DOCUMENTS))
    grafana.dashboards["llm-slo"].provisioned = True
    grafana.asked.clear()
    report = pushed(grafana, force=True)
    assert [(result.uid, result.state) for result in not_replaced(report)] == [("llm-slo", "provisioned")]
    assert "from a file" in not_replaced(report)[0].detail


def test_an_unknown_data_source_is_an_error(grafana: Grafana) -> None:
    """The error names a similar one, and nothing is sent."""
    with pytest.raises(GrafanaError, match='did you mean "Prometheus"'):
        pushed(grafana, datasource="Promethius")
    assert grafana.writes == []


def test_the_requested_data_source_is_preselected(grafana: Grafana) -> None:
    """By name or uid. If it has another type that supports PromQL, variable and queries have that type."""
    grafana.sources.append({"id": 3, "uid": "amp", "name": "AMP", "type": "grafana-amazonprometheus-datasource"})
    pushed(grafana, datasource="AMP")
    stored = grafana.dashboards["llm-slo"].document
    (variable,) = (item for item in stored["templating"]["list"] if item["type"] == "datasource")
    assert variable["query"] == "grafana-amazonprometheus-datasource"
    assert variable["current"] == {"selected": True, "text": "AMP", "value": "amp"}
    assert '"type": "prometheus"' not in json.dumps(stored)
    assert states(pushed(grafana, datasource="amp")) == ["unchanged"] * len(DOCUMENTS)
    assert set(states(pushed(grafana, datasource="prom-1"))) == {"updated"}


FAULTS = {
    "login page": (
        Fault(200, LOGIN, "text/html; charset=utf-8"),
        "is not JSON; give the final address, behind any login",
    ),
    "redirect": (Fault(302, "", "text/html", "https://sso.example.org/login"), "give the final address"),
    "token": (Fault(401, '{"message": "Invalid API key"}'), "HTTP 401 (Invalid API key): the token is not valid"),
    "proxy": (
        Fault(502, "<html>bad gateway</html>", "text/html"),
        "HTTP 502: Grafana or a proxy in front of it failed",
    ),
    "half": (Fault(200, '{"a', "application/json"), "has not the form of Grafana's API"),
    "another API": (Fault(200, '[{"name": 1}, 2]', "application/json"), "has not the form of Grafana's API"),
    "too deep": (Fault(200, "[" * 10_000, "application/json"), "has not the form of Grafana's API"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_other_servers_and_errors_are_explained(grafana: Grafana, name: str) -> None:
    """The message has address, call and remedy, but neither the page nor the token; nothing is sent."""
    fault, explanation = FAULTS[name]
    grafana.faults["GET", "/api/datasources"] = fault
    with pytest.raises(GrafanaError) as refused:
        pushed(grafana, datasource="prom-1")
    message = str(refused.value)
    assert grafana.url in message
    assert explanation in message
    assert "html" not in message.lower()
    assert TOKEN not in message
    assert grafana.writes == []


def test_a_refused_connection_is_reported_with_its_cause() -> None:
    """Without the names of the library's objects."""
    with pytest.raises(GrafanaError) as refused, connected("http://127.0.0.1:9", TOKEN) as api:
        api.folder.get_all_folders()
    assert "cannot be reached: " in str(refused.value)
    assert "refused" in str(refused.value)
    assert "object at" not in str(refused.value)


def test_a_slow_server_times_out(grafana: Grafana, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the time for one call."""
    monkeypatch.setattr(client, "TIMEOUT_S", 0.2)
    grafana.faults["GET", "/api/folders"] = Fault(200, "{}", slow_s=2.0)
    with pytest.raises(GrafanaError, match=r"cannot be reached: .*timed out"), connected(grafana.url, TOKEN) as api:
        api.folder.get_all_folders()


@pytest.mark.parametrize("host", ["grafana.example.org", "169.254.169.254"])
def test_addresses_that_hand_out_credentials_are_refused(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if only the name service says that a name has one."""
    record = (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("169.254.169.254", 80))
    monkeypatch.setattr("socket.getaddrinfo", lambda *arguments, **options: [record])
    monkeypatch.setattr("socket.socket.connect", lambda *arguments: pytest.fail("a connection"))
    with (
        pytest.raises(GrafanaError, match="is a link-local address: refused"),
        connected(f"http://{host}", TOKEN) as api,
    ):
        api.folder.get_all_folders()


async def test_certificates(tmp_path: Path) -> None:
    """An untrusted certificate is an error with the remedy; the file of its authority makes it trusted."""
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))

    def folders(url: str, tls: TlsSpec | None) -> Any:
        with connected(url, TOKEN, tls) as api:
            return api.folder.get_all_folders()

    async with scripted(Grafana().reply, tls=context) as url:
        for tls in (None, TlsSpec(ca_file=str(tmp_path / "none.pem"))):
            with pytest.raises(GrafanaError, match="certificate"):
                await asyncio.to_thread(folders, url, tls)
        assert await asyncio.to_thread(folders, url, TlsSpec(ca_file=str(tmp_path / "ca.pem"))) == []


def test_a_missing_permission_is_named(grafana: Grafana) -> None:
    """For the folder and for each dashboard."""
    denied = Fault(403, '{"message": "Access denied"}')
    grafana.faults["POST", "/api/folders"] = denied
    report = pushed(grafana)
    assert set(states(report)) == {"failed"}
    assert "role Editor" in not_replaced(report)[0].detail
    grafana.faults = {("POST", "/api/dashboards/db"): denied}
    assert "role Editor" in not_replaced(pushed(grafana))[0].detail


def test_a_path_and_a_password(tmp_path: Path) -> None:
    """Grafana may be served below a path, and a user with password may be used instead of a token."""
    with standing_in(Grafana(), prefix="/monitoring/grafana") as grafana:
        assert set(states(pushed(grafana))) == {"created"}
        with connected(grafana.url + "/", (USER, PASSWORD)) as api:
            assert set(states(push(api, DOCUMENTS, FOLDER))) == {"unchanged"}
        with pytest.raises(GrafanaError, match="HTTP 401"), connected(grafana.url, (USER, "wrong")) as api:
            push(api, DOCUMENTS, FOLDER)


def test_an_interrupted_push_is_completed_by_the_next(grafana: Grafana) -> None:
    """The response to the third save is lost: the rest is not tried, and the next push sends only the rest."""
    grafana.faults["POST", "/api/dashboards/db"] = Fault(lost=True, after=2)
    with pytest.raises(GrafanaError, match="cannot be reached"):
        pushed(grafana)
    grafana.faults.clear()
    grafana.asked.clear()
    done = len(grafana.dashboards)
    assert done >= 3
    assert states(pushed(grafana)) == [*["unchanged"] * done, *["created"] * (len(DOCUMENTS) - done)]
    assert len(grafana.writes) == len(DOCUMENTS) - done
    assert [len(dashboard.versions) for dashboard in grafana.dashboards.values()] == [1] * len(DOCUMENTS)


def test_the_token_is_in_no_message_and_no_log(grafana: Grafana, caplog: pytest.LogCaptureFixture) -> None:
    """Not even if a server returns it."""
    caplog.set_level(logging.DEBUG)
    grafana.faults["GET", "/api/datasources"] = Fault(400, json.dumps({"message": f"bad header: Bearer {TOKEN}"}))
    with pytest.raises(GrafanaError, match=r"bad header: Bearer \.\.\.") as refused:
        pushed(grafana, datasource="prom-1")
    assert TOKEN not in str(refused.value)
    assert TOKEN not in caplog.text


# --- marks

SWEPT = TargetEvent(1_700_000_600.25, "a/llama <70b>", "sweep", "sweep: found, 12/s")
CHANGED = TargetEvent(1_700_000_700.5, "b", "engine", "version was 1, is 2")


def test_an_event_is_an_annotation(grafana: Grafana) -> None:
    """With tags and times in milliseconds, a sweep as a span."""
    with connected(grafana.url, TOKEN) as api:
        for mark in (
            mark_of(SWEPT, 1_700_000_000.0),
            mark_of(CHANGED),
            mark_of(TargetEvent(1_700_000_900.0, "x" * 200, "engine", "restart")),  # Grafana's tags are shorter
        ):
            api.annotations.add_annotation(**mark)
    swept, changed, long = grafana.annotations
    assert (swept["time"], swept["timeEnd"]) == (1_700_000_000_000, 1_700_000_600_250)
    assert swept["tags"] == ["llm-slo-prober", "a/llama <70b>", "sweep"]
    assert swept["text"] == "a/llama &lt;70b&gt;: sweep: found, 12/s"
    assert (changed["time"], changed["timeEnd"]) == (1_700_000_700_500, 1_700_000_700_500)
    assert len(long["tags"][1]) == 100


def test_every_call_is_listed_with_its_documentation(grafana: Grafana) -> None:
    """In docs/guides/dashboards.md with its permission."""
    text = (Path(__file__).parents[3] / "docs/guides/dashboards.md").read_text()
    pushed(grafana, folder="Somewhere else", datasource="prom-1")
    pushed(grafana)
    with connected(grafana.url, TOKEN) as api:
        api.annotations.add_annotation(**mark_of(CHANGED))
    calls = {request.method + " " + UID.sub(r"\1/:uid", request.path) for request in grafana.asked}
    assert len(calls) == 8
    assert [call for call in sorted(calls) if f"[`{call}`](https://grafana.com/docs/" not in text] == []
