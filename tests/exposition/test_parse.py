"""The parser of foreign pages: fast, tolerant, in slices."""

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from prober.exposition.parse import Page, Parser


def samples(page: Page) -> dict[str, list[tuple[dict[str, str], float]]]:
    return {name: [(dict(sample.labels), sample.value) for sample in values] for name, values in page.samples.items()}


@pytest.mark.parametrize(
    ("line", "name", "labels", "value"),
    [
        ("a 1", "a", {}, 1.0),
        ("a{} 1", "a", {}, 1.0),
        ('vllm:a_total{engine="0",reason=""} 2.5e+09', "vllm:a_total", {"engine": "0", "reason": ""}, 2.5e9),
        ('a{b="1",} 3', "a", {"b": "1"}, 3.0),
        ('  a { b = "1" , c = "2" }   4', "a", {"b": "1", "c": "2"}, 4.0),
        ('a{b="1"}5', "a", {"b": "1"}, 5.0),
        (r'a{b="q\"u}o{t,e\\\n#"} 6', "a", {"b": 'q"u}o{t,e\\\n#'}, 6.0),
        (r'a{b="\\n"} 6', "a", {"b": r"\n"}, 6.0),
        ("a +Inf", "a", {}, math.inf),
        ('a_bucket{le="-Inf"} -Inf', "a_bucket", {"le": "-Inf"}, -math.inf),
        ('a{b="1"} 7 1700000000000', "a", {"b": "1"}, 7.0),
        ("a 7 -1", "a", {}, 7.0),
        ('a{b="1"} 8 # {trace_id="x}"} 0.5 1.7', "a", {"b": "1"}, 8.0),
        ('a 8 # {trace_id="x"} 0.5', "a", {}, 8.0),
        ('a{b="1"} 8 1700.5 # {trace_id="x"} 0.5 1.7', "a", {"b": "1"}, 8.0),
        ('a{b="1"} 9\r', "a", {"b": "1"}, 9.0),
        ("mlc_sum\t10", "mlc_sum", {}, 10.0),
        ("mlc{batch_size=1}\t11", "mlc", {"batch_size": "1"}, 11.0),
        ('a{b="é\u2028\x85"} 12', "a", {"b": "é\u2028\x85"}, 12.0),
    ],
)
def test_a_line_of_any_dialect(line: str, name: str, labels: dict[str, str], value: float) -> None:
    """Each line gives name, labels and value, the same when its labels are known from an earlier one."""
    parser = Parser()
    for body in (line, line + "\n", line + "\n" + line):
        page = parser.parse(body.encode())
        assert samples(page) == {name: [(labels, value)] * page.lines}
        assert page.broken == 0


def test_not_a_number_is_a_value() -> None:
    """NaN is kept: what it means is for the reader of the signals."""
    assert math.isnan(Parser().parse(b"a NaN\n").samples["a"][0].value)


@pytest.mark.parametrize(
    "line",
    [
        "a",
        "a{",
        'a{b="1" 2',
        'a{b="1"}',
        "a x",
        'a{b="1"} 1_0',
        "a 1_0",
        "1a 2",
        "a 1 2 3",
        'a{b="unfinished} 1',
        'a{b="1"c="2} 1',
        '{"utf8 name"} 1',
        "<html>",
        "a{b=1 2} 1",
    ],
)
def test_a_broken_line_is_counted_and_skipped(line: str) -> None:
    """The lines around it are read, and the first broken one is there to be shown."""
    page = Parser().parse(f'a{{b="1"}} 1\n{line}\nz 2\n'.encode())
    assert (page.broken, page.lines) == (1, 3)
    assert page.first_broken == line
    assert samples(page) == {"a": [({"b": "1"}, 1.0)], "z": [({}, 2.0)]}


def test_a_page_of_something_else_costs_nothing_but_its_count() -> None:
    """HTML, binary and empty bodies give an empty page, never an exception; a shown line is short."""
    page = Parser().parse(b"<!doctype html>\n" + b"x" * 100_000 + b"\n\xff\xfe\x00{\n")
    assert page.samples == {}
    assert page.broken == 3
    assert len(Parser().parse(b"y" * 1000).first_broken) <= 120
    assert Parser().parse(b"") == Page()


