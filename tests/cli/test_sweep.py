"""`prober sweep`: its sentences on a result, and a sweep beside a mock engine in virtual time."""

import json
import math
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from prober.cli.sweep import _sentences
from prober.features.experiments.report.report import markdown
from prober.features.experiments.result_reader import read
from prober.mock.delays import constant
from prober.mock.service import Behaviour, Settings
from prober.results.capacity import Capacity
from tests.commands import prober
from tests.results.samples import sweep
from tests.shedding import SheddingServer
from tests.virtual_commands import beside, mock

HOLDS = Capacity("ttft", "not_reached", lower=16.0)


@pytest.mark.parametrize(
    ("capacities", "stop", "advice"),
    [
        ((HOLDS, replace(HOLDS, slo="tpot", lower=14.0)), "highest_rate", " The knee is above 14/s: raise --max-rate."),
        ((HOLDS, Capacity("tpot", "not_enough_data")), "highest_rate", " A higher --max-rate may reach the knee."),
        ((HOLDS,), "request_budget", ""),
        ((Capacity("ttft", "below", upper=1.0),), "highest_rate", ""),
        ((HOLDS, Capacity("tpot", "below", upper=4.0)), "highest_rate", ""),
        ((), "highest_rate", ""),  # too many requests were refused
    ],
)
def test_a_higher_rate_is_advised_only_where_no_slo_fails(
    capacities: tuple[Capacity, ...], stop: str, advice: str
) -> None:
    """At the highest rate, where the knee is or may be above; not where one is shown to be below."""
    result = replace(sweep(), capacities=capacities, stop=stop)
    assert f"{result.capacity_words()}.{advice}" in list(_sentences(result))


def test_a_target_that_fails_at_the_lowest_rate_is_told_with_its_figures(tmp_path: Path) -> None:
    """Exit code 1, the rate at which it fails, and the counts that say so."""
    saved = tmp_path / "kept.json"
    options = ("--slo", "ttft<300ms:99%", "--min-rate", "4/s", "--warm-up", "3", "--output", saved)
    shape = ("--prompt-tokens", "20", "--output-tokens", "4", "--header", "X-Mock-Fault: latency:8")
    with beside(mock(Settings(behaviour=Behaviour(ttft=constant(0.05), itl=constant(0.001), slots=4)))) as (url,):
        ended = prober("sweep", url, *options, *shape)
    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert "ttft: fails at 4/s, its knee is below, by " in ended.stdout
    assert "ramp 4/s" in ended.stdout
    result = json.loads(saved.read_text())["llm_slo_prober"]["result"]
    assert [capacity["verdict"] for capacity in result["capacities"]] == ["below"]
    (stage,) = result["stages"]
    assert stage["sent"] >= stage["slos"]["ttft"][1] >= 2


def test_a_target_that_sheds_ends_the_sweep_which_says_where_that_began(tmp_path: Path) -> None:
    """At the first 429 with Retry-After; by the server's own record nothing was shed before, and nothing is sent after it."""
    saved, server = tmp_path / "kept.json", SheddingServer(slots=4, service_s=0.4)
    options = ("--slo", "success:95%", "--min-rate", "2/s", "--warm-up", "3", "--metrics-url", "none")
    with beside(server.run) as (url,):
        ended = prober("sweep", url, *options, "--prompt-tokens", 20, "--output-tokens", 4, "--output", saved)
    assert [status for _, _, status in server.log].index(429) == len(server.log) - 1
    result = json.loads(saved.read_text())["llm_slo_prober"]["result"]
    *_, below, last = result["stages"]
    onset = result["shedding"]
    assert (onset["lower_per_s"], onset["unshed"]) == (below["rate_per_s"], below["sent"])
    assert (onset["upper_per_s"], onset["shed"]) == (last["rate_per_s"], 1)
    assert "nothing shows a full engine: " in ended.stdout
    assert "answers are as fast as before. With --shed-allowed it goes on." in ended.stdout
    assert ended.returncode == 4
    text = f"at {last['rate_per_s']:.3g}/s the target shed 1 of {onset['requests']} requests (429, or 503 with Retry-After)"
    assert text in ended.stdout
    assert text in markdown([read(saved.read_text(), "kept.json")])


