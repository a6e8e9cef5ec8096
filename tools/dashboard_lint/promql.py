"""Selectors, ranges and groupings of a PromQL expression, from its tokens. Full parsing is left to promtool."""

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


class InvalidExpression(ValueError):
    """Text that is not an expression; the message names the place."""


@dataclass(frozen=True, slots=True)
class Selector:
    """One vector selector.

    name: of the series; empty if a matcher selects it.
    matchers: (label, operator, value).
    duration: the text in brackets after it; empty without.
    """

    name: str
    matchers: tuple[tuple[str, str, str], ...]
    duration: str = ""


@dataclass(frozen=True, slots=True)
class Expression:
    """Selectors of an expression, and the labels that it groups or joins by, without those that it names in a string, as label_join
    does."""

    selectors: tuple[Selector, ...]
    labels: frozenset[str]


def tokenize(text: str) -> list[tuple[str, str]]:
    """(kind, text) of every token except space. Raises InvalidExpression."""
    tokens, at = [], 0
    while at < len(text):
        match = TOKEN.match(text, at)
        if match is None:
            raise InvalidExpression(f"no token begins with {text[at : at + 10]!r}")
        if match.lastgroup != "space":
            tokens.append((str(match.lastgroup), match[0]))
        at = match.end()
    return tokens


def check_brackets(tokens: list[tuple[str, str]]) -> None:
    """Raise InvalidExpression for an unbalanced bracket."""
    opened: list[str] = []
    for kind, text in tokens:
        if kind != "bracket" or text == ",":
            continue
        if text not in CLOSES:
            opened.append(text)
        elif not opened or opened.pop() != CLOSES[text]:
            raise InvalidExpression(f"{text} closes nothing")
    if opened:
        raise InvalidExpression(f"{opened[-1]} is not closed")


def parse(text: str) -> Expression:
    """Parse an expression. Raises InvalidExpression."""
    tokens = tokenize(text)
    check_brackets(tokens)
    selectors, labels, named = [], set[str](), set[str]()
    at = 0
    while at < len(tokens):
        kind, word = tokens[at]
        after = tokens[at + 1][1] if at + 1 < len(tokens) else ""
        if kind == "name" and word in GROUPS and after == "(":
            at, names = _until(tokens, at + 2, ")")
            labels |= {name for name in names if name != ","}
        elif word == "{" or (kind == "name" and after != "(" and word not in KEYWORDS | AGGREGATIONS):
            at, selector = _selector(tokens, at)
            selectors.append(selector)
        elif kind == "string":
            named.add(word[1:-1])
        at += 1
    return Expression(tuple(selectors), frozenset(labels - named))


def _selector(tokens: list[tuple[str, str]], at: int) -> tuple[int, Selector]:
    """(index of its last token, selector) of the selector that begins with the token `at`."""
    name = "" if tokens[at][1] == "{" else tokens[at][1]
    inside: list[str] = []
    opening = at + bool(name)
    if opening < len(tokens) and tokens[opening][1] == "{":
        at, inside = _until(tokens, opening + 1, "}")
    duration = ""
    if at + 1 < len(tokens) and tokens[at + 1][0] == "range":
        at += 1
        duration = tokens[at][1][1:-1]
    return at, Selector(name, tuple(_matchers(" ".join(inside))), duration)


def _until(tokens: list[tuple[str, str]], start: int, close: str) -> tuple[int, list[str]]:
    end = next(place for place in range(start, len(tokens)) if tokens[place][1] == close)
    return end, [word for _, word in tokens[start:end]]


def _matchers(text: str) -> Iterator[tuple[str, str, str]]:
    at = 0
    while at < len(text):
        match = MATCHER.match(text, at)
        if match is None:
            raise InvalidExpression(f"{text[at:]!r} is not a matcher")
        yield match[1], match[2], match[3][1:-1]
        at = match.end()
