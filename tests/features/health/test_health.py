"""Whether a target generates, by the ends of its probes: the table of `docs/guides/health.md` as cases."""

from decimal import Decimal

import pytest

from prober.config.target import HealthSpec
from prober.features.health.health import HealthState
from prober.measure.objective import Slo
from prober.measure.outcome import Outcome
from prober.measure.result import ProbeResult
from prober.measure.target_state import TargetState
from prober.measure.timeline import Timeline

GAP_S, MAX_AGE_S = 5, 170
OUTCOMES = {
    "o": Outcome.OK,
    "w": Outcome.WRONG_ANSWER,
    "F": Outcome.HTTP_5XX,
    "T": Outcome.TIMEOUT_FIRST_TOKEN,
    "4": Outcome.HTTP_429,
    "s": Outcome.SHED,
    "i": Outcome.INVALID,
    "c": Outcome.CANCELLED,
    "b": Outcome.OVER_BUDGET,
    "r": Outcome.REJECTED,
}
LETTERS = {"L": TargetState.STARTING, "D": TargetState.DRAINING, "P": TargetState.PENDING}
TTFT = Slo("ttft", "ttft", 0.5, Decimal("0.99"), 30 * 86400.0)
DEFAULT, STRICT, LOOSE = HealthSpec(), HealthSpec(failures=1, of=1, successes=1), HealthSpec(failures=4, of=10)
FAILED = "of the last 5, the last one with http_5xx: HTTP 500"


def result(outcome: Outcome, due_ns: int, ttft_s: float = 0.1) -> ProbeResult:
    timeline = Timeline(due_ns, first_ns=due_ns + round(ttft_s * 1e9))
    detail = "HTTP 500" if outcome is Outcome.HTTP_5XX else ""
    return ProbeResult("t", "w", "id", 0.0, outcome, detail, timeline)


def played(spec: HealthSpec, story: str) -> tuple[HealthState, int]:
    """The state after probes that end 5 s apart, and the time.

    A letter is an outcome, `S` a slow answer, `H` a timeout of a probe that was due 30 s ago, or a state of the target.
    """
    state, now_ns = HealthState(spec, MAX_AGE_S), 0
    for letter in story:
        now_ns += GAP_S * 10**9
        if letter in LETTERS:
            state.state_seen(LETTERS[letter], "its health page says so", now_ns)
        elif letter == "S":
            state.probe_ended(result(Outcome.OK, now_ns, ttft_s=2.0), now_ns)
        elif letter == "H":
            state.probe_ended(result(Outcome.TIMEOUT_FIRST_TOKEN, now_ns - 30 * 10**9), now_ns)
        else:
            state.probe_ended(result(OUTCOMES[letter], now_ns), now_ns)
    return state, now_ns


