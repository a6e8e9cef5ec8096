"""Other programs' files and pages: whatever stands in them, they are read or refused in the reader's own words."""

import contextlib
import json
import math
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prober.config.discovery import MAX_TARGETS, FileSpec
from prober.config.labels import Rule, relabel
from prober.exposition.parse import Parser
from prober.features.discovery.lists import BadList, Files, targets_of
from prober.features.experiments.result_reader import read_all
from prober.results.comparison import Comparison
from prober.results.result import Result
from prober.results.result_file import to_json
from prober.results.strict_json import Unreadable
from prober.workload.prompts import BadPrompts, parse_prompts
from prober.workload.trace import BadTrace, parse_trace
from tests.features.experiments import test_result_reader as foreign
from tests.fuzz.hostile import FEW, NESTED, TEXTS, VALUES, changed, spoilt
from tests.fuzz.streams import blocks
from tests.results.samples import sweep

PAGES = tuple(path.read_text()[-4_000:] for path in sorted((Path(__file__).parent.parent / "pages").glob("*.prom")))
LINES = (
    *(
        "\n",
        "\r\n",
        "\r",
        "# EOF\n",
        "# HELP a b\n",
        "{",
        "}",
        '"',
        "\\",
        'a{b="c"} 1\n',
        'a{b="c",b="d"} 2\n',
        "a 1 2 3\n",
    ),
    *(
        "a NaN\n",
        "a +Inf\n",
        "a 1_0\n",
        "a{} 1\n",
        "a{=} 1\n",
        'a{b="' + "x" * 9_999,
        'a{b="\\',
        "a " + "9" * 5_000 + "\n",
    ),
    *(
        "a{" + 'b="c",' * 3_000 + "} 1\n",
        "{" * 9_000,
        "a" * 9_000,
        " " * 9_000,
        'a{b="c"} 1 # {d="e"} 1\n',
        "\x00",
        "\ufeff",
    ),
)
TRACES = (
    '{"timestamp": 0, "input_length": 10, "output_length": 5, "hash_ids": [1, 2]}\n'
    '{"timestamp": 90, "input_length": 4, "output_length": 1}\n',
    "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n2024-05-10 00:00:00.009930+00:00,1,2\n",
)
IN_TRACES = (
    *(
        "NaN",
        "Infinity",
        "1e999",
        "-1",
        "9" * 400,
        "9" * 5_000,
        "null",
        "[]",
        "{}",
        '"',
        ",",
        "\n",
        "\r",
        "\x00",
        "Z",
        "true",
    ),
    *("0001-01-01", "9999-12-31", "+23:59", "1e308", *NESTED),
)
PROMPTS = (
    '{"prompt": "a"}\n{"messages": [{"role": "user", "content": "b"}]}\n',
    '{"prompt": "a", "expect": {"text": "b"}}\n',
)


@FEW
@given(changed(PAGES, LINES), st.integers(1, 400))
def test_any_page_is_read_the_same_in_any_slices(page: str, size: int) -> None:
    """A page of an engine, however spoilt: no exception, lines that cannot be read are counted, slices change nothing."""
    body = page.encode()
    whole = Parser().parse(body)
    assert repr(Parser().parse(body, size)) == repr(whole)
    assert 0 <= whole.broken <= whole.lines
    assert len(whole.first_broken) <= 120


@FEW
@given(st.binary(max_size=400))
def test_any_bytes_are_a_page(body: bytes) -> None:
    """Bytes that are no text are read too."""
    page = Parser().parse(body)
    assert page.lines >= sum(map(len, page.samples.values()))


@FEW
@given(changed(TRACES, IN_TRACES))
def test_any_trace_is_replayable_or_refused(text: str) -> None:
    """Offsets rise from zero and lengths are positive, or BadTrace says which line."""
    try:
        trace = parse_trace(text, "t")
    except BadTrace:
        return
    assert trace.offsets_ns[0] == 0
    assert list(trace.offsets_ns) == sorted(trace.offsets_ns)
    assert min(*trace.prompt_tokens, *trace.output_tokens) >= 1
    assert 0 < trace.rate_per_s < math.inf


@FEW
@given(changed(PROMPTS, (*IN_TRACES, '"prompt"', '"role"', '"expect"', '{"regex": "("}')))
def test_any_prompts_are_read_or_refused(text: str) -> None:
    """A file of prompts gives at least one, or BadPrompts."""
    try:
        assert parse_prompts(text, "p")
    except BadPrompts:
        return


