"""Snapshots of all targets, which `prober watch` writes and draws: the same values as on the page and in the API."""

import json
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest

from prober import __version__
from prober.measure.target_state import TargetEvent
from prober.probing.history import EventLog
from prober.web.api_types import EndedProbe, ProbeAnswer, dumped
from prober.web.targets import Problem, Snapshot, TargetAnswer
from prober.web.views import Snapshots
from tests.web import scenes
from tests.web.scenes import replace


class Rig:
    """Snapshots of views that a test changes."""

    def __init__(self, *views: TargetAnswer) -> None:
        self.views, self.problems, self.events = list(views), dict[str, Problem](), EventLog()
        clock = SimpleNamespace(unix_s=lambda: scenes.NOW, now_ns=lambda: 0)
        context = SimpleNamespace(clock=clock, events=self.events)
        self.snapshots = Snapshots(cast(Any, self), cast(Any, context))

    async def targets(self) -> list[TargetAnswer]:
        """As of `Views`."""
        return self.views

    async def take(self) -> Any:
        """The next snapshot, read as JSON."""
        return json.loads(dumped(await self.snapshots.take()))


@pytest.mark.parametrize("scene", scenes.STATES, ids=lambda scene: scene.__name__)
async def test_targets_are_those_of_the_api_and_can_be_read_back(scene: Any) -> None:
    """In each state: `targets` is the data of /api/v1/targets, and the type of the line reads the line."""
    rig = Rig(*scene())
    line = await rig.take()
    assert line["targets"] == [json.loads(dumped(view)) for view in rig.views]
    assert (line["format"], line["version"], line["prober"], line["time"]) == (
        "prober-watch",
        1,
        __version__,
        scenes.NOW,
    )
    assert json.loads(dumped(Snapshot.model_validate(line))) == line


async def test_fields_of_a_probe_are_those_of_the_api() -> None:
    """With the same names and values, of an answer and of a failure."""
    rig = Rig(*scenes.down())
    line = await rig.take()
    api = {probe.request_id: json.loads(dumped(ProbeAnswer.model_validate(probe))) for probe in rig.views[0].probes}
    assert {probe["outcome"] for probe in line["probes"]} == {"ok", "connect_refused"}
    for probe in line["probes"]:
        assert probe == {name: api[probe["request_id"]][name] for name in EndedProbe.model_fields}


async def test_a_snapshot_has_the_probes_and_events_since_the_one_before() -> None:
    """In the order in which they were due, a late one too; none twice, none of them left out."""
    view, rng = scenes.target(), Random(1)
    early, late, last = (scenes.probe(at, rng) for at in (30, 20, 10))
    rig = Rig(replace(view, probes=[late]))
    rig.events.append(TargetEvent(1.0, view.name, "state", "pending → ready"))
    first = await rig.take()
    assert [event["text"] for event in first["events"]] == ["pending → ready"]
    rig.views = [replace(view, probes=[last, late, early])]
    for text in ("a", "b"):
        rig.events.append(TargetEvent(2.0, view.name, "state", text))
    second, third = await rig.take(), await rig.take()
    ids = [[probe["request_id"] for probe in line["probes"]] for line in (first, second, third)]
    assert ids == [[late.request_id], [early.request_id, last.request_id], []]
    assert [[event["text"] for event in line["events"]] for line in (second, third)] == [["a", "b"], []]


async def test_the_sentences_are_those_of_the_page() -> None:
    """One concern for each target in the order of `targets`, the headline, and what of the configuration is not in effect."""
    rig = Rig(*scenes.healthy(), replace(scenes.down()[0], name="b"))
    rig.problems["web"] = Problem(headline="not applied", mistakes=["a.yaml: x: unknown"])
    line = await rig.take()
    assert [(fact["target"], fact["kind"], fact["text"]) for fact in line["concerns"]] == [
        ("llama-70b", "good", "no problem found"),
        ("b", "bad", "failing"),
    ]
    assert line["concerns"][1]["detail"] == "connect_refused: 127.0.0.1:8000 refused the connection"
    assert line["headline"] == "1 of 2 targets needs attention"
    assert line["problems"] == [{"headline": "not applied", "mistakes": ["a.yaml: x: unknown"]}]
