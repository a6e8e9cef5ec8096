"""What `prober watch` shows: its lines for targets in every state, at several sizes, and nothing that is not true of them."""

import io
import re
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import pytest
from rich.cells import cell_len
from rich.screen import Screen as RichScreen

from prober.cli.console import Terminal
from prober.cli.watch import Screen, plain_lines, summary
from prober.measure.outcome import Outcome
from prober.measure.result import ProbeResult
from prober.measure.target_state import TargetEvent, TargetState
from prober.web.api_types import EndedProbe, EventAnswer
from prober.web.targets import Problem, Snapshot, TargetAnswer
from tests.web import scenes
from tests.web.scenes import replace, room

SIZES = ((80, 24), (120, 40), (40, 12), (20, 5), (300, 100))
NO_LATENCY = "No latency samples yet."


def draining() -> list[TargetAnswer]:
    """The engine shuts down."""
    return [replace(scenes.target(), state=TargetState.DRAINING, slos=[])]


def few() -> list[TargetAnswer]:
    """Ready, and measured 150 times: enough for a p50, and for no p99."""
    return [scenes.target(samples=150)]


STATES: tuple[Callable[[], list[TargetAnswer]], ...] = (*scenes.STATES, draining, few)


def snapshot(views: Sequence[TargetAnswer], *, events: Sequence[TargetEvent] = ()) -> Snapshot:
    """A snapshot of the views at NOW, with all of their probes."""
    probes = sorted((probe for view in views for probe in view.probes), key=lambda probe: probe.unix_s)
    return Snapshot(
        time=scenes.NOW,
        prober="1",
        headline="The headline",
        problems=[],
        targets=list(views),
        concerns=[view.concern for view in views],
        probes=[EndedProbe.model_validate(probe) for probe in probes],
        events=[EventAnswer.model_validate(event) for event in events],
    )


def shown(views: Sequence[TargetAnswer], width: int = 120, height: int = 60, **changes: Any) -> str:
    """The screen as its terminal shows it."""
    screen, console = Screen(), Terminal(file=io.StringIO(), force_terminal=True, width=width, height=height)
    screen.snapshot = replace(snapshot(views), **changes)
    options = console.options.update(width=width, height=height)
    lines = console.render_lines(RichScreen(screen), options)
    return "\n".join("".join(segment.text for segment in line).rstrip() for line in lines)


@pytest.mark.parametrize("scene", STATES, ids=lambda scene: scene.__name__)
@pytest.mark.parametrize(("width", "height"), SIZES, ids=str)
def test_the_screen_fits_its_size(scene: Callable[[], list[TargetAnswer]], width: int, height: int) -> None:
    """In every state, alone and among others: no line is wider, none too many, the first has the headline."""
    for views in (scene(), [*scene(), *(replace(scenes.target(), name=f"t{n}") for n in range(30))]):
        lines = shown(views, width, height).split("\n")
        assert 0 < len(lines) <= height
        assert max(map(cell_len, lines)) <= width
        assert lines[0].startswith("prober watch"[:width])


