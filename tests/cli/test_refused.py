"""A target that refuses some requests, by commands as people run them, beside such an engine in virtual time."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from prober.features.experiments.report.report import markdown
from prober.features.experiments.result_reader import read
from prober.mock.server import create_app
from tests.cli.test_deciding import QUICK, RATE, prober
from tests.cli.test_rows import rows_of
from tests.commands import prober as call
from tests.serving import serving
from tests.virtual import make_clock
from tests.virtual_commands import beside

MAX_CHARS = 2_000
ERROR = {"error": {"message": "This model's maximum context length is 4096 tokens", "code": 400}}
CONFIGURATION = """
targets: [{url: 'http://127.0.0.1:1', name: x}]
workloads:
  talk: {prompt_tokens: 20, output_tokens: 4, sessions: {count: 12, turns: 8}}
  short: {prompt_tokens: 20, output_tokens: 4}
  long: {prompt_tokens: 2000, output_tokens: 4}
  both: {mix: [{workload: short, weight: 3}, {workload: long}]}
"""
ROWS = """
rows:
- {name: talk, workload: talk, rate: 30/s, requests: 96, accept: ['success:90%']}
- {name: both, workload: both, rate: 60/s, requests: 60, accept: ['success:80%']}
- {name: short, workload: short, rate: 60/s, requests: 60, accept: ['success:90%']}
"""
Rule = Callable[[int, list[dict[str, str]]], bool]


@asynccontextmanager
async def refusing(rule: Rule) -> AsyncIterator[str]:
    """URL of an engine that refuses the requests for which the rule holds. rule: of a request's number and messages"""
    received = 0

    @web.middleware
    async def refuse(request: web.Request, handler: Callable[[web.Request], Any]) -> web.StreamResponse:
        nonlocal received
        if request.method == "POST":
            received += 1
            if rule(received, (await request.json())["messages"]):
                return web.json_response(ERROR, status=400)
        response: web.StreamResponse = await handler(request)
        return response

    app = create_app(QUICK, make_clock)
    app.middlewares.append(refuse)
    async with serving(app) as url:
        yield url


def nothing(_number: int, _messages: list[dict[str, str]]) -> bool:
    return False


def everything(_number: int, _messages: list[dict[str, str]]) -> bool:
    return True


def some(number: int, _messages: list[dict[str, str]]) -> bool:
    """Two of five, and none of the sample prompts."""
    return number > 3 and number % 5 < 2


def late_or_long(_number: int, messages: list[dict[str, str]]) -> bool:
    """Sixth turns and later ones, and long prompts."""
    turn = sum(message["role"] == "user" for message in messages)
    return turn >= 6 or (turn == 1 and len(messages[0]["content"]) > MAX_CHARS)


def test_rows_that_are_refused_are_not_judged_and_their_neighbour_is(tmp_path: Path) -> None:
    """By turn and by length, with the place and the server's words; the file and its report say the same."""
    rows, config, saved = tmp_path / "rows.yaml", tmp_path / "prober.yaml", tmp_path / "result.json"
    rows.write_text(ROWS)
    config.write_text(CONFIGURATION)
    with beside(partial(refusing, late_or_long)) as (url,):
        command = ("matrix", url, "--file", str(rows), "--config.file", str(config), "--output", str(saved))
        done = call(*command, "--warm-up", "1", "--burst", "0s", "--json")
    assert done.returncode == 4, done.stderr
    talk, both, short = rows_of(done.stdout)
    assert [row["state"] for row in (talk, both, short)] == ["not_judged", "not_judged", "accepted"]
    assert talk["why"].endswith(
        " requests refused: HTTP 400: This model's maximum context length is 4096 tokens, from turn 6"
    )
    assert both["why"].endswith("4096 tokens, only in long")
    assert (talk["refused"]["refused"], short["refused"]["refused"]) == (talk["outcomes"]["rejected"], 0)
    stage = read(saved.read_text(), "result.json").stages[0]
    assert str(stage.refused) == talk["why"]
    assert "Not decided: talk: not judged (" in markdown([read(saved.read_text(), "result.json")])


@pytest.mark.parametrize(("rule", "most"), [(everything, 6), (some, 60)])
def test_a_gate_ends_soon_when_requests_are_refused(rule: Rule, most: int) -> None:
    """Exit code 4 with the reason."""
    with beside(partial(refusing, rule)) as (url,):
        code, answer, err = prober("gate", url, "--slo", "ttft<2s:90%", *RATE)
    assert (code, answer["state"]) == (4, "not_judged"), err
    assert "requests refused: HTTP 400" in answer["why"]
    assert answer["requests"] <= most


def test_a_comparison_with_a_side_that_refuses_is_none() -> None:
    """Known from the warm-up if it refuses everything, else when it is over."""
    short = ("--rate", "80/s", "--rounds", "9", "--requests", "2", "--cool-down", "0s", "--warm-up", "1")
    with beside(*(partial(refusing, rule) for rule in (nothing, some, everything))) as (a, b, c):
        code, answer, err = prober("compare", a, b, *short)
        assert (code, answer["compared"], list(answer["refused"])) == (4, [], ["B at 80/s"]), err
        code, answer, err = prober("compare", a, c, *short)
    assert (code, answer) == (4, {})
    assert f"prober compare: B ({c}/v1): 1 of 1 requests refused: HTTP 400: This model's maximum" in err


def test_a_refused_sweep_and_probe_exit_with_4(tmp_path: Path) -> None:
    """With nothing that a plan could use."""
    saved = tmp_path / "result.json"
    with beside(partial(refusing, some)) as (url,):
        command = ("sweep", url, "--slo", "ttft<2s:90%", "--rates", "40", "--step", "2s", "--warm-up", "2")
        code, answer, err = prober(*command, "--output", str(saved))
        assert code == 4, err
        assert (answer["capacities"], answer["stop"]) == ([], "refused")
        assert answer["refused"]["reason"] == "HTTP 400: This model's maximum context length is 4096 tokens"
    plan = call("plan", "--sweep", str(saved), "--peak", "9/s")
    assert (plan.returncode, "requests refused: HTTP 400" in plan.stdout) == (4, True)
    with beside(partial(refusing, everything)) as (url,):
        probe = call("once", url)
    assert probe.returncode == 4
    assert "rejected" in probe.stdout
    assert "maximum context length" in probe.stdout
