"""Names that others choose, by every way into the prober, each beside a neighbour that looks alike and is a good name.

What a shown name may have is written here from Unicode's own lists, and not from the code under test.
"""

import json
import unicodedata

import pytest
from prometheus_client.parser import text_string_to_metric_families

from prober.config.discovery import DiscoverySpec, Unfit, target_of
from prober.config.load import load
from prober.daemon.registry import registry
from prober.exposition.families import page
from prober.exposition.parse import Parser
from prober.features.engines import series as engine_series
from prober.features.engines.page_reading import facts, recognise
from prober.features.engines.page_reading import read_signals as read
from prober.measure.engine_signals import EngineInfo
from prober.measure.engines import DIALECTS, TABLES
from prober.measure.outcome import Outcome
from prober.measure.printable import shown_name
from prober.measure.recording import Recording
from tests.security.hostile_engine import Answers, by_path, chunk, probed, response, stream

# Default_Ignorable_Code_Point of Unicode 15 (DerivedCoreProperties.txt), and the two selectors that change how a sign looks.
INVISIBLE = {
    *(0xAD, 0x34F, 0x61C, 0x115F, 0x1160, 0x17B4, 0x17B5, *range(0x180B, 0x1810), *range(0x200B, 0x2010)),
    *(*range(0x202A, 0x202F), *range(0x2060, 0x2070), 0x3164, *range(0xFE00, 0xFE10), 0xFEFF, 0xFFA0),
    *(*range(0xFFF0, 0xFFF9), *range(0x1BCA0, 0x1BCA4), *range(0x1D173, 0x1D17B), *range(0xE0000, 0xE1000)),
} - {0xFE0E, 0xFE0F}  # fmt: skip
MAX_CHARS, MAX_STACKED = 300, 8
# kind: (hostile name, neighbour that is shown as it is)
NAMES: dict[str, tuple[str, str]] = {
    "escape": ("llama\x1b[31m\x1b]0;title\x07", "llama[31m]0;title"),
    "C1": ("llama\x9b31m\x85", "llama·31m"),
    "NUL": ("llama\x00", "llama0"),
    "delete": ("llama\x7f\x7f\x7f", "llama~"),
    "line of a page": ('m"} 1\nllmslo_up{target="x"} 1\nx{a="', 'm"} 1 {target="x"}'),
    "carriage return": ("good\rbad", "good/bad"),
    "separators": ("a\u2028b\u2029c", "a|b|c"),
    "quotes": ('m"\\\n"', 'm"\\"'),
    "bidi override": ("llama\u202eevil\u202c", "llama-evil"),
    "bidi isolate": ("\u2067llama\u2069\u2066", "llama"),
    "right to left": ("نموذج\u200f\u200e\u061c", "نموذج-7b"),
    "zero width": ("lla\u200bma\u200d\u2060\ufeff", "lla-ma"),
    "tags": ("llama" + "".join(chr(0xE0000 + ord(sign)) for sign in "ignore all"), "llama ignore all"),
    "selectors": ("llama" + "".join(chr(0xE0100 + byte) for byte in b"hidden text"), "葛-7b"),
    "selectors of the basic plane": ("llama" + "\ufe00\ufe01\ufe0f\ufe0f\ufe0f", "llama ❤\ufe0f"),
    "fillers": ("\u3164\u115f\u1160\uffa0", "한국어 모델"),
    "vowels that nobody sees": ("\u17b4\u17b5llama\u034f", "ខ្មែរ"),
    "marks without end": ("l" + "\u0301\u0489" * 120, "Việt nữ mo\u0302\u0323 hình"),
    "half a pair": ("llama\ud83d", "llama🙂"),
    "both halves apart": ("\udfff\ud800", "𝔸"),
    "long": ("m" * 200_000, "m" * MAX_CHARS),
    "long and wide": ("\U0001f600" * 20_000, "\U0001f600" * MAX_CHARS),
    "blanks": (" \t\n\u3000\u00a0 ", "a b"),
    "empty": ("", "-"),
}
ANSWER = stream(chunk("hi", usage={"prompt_tokens": 20, "completion_tokens": 1}), chunk(finish="length"))
each_name = pytest.mark.parametrize("kind", NAMES)


def assert_name(text: str) -> None:
    """A name that can be shown: short, on one line, with nothing that hides, controls or piles up."""
    assert len(text) <= MAX_CHARS
    bad = [
        sign for sign in text if unicodedata.category(sign) in ("Cc", "Cf", "Cs", "Zl", "Zp") or ord(sign) in INVISIBLE
    ]
    assert not bad, [hex(ord(sign)) for sign in bad]
    assert "\ufe0f\ufe0f" not in text
    stacked = 0
    for sign in text:
        stacked = stacked + 1 if unicodedata.category(sign).startswith("M") else 0
        assert stacked <= MAX_STACKED
    assert text == text.strip()
    text.encode()


# --- the check itself


@each_name
def test_a_hostile_name_is_made_fit_and_its_neighbour_stays(kind: str) -> None:
    """Twice is once, so that names are compared after it."""
    hostile, neighbour = NAMES[kind]
    shown = shown_name(hostile)
    assert_name(shown)
    assert shown != hostile or kind == "empty"
    assert shown_name(shown) == shown
    assert_name(neighbour)
    assert shown_name(neighbour) == neighbour


# --- the ways in


def answers(listed: bytes, answered: str = "m", version: str = "1") -> Answers:
    """An engine with this list of models, whose answers and version name this."""
    document = {"model": answered, "choices": [{"index": 0, "delta": {"content": "hi"}}]}
    return by_path(
        {
            "/v1/models": response(listed),
            "/version": response(json.dumps({"version": version}).encode()),
            "/v1/chat/completions": stream(json.dumps(document).encode(), chunk(" you", finish="length")),
        }
    )


