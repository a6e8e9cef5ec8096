"""`prober matrix` as people run it, beside mock engines in virtual time."""

import asyncio
import itertools
import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from prober.cli.options import EndpointOptions
from prober.cli.target import target
from prober.features.experiments.report.report import html, markdown
from prober.features.experiments.result_reader import read
from prober.mock.delays import constant
from prober.mock.service import Behaviour, Settings
from prober.results import facets
from prober.storage.watched_file import Lock
from tests.commands import prober
from tests.shedding import SheddingServer
from tests.virtual_commands import beside, mock

SHAPE = "prompt_tokens: 32, output_tokens: {uniform: {min: 4, max: 8}}"
QUICK = Behaviour(ttft=constant(0.02), itl=constant(0.001))


def file(folder: Path, *rows: str) -> Path:
    path = folder / "rows.yaml"
    path.write_text("rows:\n" + "".join(f"- {{{row}, {SHAPE}}}\n" for row in rows))
    return path


def matrix(*arguments: str) -> tuple[int, str, str]:
    """Exit code, standard output, standard error."""
    done = prober("matrix", "--burst", "0s", *arguments)
    return done.returncode, done.stdout, done.stderr


def rows_of(out: str) -> list[Any]:
    """The stages with their verdicts in the JSON object printed; only the verdict of a row that was not begun."""
    own = json.loads(out)["llm_slo_prober"]
    stages: list[Any] = own["result"]["stages"]
    verdicts: list[Any] = own["verdicts"]
    stages += [{}] * (len(verdicts) - len(stages))
    return [stage | verdict for stage, verdict in zip(stages, verdicts, strict=True)]


def test_a_verdict_a_row(tmp_path: Path) -> None:
    """Accepted, rejected and too few in one run: exit code 1, a stage a row in a file that the report reads."""
    path = file(
        tmp_path,
        "name: good, rate: 50/s, requests: 70, hypothesis: it is fast, accept: ['ttft<2s:90%', 'success:90%']",
        "name: slow, rate: 50/s, duration: 1s, accept: ['ttft<5ms:90%']",
        "name: few, rate: 50/s, requests: 10, accept: ['ttft<2s:99%']",
    )
    saved = tmp_path / "result.json"
    with beside(mock(Settings(behaviour=QUICK))) as (url,):
        code, out, err = matrix(url, "--file", str(path), "--output", str(saved), "--json")
    assert code == 1, err
    assert [(row["name"], row["state"], row["sent"]) for row in rows_of(out) if row["name"] != "slow"] == [
        ("good", "accepted", 70),
        ("few", "not_enough_data", 10),
    ]
    assert rows_of(out)[1]["state"] == "rejected"
    assert json.loads(out) == json.loads(saved.read_text())
    assert "few: ttft<2s:99% takes 346 requests to be accepted if nothing is bad" in err
    assert "1/3 good: 70 requests, 50/s; expected: it is fast" in err
    stored = read(saved.read_text(), "result.json")
    assert (stored.kind, stored.load.arrivals, stored.stop, stored.configuration) == (
        "run",
        "poisson",
        "complete",
        path.read_text(),
    )
    assert [(stage.name, stage.sent, stage.rate_per_s) for stage in stored.stages if stage.name != "slow"] == [
        ("good", 70, 50.0),
        ("few", 10, 50.0),
    ]
    assert set(stored.stages[0].slos) == {"ttft", "success"}
    assert [stage.load.workload for stage in stored.stages if stage.load] == ["good", "slow", "few"]
    assert stored.warm_up is not None
    assert stored.warm_up.requests == 10
    assert not any(request.warm_up for request in stored.requests)
    assert stored.decision is not None
    assert not stored.decision.accepted
    assert "slow: rejected" in markdown([stored])
    assert "<svg" in html([stored])


