"""Text of servers and files, made fit for people: no character of it can control a terminal, hide, or change the text around it."""

import re

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
# Control characters but tab and line feed; soft hyphen; zero-width, directional and other format characters; separators of lines and
# paragraphs; halves of characters; interlinear annotation; tags; invisible letters and marks (fillers, variation selectors).
# Left are the few visible format characters of scripts, and one selector of the look of a sign, as in emoji: a row of them is text.
_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f"
    "\u3164\ud800-\udfff\ufe00-\ufe0d\ufeff\uffa0\ufff0-\ufffb"
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]|(?<=[\ufe0e\ufe0f])[\ufe0e\ufe0f]"
)


def printable(text: str) -> str:
    """The text with characters that cannot or must not be shown replaced by U+FFFD. Lines and tabs stay."""
    return text if text.isascii() and text.isprintable() else _HIDDEN.sub(REPLACEMENT, text)


def one_line(text: str) -> str:
    """The printable text on one line, for names and messages. Equal texts stay equal."""
    text = printable(text)
    return text if text.isprintable() else " ".join(text.split())
