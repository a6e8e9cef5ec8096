"""Cases with verdicts that were written before the code was read: what people send today, and what must be said of it.

`probe_cases` has those of single answers.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from tests.traffic.answers import PAUSE_S, Answer, Refusal, hide, say
from tests.traffic.server import Script
from tests.traffic.verdicts import (
    CONTEXT,
    KEY,
    MAX_TOKENS,
    SHORT,
    SLOW,
    TALK,
    Api,
    BudgetCase,
    RunCase,
    Truth,
    always,
    as_counted,
    completion_tokens_after_refusal,
    every,
    failure_ends_session,
    from_turn,
    keeps_max_tokens,
    nothing,
    refuses_field,
    turns_follow,
)

MATRIX = "matrix {url} --file {rows} --warm-up 0 --burst 0s"
TALKS = "matrix {url} --file {rows} --config.file {config} --warm-up 0"
GATE = "gate {url} --slo ttft<5s:80% --burst 0s"
LENGTHS = " --prompt-tokens 8 --output-tokens 3"
QUICK_S = 0.005
TOO_LARGE = Refusal(413, "Request exceeds the maximum size")
BEST_OF = Refusal(422, "best_of must be 1")
TOO_LONG = "max_tokens=3 cannot be greater than max_model_len=2. Please request fewer output tokens."
JUDGED, NOT_JUDGED, TALKED = (0,), (4,), (0, 1, 4)
NEVER_ACCEPTED = "Traceback|accepted \\("


def row(accept: str = "ttft<5s:80%", **load: object) -> dict[str, object]:
    """A row of a matrix."""
    return {**load, "accept": [accept]}


def matrix(
    name: str, api: Api, script: Script, exits: tuple[int, ...], rows: dict[str, object], says: str, **more: Any
) -> RunCase:
    """A matrix of one row without sessions."""
    usual: dict[str, Any] = {"command": MATRIX, "pause_s": QUICK_S}
    return RunCase(f"matrix: {name}", api, script=script, exits=exits, rows=rows, says=says, **usual | more)


def gate(name: str, api: Api, script: Script, exits: tuple[int, ...], flags: str, says: str, **more: Any) -> RunCase:
    """A gate without sessions."""
    return RunCase(
        f"gate: {name}", api, GATE + flags + LENGTHS, script, exits, says=says, **{"pause_s": QUICK_S} | more
    )


def talk(name: str, api: Api, script: Script, exits: tuple[int, ...], truth: Truth | None, **more: Any) -> RunCase:
    """Sessions, in a matrix of one row if no other command is given."""
    return RunCase(
        f"sessions: {name}", api, script=script, exits=exits, truth=truth, **{"command": TALKS, "workload": TALK} | more
    )


RUNS = [
    matrix("5% refused are judged", "chat", every(20, 10, CONTEXT, SHORT), JUDGED, row(rate="150/s", requests=100), "accepted"),
    matrix("10% refused are not judged", "chat", every(10, 5, CONTEXT, SHORT), NOT_JUDGED, row(rate="150/s", requests=100),
           "refused|rejected", never=NEVER_ACCEPTED),
    matrix("10% refused by 413 are not judged", "messages", every(10, 5, TOO_LARGE, SHORT), NOT_JUDGED,
           row(rate="150/s", requests=60), "413|maximum size", never=NEVER_ACCEPTED),
    matrix("10% refused by 422 are not judged, closed loop", "completions", every(10, 5, BEST_OF, SHORT), NOT_JUDGED,
           row(concurrency=4, requests=60), "422|best_of", never=NEVER_ACCEPTED),
    matrix("all refused by 401", "responses", always(KEY), NOT_JUDGED, row("success:80%", rate="100/s", requests=40),
           "401|Incorrect API key", pause_s=PAUSE_S),
    matrix("10% refused are said in its report", "chat", every(10, 5, CONTEXT, SHORT), NOT_JUDGED, row(rate="150/s", requests=60),
           "", command=MATRIX + " --output {out}", then=("report {out}", (0,), "refused|rejected")),
    matrix("max_tokens is unsupported, max_completion_tokens from the next request on", "chat",
           refuses_field("max_tokens", MAX_TOKENS, SHORT), JUDGED, row(rate="100/s", requests=40), "accepted",
           command="matrix {url} --file {rows} --warm-up 3 --burst 0s", truth=completion_tokens_after_refusal),
    matrix("max_tokens is too large, which is no reason to rename it", "chat",
           every(4, 3, Refusal(400, TOO_LONG, "400", "max_tokens"), SHORT), NOT_JUDGED, row(rate="100/s", requests=40),
           "refused|rejected", truth=keeps_max_tokens),
    gate("4% refused are judged", "chat", every(25, 24, CONTEXT, SHORT), JUDGED, " --rate 150/s --warm-up 0", "ready"),
    gate("25% refused are not judged", "chat", every(4, 3, CONTEXT, SHORT), NOT_JUDGED,
         " --rate 150/s --warm-up 0 --max-requests 200", "refused|rejected"),
    gate("all refused by 403", "messages", always(Refusal(403, "Your key may not use this model")), (1, 4),
         " --rate 100/s --warm-up 2 --max-requests 200", "403|may not use", pause_s=PAUSE_S),
    gate("max_tokens is unsupported, told in words only", "chat",
         refuses_field("max_tokens", Refusal(400, MAX_TOKENS.message), SHORT), JUDGED, " --rate 100/s --warm-up 3", "ready",
         truth=completion_tokens_after_refusal),
    RunCase("sweep: 25% refused are not judged, and no plan rests on it", "chat",
            "sweep {url} --slo ttft<5s:80% --rates 5 --step 30s --warm-up 0 --metrics-url none --output {out}" + LENGTHS,
            every(4, 3, CONTEXT, SHORT), NOT_JUDGED, says="refused|rejected", pause_s=QUICK_S,
            then=("plan --sweep {out} --peak 100/s", (4,), "refused")),
    RunCase("compare: B refuses 25%, which is not compared", "chat",
            "compare {b} {url} --rate 100/s --rounds 9 --requests 6 --cool-down 0s --warm-up 1" + LENGTHS,
            every(4, 3, CONTEXT, SHORT), (1, 4), says="refused|rejected", pause_s=QUICK_S),
    talk("slow answers at a rate", "chat", always(SLOW), TALKED, turns_follow, rows=row(rate="60/s", requests=30)),
    talk("slow answers in a closed loop", "messages", always(SLOW), TALKED, turns_follow, rows=row(concurrency=2, requests=30)),
    talk("slow answers in a sweep", "completions", always(SLOW), TALKED, turns_follow,
         command="sweep {url} --config.file {config} --workload talk --slo ttft<5s:80% --rates 60 --step 1s --warm-up 0"
         " --metrics-url none", workload=TALK | {"sessions": {"count": 30, "turns": 5}}),
    talk("slow answers in a gate", "responses", always(SLOW), (0, 1, 3, 4), turns_follow,
         command=GATE + " --config.file {config} --workload talk --rate 20/s --warm-up 0 --max-requests 400"),
    talk("the second turn fails with 503", "chat", from_turn(2, Refusal(503, "no healthy upstream"), SHORT), TALKED,
         failure_ends_session, rows=row("success:80%", rate="40/s", requests=30), pause_s=QUICK_S),
    talk("the second turn ends in an error, in a closed loop", "messages",
         from_turn(2, Answer(say("a| b"), error="Overloaded"), SHORT), TALKED, failure_ends_session,
         rows=row("success:80%", concurrency=2, requests=30), pause_s=QUICK_S),
    talk("the second turn is cut", "responses", from_turn(2, Answer(say("a| b"), stop=None), SHORT), TALKED,
         failure_ends_session, rows=row("success:80%", rate="40/s", requests=30), pause_s=QUICK_S),
    talk("the second turn is refused, in a gate", "completions", from_turn(2, CONTEXT, SHORT), (1, 4), failure_ends_session,
         command=GATE + " --config.file {config} --workload talk --rate 40/s --warm-up 0 --max-requests 400", pause_s=QUICK_S),
    talk("the second turn fails, with think times", "chat", from_turn(2, Answer(say("a| b"), error="engine died"), SHORT), TALKED,
         failure_ends_session, rows=row("success:80%", rate="8/s", duration="10s"),
         workload=TALK | {"sessions": {"turns": 4, "think_time": "10ms"}}, pause_s=QUICK_S),
    talk("the context is full from the third turn on", "chat", from_turn(3, CONTEXT, SHORT), NOT_JUDGED, None,
         says="context length", never=NEVER_ACCEPTED, rows=row(rate="60/s", requests=60), pause_s=QUICK_S),
]  # fmt: skip
BUDGETS: list[BudgetCase] = [
    BudgetCase("budget: 529 costs nothing", "messages", always(Refusal(529, "Overloaded")), nothing),
    BudgetCase("budget: 429 costs nothing", "responses", always(Refusal(429, "Rate limit reached")), nothing),
    BudgetCase(
        "budget: an error before any content costs nothing", "chat", always(Answer((), error="engine died")), nothing
    ),
    BudgetCase("budget: answers cost their usage", "responses", always(SHORT), as_counted),
    BudgetCase(
        "budget: hidden reasoning costs",
        "chat",
        always(Answer(hide(30) + say("yes"))),
        lambda exchanges: (30 * (len(exchanges) - 3), 300 * len(exchanges)),
    ),
    BudgetCase(
        "budget: content without usage costs what was asked for",
        "messages",
        always(Answer(say("a| b"), has_usage=False)),
        lambda exchanges: (16 * (len(exchanges) - 3), 600 * len(exchanges)),
    ),
    BudgetCase(
        "budget: content that was cut costs",
        "completions",
        always(Answer(say("a| b"), stop=None)),
        lambda exchanges: (2 * (len(exchanges) - 3), 600 * len(exchanges)),
    ),
    BudgetCase(
        "daemon: max_tokens is unsupported, max_completion_tokens from the next probe on",
        "chat",
        refuses_field("max_tokens", MAX_TOKENS, SHORT),
        lambda exchanges: (1, 600 * len(exchanges)),
        partial(completion_tokens_after_refusal, lead_s=1.0),  # `connect_lead`
    ),
    BudgetCase("budget: 401 costs nothing", "chat", always(KEY), nothing),
    BudgetCase(
        "budget: an empty stream without usage costs nothing",
        "completions",
        always(Answer((), has_usage=False)),
        nothing,
    ),
]
