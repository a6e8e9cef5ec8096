"""An endpoint that sends back the secret which it received, in every way that programs escape a text."""

import base64
import html
import json
from collections.abc import Callable
from urllib.parse import quote

import pytest

from prober.measure.engine_signals import EngineInfo
from prober.measure.outcome import Outcome
from prober.net.redaction import Redactor
from tests.security.hostile_engine import by_path, chunk, models, probed, stream

SECRETS = (
    "sk-live-0123456789abcdef",
    r"pa\ss\word\01234567",
    'quo"ted/secret+value=1',
    "schlüssel-0123456789",
    "100%25-sure-of-it",
)
INNOCENT = "the model llama-3-70b is not ready; 100% of \\u0041 blocks are used, see https://x.example/?a=%20b"


def unicode_escaped(text: str) -> str:
    return "".join(f"\\u{ord(character):04x}" for character in text)


def base64_after(text: str, before: str) -> str:
    return base64.b64encode(f"{before}{text}, and more".encode()).decode()


FORMS: dict[str, Callable[[str], str]] = {
    "plain": str,
    "JSON": lambda text: json.dumps(text)[1:-1],
    "JSON in JSON": lambda text: json.dumps(json.dumps(text)),
    "every character as \\u": unicode_escaped,
    "\\u in capitals": lambda text: unicode_escaped(text).upper().replace("\\U", "\\u"),
    "some characters as \\u": lambda text: text[:3].replace("\\", "\\\\") + unicode_escaped(text[3:6]) + text[6:].replace("\\", "\\\\"),
    "\\u in a JSON string of JSON": lambda text: json.dumps(unicode_escaped(text)),
    "\\x": lambda text: "".join(f"\\x{byte:02x}" for byte in text.encode("latin-1")),
    "repr": repr,
    "repr of bytes": lambda text: repr(text.encode()),
    "repr of repr": lambda text: repr(repr(text)),
    "a backslash before each character": lambda text: "".join("\\" + c if not c.isalnum() else c for c in text),
    "percent": lambda text: quote(text, safe=""),
    "every character in percent": lambda text: "".join(f"%{byte:02x}" for byte in text.encode()),
    "percent twice": lambda text: quote(quote(text, safe=""), safe=""),
    "HTML": html.escape,
    "HTML numbers": lambda text: "".join(f"&#{ord(character)};" for character in text),
    "HTML hexadecimal numbers": lambda text: "".join(f"&#x{ord(character):x};" for character in text),
    "base64": lambda text: base64.b64encode(text.encode()).decode(),
    "base64 behind one character": lambda text: base64_after(text, "x"),
    "base64 behind two": lambda text: base64_after(text, "xy"),
    "base64 behind a word": lambda text: base64_after(text, "Bearer "),
    "base64 for URLs": lambda text: base64.urlsafe_b64encode(f"u:{text}".encode()).decode(),
    "hexadecimal": lambda text: text.encode().hex(),
    "hexadecimal in capitals": lambda text: text.encode().hex().upper(),
}  # fmt: skip


@pytest.mark.parametrize("secret", SECRETS)
@pytest.mark.parametrize("form", FORMS)
def test_a_secret_is_found_however_it_is_escaped(form: str, secret: str) -> None:
    """And what stands around it is left, as is a text without one."""
    redactor = Redactor()
    redactor.add(secret)
    escaped = FORMS[form](secret)
    redacted = redactor.redact(f"refused: {escaped} is unknown")
    assert redacted.startswith("refused: ")
    assert redacted.endswith(" is unknown")
    for at in range(0, len(escaped) - 24, 8):
        assert escaped[at : at + 24] not in redacted, (form, redacted)
    assert escaped not in redacted
    assert redactor.redact(INNOCENT) == INNOCENT


@pytest.mark.parametrize("form", ["plain", "every character as \\u", "percent", "hexadecimal", "HTML numbers"])
def test_a_secret_that_is_cut_off_is_masked_as_far_as_it_goes(form: str) -> None:
    """Texts of servers are cut to a length, and a part of a token is still worth something."""
    redactor = Redactor()
    redactor.add(SECRETS[0])
    escaped = FORMS[form](SECRETS[0])
    cut = redactor.redact(f"refused: {escaped[: len(escaped) * 3 // 4]}")
    assert cut.startswith("refused: …")
    assert len(cut) < len("refused: …") + 8


def test_a_flood_of_escapes_is_read_a_bounded_number_of_times() -> None:
    """No number of levels of escaping makes the work more than a few times the text."""
    redactor = Redactor()
    redactor.add(SECRETS[0])
    flood = "\\" * 20_000 + "%25" * 20_000 + "&amp;" * 20_000
    assert redactor.redact(flood) == flood
    assert redactor.redact(flood + SECRETS[0]) == flood + "…"


@pytest.mark.parametrize("is_escaped", [False, True])
async def test_no_field_of_a_result_has_a_secret(is_escaped: bool) -> None:
    """A server puts its token wherever a text of its own is shown: finish reason, model, text, list of models. A benign one is
    shown as it wrote everything."""
    token = SECRETS[0]
    said = unicode_escaped(token) if is_escaped else token
    for text, is_secret in ((said, True), ("a-model-of-the-usual-kind", False)):
        answers = {
            "/v1/models": models(text),
            "/v1/chat/completions": stream(chunk("hi", model=text), chunk(text, finish=text)),
        }
        result = await probed(by_path(answers), f", headers: {{X-Key: '{token}'}}")
        timeline = result.timeline
        assert timeline.finish_reason is not None
        assert result.outcome is Outcome.OK  # with a remark that quotes the reason
        for place in (timeline.finish_reason, timeline.answered_model, result.model, result.text, result.detail):
            assert (text in place) is not is_secret, place
            assert ("…" in place) is is_secret, place


def test_no_fact_of_an_engine_has_a_secret() -> None:
    """Version, model and flags of its page and documents; those of a neighbour are unchanged."""
    redactor = Redactor()
    redactor.add(SECRETS[0])
    echoed = EngineInfo("vllm", f"1.0+{SECRETS[0]}", SECRETS[0], {"dtype": unicode_escaped(SECRETS[0])})
    assert echoed.redacted(redactor.redact) == EngineInfo("vllm", "1.0+…", "…", {"dtype": "…"})
    honest = EngineInfo("vllm", "0.9.1", "llama-3", {"dtype": "bfloat16"})
    assert honest.redacted(redactor.redact) == honest


def test_the_scheme_of_a_token_and_a_short_word_are_no_secrets() -> None:
    """Of a header that a server repeats only the token is hidden."""
    redactor = Redactor()
    redactor.add_rotating("Bearer s3cr3t/token+value")
    redactor.add_rotating("short")
    assert redactor.redact("Bearer s3cr3t/token+value, short and s3cr3t/tok") == "Bearer …, short and …"