def test_a_closed_loop_keeps_so_many_in_flight_and_hides_the_queue(tmp_path: Path) -> None:
    """Four at any time, by the server's own record. Where an open loop sees the queue, it is accepted, and says what it is."""
    objective = "accept: ['ttft<600ms:75%']"
    path = file(
        tmp_path,
        f"name: users, rate: 50/s, requests: 100, {objective}",
        f"name: tool, concurrency: 4, requests: 60, {objective}",
    )
    saved, truth = tmp_path / "result.json", tmp_path / "truth.jsonl"
    behaviour = Behaviour(ttft=constant(0.15), itl=constant(0.001), slots=4)  # about 25 requests a second
    with beside(mock(Settings(behaviour=behaviour, truth=truth))) as (url,):
        code, out, err = matrix(url, "--file", str(path), "--output", str(saved))
    assert code == 1, err
    assert "users: rejected" in out
    assert "tool (closed loop of 4): accepted" in out, out
    assert "coordinated omission" in out
    stored = read(saved.read_text(), "result.json")
    assert [stage.name for stage in stored.stages] == ["users", "tool (closed loop of 4)"]
    assert stored.load.arrivals == "poisson, and closed in tool"
    assert "coordinated omission" in markdown([stored])

    records = sorted(
        (json.loads(line) for line in truth.read_text().splitlines()), key=lambda record: record["received_ns"]
    )
    loop = [(record["received_ns"], record["end_ns"]) for record in records[-60:]]
    changes = sorted([(begin, 1) for begin, _ in loop] + [(end, -1) for _, end in loop])
    in_flight, most, area, last_ns = 0, 0, 0, loop[0][0]
    end_ns = loop[-1][0]  # from the last request on it drains
    for at_ns, change in changes:
        if at_ns <= end_ns:
            area += in_flight * (at_ns - last_ns)
            last_ns = at_ns
        in_flight += change
        most = max(most, in_flight)
    assert most == 4
    assert area / (end_ns - loop[0][0]) > 3.9


def test_two_at_one_endpoint_would_measure_each_other(tmp_path: Path) -> None:
    """The second one is told who is there, and has no verdict; nothing of it is sent."""
    path = file(tmp_path, "name: a, concurrency: 2, requests: 4, accept: ['success:90%']")
    truth = tmp_path / "truth.jsonl"
    with beside(mock(Settings(behaviour=QUICK, truth=truth))) as (url,):
        with Lock(target("matrix", url, EndpointOptions()).url, "prober sweep"):
            code, out, err = matrix(url, "--file", str(path))
        assert (code, out) == (4, "")
        assert f"is loaded by prober sweep, process {os.getpid()} on this machine" in err
        assert not truth.exists() or not truth.read_text()
        code, _, err = matrix(url, "--file", str(path))
        assert "loaded by" not in err


@asynccontextmanager
async def interrupted(number: signal.Signals, after_s: float) -> AsyncIterator[None]:
    """Send the command this signal after this time."""
    asyncio.get_running_loop().call_later(after_s, signal.raise_signal, number)
    yield


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_and_sigterm_keep_what_was_measured(tmp_path: Path, number: signal.Signals) -> None:
    """Exit code 4: the row that ended keeps its verdict, the interrupted one has none, the third one was not begun."""
    objective = "accept: ['ttft<2s:80%']"
    path = file(
        tmp_path,
        f"name: one, rate: 100/s, requests: 40, {objective}",
        f"name: two, rate: 50/s, duration: 10m, {objective}",
        f"name: three, concurrency: 2, duration: 10m, {objective}",
    )
    saved = tmp_path / "result.json"
    with beside(mock(Settings(behaviour=QUICK)), partial(interrupted, number, 6.0)) as (url, _):
        code, out, _ = matrix(url, "--file", str(path), "--output", str(saved), "--json")
    assert code == 4
    one, two, three = rows_of(out)
    assert [(row["name"].split()[0], row["state"]) for row in (one, two, three)] == [
        ("one", "accepted"),
        ("two", "not_enough_data"),
        ("three", "not_enough_data"),
    ]
    assert two["why"].startswith("interrupted after ")
    assert three["why"] == "not begun"
    stored = read(saved.read_text(), "result.json")
    assert [(stage.name, stage.ended) for stage in stored.stages] == [("one", "complete"), ("two", "interrupted")]
    assert stored.stages[1].answered > 20
    assert (stored.stop, stored.decision) == ("interrupted", None)


def test_a_closed_loop_for_a_time_ends_with_it_and_rests_when_refused(tmp_path: Path) -> None:
    """A server that fails at once is not hammered: each of two asks ten times a second, not a thousand."""
    path = file(tmp_path, "name: a, concurrency: 2, duration: 1s, accept: ['success:90%']")
    with beside(mock(Settings(behaviour=QUICK))) as (url,):
        code, out, _ = matrix(url, "--file", str(path), "--json", "--header", "X-Mock-Fault: http:500")
    (row,) = rows_of(out)
    assert (code, row["state"]) == (1, "rejected")
    assert row["outcomes"] == {"http_5xx": row["sent"]}
    assert 4 <= row["sent"] <= 22


