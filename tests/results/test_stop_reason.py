"""Why a sweep ended, as people are told it."""

from typing import get_args

import pytest

from prober.features.capacity.actions import Reason
from prober.results.stop_reason import ending

REASONS = [reason for literal in get_args(Reason) for reason in get_args(literal)]


@pytest.mark.parametrize("reason", REASONS)
def test_every_reason_has_words(reason: str) -> None:
    """Its detail is in them; its name, which is for series and files, is not."""
    said = ending(reason, "70% of a threshold")
    assert "70% of a threshold" in said
    assert "_" not in said
    assert not said.startswith(f"{reason}: ") or reason == "saturated"


def test_what_is_not_known_is_told_as_it_is() -> None:
    """Results of other programs, and of later versions."""
    assert ending("of_its_own", "9 s") == "of_its_own: 9 s"
    assert ending("{odd} reason", "9 s") == "{odd} reason: 9 s"
    assert ending("knee_passed", "") == "knee passed"
    assert ending(None, "") == ""
