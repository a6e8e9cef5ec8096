"""Dashboards and marks against a stand-in that checks each request by Grafana's documentation."""

import json
import logging
import re
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme

from prober.daemon.dashboards import files
from prober.features.grafana.client.compare import difference, fingerprint, message_of, normal, same, sent
from prober.features.grafana.client.marks import Mark, annotate, mark
from prober.features.grafana.client.push import Report, State, Wish, push
from prober.features.grafana.client.server import GrafanaError, Server
from prober.measure.event import TargetEvent
from tests.features.grafana.grafana_server import (
    LOGIN,
    LOKI,
    PASSWORD,
    PROMETHEUS,
    TOKEN,
    USER,
    Fault,
    Grafana,
    standing_in,
)

DOCUMENTS: list[dict[str, Any]] = [json.loads(text) for text in files().values()]
FOLDER = "LLM SLO prober"
UID = re.compile(r"(/folders|/dashboards/uid)/[^/]+")


@pytest.fixture
def grafana() -> Iterator[Grafana]:
    with standing_in(Grafana()) as found:
        yield found


def pushed(grafana: Grafana, documents: list[dict[str, Any]] | None = None, **wish: Any) -> Report:
    with Server(grafana.url, TOKEN) as server:
        return push(server, documents or DOCUMENTS, Wish(**{"folder": FOLDER, **wish}))


def states(report: Report) -> list[State]:
    return [each.state for each in report.dashboards]