def test_a_wrong_call_and_a_target_that_is_not_there(tmp_path: Path) -> None:
    """2 with every mistake of the file; 4 where nobody answers: that is no verdict on any row."""
    good = file(tmp_path, "name: a, rate: 1/s, requests: 1, accept: ['success:90%']")
    bad = tmp_path / "bad.yaml"
    bad.write_text("rows: [{name: a, rate: 1, accept: [], promt_tokens: 5}]")
    url = "http://127.0.0.1:1"
    calls = (
        ((url, "--file", str(bad)), 2, (f"{bad}:1: rows[0].rate: ", 'did you mean "prompt_tokens"', "rows[0].accept")),
        ((url, "--file", str(tmp_path / "none.yaml")), 2, ("cannot be read: No such file",)),
        ((url,), 2, ("--file",)),
        ((url, "--file", str(good), "--output", str(tmp_path / "no/where.json")), 2, ("--output", "cannot be written")),
        ((url, "--file", str(good), "--engine", "nothing"), 2, ("no engine",)),
        ((url, "--file", str(good)), 4, ("Connection refused",)),
    )
    for arguments, code, whats in calls:
        ended, out, err = matrix(*arguments)
        assert (ended, out) == (code, ""), err
        for message in whats:
            assert message in err


def test_an_overload_beside_a_row_shows_what_it_does_and_the_time_to_recover(tmp_path: Path) -> None:
    """Four seconds at 80/s make a queue worth two seconds, below the guard of three; the truth is the server's own record."""
    path, saved, truth = tmp_path / "rows.yaml", tmp_path / "result.json", tmp_path / "truth.jsonl"
    path.write_text(
        f"rows:\n- {{name: steady, rate: 10/s, duration: 16s, accept: ['ttft<1s:90%'], {SHAPE}}}\n"
        f"- {{name: overload, beside: steady, start: 4s, rate: 70/s, duration: 4s, {SHAPE}}}\n"
    )
    behaviour = Behaviour(ttft=constant(0.05), itl=constant(0.001), slots=3)  # about 54 requests a second
    with beside(mock(Settings(behaviour=behaviour, truth=truth))) as (url,):
        code, out, err = matrix(url, "--file", str(path), "--output", str(saved), "--json", "--warm-up", "3")
    assert out, (code, err)
    steady, overload = rows_of(out)
    assert (overload["state"], overload["disturbance"]) == ("load", None)
    assert steady["sent"] == len(read(saved.read_text(), "r").stages[0].requests)
    effect = steady["disturbance"]
    assert (effect["name"], effect["ended"], effect["slo"]) == ("overload", "", "ttft")
    assert effect["begin_s"] == pytest.approx(4.0, abs=0.5)
    assert effect["end_s"] - effect["begin_s"] == pytest.approx(4.0, abs=0.1)
    assert effect["bad"] > 0
    recovery = effect["recovery"]
    assert recovery["evidence"] == "holds"
    records = [json.loads(line) for line in truth.read_text().splitlines()]
    slow_ns = [r["received_ns"] for r in records if (r["first_write_ns"] or 0) - r["received_ns"] > 1_000_000_000]
    last_ns = max(record["received_ns"] for record in records)  # about 8 s after the end of the overload
    assert recovery["upper_s"] == pytest.approx(8 - (last_ns - max(slow_ns)) / 1e9, abs=0.7)
    disturbance = read(saved.read_text(), "r").stages[0].disturbance
    assert disturbance is not None
    assert "Recovery: " in disturbance.text()


def test_an_overload_that_harms_is_ended_by_its_guards(tmp_path: Path) -> None:
    """Within a second of a wait above three thresholds; the row beside goes on, and the result says why."""
    path = tmp_path / "rows.yaml"
    path.write_text(
        f"rows:\n- {{name: steady, rate: 10/s, duration: 14s, accept: ['ttft<200ms:90%'], {SHAPE}}}\n"
        f"- {{name: overload, beside: steady, start: 3s, rate: 150/s, duration: 10s, {SHAPE}}}\n"
    )
    behaviour = Behaviour(ttft=constant(0.05), itl=constant(0.001), slots=3)
    with beside(mock(Settings(behaviour=behaviour))) as (url,):
        _, out, err = matrix(url, "--file", str(path), "--json", "--warm-up", "3")
    steady, _ = rows_of(out)
    effect = steady["disturbance"]
    assert effect["ended"], err
    assert effect["end_s"] - effect["begin_s"] < 2.5
    assert steady["sent"] > 100


