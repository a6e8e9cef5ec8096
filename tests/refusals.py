"""Requests of which some are refused, through everything that judges: for tests, and for the table in docs/methods.md."""

import tempfile
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import cast

from prober.cli import once as once_command
from prober.cli.exit_codes import OF_VERDICT, ExitCode
from prober.config.load import load
from prober.config.rows import Row
from prober.features.capacity.actions import Estimate, Finished, Run
from prober.features.capacity.estimate import estimate_capacity
from prober.features.capacity.sweep import Sweep
from prober.features.capacity.sweep_result import result_of
from prober.features.capacity.sweep_runner import SweepRun
from prober.features.experiments import gate, matrix
from prober.measure.chunk import Usage
from prober.measure.objective import JudgedStream, count_events
from prober.measure.outcome import Outcome
from prober.measure.result import ProbeResult
from prober.measure.target_state import WarmUpLength
from prober.measure.timeline import Timeline
from prober.net.clock import Clock
from prober.probing.session import Session
from prober.results.refused_requests import MAX_REFUSED_RATIO
from prober.results.result import Result
from prober.results.result_file import to_json
from prober.workload.shapes import Fixed
from tests.commands import prober
from tests.features.capacity.simulated_sweep import sweep_spec

REQUESTS, RATE_PER_S = 200, 2.0
AT_MOST = round(MAX_REFUSED_RATIO * REQUESTS)
REASON = "HTTP 400: This model's maximum context length is 4096 tokens"
CONFIGURATION = """
slos: {success: {signal: success, objective: 98%}}
targets: [{name: t, url: 'https://h/v1', sweep: {slos: [success]}}]
"""
SPEC = load(CONFIGURATION, source="c", engines=(), environment={}, read=str).targets[0]
assert SPEC.sweep is not None
SWEEP, SUCCESS = SPEC.sweep, SPEC.sweep.slos[0]  # 172 good events show it
ROW = Row(name="a", prompt_tokens=Fixed(100), output_tokens=Fixed(4), accept=(SUCCESS,), rate=RATE_PER_S, requests=200)


def probe(number: int, outcome: Outcome = Outcome.OK, *, workload: str = "a", adapter: str = "") -> ProbeResult:
    """Due at the rate; an answer of four tokens takes 80 ms."""
    at = round(number / RATE_PER_S * 1e9)
    if outcome is not Outcome.OK:
        timeline = Timeline(at, sent_ns=at, end_ns=at + 5_000_000)
        return ProbeResult("t", workload, f"r{number}", 0.0, outcome, REASON, timeline, adapter=adapter)
    stamps = tuple(at + 50_000_000 + 10_000_000 * i for i in range(4))
    timeline = Timeline(at, sent_ns=at, first_ns=stamps[0], content_ns=stamps, end_ns=stamps[-1], usage=Usage(100, 4))
    lengths = {"requested_prompt_tokens": 100, "requested_output_tokens": 4}
    return ProbeResult("t", workload, f"r{number}", 0.0, outcome, "", timeline, adapter=adapter, **lengths)  # type: ignore[arg-type]