def newer(documents: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """As a later version of the prober would have them."""
    return [{**each, "description": "a later one"} for each in documents]


@pytest.mark.parametrize("old", [False, True], ids=["now", "Grafana 10"])
@pytest.mark.parametrize("migrates", [False, True], ids=["kept as sent", "changed by Grafana"])
@pytest.mark.parametrize("hides", [False, True], ids=["404", "403"])
def test_all_are_made_and_a_second_push_sends_nothing(grafana: Grafana, old: bool, migrates: bool, hides: bool) -> None:
    """In their folder, with their uids; whatever Grafana makes of what it keeps, and however it says that nothing is there."""
    grafana.old, grafana.migrates, grafana.hides = old, migrates, hides
    report = pushed(grafana)
    assert states(report) == ["made"] * len(DOCUMENTS)
    assert set(grafana.dashboards) == {each["uid"] for each in DOCUMENTS}
    assert {each.folder_uid for each in grafana.dashboards.values()} == {"llm-slo-prober"}
    assert grafana.folders["llm-slo-prober"]["title"] == FOLDER
    assert all(each.path in ("/api/folders", "/api/dashboards/db") for each in grafana.writes)
    grafana.asked.clear()
    assert states(pushed(grafana)) == ["same"] * len(DOCUMENTS)
    assert grafana.asked
    assert grafana.writes == []


def test_an_older_version_of_ours_is_replaced(grafana: Grafana) -> None:
    """Without being asked, under the version that was there; what people made of others in between is theirs."""
    pushed(grafana, newer(DOCUMENTS))
    grafana.edit("llm-slo-target", title="My own")
    report = pushed(grafana)
    assert {each.uid: each.state for each in report.dashboards} == {
        each["uid"]: "edited" if each["uid"] == "llm-slo-target" else "updated" for each in DOCUMENTS
    }
    assert grafana.dashboards["llm-slo"].document["description"] == DOCUMENTS[0].get("description", "")
    assert grafana.dashboards["llm-slo"].document["version"] == 2
    assert not any(each.body.get("overwrite") for each in grafana.writes if "overwrite" in each.body)


@pytest.mark.parametrize("how", ["saved", "restored", "saved with the old message", "imported"])
def test_what_people_edited_is_left_alone(grafana: Grafana, how: str) -> None:
    """However they did it; the others go on, what differs is shown, and force overwrites it."""
    first = DOCUMENTS[0]["uid"]
    if how == "imported":
        grafana._keep(first, {**DOCUMENTS[0], "title": "Imported"}, "", "", "jane")
    else:
        pushed(grafana, newer(DOCUMENTS))
        grafana.edit(first, title="Imported", message="tidied; was: " + message_of(DOCUMENTS[0]))
        if how == "restored":
            grafana.restore(first, 1)
    before = json.dumps(grafana.dashboards[first].document)
    report = pushed(grafana)
    (left,) = report.left
    assert (left.uid, left.state) == (first, "edited")
    assert left.difference
    assert json.dumps(grafana.dashboards[first].document) == before
    assert set(states(report)) - {"edited"} <= {"made", "updated"}
    assert states(pushed(grafana, force=True))[0] == "overwritten"
    assert grafana.dashboards[first].document["title"] == DOCUMENTS[0]["title"]
    grafana.asked.clear()
    assert states(pushed(grafana)) == ["same"] * len(DOCUMENTS)
    assert grafana.writes == []


def test_a_save_that_changed_nothing_is_no_edit(grafana: Grafana) -> None:
    """A browser saves a dashboard as it was, with what it adds of its own: nothing is sent, and nothing refused."""
    pushed(grafana)
    built_in = {"builtIn": 1, "name": "Annotations & Alerts", "type": "dashboard"}
    annotations = {"list": [built_in, *DOCUMENTS[0]["annotations"]["list"]]}
    grafana.edit(DOCUMENTS[0]["uid"], annotations=annotations, iteration=17, preload=False, weekStart="", gnetId=None)
    grafana.asked.clear()
    assert states(pushed(grafana)) == ["same"] * len(DOCUMENTS)
    assert grafana.writes == []


def test_without_a_history_nothing_that_differs_is_touched(grafana: Grafana) -> None:
    """Who saved last cannot be told then."""
    pushed(grafana, newer(DOCUMENTS))
    grafana.faults["GET", "/api/dashboards/uid/llm-slo-drift/versions"] = Fault(403, '{"message": "Access denied"}')
    report = pushed(grafana)
    assert [each.uid for each in report.left] == ["llm-slo-drift"]
    assert "cannot be read" in report.left[0].detail


def test_a_save_in_between_wins(grafana: Grafana) -> None:
    """Grafana refuses the version that is not the newest any more, and that is said."""
    pushed(grafana, newer(DOCUMENTS))
    grafana.faults["POST", "/api/dashboards/db"] = Fault(
        412, '{"status": "version-mismatch", "message": "The dashboard has been changed by someone else"}', times=1
    )
    report = pushed(grafana)
    assert states(report)[0] == "edited"
    assert "changed by someone else" in report.left[0].detail
    assert set(states(report)[1:]) == {"updated"}


def test_a_dry_run_sends_nothing(grafana: Grafana) -> None:
    """And says what would be made, replaced with which difference, or left."""
    report = pushed(grafana, dry_run=True)
    assert states(report) == ["made"] * len(DOCUMENTS)
    assert "would be made" in report.said[-1]
    pushed(grafana, newer(DOCUMENTS))
    grafana.asked.clear()
    report = pushed(grafana, dry_run=True)
    assert states(report) == ["updated"] * len(DOCUMENTS)
    assert '- "description": "a later one",' in report.dashboards[0].difference
    assert grafana.writes == []


def test_a_folder_is_found_by_title_or_uid_and_a_dashboard_stays_where_it_was_put(grafana: Grafana) -> None:
    """Even if its title is somebody's, or a dashboard was moved; force moves it back."""
    grafana.folders["team-7"] = {"id": 1, "uid": "team-7", "title": "Team Seven", "version": 1}
    pushed(grafana, folder="Team Seven")
    assert {each.folder_uid for each in grafana.dashboards.values()} == {"team-7"}
    assert list(grafana.folders) == ["team-7"]
    grafana.dashboards["llm-slo"].folder_uid = ""
    pushed(grafana, newer(DOCUMENTS), folder="team-7")
    assert grafana.dashboards["llm-slo"].folder_uid == ""
    assert grafana.dashboards["llm-slo-drift"].folder_uid == "team-7"
    pushed(grafana, folder="team-7", force=True)
    assert grafana.dashboards["llm-slo"].folder_uid == "team-7"


def test_a_folder_of_ours_is_found_after_it_was_renamed(grafana: Grafana) -> None:
    """By its uid; one that has the title comes first."""
    pushed(grafana)
    grafana.folders["llm-slo-prober"]["title"] = "Latency"
    grafana.dashboards.clear()
    report = pushed(grafana)
    assert "folder: 'Latency' (uid llm-slo-prober)" in report.said
    grafana.folders["mine"] = {"id": 9, "uid": "mine", "title": FOLDER, "version": 1}
    grafana.dashboards.clear()
    assert f"folder: {FOLDER!r} (uid mine)" in pushed(grafana).said
    assert set(grafana.folders) == {"llm-slo-prober", "mine"}


def test_a_provisioned_dashboard_is_said_to_be_one(grafana: Grafana) -> None:
    """Before anything is sent, with force too; and where only the answer to the save tells."""
    pushed(grafana, newer(DOCUMENTS))
    grafana.dashboards["llm-slo"].provisioned = True
    grafana.asked.clear()
    report = pushed(grafana, force=True)
    assert [(each.uid, each.state) for each in report.left] == [("llm-slo", "provisioned")]
    assert "from a file" in report.left[0].detail
    grafana.dashboards.pop("llm-slo-target")
    grafana.faults["POST", "/api/dashboards/db"] = Fault(400, '{"message": "Cannot save provisioned dashboard"}')
    assert {each.uid: each.state for each in pushed(grafana).left}["llm-slo-target"] == "provisioned"


@pytest.mark.parametrize(
    ("sources", "wanted", "said"),
    [
        ([LOKI], None, "no data source understands PromQL (there are: Loki of type loki)"),
        ([], None, "no data source understands PromQL (there are: none)"),
        ([PROMETHEUS, LOKI], "Promethius", 'did you mean "Prometheus"?'),
        ([PROMETHEUS, LOKI], "loki-1", "is of type 'loki', which has no PromQL; those that have: Prometheus"),
    ],
)
def test_a_data_source_that_is_missing_or_no_prometheus_is_said(
    grafana: Grafana, sources: list[dict[str, Any]], wanted: str | None, said: str
) -> None:
    """Before anything is sent."""
    grafana.sources = sources
    with pytest.raises(GrafanaError) as refused:
        pushed(grafana, datasource=wanted)
    assert said in str(refused.value)
    assert grafana.writes == []


def test_the_data_source_asked_for_is_the_one_they_begin_with(grafana: Grafana) -> None:
    """By name or uid, and one of another type that has PromQL is what their variable lists and their queries name."""
    grafana.sources.append({"id": 3, "uid": "amp", "name": "AMP", "type": "grafana-amazonprometheus-datasource"})
    pushed(grafana, datasource="AMP")
    kept = grafana.dashboards["llm-slo"].document
    (variable,) = (each for each in kept["templating"]["list"] if each["type"] == "datasource")
    assert variable["query"] == "grafana-amazonprometheus-datasource"
    assert variable["current"] == {"selected": True, "text": "AMP", "value": "amp"}
    assert '"type": "prometheus"' not in json.dumps(kept)
    assert states(pushed(grafana, datasource="amp")) == ["same"] * len(DOCUMENTS)
    report = pushed(grafana, datasource="prom-1")
    assert set(states(report)) == {"updated"}
    assert "'Prometheus' (prometheus, uid prom-1)" in report.said[1]


def test_the_only_one_with_promql_is_taken_and_the_choice_is_said(grafana: Grafana) -> None:
    """Grafana's own choice is left to it; a token that may not look does not keep the dashboards away."""
    assert "Grafana's choice, most likely 'Prometheus'" in pushed(grafana).said[1]
    grafana.faults["GET", "/api/datasources"] = Fault(403, '{"message": "no"}')
    assert "not checked" in pushed(grafana).said[1]
    with pytest.raises(GrafanaError, match="datasources:read"):
        pushed(grafana, datasource="prom-1")
    grafana.faults.clear()
    grafana.sources = [{"id": 3, "uid": "vm", "name": "VM", "type": "victoriametrics-metrics-datasource"}, LOKI]
    assert "as there is none of type prometheus" in pushed(grafana).said[1]


FAULTS = {
    "login page": (Fault(200, LOGIN, "text/html; charset=utf-8"), "is a login or a proxy in between?"),
    "redirect": (Fault(302, "", "text/html", "https://sso.example.org/login"), "give the final address"),
    "token": (Fault(401, '{"message": "Invalid API key"}'), "HTTP 401 (Invalid API key): the token is not valid"),
    "gone": (Fault(404, "<html>no</html>", "text/html"), "HTTP 404: not there"),
    "proxy": (Fault(502, "<html>bad gateway</html>", "text/html"), "HTTP 502: Grafana, or a proxy before it, failed"),
    "half": (Fault(200, '{"a', "application/json"), "the answer is no JSON"),
}


@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.parametrize("path", ["/api/health", "/api/datasources"])
def test_what_is_no_grafana_is_said_in_words(grafana: Grafana, name: str, path: str) -> None:
    """With the address and what was asked, without the page and without the token; nothing is sent."""
    fault, said = FAULTS[name]
    grafana.faults["GET", path] = fault
    with pytest.raises(GrafanaError) as refused:
        pushed(grafana)
    message = str(refused.value)
    assert message.startswith(f"{grafana.url}: GET {path}: ")
    assert said in message
    assert "html" not in message.lower()
    assert TOKEN not in message
    assert grafana.writes == []


def test_another_service_is_no_grafana(grafana: Grafana) -> None:
    """Though it answers JSON."""
    grafana.faults["GET", "/api/health"] = Fault(200, '{"status": "ok"}')
    with pytest.raises(GrafanaError, match="what answers there is no Grafana"):
        pushed(grafana)


def test_nobody_there_is_said_by_its_cause() -> None:
    """And not by the library's objects."""
    with Server("http://127.0.0.1:9", TOKEN) as server, pytest.raises(GrafanaError) as refused:
        server.version()
    assert "cannot be reached: " in str(refused.value)
    assert "refused" in str(refused.value)
    assert "object at" not in str(refused.value)


def test_a_slow_server_is_given_up(grafana: Grafana) -> None:
    """After the time that was set."""
    grafana.faults["GET", "/api/health"] = Fault(200, "{}", slow_s=2.0)
    with (
        Server(grafana.url, TOKEN, timeout_s=0.2) as server,
        pytest.raises(GrafanaError, match=r"no answer within 0\.2 s"),
    ):
        server.version()


def test_certificates(tmp_path: Path) -> None:
    """One that nobody vouches for is refused in words; the authority's file, or taking any, lets it pass."""
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    with standing_in(Grafana(), tls=context) as grafana:
        with Server(grafana.url, TOKEN) as server, pytest.raises(GrafanaError, match="no trust in its certificate"):
            server.version()
        with Server(grafana.url, TOKEN, ca_file=str(tmp_path / "ca.pem")) as server:
            assert server.version() == "12.1.0"
        with Server(grafana.url, TOKEN, ca_file=str(tmp_path / "none.pem")) as server, pytest.raises(GrafanaError):
            server.version()


def test_a_token_without_rights_is_told_which(grafana: Grafana) -> None:
    """For the folder, and for each dashboard."""
    denied = Fault(403, '{"message": "Access denied"}')
    grafana.faults["POST", "/api/folders"] = denied
    report = pushed(grafana)
    assert set(states(report)) == {"failed"}
    assert "give it folders:create" in report.left[0].detail
    assert not any("folder" in each for each in report.said)
    grafana.faults = {("POST", "/api/dashboards/db"): denied}
    assert "dashboards:create and dashboards:write" in pushed(grafana).left[0].detail


def test_a_path_and_a_password(tmp_path: Path) -> None:
    """Grafana may be served under a path, and a user may have no token."""
    with standing_in(Grafana(), prefix="/monitoring/grafana") as grafana:
        assert set(states(pushed(grafana))) == {"made"}
        with Server(grafana.url + "/", (USER, PASSWORD)) as server:
            assert set(states(push(server, DOCUMENTS, Wish(FOLDER)))) == {"same"}
        with Server(grafana.url, (USER, "wrong")) as server, pytest.raises(GrafanaError, match="HTTP 401"):
            push(server, DOCUMENTS, Wish(FOLDER))


def test_a_push_cut_off_in_the_middle_is_finished_by_the_next(grafana: Grafana) -> None:
    """The answer to the third save is lost after it was done: the rest is not tried, and then only the rest is sent."""
    grafana.faults["POST", "/api/dashboards/db"] = Fault(lost=True, after=2)
    report = pushed(grafana)
    assert states(report) == ["made", "made", *["failed"] * (len(DOCUMENTS) - 2)]
    assert "cannot be reached" in report.left[0].detail
    assert "not tried" in report.left[1].detail
    grafana.faults.clear()
    grafana.asked.clear()
    done = len(grafana.dashboards)
    assert done >= 3
    assert states(pushed(grafana)) == [*["same"] * done, *["made"] * (len(DOCUMENTS) - done)]
    assert len(grafana.writes) == len(DOCUMENTS) - done
    assert [len(each.versions) for each in grafana.dashboards.values()] == [1] * len(DOCUMENTS)


def test_one_that_fails_does_not_keep_the_others_back(grafana: Grafana) -> None:
    """Grafana stumbles once."""
    grafana.faults["POST", "/api/dashboards/db"] = Fault(500, times=1)
    report = pushed(grafana)
    assert states(report) == ["failed", *["made"] * (len(DOCUMENTS) - 1)]
    assert states(pushed(grafana)) == ["made", *["same"] * (len(DOCUMENTS) - 1)]


def test_the_token_is_in_no_message_and_no_log(grafana: Grafana, caplog: pytest.LogCaptureFixture) -> None:
    """Not even where a server gives it back."""
    caplog.set_level(logging.DEBUG)
    grafana.faults["GET", "/api/datasources"] = Fault(400, json.dumps({"message": f"bad header: Bearer {TOKEN}"}))
    with pytest.raises(GrafanaError, match="bad header: Bearer …") as refused:
        pushed(grafana)
    assert TOKEN not in str(refused.value)
    assert TOKEN not in caplog.text


# --- comparison


def test_the_fingerprint_is_of_what_is_sent() -> None:
    """Numbers of Grafana's do not count, and the message tells ours from anybody's."""
    one = {"title": "a", "panels": [1]}
    assert fingerprint(one) == fingerprint({**one, "id": 7, "version": 3})
    assert fingerprint(one) != fingerprint({**one, "panels": [1, 2]})
    assert sent(message_of(one)) == fingerprint(one)
    assert len(message_of(one)) < 500
    for other in ("", None, "Restored from version 1", "as in " + message_of(one), message_of(one) + " but tidied"):
        assert sent(other) is None


def test_what_differs_for_a_reader_differs() -> None:
    """A switch turned on or off, a zero, another order; not an empty field more."""
    held = {"a": 0, "b": {"c": []}, "d": False, "list": [{"x": 1}, {"y": 2}]}
    assert same(held, {"a": 0, "list": [{"x": 1, "z": None}, {"y": 2}]})
    assert not same(held, {**held, "a": 1})
    assert not same(held, {**held, "d": True})
    assert not same({"list": held["list"]}, held)
    assert not same(held, {**held, "list": [{"y": 2}, {"x": 1}]})
    assert normal({"id": 1, "version": 2, "title": ""}) == {}


def test_a_difference_stays_short() -> None:
    """However much differs."""
    found = difference({"panels": list(range(1, 400))}, {"panels": ["x" * 1000]})
    assert len(found) <= 41
    assert max(map(len, found)) <= 160
    assert found[-1].endswith("lines more")


# --- marks

SWEPT = TargetEvent(1_700_000_600.25, "a/llama <70b>", "sweep", "sweep: found, 12/s")
CHANGED = TargetEvent(1_700_000_700.5, "b", "engine", "version was 1, is 2")


def test_an_event_is_marked_once(grafana: Grafana) -> None:
    """With tags and times in milliseconds, a sweep as a span; a second try, or one after a lost answer, makes none again."""
    marks = [mark(CHANGED), mark(SWEPT, 1_700_000_000.0)]
    with Server(grafana.url, TOKEN) as server:
        assert annotate(server, marks) == 2
        assert annotate(server, [*marks, *marks]) == 0
        grafana.faults["POST", "/api/annotations"] = Fault(lost=True, times=1)
        later = [
            mark(TargetEvent(1_700_000_800.0, "b", "drift", "ttft of probe: alarm")),
            mark(TargetEvent(1_700_000_900.0, "b", "engine", "x")),
        ]
        with pytest.raises(GrafanaError):
            annotate(server, later)
        assert annotate(server, later) <= 1
    swept, changed = grafana.annotations[:2]
    assert (swept["time"], swept["timeEnd"]) == (1_700_000_000_000, 1_700_000_600_250)
    assert swept["tags"] == ["llm-slo-prober", "a/llama <70b>", "sweep"]
    assert swept["text"] == "a/llama &lt;70b&gt;: sweep: found, 12/s"
    assert (changed["time"], changed["timeEnd"]) == (1_700_000_700_500, 1_700_000_700_500)
    assert len(grafana.annotations) == 4


def test_no_marks_ask_nothing(grafana: Grafana) -> None:
    """And a long name fits Grafana's table of tags."""
    with Server(grafana.url, TOKEN) as server:
        assert annotate(server, []) == 0
        assert grafana.asked == []
        assert annotate(server, [mark(TargetEvent(1.0, "x" * 200, "engine", "restart"))]) == 1


def test_a_mark_is_plain_data() -> None:
    """A moment has no end."""
    assert mark(TargetEvent(2.0, "t", "drift", "e2e: recovered")) == Mark(
        2000, None, ("llm-slo-prober", "t", "drift"), "t: e2e: recovered"
    )


def test_every_call_is_listed_with_its_documentation(grafana: Grafana) -> None:
    """In docs/guides/dashboards.md, since the token needs a permission for each."""
    text = (Path(__file__).parents[3] / "docs/guides/dashboards.md").read_text()
    pushed(grafana, folder="Somewhere else")
    pushed(grafana)
    with Server(grafana.url, TOKEN) as server:
        annotate(server, [mark(CHANGED)])
    calls = {each.method + " " + UID.sub(r"\1/:uid", each.path) for each in grafana.asked}
    assert len(calls) == 10
    assert [call for call in sorted(calls) if f"[`{call}`](https://grafana.com/docs/" not in text] == []