CASES = [
    # New: a success is enough to be healthy, a few failures are not enough to be unhealthy.
    (DEFAULT, "", "unknown", "no probe has counted yet"),
    (DEFAULT, "o", "healthy", "failed probes: 0 of the last 1"),
    (DEFAULT, "F", "unknown", "failed probes: 1 of the last 1, too few to tell"),
    (DEFAULT, "FF", "unknown", "failed probes: 2 of the last 2, too few to tell"),
    (DEFAULT, "FFo", "healthy", "failed probes: 2 of the last 3"),
    # n failures of m.
    (DEFAULT, "FFF", "unhealthy", "failed probes: 3 of the last 3"),
    (DEFAULT, "ooooo" + "FF", "healthy", "2 of the last 5"),
    (DEFAULT, "ooooo" + "FFF", "unhealthy", f"3 {FAILED}"),
    (DEFAULT, "ooooo" + "FoFoF", "unhealthy", f"3 {FAILED}"),
    (DEFAULT, "ooooo" + "FooFooFooFoo", "healthy", "1 of the last 5"),
    (LOOSE, "FoFoFo", "healthy", "3 of the last 6"),
    (LOOSE, "FoFoFoF", "unhealthy", "failed probes: 4 of the last 7"),
    (STRICT, "oF", "unhealthy", "failed probes: 1 of the last 1"),
    (STRICT, "oFo", "healthy", ""),
    # Accepts requests and generates nothing: as any failure, whatever its own health page says.
    (DEFAULT, "ooTTT", "unhealthy", "the last one with timeout_first_token"),
    # Successes in a row to return, after which old failures are forgotten.
    (DEFAULT, "FFFo", "unhealthy", "; successes in a row since then: 1 of 3"),
    (DEFAULT, "FFFoo", "unhealthy", "; successes in a row since then: 2 of 3"),
    (DEFAULT, "FFFooFoo", "unhealthy", "2 of 3"),
    (DEFAULT, "FFFooo", "healthy", ""),
    (DEFAULT, "FFFoooFF", "healthy", "2 of the last 3"),
    (DEFAULT, "FFFoooFFF", "unhealthy", "3 of the last 4"),
    # Probes that were due before it generated again, and time out afterwards, say nothing about it now.
    (DEFAULT, "ooooooo" + "HHH", "unhealthy", "the last one with timeout_first_token"),
    (DEFAULT, "ooooooo" + "HHHHHHH" + "oHoHo", "healthy", ""),
    (DEFAULT, "ooooooo" + "HHHHHHH" + "oooHHHo", "healthy", "failed probes: 0 of the last 2"),
    (DEFAULT, "ooooooo" + "HHHHHHH" + "oo" + "HHHHHH" + "H", "unhealthy", "successes in a row since then: 0 of 3"),
    (DEFAULT, "ooooooo" + "L" + "HHH" + "P" + "ooo", "healthy", ""),
    # Shed and 429 say nothing, in either direction; neutral outcomes never do.
    (DEFAULT, "ooooo" + "4444444", "healthy", "0 of the last 5"),
    (DEFAULT, "ooooo" + "sssssss", "healthy", "0 of the last 5"),
    (DEFAULT, "ooooo" + "iciciccbbrr", "healthy", "0 of the last 5"),
    (DEFAULT, "ooooo" + "F4sFibF", "unhealthy", f"3 {FAILED}"),
    (DEFAULT, "FFFo4soio", "healthy", ""),
    (DEFAULT, "44444", "unknown", "no probe has counted yet; the last one was http_429"),
    # It generates, if not what was asked for.
    (DEFAULT, "wwwww", "healthy", ""),
    # The engine says that it loads or ends: at once; afterwards it has to answer as after failures.
    (DEFAULT, "L", "unhealthy", "starting: its health page says so"),
    (DEFAULT, "oooooD", "unhealthy", "draining: its health page says so"),
    (DEFAULT, "oooooLP", "unhealthy", "it was starting; successes in a row since then: 0 of 3"),
    (DEFAULT, "oooooLPoo", "unhealthy", "it was starting; successes in a row since then: 2 of 3"),
    (DEFAULT, "oooooLPooo", "healthy", ""),
    (DEFAULT, "ooPoFF", "healthy", "2 of the last 5"),
    # A restarted engine: refused connections are failures like others, and what it did before does not count twice.
    (DEFAULT, "oooFFFLPoooFF", "healthy", "2 of the last 3"),
    # A burning SLO, if configured: three bad events of the last 20 probes are above 14.4 times a budget of 1%.
    (DEFAULT, "ooSSSSS", "healthy", ""),
    (HealthSpec(slos=(TTFT,)), "oooooSS", "healthy", ""),
    (HealthSpec(slos=(TTFT,)), "oooooSSS", "unhealthy", "SLO ttft: burn rate above 14.4 in the last 8 probes"),
    (HealthSpec(slos=(TTFT,)), "oooooSSSoo", "unhealthy", "2 of 3"),
    (HealthSpec(slos=(TTFT,)), "oooooSSSooSoo", "unhealthy", "2 of 3"),
    (HealthSpec(slos=(TTFT,)), "oooooSSSoooSS", "healthy", ""),
    (HealthSpec(slos=(TTFT,), failures=5), "oooFFF", "unhealthy", "SLO ttft: burn rate"),
]


@pytest.mark.parametrize(("spec", "story", "state", "reason"), CASES)
def test_the_ends_of_probes_make_a_target_healthy_or_not(spec: HealthSpec, story: str, state: str, reason: str) -> None:
    """With the reason, as the URL says it."""
    played_state, now_ns = played(spec, story)
    verdict = played_state.at(now_ns, TargetState.READY, "", is_paused=False)
    assert verdict.state == state
    assert reason in verdict.reason


UNKNOWN = [
    # The prober has no data: what it knew before is no verdict for ever, in either direction.
    ("oooFFF", MAX_AGE_S, TargetState.FAILING, False, "unhealthy", ""),
    ("oooFFF", MAX_AGE_S + 1, TargetState.FAILING, False, "unknown", "no probe has counted for 171 s"),
    ("ooooo", MAX_AGE_S, TargetState.READY, False, "healthy", ""),
    ("ooooo", MAX_AGE_S + 1, TargetState.READY, False, "unknown", "no probe has counted for 171 s"),
    # The prober is late: its probes are invalid, and the reason names that.
    (
        "ooooo" + "i" * 40,
        0,
        TargetState.READY,
        False,
        "unknown",
        "no probe has counted for 200 s; the last one was invalid",
    ),
    ("ooooo" + "4" * 40, 0, TargetState.FAILING, False, "unknown", "the last one was http_429"),
    # A person paused it, its budget is used up, or it refuses the prober.
    ("oooFFF", 0, TargetState.FAILING, True, "unknown", "paused"),
    ("ooooo", 0, TargetState.READY, True, "unknown", "paused"),
    ("ooooo", 0, TargetState.OVER_BUDGET, False, "unknown", "over_budget: why"),
    ("oooFFF", 0, TargetState.REJECTED, False, "unknown", "rejected: why"),
    # An engine that loads for an hour is not unknown.
    ("L" * 720, 0, TargetState.STARTING, False, "unhealthy", "starting"),
]


@pytest.mark.parametrize(("story", "later_s", "target_state", "is_paused", "state", "reason"), UNKNOWN)
def test_without_data_it_is_unknown(
    story: str, later_s: int, target_state: TargetState, is_paused: bool, state: str, reason: str
) -> None:
    """Also where it was unhealthy before."""
    played_state, now_ns = played(DEFAULT, story)
    verdict = played_state.at(now_ns + later_s * 10**9, target_state, "why", is_paused=is_paused)
    assert verdict.state == state
    assert reason in verdict.reason
