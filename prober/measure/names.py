"""Names that others choose: models, adapters, versions, tools, discovered targets, values of labels on pages of others.

They are compared, shown and used as labels as `shown_name` returns them; identifiers that go back to their owner, such as the id of a
model in a request, are sent unchanged.
"""

import unicodedata

from prober.measure.printable import REPLACEMENT, one_line

MAX_NAME_CHARS = 300
MAX_MARKS = 8  # combining marks on one letter; the scripts in use need five


def shown_name(value: object, max_chars: int = MAX_NAME_CHARS) -> str:
    """The name on one line, of at most `max_chars`, without control or invisible characters and piles of marks; "" if it is no text.

    The shown form of a shown name is the same.
    """
    if type(value) is not str:
        return ""
    text = value[: 2 * max_chars]
    if not (text.isascii() and text.isprintable()):
        text = _with_few_marks(one_line(text))
    text = text.strip()
    return text if len(text) <= max_chars else text[: max_chars - 1] + "…"


def name_problem(text: str, max_chars: int = MAX_NAME_CHARS) -> str:
    """Why a name is not shown as it is, such as "is longer than 300 characters"; "" if it is."""
    if len(text) > max_chars:
        return f"is longer than {max_chars} characters"
    if not text.isprintable() or shown_name(text, max_chars) != text:
        return "has characters that cannot be shown, or blanks around it"
    return ""


def _with_few_marks(text: str) -> str:
    """The text with combining marks beyond MAX_MARKS in a row replaced by one sign."""
    kept: list[str] = []
    marks = 0
    for sign in text:
        marks = marks + 1 if unicodedata.category(sign)[0] == "M" else 0
        if marks <= MAX_MARKS:
            kept.append(sign)
        elif marks == MAX_MARKS + 1:
            kept.append(REPLACEMENT)
    return "".join(kept)
