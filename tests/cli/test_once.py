"""`prober once` and `prober diagnose` beside a mock engine in virtual time."""

import json

from prober.mock.delays import Constant
from prober.mock.service import Behaviour, Settings
from tests.commands import prober
from tests.virtual_commands import beside, mock

ENGINE = Settings(behaviour=Behaviour(ttft=Constant(0.02), itl=Constant(0.001)))


def test_one_probe_is_drawn_or_a_document_and_its_outcome_is_the_exit_code() -> None:
    with beside(mock(ENGINE)) as (url,):
        drawn = prober("once", url)
        failed = prober("once", url, "--json", "--header", "X-Mock-Fault: truncated")
    assert drawn.returncode == 0
    assert "TTFT" in drawn.stdout
    assert "█" in drawn.stdout
    assert (failed.returncode, json.loads(failed.stdout)["outcome"]) == (1, "truncated")


def test_all_phases_are_sent_and_answered() -> None:
    """Where nothing was slow, the document says so in place of a diagnosis."""
    with beside(mock(ENGINE)) as (url,):
        done = prober("diagnose", url, "--json", "--tpot", "10s")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    kinds = {row["kind"]: (row["answered"], row["sent"]) for row in document["phases"]}
    assert kinds == {"short": (20, 20), "prefill": (22, 22), "prefill_warm": (22, 22), "decode": (6, 6)}
    assert document["diagnosis"] is None
    assert document["not_diagnosed"] == "Nothing was slow: no probe was above --tpot 10 s."