def listed(*ids: object, parent: object = None) -> bytes:
    """A list of models as Python's json writes it, which can write half a surrogate pair."""
    first, *others = ids
    rows = [{"id": first, "owned_by": "vllm"}, *({"id": name, "owned_by": "vllm", "parent": parent} for name in others)]
    return json.dumps({"data": rows}).encode()


CANNOT_BE_ASKED_FOR = {"half a pair", "both halves apart", "long", "long and wide", "empty", "blanks"}


@each_name
async def test_an_id_of_a_model(kind: str) -> None:
    """It is shown fit. One that no request can carry, or that is too long, is a malformed list and no fault of the prober."""
    for name, is_hostile in zip(NAMES[kind], (True, False), strict=True):
        result = await probed(answers(listed(name)))
        assert_name(result.model)
        assert len(result.detail) < 1_000
        if is_hostile and kind in CANNOT_BE_ASKED_FOR:
            assert result.outcome is Outcome.MALFORMED
            assert "set `model`" in result.detail
        else:
            assert result.outcome is Outcome.OK, result.detail
            assert result.model == shown_name(name)
            assert (result.model == name) is not is_hostile


@pytest.mark.parametrize("value", [None, 7, ["m"], {"id": "m"}, True])
async def test_an_id_that_is_no_text(value: object) -> None:
    """`None` is not the name of a model."""
    result = await probed(answers(listed(value)))
    assert result.outcome is Outcome.MALFORMED
    assert "set `model`" in result.detail


@each_name
async def test_ids_of_several_models_and_of_adapters(kind: str) -> None:
    """Adapters beside a model leave it as it is; of several models the message lists names that can be shown."""
    hostile, _ = NAMES[kind]
    for parent, outcome in (("m", Outcome.OK), (None, Outcome.REJECTED)):
        result = await probed(answers(listed("m", hostile, parent=parent)))
        if kind in CANNOT_BE_ASKED_FOR:
            assert result.outcome in (outcome, Outcome.MALFORMED)
        else:
            assert result.outcome is outcome, result.detail
        for part in result.detail.split(", "):
            assert all(ord(sign) not in INVISIBLE and sign.isprintable() for sign in part), part
        assert len(result.detail) < 4_000


@each_name
def test_the_model_that_an_answer_names(kind: str) -> None:
    """And the id and name of a tool call."""
    for name in NAMES[kind]:
        call = {"index": 0, "id": name, "function": {"name": name, "arguments": "{}"}}
        recording = Recording(tokens=16)
        for delta in ({"tool_calls": [call]}, {"content": "a"}):
            document = {"model": name, "choices": [{"index": 0, "delta": delta}]}
            recording.feed(1, b"data: " + json.dumps(document).encode() + b"\n\n")
        if recording.malformed is not None:
            assert len(name) > MAX_CHARS  # more than such an answer may have
            continue
        assert recording.answer.model == shown_name(name)
        for made in recording.answer.calls:
            assert_name(made.id)
            assert_name(made.name)


@each_name
def test_versions_models_and_flags_of_an_engine(kind: str) -> None:
    """From its pages of facts and its metrics page."""
    table = next(table for table in TABLES if table.engine == "vllm" and table.facts)
    for name in NAMES[kind]:
        found = {name: fact.value for name, fact in facts(table.facts, {"/version": {"version": name}}).items()}
        assert found.get("version", "") == shown_name(name)
        info = EngineInfo("vllm", name, name, {"dtype": name})
        assert (info.version, info.model, info.flags["dtype"]) == (shown_name(name),) * 3
        if kind in ("half a pair", "both halves apart", "long", "long and wide"):
            continue  # a page is UTF-8, and its lines are bounded
        quoted = name.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        text = f'vllm:num_requests_running{{model_name="{quoted}"}} 3\nvllm:num_requests_waiting{{model_name="{quoted}"}} 0\n'
        parsed = Parser().parse(text.encode())
        recognised = recognise(parsed, TABLES)
        assert recognised is not None
        signals = read(parsed, recognised, version="0.9.1", model=None).signals
        assert signals.info.model in (shown_name(name), None)
        assert signals.requests_running == 3.0


def discovery() -> DiscoverySpec:
    text = "discovery: [{file: {files: [targets.json]}}]"
    return load(text, source="c", engines=DIALECTS, environment={}, read=lambda path: path).discovery[0]


@each_name
@pytest.mark.parametrize("key", ["name", "model"])
def test_names_of_discovered_targets(kind: str, key: str) -> None:
    """A hostile one is refused with its reason, and the targets beside it are probed."""
    hostile, neighbour = NAMES[kind]
    spec, labels = discovery(), {"__address__": "10.0.0.1:8000", key: hostile}
    if hostile:
        with pytest.raises(Unfit, match=key) as refused:
            target_of(labels, spec)
        assert len(str(refused.value)) < 300
        assert shown_name(str(refused.value), 300) == str(refused.value)
    target = target_of(labels | {key: neighbour[:200]}, spec)
    assert target is not None
    assert getattr(target, key) == neighbour[:200]


# --- labels


@each_name
def test_a_label_ends_where_it_should(kind: str) -> None:
    """A reader of the page gets the shown name back, and nothing beside it."""
    families = registry()
    for name in NAMES[kind]:
        families.show(engine_series.ENGINE_INFO, 1.0, "t", "vllm", "1", shown_name(name))
    text = b"".join(page(list(families.values()), openmetrics=False)).decode()
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    assert {sample.labels["model"] for sample in samples} == {shown_name(name) for name in NAMES[kind]}