def results() -> list[Any]:
    """A file of each tool, and ours, as JSON values."""
    return [foreign.VLLM, foreign.DETAILED, json.loads(to_json(sweep(count=4)))]


@FEW
@given(spoilt(results()))
def test_any_result_is_read_or_refused(document: Any) -> None:
    """A file of ours or of another tool with other values anywhere is read, or Unreadable."""
    with contextlib.suppress(Unreadable):
        assert all(isinstance(part, Result | Comparison) for part in read_all(json.dumps(document), "r.json"))


@FEW
@given(changed(tuple(map(json.dumps, results()[:4])), IN_TRACES))
def test_any_text_is_a_result_or_refused(text: str) -> None:
    """The same of text that was changed anywhere."""
    with contextlib.suppress(Unreadable):
        assert all(isinstance(part, Result | Comparison) for part in read_all(text, "r.json"))


@FEW
@given(
    st.lists(
        st.one_of(VALUES, st.fixed_dictionaries({"targets": VALUES}, optional={"labels": VALUES, "x": VALUES})),
        max_size=3,
    )
)
def test_any_list_of_targets_is_taken_or_refused(document: list[Any]) -> None:
    """What file_sd and http_sd give: addresses that are texts, or BadList."""
    try:
        found = targets_of(document, {"__meta_url": "u"}, {"name", "__meta_url"})
    except BadList:
        return
    assert all(isinstance(each["__address__"], str) for one in found.values() for each in one)


def test_the_same_address_very_often_takes_no_quadratic_time() -> None:
    """Fifty thousand times one address: each is a target of its own, found in linear time. More are no list for one prober."""
    assert len(targets_of([{"targets": ["a:1"] * MAX_TARGETS}], {}, set())) == MAX_TARGETS
    with pytest.raises(BadList, match="more than 50,000 targets"):
        targets_of([{"targets": ["a:1"] * (MAX_TARGETS + 1)}], {}, set())


REGEXES = ("(.*)", "(a+)+$", "", "(?P<n>.)", "^(.*):(\\d+)$", "[^/]+", "a|b", "(((((.)))))")


@FEW
@given(
    st.dictionaries(
        st.sampled_from(("__address__", "name", "__meta_x")),
        st.one_of(st.sampled_from(TEXTS), st.text(max_size=50)),
        max_size=3,
    ),
    st.lists(
        st.tuples(
            st.sampled_from(REGEXES),
            st.sampled_from(("replace", "keep", "drop")),
            st.sampled_from(("$1", "${n}", "$$", "$99", "${", "$", "")),
        )
    ),
)
def test_any_labels_are_relabelled(labels: dict[str, str], steps: list[tuple[str, Any, str]]) -> None:
    """Labels that others write are relabelled, or their target dropped, in time that grows with their length only."""
    rules = [
        Rule.model_construct(
            action=action,
            source_labels=("__address__", "name"),
            regex=regex,
            target_label="name",
            replacement=replacement,
        )
        for regex, action, replacement in steps
    ]
    found = relabel(labels, rules)
    assert found is None or all(isinstance(value, str) for value in found.values())


@FEW
@given(
    st.one_of(
        changed(("- targets: [a:1, b:2]\n  labels: {name: x}\n",), ("*a", "&a ", "<<: ", "- ", *NESTED[2:])),
        st.text(max_size=20),
    )
)
def test_any_file_of_targets_is_taken_or_refused(text: str) -> None:
    """A file of file_sd, as YAML and as JSON: targets, or a ValueError that the daemon tells."""
    with tempfile.TemporaryDirectory() as folder:
        for kind in ("yml", "json"):
            path = Path(folder) / f"targets.{kind}"
            path.write_bytes(text.encode("utf-8", "surrogatepass"))
            with contextlib.suppress(BadList):
                Files(FileSpec(files=(str(path),), interval=1.0), {"name"}, None)._read(str(path))  # type: ignore[arg-type]


def test_a_block_of_hostile_streams_is_answered(tmp_path: Path) -> None:
    """A thousand of the ten million event streams of bench/fuzz.py: none raises, hangs, or depends on how it is cut."""
    found = blocks(0, range(1), tmp_path, nice=0)
    assert found["streams"] == 1_000
    assert found["failures"] == {}
