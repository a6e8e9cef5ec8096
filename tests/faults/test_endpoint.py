"""Endpoints that fail: one daemon meets all of them, one after another."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.endpoint import FAULTS, Endpoint, well
from tests.faults.rig import Seen, config, descriptors, recovered, seen, settled
from tests.processes import Daemon, until

PAUSE_S = 0.5  # of the endpoint, which may have its probes end otherwise
SLACK = 12  # connections of probes that are under way
ENDS = (  # one of each way in which the prober is rid of a connection; tests/probing/test_probe.py has the name of each fault
    "resets inside the answer",
    "hangs before any header",
    "never ends",
    "sends a line without end",
)


@pytest.fixture(scope="module")
def endpoint() -> Iterator[Endpoint]:
    with Endpoint() as serving:
        yield serving


@pytest.fixture(scope="module")
def daemon(endpoint: Endpoint, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    folder: Path = tmp_path_factory.mktemp("faults")
    # A second is too short: the endpoint shares its process with this test, on machines that may stand still for that long.
    with Daemon(folder, config(f"http://127.0.0.1:{endpoint.port}", timeout="3s", total="5s")) as running:
        until(lambda: seen(running).outcomes["ok"] >= 3, "good probes")
        yield running


@pytest.mark.parametrize("fault", ENDS)
def test_each_has_its_name_makes_no_sample_and_leaves_nothing_open(
    daemon: Daemon, endpoint: Endpoint, fault: str
) -> None:
    """The outcome says what was seen; latencies are of good answers only; after it the prober is as before."""
    act, outcome = FAULTS[fault]
    for before in undisturbed(daemon, endpoint):
        files = descriptors(daemon.process.pid)
        endpoint.act = act
        until(lambda: seen(daemon).since(before).outcomes[outcome] >= 3, f"{outcome}, not {seen(daemon).since(before)}")  # noqa: B023

        def mend() -> None:
            endpoint.act = well

        recovered(daemon, mend)
        until(lambda: not endpoint.misbehaving, "the last of them to be given up")
        settled(daemon, files + SLACK)
    assert set(seen(daemon).since(before).outcomes) == {"ok", outcome}
    until(lambda: of_good_answers_only(seen(daemon).since(before)), "as many samples as good answers, as a page has it")


def undisturbed(daemon: Daemon, endpoint: Endpoint) -> Iterator[Seen]:
    """The counts before each attempt, up to five, until neither the endpoint nor the prober stood still meanwhile."""
    for _ in range(5):
        time.sleep(1.1)  # a page is shared for a second, and may lack the last probe of the fault before
        before, endpoint.longest_pause_s = seen(daemon), 0.0
        yield before
        if endpoint.longest_pause_s < PAUSE_S and "invalid" not in seen(daemon).since(before).outcomes:
            break


def of_good_answers_only(seen_since: Seen) -> bool:
    """A page is written in pieces, so a probe that ends meanwhile may be in a part of it; one sample too many stays.

    A busy machine may join tokens: those of an answer, and its first one with later ones, which then has no time.
    """
    ok, samples = seen_since.outcomes["ok"], seen_since.samples
    return samples["ttft"] + samples["untimed"] == samples["e2e"] == ok and 0 < samples["itl"] <= 3 * ok


def test_an_endpoint_that_is_gone_is_refused_and_found_again(daemon: Daemon, endpoint: Endpoint) -> None:
    """Three refusals are a failing target; it is ready again with its first answer."""
    for before in undisturbed(daemon, endpoint):  # noqa: B007
        endpoint.down()
        until(lambda: daemon.value("llmslo_target_state", state="failing") == 1, "failing")
        recovered(daemon, endpoint.up)
        until(lambda: daemon.value("llmslo_target_state", state="ready") == 1, "ready")
    seen_since = seen(daemon).since(before)
    assert seen_since.outcomes["connect_refused"] >= 1
    assert set(seen_since.outcomes) <= {"ok", "connect_refused", "reset"}


def test_nothing_is_left_of_all_that(daemon: Daemon, endpoint: Endpoint) -> None:
    """A second of good probes after it: the descriptors are those of a daemon that saw no fault."""
    time.sleep(1)
    settled(daemon, descriptors_of_a_fresh_one())
    until(lambda: daemon.value("llmslo_trusted") == 1, "that its latencies are judged, on a busy machine too")


def descriptors_of_a_fresh_one() -> int:
    """Loop, clock, listener, log and the probes under way; measured at some 20."""
    return 20 + SLACK
