"""The reason why a sweep ended, as text."""

from typing import get_args

import pytest

from prober.cli.sweep import _description
from prober.features.capacity.actions import Finished, Reason
from prober.results.stop_reason import ending

REASONS = [reason for literal in get_args(Reason) for reason in get_args(literal)]


@pytest.mark.parametrize("reason", REASONS)
def test_every_reason_has_a_text(reason: str) -> None:
    """The text has the detail, and not the name, which is for series and files."""
    text = ending(reason, "70% of a threshold")
    assert "70% of a threshold" in text
    assert "_" not in text
    assert not text.startswith(f"{reason}: ") or reason == "saturated"


def test_the_progress_of_a_sweep_says_why_it_ends() -> None:
    """In words, not by the name of the reason."""
    ended = Finished("refused", "HTTP 401 to 5 of 5", (), ())
    assert _description(ended) == "too many requests were refused: HTTP 401 to 5 of 5"


def test_an_unknown_reason_is_its_own_text() -> None:
    """Results of other programs, and of later versions, have other reasons."""
    assert ending("of_its_own", "9 s") == "of_its_own: 9 s"
    assert ending("{odd} reason", "9 s") == "{odd} reason: 9 s"
    assert ending("knee_passed", "") == "knee passed"
    assert ending(None, "") == ""


def test_the_reason_of_an_earlier_end_keeps_its_own_words() -> None:
    """A detail that names why the ramp ended is put after the text of the reason, and not into it; braces are text."""
    detail = "4 of the last 8 requests; before it, the ramp ended: requests wait in the engine: 3"
    expected = "4 of the last 8 requests breach an SLO; before it, the ramp ended: requests wait in the engine: 3"
    assert ending("breaching", detail) == expected
    assert ending("{unknown}", "{x}") == "{unknown}: {x}"
