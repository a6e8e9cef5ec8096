"""Strategies for what no one should write: values, documents by a JSON Schema, and texts that were right before they were changed."""

import copy
from collections.abc import Sequence
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

FEW = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
NUMBERS: tuple[Any, ...] = (
    *(0, -1, 1, 3, 10**400, -(10**400), 2**63, 2**64, 1e308, -0.0, float("inf"), float("nan"), True, 0.5, 1e-320),
)
NINES = "9" * 400
QUANTITIES = (
    *(
        "500ms",
        "10s",
        "30d",
        "0.2/s",
        "12/min",
        "99%",
        "99.9%",
        "4M",
        "0s",
        "0/s",
        "100%",
        "-1s",
        "٣ms",
        "1e9s",
        "1/0s",
    ),
    *(f"{NINES}s", f"{NINES}/s", f"1/{NINES}s", f"0.{'0' * 400}1/s", f"{NINES}%", f"{NINES}M", "9" * 5_000 + "B"),
)
TEXTS = (
    *("", " ", "a", "\x00", "\ufeff", "\ud7ff", "𐀀", "a" * 3_000, "[", "{{", "%s", "${HOME}", "../../x", "null", "\n"),
    *(
        "(a+)+$",
        "(",
        "\\",
        "http://127.0.0.1:8000",
        "https://[::1]:1/v1",
        "http://[",
        "http://a:99999999",
        "http://u:p@h",
    ),
    *(
        "ftp://x",
        "//",
        "http://a\x00b",
        "http://" + "a" * 300,
        "Mon-Fri 08:00-20:00",
        "0 2 * * *",
        "* * * * * *",
        "UTC",
    ),
    *("Mars/Olympus", "chat", "probe", "x", "Url", "int"),
)
LEAVES = st.one_of(
    st.none(), st.sampled_from(NUMBERS), st.sampled_from(QUANTITIES), st.sampled_from(TEXTS), st.text(max_size=8)
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(TEXTS), inner, max_size=3)),
    max_leaves=6,
)
NESTED = ("[" * 20_000, '{"a":' * 5_000, "[" * 500 + "]" * 500, "- " * 3_000, "{a: " * 900, '"' + "\\" * 9_999)


@st.composite
def document(draw: st.DrawFn, schema: dict[str, Any], definitions: dict[str, Any], depth: int = 0) -> Any:
    """By the schema for the most part, so that what is wrong stands where it is looked at."""
    if draw(st.integers(0, 11)) == 0:
        return draw(VALUES)
    if reference := schema.get("$ref"):
        return draw(document(definitions[reference.rpartition("/")[2]], definitions, depth))
    for several in ("anyOf", "oneOf", "allOf"):
        if several in schema:
            kinds = [kind for kind in schema[several] if kind != {"type": "null"}] or schema[several]
            return draw(document(draw(st.sampled_from(kinds)), definitions, depth))
    if "enum" in schema:
        return draw(st.sampled_from(schema["enum"]))
    if "properties" in schema:
        names = draw(st.lists(st.sampled_from(sorted(schema["properties"])), max_size=3 if depth else 6, unique=True))
        names = [*dict.fromkeys([*schema.get("required", ()), *names])]
        return {name: draw(document(schema["properties"][name], definitions, depth + 1)) for name in names}
    if isinstance(schema.get("additionalProperties"), dict):
        names = draw(st.lists(st.sampled_from(("a", "b", "chat", "é", "x y")), max_size=2, unique=True))
        return {name: draw(document(schema["additionalProperties"], definitions, depth + 1)) for name in names}
    if "items" in schema:
        return [draw(document(schema["items"], definitions, depth + 1)) for _ in range(draw(st.integers(1, 2)))]
    return draw(st.sampled_from(schema["examples"])) if "examples" in schema else draw(LEAVES)


@st.composite
def changed(draw: st.DrawFn, texts: Sequence[str], inserted: Sequence[str]) -> str:
    """One of `texts`, with pieces of `inserted` put in, cut out, or in the place of others."""
    text = draw(st.sampled_from(texts))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(text)))
        upto = min(len(text), at + draw(st.sampled_from((0, 0, 1, 3, 20))))
        piece = draw(st.one_of(st.sampled_from(inserted), st.text(max_size=3)))
        text = text[:at] + piece + text[upto:]
    return text


@st.composite
def spoilt(draw: st.DrawFn, documents: Sequence[Any]) -> Any:
    """One of `documents` with a few values, wherever they stand, replaced or left out."""
    document = copy.deepcopy(draw(st.sampled_from(documents)))
    for _ in range(draw(st.integers(1, 3))):
        inside = document
        while True:
            keys = list(inside) if isinstance(inside, dict) else list(range(len(inside)))
            if not keys:
                break
            key = draw(st.sampled_from(keys))
            if isinstance(inside[key], dict | list) and draw(st.integers(0, 3)):
                inside = inside[key]
                continue
            if draw(st.booleans()):
                inside[key] = draw(VALUES)
            else:
                del inside[key]
            break
    return document