def test_with_consent_a_grid_measures_the_overload_to_its_end(tmp_path: Path) -> None:
    """Every request of the server's record is in the result: answered, shed, or cut at the end."""
    saved, server = tmp_path / "kept.json", SheddingServer(slots=4, service_s=0.4, status=503)
    options = ("--rates", "15,20", "--step", "20s", "--warm-up", "0", "--metrics-url", "none", "--shed-allowed")
    with beside(server.run) as (url,):
        ended = prober("sweep", url, *options, "--prompt-tokens", 20, "--output-tokens", 4, "--output", saved)
    assert "It ended: the highest rate of the plan was reached: 20/s." in ended.stdout, ended.stdout + ended.stderr
    stages = json.loads(saved.read_text())["llm_slo_prober"]["result"]["stages"]
    statuses = [status for _, _, status in server.log]
    assert sum(stage["shedding"]["shed"] for stage in stages) == statuses.count(503) > 100
    cut = sum(stage["outcomes"].get("cancelled", 0) for stage in stages)
    answers = sum(stage["answered"] for stage in stages)
    samples = len(server.log) - sum(stage["sent"] for stage in stages)  # sent before the sweep
    assert answers + cut + samples == statuses.count(200)


@dataclass(frozen=True)
class ExponentialDelay:
    """A delay with an exponential distribution, for which the response times of a closed queue are known."""

    mean_s: float

    def draw(self, rng: Random) -> float:
        return rng.expovariate(1 / self.mean_s) * 1e9


def test_how_many_users_fit(tmp_path: Path) -> None:
    """An engine that serves one at a time in 200 ms: of the requests of 5 users who think for 1 s, 17% take over 700 ms
    in theory, and of 6 users 24%. Report and plan read the file, and a plan by rate refuses it.
    """
    delay: Any = ExponentialDelay(0.2)
    behaviour = Behaviour(ttft=delay, itl=constant(0.0), slots=1)
    saved = tmp_path / "users.json"
    arguments = ("--over", "users", "--think", "1s", "--slo", "ttft<700ms:80%", "--output", str(saved))
    with beside(mock(Settings(behaviour=behaviour, seed=1))) as (url,):
        done = prober("sweep", url, *arguments, "--prompt-tokens", "8", "--output-tokens", "1", "--warm-up", "2")
    assert done.returncode == 0, done.stderr
    result = read(saved.read_text(), "users.json")
    (capacity,) = result.capacities
    assert capacity.users
    assert capacity.lower is not None
    assert capacity.upper is not None
    assert capacity.lower <= 5 < capacity.upper
    assert (
        f"ttft: holds for {capacity.text(capacity.lower)} and fails for {capacity.text(capacity.upper)}" in done.stdout
    )
    assert all(stage.users and stage.name.startswith(f"{stage.users} user") for stage in result.stages)
    report = prober("report", str(saved)).stdout
    assert f"| ttft | {capacity.lower:g} | {capacity.upper:g} |" in report
    planned = prober("plan", "--sweep", str(saved), "--users", "100", "--headroom", "0%", "--gpu-price", "2")
    assert planned.returncode == 0, planned.stderr
    assert f"{math.ceil(100 / capacity.lower)}" in planned.stdout
    by_rate = prober("plan", "--sweep", str(saved), "--peak", "9/s")
    assert by_rate.returncode == 1
    assert "name the peak with --users" in by_rate.stdout


def test_users_whose_requests_all_fail_are_shown() -> None:
    """The requests that ended the only number of users are in its row, and why it ended is the last sentence."""
    shape = ("--prompt-tokens", "20", "--output-tokens", "4", "--header", "X-Mock-Fault: http:500", "--warm-up", "0")
    with beside(mock(Settings())) as (url,):
        done = prober("sweep", url, "--over", "users", "--think", "0s", "--slo", "itl<50ms:99%", *shape)
    assert done.returncode == 4, done.stdout + done.stderr
    (row,) = (line.split() for line in done.stdout.splitlines() if line.startswith("1 user"))
    assert int(row[2]) >= int(row[3]) >= 2
    assert "It ended: complete: 1 user: 2 of " in done.stdout
    assert "http_5xx" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--over", "users"), "--over users needs --think"),
        (("--over", "users", "--think", "1s", "--max-rate", "5/s"), "--over users sends no rates, so --max-rate"),
        (("--over", "sessions"), "write rates or users"),
        (("--think", "1s"), "--over rates has no users, so --think"),
    ],
)
def test_options_that_users_need(arguments: tuple[str, ...], text: str) -> None:
    """A wrong call is refused before anything is sent, with what to write."""
    done = prober("sweep", "http://127.0.0.1:9", *arguments)
    assert (done.returncode, text in done.stderr) == (2, True), done.stderr