@pytest.mark.parametrize(
    ("scene", "said", "not_said"),
    [
        (scenes.healthy, ["✓ no problem found", "state ready", "✓ ok, 99% of success: met, 4 bad of 2,400"], ["✗ "]),
        (
            scenes.slow,
            [
                "✗ TTFT 1.1 s, 500 ms allowed, since 10:53:20 (queueing",
                "headroom ✗ none, demand is above the capacity [-20%, 2%]",
            ],
            [],
        ),
        (
            scenes.over,
            ["◇ SLO missed over 30 days: ttft, not burning since 10:50:00 (queueing until 10:50:00)"],
            ["✗ "],
        ),
        (
            scenes.drifting,
            ["drift    ▲ TTFT: slower since 09:30:00, p50 ×1.31 [1.24, 1.39]", "slower at the same load"],
            ["none found"],
        ),
        (
            scenes.down,
            ["✗ failing", "connect_refused: 127.0.0.1:8000 refused the connection, 12 times"],
            ["no problem"],
        ),
        (scenes.nothing, ["? pending", NO_LATENCY, "none has ended yet", "headroom ? unknown"], ["✓", "p50"]),
        (scenes.starting, ["? starting (refuses connections since", NO_LATENCY], ["✓", "✗"]),
        (scenes.paused, ["? paused"], ["no problem"]),
        (scenes.buffered, ["▲ buffered: something on the way, such as a gateway, holds tokens back"], []),
        (
            scenes.refused_workload,
            [
                "▲ no data of long: rejected (HTTP 400: the context has 4096 tokens)",
                "▲ no data of workload large: over_budget: the budget of the last 24 hours is used up",
            ],
            ["no problem"],
        ),
        (
            scenes.rejected,
            [
                "✗ rejects every probe, so nothing is measured (HTTP 401: invalid api key)",
                "rejected: HTTP 401: invalid api key (not counted as a failure)",
                "no verdict: no probe is answered",
            ],
            ["no problem", "no drift found"],
        ),
        (draining, ["? draining", "SLO      none is configured"], ["no problem"]),
        (few, ["–: too few samples; p50 needs 20, p95 needs 200, p99 needs 1,000"], []),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_each_state_is_told_as_it_is(
    scene: Callable[[], list[TargetAnswer]], said: list[str], not_said: list[str]
) -> None:
    """The words of each state are there, and no words of another one."""
    text = shown(scene())
    assert [words for words in said if words not in text] == []
    assert [words for words in not_said if words in text] == []


def test_percentiles_are_those_of_the_answer_or_a_dash() -> None:
    """A percentile without enough samples is not stated, whatever its estimate is."""
    row = re.search(r"^TTFT, 10 min .*", shown(few()), re.MULTILINE)
    assert row is not None
    estimates = {
        each.q: each.estimate for each in TargetAnswer.model_validate(few()[0]).quantiles if each.signal == "ttft"
    }
    assert row[0].split() == ["TTFT,", "10", "min", f"{estimates[0.5] * 1e3:.3g}", "ms", "–", "–", "150"]
    full = re.search(r"^ITL, 10 min .*", shown(scenes.healthy()), re.MULTILINE)
    assert full is not None
    assert "–" not in full[0]
    assert full[0].endswith(" 5,600")


def test_a_target_that_fails_shows_no_percentiles() -> None:
    """As if they were current."""
    text = shown(scenes.down())
    assert "No latency: no probe is answered now." in text
    assert re.search(r"^(TTFT|ITL), ", text, re.MULTILINE) is None


def test_unknown_headroom_and_drift_say_why() -> None:
    """A capacity without a demand, a bound without an estimate, baselines that are learnt, one of two."""
    (view,) = scenes.healthy()
    cases = {
        "unknown, the demand is hidden": replace(view, headroom=None, headroom_unknown="the demand is hidden"),
        "unknown, no sweep has found a capacity": replace(view, capacity=None, headroom=None),
        "? at most 30% free": replace(view, headroom=room(None, None, 0.3, None, None, 2.0)),
        "? TTFT: learning the baseline, which takes days": replace(view, drift=scenes.nothing()[0].drift),
        "✓ ITL: no drift found (settled)": replace(view, drift=[*scenes.nothing()[0].drift, view.drift[1]]),
        "✓ TTFT, ITL: no drift found (settled)": view,
        "unknown, no streamed answer has been measured yet": replace(view, drift=[]),
        "ITL: no large drift found (provisional)": replace(view, drift=scenes.drifting()[0].drift[1:]),
        "? TTFT: no verdict: the load is outside what was learnt": replace(
            view, drift=scenes.at_other_load(active=False)
        ),
        "TTFT: slower, not stated; the load is outside what was learnt, so neither": replace(
            view, drift=scenes.at_other_load(active=True)
        ),
        "? TTFT: unusual since 11:00:00, too few samples yet for its size; three days are not learnt yet": replace(
            view, drift=scenes.unusual()
        ),
    }
    assert [words for words, changed in cases.items() if words not in shown([changed])] == []


def test_long_sentences_go_on_in_the_next_line() -> None:
    """In a narrow and high window nothing of them is cut."""
    words = " ".join(shown(scenes.slow(), 50, 60).split())
    assert "headroom ✗ none, demand is above the capacity [-20%, 2%]" in words


def test_times_of_other_days_have_their_date() -> None:
    """An SLO that is counted for days, and a failure of yesterday."""
    (view,) = scenes.healthy()
    old = replace(scenes.probe(86_400, Random(1), outcome=Outcome.RESET, detail="gone"), target=view.name)
    slo = replace(view.slos[0], since=scenes.NOW - 10 * 86_400)
    text = shown([replace(view, probes=[old], slos=[slo])])
    assert "4 bad of 2,400 since 2025-11-11 11:00" in text
    assert "2025-11-20 11:00 reset: gone" in text


def test_servers_and_files_control_nothing() -> None:
    """Names, models and words of servers are printable, on one line, and cut where they are long; also as plain lines."""
    hostile = scenes.hostile() + scenes.hostile(scenes.LONG)
    fatal = [replace(view, probes=[_failed(view)]) for view in hostile]
    seen = snapshot(fatal, events=[TargetEvent(scenes.NOW, scenes.HOSTILE, "state", scenes.HOSTILE)])
    lines = shown(fatal, 100, 60).split("\n") + plain_lines(seen) + summary(seen)
    assert [line for line in lines if not line.isprintable()] == []
    assert any("<script>" in line for line in lines)


def _failed(view: TargetAnswer) -> ProbeResult:
    return replace(scenes.probe(5, Random(1), outcome=Outcome.HTTP_5XX, detail=scenes.HOSTILE), target=view.name)


def test_the_worst_comes_first_and_what_does_not_fit_is_counted() -> None:
    """Among many targets."""
    many = [replace(scenes.target(), name=f"t{n}") for n in range(30)]
    text = shown([*many, *scenes.down()], 80, 24)
    rows = re.findall(r"^[✓✗▲?] (t\d+|llama-70b) ", text, re.MULTILINE)
    assert rows[:3] == ["llama-70b", "t0", "t1"]
    assert f"{len(rows)} of 31 targets, those in most trouble first" in text


def test_what_makes_the_rest_doubtful_comes_first() -> None:
    """A configuration that is not in effect. Before the first snapshot, nothing."""
    text = shown(scenes.healthy(), problems=[Problem(headline="not applied", mistakes=["a: b", "c: d"])])
    assert text.split("\n")[1] == "✗ not applied: a: b; c: d"
    console = Terminal(file=io.StringIO())
    assert console.render_lines(Screen()) == [[]] or not any(console.render_lines(Screen(), pad=False))


def test_plain_lines_have_what_is_new_then_each_target() -> None:
    """Without a terminal: events and failures with their times, then a line a target with its percentiles if it answers."""
    (view,) = scenes.down()
    seen = snapshot(
        [replace(view, probes=view.probes[:1])], events=[TargetEvent(scenes.NOW, view.name, "state", "ready → failing")]
    )
    lines = plain_lines(seen)
    assert lines[:2] == [
        "11:00:00 llama-70b: ready → failing",
        "10:59:55 llama-70b: connect_refused: 127.0.0.1:8000 refused the connection",
    ]
    assert (
        lines[2]
        == "11:00:00 llama-70b: failing, since 10:53:20 (connect_refused: 127.0.0.1:8000 refused the connection)"
    )
    again = snapshot([replace(view, probes=view.probes[:12])])
    assert plain_lines(again)[0] == f"{lines[1]}, 12 times", "one line for what is the same"
    well = snapshot(scenes.healthy())
    assert re.fullmatch(
        r"11:00:00 llama-70b: no problem found; TTFT p50 .* ms of 1,400; ITL p50 .* ms of 5,600",
        plain_lines(well)[-1],
    )


def test_the_summary_says_what_was_seen() -> None:
    """The headline and each target; or that nothing was measured."""
    first, second = summary(snapshot(scenes.down()))
    assert first == "prober watch until 11:00:00 UTC: The headline"
    assert second.startswith("llama-70b: failing, since 10:53:20 (connect_refused")
    assert summary(None) == ["prober watch ended before its prober had started; nothing was measured"]