def test_rows_have_headers_of_their_own(tmp_path: Path) -> None:
    """The key of a row replaces that of the command; here the load beside has a wrong one, and is rejected."""
    path, key = tmp_path / "rows.yaml", tmp_path / "key"
    key.write_text("right")
    path.write_text(
        f"rows:\n- {{name: steady, rate: 20/s, duration: 3s, accept: ['ttft<300ms:90%'], {SHAPE}}}\n"
        f"- {{name: load, beside: steady, duration: 2s, rate: 20/s, headers: {{authorization: Bearer wrong}}, {SHAPE}}}\n"
    )
    with beside(mock(Settings(behaviour=QUICK, api_key="right"))) as (url,):
        code, out, err = matrix(
            *(url, "--file", str(path), "--json", "--warm-up", "1", "--bearer-token-file", str(key)),
        )
    assert out, (code, err)
    steady, load = rows_of(out)
    assert set(load["outcomes"]) == {"rejected"}
    assert steady["outcomes"].get("ok", 0) > 0
    assert "rejected" not in steady["outcomes"]


def test_turns_of_sessions_are_shown_apart(tmp_path: Path) -> None:
    """TTFT by turn, and later turns find the earlier ones in the prefix cache; a row of one series has no parts."""
    path, config, saved = tmp_path / "rows.yaml", tmp_path / "prober.yaml", tmp_path / "result.json"
    config.write_text(
        "targets: [{url: 'http://127.0.0.1:1', name: x}]\n"
        "workloads: {talk: {prompt_tokens: 60, output_tokens: 8, sessions: {count: 2, turns: 3}}}\n"
    )
    path.write_text(
        "rows:\n- {name: talks, workload: talk, rate: 20/s, requests: 40, accept: ['ttft<2s:90%']}\n"
        f"- {{name: plain, rate: 20/s, requests: 10, accept: ['ttft<2s:90%'], {SHAPE}}}\n"
    )
    with beside(mock(Settings(behaviour=QUICK))) as (url,):
        _, out, err = matrix(url, "--file", str(path), "--config.file", str(config), "--output", str(saved))
    assert "talks: talk_turn3 TTFT p50 " in out, err
    talks, plain = read(saved.read_text(), "r").stages
    assert [series.name for series in talks.series] == ["talk_turn1", "talk_turn2", "talk_turn3"]
    shares = [series.cached_tokens / series.prompt_tokens for series in talks.series]
    assert shares[0] == 0 < shares[1] < shares[2]
    assert plain.series == ()


def test_turns_follow_their_answers_after_a_think_time(tmp_path: Path) -> None:
    """By the server's record: a turn arrives 1.2 s after the end of the one before it, and sessions begin whatever the answers take."""
    rows, config, truth = tmp_path / "rows.yaml", tmp_path / "prober.yaml", tmp_path / "truth.jsonl"
    saved = tmp_path / "result.json"
    config.write_text(
        "workloads: {talk: {prompt_tokens: 20, output_tokens: 5, sessions: {turns: 3, think_time: 1200ms}}}\n"
    )
    rows.write_text("rows: [{name: talk, workload: talk, rate: 6/s, duration: 12s, accept: ['success:80%']}]\n")
    behaviour = Behaviour(ttft=constant(0.3), itl=constant(0.001))
    with beside(mock(Settings(behaviour=behaviour, truth=truth))) as (url,):
        arguments = ("--file", str(rows), "--config.file", str(config), "--output", str(saved), "--warm-up", "2")
        code, out, err = matrix(url, *arguments)
    assert code == 0, (out, err)
    assert "a later turn is due its think time after the answer before it" in out
    stored = read(saved.read_text(), "result.json")
    (stage,) = stored.stages
    assert stage.load is not None
    assert (
        stage.load.prompt_tokens
        == "fixed 20 a message, 3 turns with the server's own answers, think time in ms after an answer fixed 1200"
    )
    records = sorted(map(json.loads, truth.read_text().splitlines()), key=lambda record: record["received_ns"])
    sent = records[-stage.sent :]
    turns = [[record for record in sent if round((record["prompt_tokens"] - 20) / 25) == turn] for turn in range(3)]
    assert sum(map(len, turns)) == stage.sent
    assert [series.name for series in stage.series] == ["talk_turn1", "talk_turn2", "talk_turn3"]
    for earlier, later in itertools.pairwise(turns):
        due_ns = sorted(record["writes"][-1] + 1.2e9 for record in earlier)
        gaps_s = [(record["received_ns"] - at_ns) / 1e9 for record, at_ns in zip(later, due_ns, strict=False)]
        assert 0 <= min(gaps_s) <= max(gaps_s) < 0.3
        followed = [at_ns for at_ns in due_ns if at_ns < turns[0][0]["received_ns"] + 8e9]
        assert len(followed) <= len(later) <= len(earlier)
    assert 8 <= len(turns[0]) <= 45, "24 sessions are expected in 12 s"


