"""The scenes of `prober demo`: that they can be shown, and that what was learnt for the scene with drift was learnt."""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from random import Random
from types import SimpleNamespace

import pytest

from prober.cli import simulated_past
from prober.cli.demo import ENGINES, configuration
from prober.cli.scenes import (
    DRIFT_LOAD_PER_S,
    DRIFT_PROBES_PER_S,
    DRIFT_STEP_RATIO,
    SCENES,
    SLOWDOWN_RATIO,
    Engine,
    engines_of,
)
from prober.cli.simulated_past import store_past
from prober.daemon.configuration_file import read_config
from prober.features.drift.detector import step
from prober.features.drift.monitor import name_of_state
from prober.features.drift.serialization import restore
from prober.features.drift.state import Observation, Settings
from prober.mock.faults import check, parse_fault
from prober.simulation.faults import Slow
from prober.simulation.load import AzureConversation
from prober.simulation.parameters import Parameters
from prober.simulation.probe_samples import ProbeSample, simulate_probes
from prober.storage.store import Store


def faults(options: tuple[str, ...]) -> list[str]:
    return [options[place + 1].format(trouble=60.0) for place, word in enumerate(options) if word == "--fault"]


@pytest.mark.parametrize(
    "engines",
    [ENGINES, engines_of(list(SCENES)), *(engines_of([name]) for name in SCENES)],
    ids=["default", "all scenes", *SCENES],
)
def test_what_is_shown_is_configured_well(engines: dict[str, Engine], tmp_path: Path) -> None:
    """The prober takes the targets without a word, and the mocks take their faults."""
    path = tmp_path / "prober.yaml"
    path.write_text(configuration(engines, dict.fromkeys(engines, 8000)))
    assert not read_config(str(path)).warnings
    for engine in engines.values():
        check(map(parse_fault, faults(engine.options) + faults(engine.successor)), simulated=True)


def test_each_scene_has_a_healthy_neighbour() -> None:
    """Its own, without faults that begin later; scenes whose neighbours are alike share one."""
    for name in SCENES:
        engines = engines_of([name])
        assert len(engines) == 2
        (neighbour,) = (engine for other, engine in engines.items() if other != name)
        assert not [text for text in faults(neighbour.options) if "@" in text]
        assert "--duration" not in neighbour.options
    together = engines_of(["dead", "slow"])
    assert list(together) == ["healthy", "dead", "slow"]


def test_the_past_is_learnt_and_shows_a_later_slowdown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A settled baseline of both signals of both targets; no alarm of a neighbour, and one of the engine that becomes slower."""
    began_s = 1_700_000_000.0
    monkeypatch.setattr(simulated_past, "time", SimpleNamespace(time=lambda: began_s))
    store_past(str(tmp_path), ["a", "b"])
    with closing(Store(str(tmp_path))) as store:
        rows = store.load("drift")
    signals: dict[str, Callable[[ProbeSample], float]] = {"ttft": lambda p: p.ttft_s, "itl": lambda p: p.itl_p99_s}
    assert set(rows) == {name_of_state(target, ("probe", signal)) for target in "ab" for signal in signals}
    load = AzureConversation(DRIFT_LOAD_PER_S, daily_amplitude=0.0)
    for factor in (1.0, SLOWDOWN_RATIO):
        slow = (Slow(DRIFT_STEP_RATIO * factor),)
        probes = list(simulate_probes(Parameters(), load, Random(2), began_s, 1_200, DRIFT_PROBES_PER_S, slow))
        for signal, value in signals.items():
            state = restore(Settings(DRIFT_PROBES_PER_S), rows[name_of_state("a", ("probe", signal))])
            verdicts = [step(state, Observation(p.unix_s, value(p), p.load))[1] for p in probes]
            assert {verdict.phase for verdict in verdicts} == {"settled"}
            assert verdicts[-1].active == (factor > 1), signal