def probes(refused: int, outcome: Outcome = Outcome.REJECTED) -> list[ProbeResult]:
    """So many of all requests are refused, evenly among the first nine tenths."""
    spread = max(refused, round(0.9 * REQUESTS))
    return [
        probe(n, outcome if n < spread and (n + 1) * refused // spread > n * refused // spread else Outcome.OK)
        for n in range(REQUESTS)
    ]


def rowed(sent: list[ProbeResult]) -> matrix.RowVerdict:
    """The verdict of a matrix on its row."""
    return matrix.judge(ROW, sent, error=matrix.fails_error([ROW]), burst_s=0.0)


def gated(sent: list[ProbeResult]) -> gate.GateVerdict:
    """The verdict of a gate."""
    judge = gate.Gate(
        ((SUCCESS, JudgedStream("t", "a", RATE_PER_S, 4.0, 4)),), rate_per_s=RATE_PER_S, burst_s=0.0, most=len(sent)
    )
    verdicts = (judge.take(result, n / RATE_PER_S) for n, result in enumerate(sent))
    return next((verdict for verdict in verdicts if verdict is not None), None) or judge.verdict()


def swept(sent: list[ProbeResult], rates_per_s: tuple[float, ...] = (RATE_PER_S,)) -> tuple[Finished, Result]:
    """A grid of these rates, for equal parts of the time of the requests."""
    span_s = len(sent) / RATE_PER_S
    spec = sweep_spec(SUCCESS, mode="grid", rates=rates_per_s, step=span_s / len(rates_per_s))
    sweep, by_stage = Sweep(spec, 0.0, WarmUpLength(0)), list[tuple[int, ProbeResult]]()
    for result in sent:
        if not isinstance(sweep.action, Run):
            break
        at_s = result.timeline.intended_ns / 1e9
        by_stage.append((len(sweep.stages) - 1, result))
        sweep.sent(result.request_id, at_s, 100, 4)
        sweep.result(result, at_s + 0.2)
        sweep.tick(at_s + 1 / RATE_PER_S)
    if isinstance(sweep.action, Estimate):
        sweep.estimated(estimate_capacity(sweep.action.record).capacities)
    finished = sweep.action
    assert isinstance(finished, Finished)
    run = SweepRun(finished, 0, tuple(by_stage))
    clock = SimpleNamespace(unix_s=lambda: 1e9 + span_s, now_ns=lambda: 0)
    session = Session(SPEC, cast(Clock, clock), None)
    session.started_unix_s = 1e9
    return finished, result_of(run, session, SWEEP, "s", {})


def kept(folder: Path, name: str, sent: list[ProbeResult]) -> Path:
    """The file of the sweep."""
    path = folder / f"{name}.json"
    path.write_text(to_json(swept(sent)[1]))
    return path


@cache
def verdicts(refused: int) -> dict[str, tuple[str, ExitCode]]:
    """What each command says, and its exit code, if so many requests are refused."""
    sent = probes(refused)
    row, gated_, finished = rowed(sent), gated(sent), swept(sent)[0]
    events = sum(count_events(SUCCESS, probe)[0] for probe in sent)
    with tempfile.TemporaryDirectory() as folder:
        a, b = kept(Path(folder), "a", probes(0)), kept(Path(folder), "b", sent)
        compared, planned = prober("compare", a, b), prober("plan", "--sweep", b, "--peak", "9/s")
        reported = prober("report", b)
    words = {ExitCode.OK: "done", ExitCode.NOT_JUDGED: "not_judged"}
    return {
        "run": (f"{events} events of an SLO", ExitCode.OK),
        "matrix": (row.state, OF_VERDICT[matrix.overall([row])]),
        "gate": (gated_.state, OF_VERDICT[gated_.state]),
        "sweep": (finished.verdict, OF_VERDICT[finished.verdict]),
        "compare": (words[ExitCode(compared.returncode)], ExitCode(compared.returncode)),
        "plan": (words[ExitCode(planned.returncode)], ExitCode(planned.returncode)),
        "report": (
            "not_judged" if "not judged: " in reported.stdout else finished.verdict,
            ExitCode(reported.returncode),
        ),
    }


def table() -> str:
    """The table of the rule, as Markdown."""
    at_most, above = verdicts(AT_MOST), verdicts(AT_MOST + 1)
    once = f"{Outcome.REJECTED} (exit code {once_command.EXIT[Outcome.REJECTED]})"
    rows = [f"| `once` | {once} | {once} |"]
    rows += [f"| `{command}` | {_cell(*at_most[command])} | {_cell(*above[command])} |" for command in at_most]
    head = f"| command | {AT_MOST} of {REQUESTS} refused | {AT_MOST + 1} of {REQUESTS} refused |"
    return "\n".join((head, "|---|---|---|", *rows)) + "\n"


def _cell(verdict: str, code: ExitCode) -> str:
    return f"{verdict.replace('_', ' ')} (exit code {code})"
