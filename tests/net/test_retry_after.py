"""The header `Retry-After` in every form of RFC 9110."""

import pytest

from prober.net.exchange import MAX_PAUSE_S, requested_pause_s

NOW_S = 784_111_777.0  # Sun, 06 Nov 1994 08:49:37 GMT, the example of RFC 9110, 5.6.7
VALUES = {
    "30": 30.0,
    " 30 ": 30.0,
    "0": 0.0,
    "007": 7.0,
    "-5": 0.0,
    str(MAX_PAUSE_S): float(MAX_PAUSE_S),
    str(MAX_PAUSE_S + 1): None,
    "9" * 15: None,
    "9" * 5_000: None,
    "": None,
    "soon": None,
    "1.5": None,
    "+1": None,
    "1e3": None,
    "0x10": None,
    "nan": None,
    "\u0667": None,
    "\u00b2": None,
    "Sun, 06 Nov 1994 08:50:07 GMT": 30.0,
    "Sunday, 06-Nov-94 08:50:07 GMT": 30.0,
    "Sun Nov  6 08:50:07 1994": 30.0,
    "Sun Nov 16 08:49:37 1994": 864_000.0,
    "Sun, 06 Nov 1994 08:49:37 GMT": 0.0,
    "Sun, 06 Nov 1994 08:00:00 GMT": 0.0,
    "Thu, 01 Jan 1970 00:00:00 GMT": 0.0,
    "Mon, 06 Nov 1995 08:49:37 GMT": 365 * 86_400.0,
    "Wed, 06 Nov 1996 08:49:37 GMT": None,
    "Fri, 31 Dec 9999 23:59:59 GMT": None,
    "Sun, 06 Nov 1994 08:50:07 +0200": None,
    "Sun, 31 Feb 1994 08:50:07 GMT": None,
    "Sun, 06 Nov 1994 25:50:07 GMT": None,
    "1994-11-06T08:50:07Z": None,
    "Sun, 06 Nov 1994 08:50:07 GMT" + " " * 5_000 + "x": None,
}


@pytest.mark.parametrize("value", VALUES)
def test_each_value_has_its_pause(value: str) -> None:
    """Seconds or a date, from 0 up to a year; nothing is guessed, and nothing raised."""
    assert requested_pause_s({"retry-after": value}, NOW_S) == VALUES[value]


def test_without_the_header_there_is_no_pause() -> None:
    """A date alone asks for nothing."""
    assert requested_pause_s({"date": "Sun, 06 Nov 1994 08:49:37 GMT"}, NOW_S) is None


@pytest.mark.parametrize("unix_s", [0.0, NOW_S, NOW_S + 86_400 * 10_000])
@pytest.mark.parametrize("date", ["Sun, 06 Nov 1994 08:49:07 GMT", "Sunday, 06-Nov-94 08:49:07 GMT"])
def test_a_date_counts_from_that_of_the_answer(date: str, unix_s: float) -> None:
    """The two clocks need not agree. Seconds do not depend on any."""
    headers = {"retry-after": "Sun, 06 Nov 1994 08:49:37 GMT", "date": date}
    assert requested_pause_s(headers, unix_s) == 30.0
    assert requested_pause_s(headers | {"retry-after": "7"}, unix_s) == 7.0


def test_a_date_of_the_answer_that_is_none_is_ignored() -> None:
    """The prober's wall clock is left."""
    headers = {"retry-after": "Sun, 06 Nov 1994 08:50:07 GMT", "date": "now"}
    assert requested_pause_s(headers, NOW_S) == 30.0


RESETS = [
    ({"requests": ("0", "1994-11-06T08:50:07Z")}, 30.0),
    ({"input-tokens": ("0", "1994-11-06T08:50:07.5+00:00"), "output-tokens": ("0", "1994-11-06T08:49:47Z")}, 30.5),
    ({"requests": ("0", "1994-11-06T08:49:47Z"), "tokens": ("9000", "1994-11-06T09:49:37Z")}, 10.0),
    ({"tokens": ("0", "1994-11-06T08:49:07Z")}, 0.0),
    ({"tokens": ("12", "1994-11-06T08:50:07Z")}, None),
    ({"tokens": ("0", "1996-11-06T08:50:07Z")}, None),
    ({"tokens": ("0", "1994-11-06T08:50:07")}, None),
    ({"tokens": ("0", "soon"), "requests": ("\u0660", "1994-11-06T08:50:07Z")}, None),
    ({"bananas": ("0", "1994-11-06T08:50:07Z")}, None),
]


@pytest.mark.parametrize(("limits", "pause_s"), RESETS)
def test_an_exhausted_limit_asks_for_a_pause_until_it_is_filled_again(
    limits: dict[str, tuple[str, str]], pause_s: float | None
) -> None:
    """Until the last of those of which nothing is left; `Retry-After` says more, also where it cannot be read."""
    headers = {f"anthropic-ratelimit-{limit}-remaining": left for limit, (left, _) in limits.items()}
    headers |= {f"anthropic-ratelimit-{limit}-reset": reset for limit, (_, reset) in limits.items()}
    assert requested_pause_s(headers, NOW_S) == pause_s
    assert requested_pause_s(headers | {"retry-after": "7"}, NOW_S) == 7
    assert requested_pause_s(headers | {"retry-after": "later"}, NOW_S) is None
