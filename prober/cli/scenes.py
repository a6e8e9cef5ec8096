"""Scenes of `prober demo`, as data. In each scene one engine has a problem and another is healthy."""

from collections.abc import Sequence
from dataclasses import dataclass

from prober.config.units import rate_text

SLOWDOWN_RATIO = 1.6
SLOWDOWN = f"latency:{SLOWDOWN_RATIO}"
LIGHT_LOAD = ("--background", "0.2/s")
BUDGET = "{tokens_per_day: 100M, cost_per_day: 60, price_per_million: {prompt: 0.20, completion: 0.60}}"
PROBES = "probes: [{workload: probe, slos: [ttft, tpot, success]}]"
# In the scene with drift, the engine's steps take 34 ms, so that this machine adds little to a latency. Its probes are the
# default ones, so that three days of them are simulated in seconds.
DRIFT_LOAD_PER_S, DRIFT_STEP_RATIO, DRIFT_PROBES_PER_S = 0.2, 4.0, 0.2
DRIFT_ENGINE = ("--background", rate_text(DRIFT_LOAD_PER_S), "--fault", f"latency:{DRIFT_STEP_RATIO:g}")
DRIFT_PROBES = f"probes: [{{workload: probe, rate: {rate_text(DRIFT_PROBES_PER_S)}, slos: [success]}}]"


@dataclass(frozen=True, slots=True)
class Engine:
    """A mock engine and its target.

    options: options of `prober mock`; `{trouble:g}` is the seconds until the problem begins. With `--duration` the mock ends by itself
    successor: options of the mock that then takes its port
    target, budget: settings of its target without name and address, in YAML's flow style
    has_past: latency baselines are learned from three simulated days
    """

    options: tuple[str, ...] = LIGHT_LOAD
    target: str = PROBES
    budget: str = BUDGET
    successor: tuple[str, ...] = ()
    has_past: bool = False


@dataclass(frozen=True, slots=True)
class Scene:
    """An engine with a problem. trouble: cause; shown: visible effect; neighbour: healthy engine of the same kind"""

    trouble: str
    shown: str
    engine: Engine
    neighbour: Engine = Engine()


def _faulty(fault: str) -> Engine:
    """An engine that has this fault from the begin of the problem."""
    return Engine((*LIGHT_LOAD, "--fault", f"{fault}@{{trouble:g}}s-"))


SCENES = {
    "dead": Scene(
        "its process ends",
        "failing, connection refused; LLMTargetFailing",
        Engine((*LIGHT_LOAD, "--duration", "{trouble:g}s")),
    ),
    "slow": Scene(
        f"each step takes {SLOWDOWN_RATIO} times as long",
        "TPOT goes from 9 to 15 ms and misses its SLO; LLMErrorBudgetBurn",
        _faulty(SLOWDOWN),
    ),
    "broken": Scene(
        "it answers every request with HTTP 503",
        "failing, HTTP 503; LLMTargetFailing",
        _faulty("http:503"),
    ),
    "flaky": Scene(
        "it answers a fifth of the requests with HTTP 503",
        "ready, but misses its SLO of success; LLMErrorBudgetBurn",
        _faulty("http:503/20%"),
    ),
    "limited": Scene(
        "it answers half of the requests with HTTP 429, too many requests",
        "ready, but misses its SLO of success; LLMErrorBudgetBurn",
        _faulty("http:429/50%"),
    ),
    "cut": Scene(
        "it ends three of ten answers in the middle",
        "ready, but misses its SLO of success: truncated; LLMErrorBudgetBurn",
        _faulty("truncated:3/30%"),
    ),
    "full": Scene(
        "its KV cache shrinks to less than its load needs",
        "again and again requests wait or are preempted, and TTFT misses its SLO; LLMErrorBudgetBurn",
        Engine(
            ("--background", "0.6/s", "--kv-blocks", "2000", "--seed", "1", "--fault", "kv_lost:1650@{trouble:g}s-"),
            "probes: [{workload: probe, slos: [ttft, success]}]",  # others' long prompts keep TPOT near its threshold
        ),
    ),
    "loading": Scene(
        "its health says that it loads its model",
        "starting, after failures of some seconds: nothing more is sent or counted",
        _faulty("starting"),
    ),
    "draining": Scene(
        "its health says that it shuts down",
        "draining, after failures of some seconds: nothing more is sent or counted",
        _faulty("draining"),
    ),
    "hidden": Scene(
        "its metrics page is gone",
        "ready, and meets its SLOs; what only the page tells is unknown",
        _faulty("no_page"),
    ),
    "upgraded": Scene(
        f"another version takes its place, in which each step takes {SLOWDOWN_RATIO} times as long",
        "an event of the engine; TPOT misses its SLO; LLMErrorBudgetBurn",
        Engine(
            (*LIGHT_LOAD, "--duration", "{trouble:g}s"),
            successor=(*LIGHT_LOAD, "--engine-version", "0.33.0", "--fault", f"{SLOWDOWN}@0s-"),
        ),
    ),
    "drift": Scene(
        f"each step takes {SLOWDOWN_RATIO} times as long as in the three days that were learnt, and no SLO sees it",
        "after another three to twelve minutes TTFT and ITL have drifted; LLMTTFTP99Drift, LLMITLP99Drift",
        Engine((*DRIFT_ENGINE, "--fault", f"{SLOWDOWN}@{{trouble:g}}s-"), DRIFT_PROBES, has_past=True),
        Engine(DRIFT_ENGINE, DRIFT_PROBES, has_past=True),
    ),
}
ALL = "all"


def engines_of(names: Sequence[str]) -> dict[str, Engine]:
    """{name: engine} of these scenes, healthy ones first. Scenes with equal neighbours share one."""
    neighbours: dict[Engine, str] = {}
    for name in names:
        neighbour = SCENES[name].neighbour
        neighbours.setdefault(neighbour, "healthy" if neighbour == Engine() else f"{name}-healthy")
    return {name: engine for engine, name in neighbours.items()} | {name: SCENES[name].engine for name in names}


def listed() -> str:
    """List all scenes, one per line."""
    return "\n".join(f"{name:10} {scene.trouble}" for name, scene in SCENES.items())
