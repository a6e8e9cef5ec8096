"""Makes text from servers and files safe to show: no character can control a terminal, be invisible, or change the text around it.

Names from outside (models, adapters, versions, tools, discovered targets, label values) are compared, shown and used as labels in
the form of `shown_name`. Identifiers that return to their origin, such as the model in a request, are sent unchanged.
"""

import re
import unicodedata

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
# Control characters except tab and line feed; soft hyphen; zero-width, directional and other format characters; separators of lines and
# paragraphs; halves of characters; interlinear annotation; tags; invisible letters and marks (fillers, variation selectors).
# Allowed are a few visible format characters of scripts, and one variation selector, as in emoji; a row of them is text.
_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f"
    "\u3164\ud800-\udfff\ufe00-\ufe0d\ufeff\uffa0\ufff0-\ufffb"
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]|(?<=[\ufe0e\ufe0f])[\ufe0e\ufe0f]"
)


def printable(text: str) -> str:
    """Replace each character that must not be shown by U+FFFD. Line breaks and tabs stay."""
    return text if text.isascii() and text.isprintable() else _HIDDEN.sub(REPLACEMENT, text)


def one_line(text: str) -> str:
    """The printable text on one line, for names and messages. Equal texts stay equal."""
    text = printable(text)
    return text if text.isprintable() else " ".join(text.split())


MAX_NAME_CHARS = 300
MAX_MARKS = 8  # combining marks per letter; living scripts need five


def shown_name(value: object, max_chars: int = MAX_NAME_CHARS) -> str:
    """A name as one line of at most `max_chars`, without control or invisible characters and piles of marks; "" if it is no text.

    Shown names are returned unchanged.
    """
    if type(value) is not str:
        return ""
    text = value[: 2 * max_chars]
    if not (text.isascii() and text.isprintable()):
        text = _with_few_marks(one_line(text))
    text = text.strip()
    return text if len(text) <= max_chars else text[: max_chars - 1] + "…"


def name_problem(text: str, max_chars: int = MAX_NAME_CHARS) -> str:
    """Why a name cannot be shown unchanged, such as "is longer than 300 characters"; "" if it can."""
    if len(text) > max_chars:
        return f"is longer than {max_chars} characters"
    if not text.isprintable() or shown_name(text, max_chars) != text:
        return "has characters that cannot be shown, or blanks around it"
    return ""


def _with_few_marks(text: str) -> str:
    """Replace combining marks beyond MAX_MARKS in a row by one U+FFFD."""
    kept: list[str] = []
    marks = 0
    for sign in text:
        marks = marks + 1 if unicodedata.category(sign)[0] == "M" else 0
        if marks <= MAX_MARKS:
            kept.append(sign)
        elif marks == MAX_MARKS + 1:
            kept.append(REPLACEMENT)
    return "".join(kept)


def mask_secrets(text: str) -> str:
    """The text for messages, without user, password and query of its URL, even if the URL is malformed."""
    return re.sub(r"\?.+", "?…", re.sub(r"(//|^).*@", r"\1…@", text, flags=re.DOTALL), flags=re.DOTALL)


def shown_path(path: str) -> str:
    """Path of a secret's file for messages. A text that does not look like a path may be the secret itself, and is hidden."""
    if path.startswith(("/", "./", "../")):
        return path
    return f"the name given ({len(path)} characters, hidden as it may be the secret itself; write /path or ./path to see it)"
