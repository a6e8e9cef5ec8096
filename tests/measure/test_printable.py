"""Text that cannot control what shows it."""

import sys
import unicodedata

import pytest

from prober.measure.engine_signals import EngineInfo
from prober.measure.outcome import Outcome, Verdict
from prober.measure.printable import one_line, printable

KEPT = {"\n", "\t"}
# Format characters that are seen: number signs and other marks of Arabic, Syriac and Kaithi, and joiners of hieroglyphs.
VISIBLE = {*range(0x600, 0x606), 0x6DD, 0x70F, 0x890, 0x891, 0x8E2, 0x110BD, 0x110CD, *range(0x13430, 0x13440)}


def test_no_character_that_controls_or_hides_is_left() -> None:
    """By the categories of Unicode: control, format, halves, and separators of lines and paragraphs."""
    hidden = {"Cc", "Cf", "Cs", "Zl", "Zp"}
    for code in range(sys.maxunicode + 1):
        sign = chr(code)
        if unicodedata.category(sign) in hidden and sign not in KEPT and code not in VISIBLE:
            assert printable(sign) == "\ufffd", hex(code)


def test_letters_of_all_scripts_stay() -> None:
    """With their marks, and signs outside the basic plane."""
    for text in ("模型 модель نموذج मॉडल", "naïve – “x” … × 10⁻³", "🙂 𝔸", "a\n\tb", "no\N{NO-BREAK SPACE}break"):
        assert printable(text) == text


def test_names_and_messages_are_one_line() -> None:
    """Line breaks of every kind become blanks or are replaced."""
    assert one_line("a\nb\r\nc\td\u2028e\x85f") == "a b\ufffd c d\ufffde\ufffdf"
    assert one_line("as it is") == "as it is"


@pytest.mark.parametrize("text", ["a\u202eb", "a\nb", "\x1b[31m", "plain"])
def test_equal_names_stay_equal(text: str) -> None:
    """Names are compared after this, so twice must be once."""
    assert one_line(one_line(text)) == one_line(text)
    assert printable(printable(text)) == printable(text)


def test_what_a_server_says_enters_harmless() -> None:
    """Verdicts and identities cannot be made without it."""
    assert Verdict(Outcome.MALFORMED, "a\nb\x1b[2J").detail == "a b\ufffd[2J"
    info = EngineInfo("vllm", "1\x9b", "m\u200b" * 500, {"f": "x\ny"})
    assert (info.version, info.flags) == ("1\ufffd", {"f": "x y"})
    assert info.model is not None
    assert len(info.model) == 300