@pytest.mark.parametrize(
    "text", ['a{b="' + "\\" * 50_001, 'a{b="1",' * 20_000, "a{" + 'b="1"' * 20_000, "a{" + " " * 50_000]
)
def test_no_line_makes_it_backtrack(text: str) -> None:
    """A hostile line is refused in time that grows with its length only (this test would hang)."""
    assert Parser().parse(text.encode()).broken == 1


def test_comments_created_and_the_end() -> None:
    """Comments and types are passed over, `_created` is dropped, and OpenMetrics' end is noticed."""
    text = '# HELP a x\n# TYPE a counter\n\n  \na_total{b="1"} 1\na_created{b="1"} 1.7e9\n# EOF\n'
    page = Parser().parse(text.encode())
    assert list(page.samples) == ["a_total"]
    assert page.eof
    assert not Parser().parse(text.replace("# EOF\n", "").encode()).eof


def test_only_wanted_names_are_kept() -> None:
    """Others are not looked at, broken or not; a wanted one is found with labels, without, and behind a tab."""
    page = Parser({"a", "b"}).parse(b'ab 1\na{x="1"} 2\nc{ 3\nb\t4\na 5\nb{ 6\nb_total 7\n')
    assert samples(page) == {"a": [({"x": "1"}, 2.0), ({}, 5.0)], "b": [({}, 4.0)]}
    assert (page.broken, page.first_broken, page.lines) == (1, "b{ 6", 7)


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Labels that are new at each scrape do not add up, and forgetting changes no sample read before."""
    monkeypatch.setattr("prober.exposition.parse.MAX_CACHED_LABEL_TEXTS", 50)
    parser = Parser()
    for scrape in range(20):
        page = parser.parse("".join(f'a{{id="{scrape}-{i}"}} {i}\n' for i in range(40)).encode())
        assert [sample.labels["id"] for sample in page.samples["a"]] == [f"{scrape}-{i}" for i in range(40)]
    assert len(parser._known) <= 50


NAMES = st.from_regex(re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]{0,8}", re.ASCII), fullmatch=True)
# Names that begin with two underscores are Prometheus's own.
LABELS = st.from_regex(re.compile(r"(?!__)[a-zA-Z_][a-zA-Z0-9_]{0,5}", re.ASCII), fullmatch=True)
TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\r"), max_size=12)
VALUES = st.one_of(st.floats(allow_nan=False), st.integers(-(10**6), 10**6))
SERIES = st.tuples(NAMES, st.dictionaries(LABELS, TEXTS, max_size=4), VALUES)


def escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


@given(st.lists(SERIES, max_size=12), st.integers(1, 200))
def test_what_is_written_is_read_as_prometheus_client_reads_it(
    series: list[tuple[str, dict[str, str], float]], size: int
) -> None:
    """Any names, labels and values: as they were written, and as the reference parser has them, in slices of any size."""
    lines = []
    for name, labels, value in series:
        inside = ",".join(f'{label}="{escaped(text)}"' for label, text in labels.items())
        lines.append(f"{name}{{{inside}}} {value!r}" if labels else f"{name} {value!r}")
    text = "\n".join(lines) + "\n"
    page = Parser().parse(text.encode(), size)
    assert page.broken == 0
    mine = [(name, labels, value) for name, values in samples(page).items() for labels, value in values]
    written = [(name, labels, float(value)) for name, labels, value in series if not name.endswith("_created")]
    assert sorted(map(repr, mine)) == sorted(map(repr, written))
    if not any("\x85" in line or len(line.splitlines()) > 1 for line in lines):  # the reference splits at those
        theirs = [
            (sample.name, dict(sample.labels), float(sample.value))
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if not sample.name.endswith("_created")
        ]
        assert sorted(map(repr, mine)) == sorted(map(repr, theirs))


@given(st.text(max_size=300), st.binary(max_size=300))
def test_nothing_is_fatal(text: str, raw: bytes) -> None:
    """Whatever the body is, a page comes of it."""
    for body in (text.encode("utf-8", "replace"), raw):
        page = Parser().parse(body)
        assert page.lines >= page.broken
