"""What an expression names: selectors, ranges, groupings. A reader of tokens, not a parser: Prometheus has the last word."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

TOKEN = re.compile(
    r"""(?P<space>\s+)
    |(?P<string>"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*')
    |(?P<range>\[[^\]]*\])
    |(?P<number>\d[\d.]*(?:[eE][+-]?\d+)?[a-z]*)
    |(?P<variable>\$(?:\w+|\{\w+\}))
    |(?P<name>[a-zA-Z_:][\w:]*)
    |(?P<operator>=~|!~|!=|==|>=|<=|[-+*/%^<>=@])
    |(?P<bracket>[(){},])""",
    re.VERBOSE,
)
CLOSES = {")": "(", "}": "{"}
GROUPS = {"by", "without", "on", "ignoring", "group_left", "group_right"}
AGGREGATIONS = {"sum", "min", "max", "avg", "count", "group", "topk", "bottomk", "quantile", "stddev", "stdvar"}
KEYWORDS = GROUPS | {"and", "or", "unless", "bool", "offset", "atan2", "inf", "nan"}
MATCHER = re.compile(r"""\s*(\w+)\s*(=~|!~|!=|=)\s*("(?:\\.|[^"\\])*")\s*,?""")


class Unreadable(ValueError):
    """An expression that is none; the message says where."""


@dataclass(frozen=True, slots=True)
class Selector:
    """name: the series', or empty where a matcher has it; matchers: (label, operator, value); duration: in brackets after it."""

    name: str
    matchers: tuple[tuple[str, str, str], ...]
    duration: str = ""


@dataclass(frozen=True, slots=True)
class Reading:
    """What stands in an expression: selectors, and the labels that it groups or matches by."""

    selectors: tuple[Selector, ...]
    labels: frozenset[str]


def tokens(text: str) -> list[tuple[str, str]]:
    """(kind, text) of each token but space. Raises Unreadable."""
    found, at = [], 0
    while at < len(text):
        match = TOKEN.match(text, at)
        if match is None:
            raise Unreadable(f"nothing begins with {text[at : at + 10]!r}")
        if match.lastgroup != "space":
            found.append((str(match.lastgroup), match[0]))
        at = match.end()
    return found


def balanced(found: list[tuple[str, str]]) -> None:
    """Raises Unreadable for a bracket without its other."""
    opened: list[str] = []
    for kind, text in found:
        if kind != "bracket" or text == ",":
            continue
        if text not in CLOSES:
            opened.append(text)
        elif not opened or opened.pop() != CLOSES[text]:
            raise Unreadable(f"{text} closes nothing")
    if opened:
        raise Unreadable(f"{opened[-1]} is not closed")


def read(text: str) -> Reading:
    """An expression. Raises Unreadable."""
    found = tokens(text)
    balanced(found)
    selectors, labels = [], set[str]()
    at = 0
    while at < len(found):
        kind, word = found[at]
        after = found[at + 1][1] if at + 1 < len(found) else ""
        if kind == "name" and word in GROUPS and after == "(":
            at, names = _until(found, at + 2, ")")
            labels |= {name for name in names if name != ","}
        elif word == "{" or (kind == "name" and after != "(" and word not in KEYWORDS | AGGREGATIONS):
            at, selector = _selector(found, at)
            selectors.append(selector)
        at += 1
    return Reading(tuple(selectors), frozenset(labels))


def _selector(found: list[tuple[str, str]], at: int) -> tuple[int, Selector]:
    """The selector that begins at a name or a brace, and the place of its last token."""
    name = "" if found[at][1] == "{" else found[at][1]
    inside: list[str] = []
    opening = at + bool(name)
    if opening < len(found) and found[opening][1] == "{":
        at, inside = _until(found, opening + 1, "}")
    duration = ""
    if at + 1 < len(found) and found[at + 1][0] == "range":
        at += 1
        duration = found[at][1][1:-1]
    return at, Selector(name, tuple(_matchers(" ".join(inside))), duration)


def _until(found: list[tuple[str, str]], start: int, close: str) -> tuple[int, list[str]]:
    end = next(place for place in range(start, len(found)) if found[place][1] == close)
    return end, [word for _, word in found[start:end]]


def _matchers(text: str) -> Iterator[tuple[str, str, str]]:
    at = 0
    while at < len(text):
        match = MATCHER.match(text, at)
        if match is None:
            raise Unreadable(f"{text[at:]!r} is no matcher")
        yield match[1], match[2], match[3][1:-1]
        at = match.end()
