"""The model that answers name, as a machine: answer in, change out."""

from collections.abc import Iterable
from random import Random

import pytest

from prober.features.engines.monitor import ALONE_S, MAX_CHANGES, SETTLING_ANSWERS, AnsweringModel

STEP_S = 5.0


def changes(machine: AnsweringModel, models: Iterable[str], begin_s: float = 0.0, step_s: float = STEP_S) -> list[str]:
    """Texts of the changes after answers in this order."""
    taken = [machine.take(model, begin_s + step_s * index) for index, model in enumerate(models)]
    return [change.text() for change in taken if change is not None]


TO_B = "model was A, is B"


@pytest.mark.parametrize(
    ("models", "texts", "shown"),
    [
        ("A" * 100, [], "A"),
        ("AAA" + "B" * (SETTLING_ANSWERS - 1), [], "A"),
        ("AAA" + "B" * 20, [TO_B], "B"),
        ("AAABBBBAAAA", [TO_B, "model was B, is A"], "A"),
        *(
            (models, ["model was A, is A|B"], "A|B")
            for models in ("AB" * 500, "AAAAB" * 200, "A" + "AB" * 500, "AABB" * 250)
        ),
        ("ABC" * 300, ["model was A, is A|B|C"], "A|B|C"),
        ("AAAAAABAAAAAA", ["model was A, is A|B"], "A|B"),
    ],
)
def test_a_model_that_has_settled_is_a_change_and_models_in_turn_are_one(
    models: str, texts: list[str], shown: str
) -> None:
    """The first model is none; a change back is one of its own; a gateway that balances or falls back, once too, is one of several."""
    machine = AnsweringModel()
    assert (changes(machine, models), machine.text) == (texts, shown)


def test_frequent_changes_are_models_in_turn() -> None:
    """Each model stays long enough to settle, but not long."""
    texts = changes(AnsweringModel(), "AAAAAABBBBBB" * 50)
    assert len(texts) == MAX_CHANGES + 1
    assert texts[-1].endswith("|A")


def test_models_in_turn_end_when_one_has_been_alone() -> None:
    """The one that stays is the model from then on."""
    machine = AnsweringModel()
    changes(machine, "ABABA")
    answers = round(ALONE_S / STEP_S)
    assert changes(machine, "B" * (answers - 1), 100) == []
    assert changes(machine, "B" * 10, 100 + ALONE_S) == ["model was A|B, is B"]
    assert machine.text == machine.model == "B"


def test_rare_answers_do_not_end_it_at_once() -> None:
    """Two answers a long time apart are few."""
    machine = AnsweringModel()
    changes(machine, "ABAB")
    assert changes(machine, "AA", 1e4, ALONE_S) == []


@pytest.mark.parametrize("seed", range(5))
def test_changes_are_bounded_whatever_answers(seed: int) -> None:
    """In any hour there are few, for random runs of random models."""
    rng = Random(seed)
    machine = AnsweringModel()
    changed_s: list[float] = []
    at_s = 0.0
    for _ in range(3000):
        model = f"m{rng.randrange(3)}"
        for _ in range(rng.choice((1, 2, 3, 5, 20, 1000))):
            at_s += STEP_S
            if machine.take(model, at_s) is not None:
                changed_s.append(at_s)
    assert changed_s
    for begin_s in changed_s:
        assert sum(begin_s <= at < begin_s + ALONE_S for at in changed_s) <= MAX_CHANGES + 2


def test_a_long_answer_of_the_model_before_changes_nothing() -> None:
    """It was sent before the change, and ended after it."""
    machine = AnsweringModel()
    assert changes(machine, "AAA") == []
    assert machine.take("B", 100) is None
    assert machine.take("A", 99) is None
    assert changes(machine, "BB", 105) == ["model was A, is B"]