OVERLOAD = "name: twice, beside: users, start: 20s, duration: 20s, rate: 18/s"
USERS = "name: users, rate: 2/s, duration: 100s, accept: ['ttft<500ms:90%']"


def overload(folder: Path, server: SheddingServer, load: str, *options: str) -> list[Any]:
    """The stages (of `users`, of its load) of a matrix at this server."""
    saved = folder / "result.json"
    with beside(server.run) as (url,):
        _, out, err = matrix(url, "--file", str(file(folder, USERS, load)), "--output", str(saved), *options)
    assert out, err
    return [*read(saved.read_text(), "result.json").stages]


def test_an_overload_is_measured_with_consent_and_ends_without(tmp_path: Path) -> None:
    """Twice the capacity of ten a second, against the server's own record of these 20 s and of when it shed last."""
    server = SheddingServer(slots=4, service_s=0.4)
    users, load = overload(tmp_path, server, OVERLOAD)
    assert "with shed_allowed it goes on" in load.ended
    assert load.sending_s < 5

    for consent in ((OVERLOAD, "--shed-allowed"), (f"{OVERLOAD}, shed_allowed: true",)):
        server = SheddingServer(slots=4, service_s=0.4)
        users, load = overload(tmp_path, server, *consent)
        assert (load.ended, load.sending_s, load.shedding.beside) == ("complete", 20.0, "users")
        assert f"twice: with those of users meanwhile {load.shedding.shed} of " in "".join(facets.sentences(load))
        origin_s = server.log[-1][0] - max(
            request.start_s or 0.0 for request in users.requests
        )  # of the result's times
        begin_s, end_s = origin_s + load.begin_s - 1e-3, origin_s + load.begin_s + 20.001
        arrivals = [(at_s, status == 200) for at_s, _, status in server.log if at_s >= origin_s]
        during = [(at_s, is_answered) for at_s, is_answered in arrivals if begin_s <= at_s <= end_s]
        shed_s = [at_s for at_s, is_answered in during if not is_answered]
        assert (load.shedding.requests, load.shedding.shed) == (len(during), len(shed_s))
        assert load.shedding.good == len(during) - len(shed_s)
        assert 7 < load.shedding.good / 20 < 10  # below its capacity
        assert users.disturbance is not None
        assert users.disturbance.recovery.evidence == "holds"


def test_the_time_to_recover_is_that_of_a_server_that_sheds_on(tmp_path: Path) -> None:
    """It sheds everything for 3 s after its limit was reached: by its record until some time after the load."""
    server = SheddingServer(slots=6, service_s=0.4, pause_s=3.0)
    users, load = overload(tmp_path, server, OVERLOAD, "--shed-allowed")
    origin_s = server.log[-1][0] - max(request.start_s or 0.0 for request in users.requests)
    last_s = max(at_s for at_s, _, status in server.log if status == 429) - origin_s - load.begin_s - 20
    recovery = users.disturbance.recovery
    assert recovery.evidence == "holds"
    assert recovery.lower_s == pytest.approx(last_s, abs=0.3)
    assert recovery.lower_s <= recovery.upper_s


def test_a_neighbour_with_a_limit_of_its_own_is_not_part_of_the_figures(tmp_path: Path) -> None:
    """Only the hot tenant is shed: the requests of the other one say nothing about its Retry-After, and recover from nothing."""
    server = SheddingServer(slots=4, service_s=0.4, sheds="hot", pause_s=3.0)
    users, load = overload(tmp_path, server, f"{OVERLOAD}, shed_allowed: true, headers: {{Authorization: Bearer hot}}")
    assert (users.shedding, users.answered) == (None, users.sent)
    hot = [status for _, key, status in server.log if "hot" in key]
    assert load.shedding.beside == ""
    assert load.shedding.shed == hot.count(429)
    assert load.shedding.requests == load.sent
    assert users.disturbance.bad == 0
