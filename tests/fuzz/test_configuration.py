"""Whatever a configuration says, the prober answers with specifications or with what is wrong with it, and soon."""

import re
from collections.abc import Callable
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from prober.config import units
from prober.config.configuration import Configuration
from prober.config.document import BadYaml, parse
from prober.config.load import load
from prober.config.problems import ConfigError
from prober.config.rows import Row, load_rows
from prober.config.web import WebConfig, load_web
from prober.measure.engines import DIALECTS
from tests.fuzz.hostile import FEW, LEAVES, NESTED, VALUES, changed, document

SCHEMA = Configuration.model_json_schema()
WEB = WebConfig.model_json_schema()
RIGHT = (
    "targets: [{url: http://localhost:8000}]\n",
    "defaults: {rate: 1/s}\nslos:\n  a: {signal: ttft, threshold: 500ms, objective: 99%}\ntargets:\n  - url: http://a\n    name: b\n",
    "workloads:\n  w: {prompt_tokens: 12, output_tokens: {uniform: {min: 1, max: 2}}}\n"
    "targets: [{url: http://a, probes: [{workload: w}]}]\n",
)
YAML = ("*a", "&a ", "<<: ", "!!int ", "!!python/object:os.system ", "!!binary ", "? ", "- ", ": ", "|", ">", "%YAML 9\n", "---\n",
        "\t", "\x85", "\x00", "'", '"', "#", "[", "]", "{", "}", "~", ".inf", "0o9", "1:2:3", "2026-01-01", *NESTED[2:])  # fmt: skip


def taken(text: str, content: str = "") -> Configuration | None:
    """What the prober makes of it; None for a ConfigError that says something."""
    try:
        return load(text, source="c.yaml", engines=DIALECTS, environment={}, read=lambda path: content)
    except ConfigError as problem:
        told(problem, "c.yaml")
        return None


def told(problem: ConfigError, source: str) -> None:
    """Every line of it names the file and a line of it; the last one may say that there are more."""
    assert all(re.match(rf"{source}(:\d+(:\d+)?: |: there are more)", line) for line in str(problem).splitlines())


@FEW
@given(document(SCHEMA, SCHEMA["$defs"]), st.sampled_from((*NESTED, "", "{}", "[]", '{"hidden_size": 1e999}')))
def test_any_document_of_known_keys_is_taken_or_refused(written: Any, content: str) -> None:
    """Whatever stands behind the keys, and in the files that they name, load gives Configuration or raises ConfigError."""
    taken(yaml.safe_dump(written), content)


@FEW
@given(changed(RIGHT, YAML))
def test_any_text_is_taken_or_refused(text: str) -> None:
    """No change of a right file, of YAML's own signs too, makes load raise anything but ConfigError."""
    taken(text)


@FEW
@given(document(WEB, WEB.get("$defs", {})))
def test_any_web_configuration_is_taken_or_refused(written: Any) -> None:
    """The same of the file for TLS and passwords."""
    try:
        load_web(yaml.safe_dump(written), "web.yaml")
    except ConfigError as problem:
        told(problem, "web.yaml")


@FEW
@given(st.lists(st.dictionaries(st.sampled_from(list(Row.model_fields)), st.one_of(LEAVES, VALUES)), max_size=3))
def test_any_rows_are_taken_or_refused(rows: Any) -> None:
    """The same of a matrix's file."""
    try:
        load_rows(yaml.safe_dump({"rows": rows}), source="rows.yaml")
    except ConfigError as problem:
        told(problem, "rows.yaml")


def bomb(join: str) -> str:
    """A few hundred bytes that stand for 9 to the power of 9 values."""
    lines = ["a0: &a0 {x: 1}" if "<<" in join else "a0: &a0 [x]"]
    lines += [f"a{i}: &a{i} {join.format(','.join([f'*a{i - 1}'] * 9))}" for i in range(1, 10)]
    return "\n".join(lines) + "\ntargets: *a9\n"


@pytest.mark.parametrize(
    "text", [bomb("[{}]"), bomb("{{<<: [{}]}}"), *NESTED, "a: &a [*a]", "a: &a {b: *a}", "&a {<<: *a}", "&a [<<, *a]"]
)
def test_yaml_that_expands_without_end_is_refused(text: str) -> None:
    """A value that stands for more than a file can mean, or for itself, is refused before anybody walks through it."""
    with pytest.raises(BadYaml):
        parse(text)
    assert taken(text) is None


@pytest.mark.parametrize("key", ["Url", "X", "[x]", "int", "str", "decimal", "function-before"])
def test_an_unknown_key_is_named_whatever_it_looks_like(key: str) -> None:
    """A key of the user's is never taken for a part of the checker's own names: `Url` for `url` is told as such."""
    with pytest.raises(ConfigError, match=r'targets\[0\]\.\S+: unknown key "'):
        load(f"targets: [{{url: http://a, '{key}': 1}}]", source="c", engines=(), environment={}, read=str)


def test_a_message_stays_on_its_line() -> None:
    """A key with a line break or a sign that moves the cursor is told with escapes: no line of a log is anybody else's."""
    with pytest.raises(ConfigError) as refused:
        load(
            '{"targets": [{"url": "http://a"}], "a\\nlevel=info msg": 1, "\\e[2J": 2}',
            source="c",
            engines=(),
            environment={},
            read=str,
        )
    assert [line.split(";")[0] for line in str(refused.value).splitlines()] == [
        'c:1: a\\nlevel=info msg: unknown key "a\\nlevel=info msg"',
        'c:1: \\x1b[2J: unknown key "\\x1b[2J"',
    ]


NINES = "9" * 400


@pytest.mark.parametrize(
    ("read", "text"),
    [
        *((units.duration, text) for text in (f"{NINES}s", "101000d")),
        *(
            (units.rate, text)
            for text in (f"{NINES}/s", f"1/{NINES}s", f"0.{'0' * 318}1/s", "1000000/s", "1/0s", "1/10000d")
        ),
        *((units.count, text) for text in (f"{NINES}M", "9" * 5_000 + "B", 10**400, -1, True)),
    ],
)
def test_a_quantity_beyond_all_measure_is_refused_in_short(read: Callable[[object], object], text: object) -> None:
    """What would be infinite, or overflow where it is used, is no quantity; the message does not repeat all of it."""
    with pytest.raises(units.UnitError) as refused:
        read(text)
    assert len(str(refused.value)) < 250


@pytest.mark.parametrize(
    ("read", "text", "found"), [(units.rate, "1/30d", 1 / 2_592_000), (units.duration, "365d", 31_536_000.0)]
)
def test_what_is_rare_and_long_is_taken(read: Callable[[object], object], text: str, found: float) -> None:
    """A probe a month and a window of a year are."""
    assert read(text) == pytest.approx(found)
