"""Redaction of secrets in server responses, which may repeat a request and be logged and shown.

A text is searched as it is, and with its escapes undone up to MAX_LEVELS times: backslashes as in JSON and Python's `repr`, percent
encoding, and HTML references. Secrets are masked in the original text.
"""

import base64
import re
from collections.abc import Iterator, Sequence
from urllib.parse import quote, unquote, unquote_plus, urlsplit

MIN_SECRET_CHARS = 8  # a shorter secret could match ordinary words
MAX_ROTATING_FORMS = 160  # a response may contain the previous token
MAX_LEVELS = 4  # of nested escapes
_MASK = "…"
_ESCAPE = re.compile(
    r"\\u(?P<u>[0-9a-fA-F]{4})|(?P<x>(?:\\x[0-9a-fA-F]{2})+)|\\(?P<own>.)|(?P<percent>(?:%[0-9a-fA-F]{2})+)"
    r"|&#(?P<number>[0-9]{1,7});|&#[xX](?P<hex>[0-9a-fA-F]{1,6});|&(?P<name>amp|lt|gt|quot|apos);",
    re.DOTALL,
)
_NAMED = {"amp": "&", "lt": "<", "gt": ">", "quot": '"', "apos": "'"}
Span = tuple[int, int]


class Redactor:
    """Replaces registered secrets in texts: plain, escaped, in base64 or hexadecimal digits, complete or truncated."""

    def __init__(self) -> None:
        self._permanent: dict[str, None] = {}
        self._rotating: dict[str, None] = {}

    def add_rotating(self, secret: str) -> None:
        """Register a secret that changes: every long enough word of it. Only the latest secrets are remembered."""
        self._rotating.update(dict.fromkeys(form for form in _forms(secret) if form not in self._rotating))
        while len(self._rotating) > MAX_ROTATING_FORMS:
            del self._rotating[next(iter(self._rotating))]

    def add(self, secret: str) -> None:
        """Register a configured secret permanently."""
        self._permanent.update(dict.fromkeys(_forms(secret)))

    def add_url(self, url: str) -> None:
        """Register the secrets of a URL: its password, also as Basic credentials, and the values of its query."""
        parts = urlsplit(url)
        if parts.password:
            self.add(parts.password)
            self.add(unquote(parts.password))
            self.add(basic(unquote(parts.username or ""), unquote(parts.password)))
        for parameter in parts.query.split("&"):
            name, _, value = parameter.partition("=")
            self.add(value or name)
            self.add(unquote_plus(value or name))

    def redact(self, text: str) -> str:
        """Mask all secrets in `text`. Of a truncated secret, the visible part is masked."""
        if len(text) < MIN_SECRET_CHARS:
            return text
        masked: list[Span] = []
        view, places = text, None
        for _ in range(MAX_LEVELS + 1):
            masked += (_place(span, places) for span in self._find(view))
            undone = _undo_escapes(view, places)
            if undone is None:
                break
            view, places = undone
        return _without(text, masked)

    def _find(self, text: str) -> Iterator[Span]:
        """Yield the span of each secret in the text, also of a truncated one."""
        for secret in (*self._permanent, *self._rotating):
            prefix = secret[:MIN_SECRET_CHARS]
            at = text.find(prefix)
            while at >= 0:
                end = at + MIN_SECRET_CHARS
                while end < len(text) and end - at < len(secret) and text[end] == secret[end - at]:
                    end += 1
                yield at, end
                at = text.find(prefix, end)


def basic(user: str, password: str) -> str:
    """Credentials for HTTP Basic authentication, in base64."""
    return base64.b64encode(f"{user}:{password}".encode()).decode()


def _forms(secret: str) -> Iterator[str]:
    for word in secret.split():
        if len(word) >= MIN_SECRET_CHARS:
            digits = word.encode().hex()
            yield from (word, quote(word, safe=""), digits, digits.upper())
            for shift in range(3):  # position of its first byte in the groups of three of a longer text
                inside = base64.b64encode(b"\0" * shift + word.encode())
                # The first characters also encode what precedes the secret, and the last one what follows it.
                distinct = inside[(shift * 8 + 5) // 6 : (shift + len(word.encode())) * 8 // 6].decode()
                if len(distinct) >= MIN_SECRET_CHARS:
                    yield from (distinct, distinct.replace("+", "-").replace("/", "_"))


def _undo_escapes(text: str, places: Sequence[Span] | None) -> tuple[str, list[Span]] | None:
    """Undo one level of escapes: (new text, place of each of its characters in the original text); None if `text` has no escapes.

    places: the places of the characters of `text`; None if it is the original
    """
    characters: list[str] = []
    spans: list[Span] = []
    end = 0
    for escape in _ESCAPE.finditer(text):
        characters.append(text[end : escape.start()])
        spans += places[end : escape.start()] if places else ((at, at + 1) for at in range(end, escape.start()))
        meaning = _meaning(escape)
        end = escape.end()
        characters.append(meaning)
        spans += [_place((escape.start(), end), places)] * len(meaning)
    if not end:
        return None
    characters.append(text[end:])
    spans += places[end:] if places else ((at, at + 1) for at in range(end, len(text)))
    return "".join(characters), spans


def _meaning(escape: "re.Match[str]") -> str:
    kind, value = escape.lastgroup, escape[escape.lastgroup or 0]
    match kind:
        case "u" | "hex":
            return chr(min(int(value, 16), 0x10FFFF))
        case "number":
            return chr(min(int(value), 0x10FFFF))
        case "x" | "percent":
            escaped = bytes.fromhex(value.replace("\\x", "").replace("%", ""))
            try:
                return escaped.decode()
            except UnicodeDecodeError:
                return escaped.decode("latin-1")
        case "name":
            return _NAMED[value]
    return value


def _place(span: Span, places: Sequence[Span] | None) -> Span:
    """The span in the original text that corresponds to a span in unescaped text."""
    return span if places is None else (places[span[0]][0], places[span[1] - 1][1])


def _without(text: str, masked: Sequence[Span]) -> str:
    """The text with each of the spans masked; overlapping spans get one mask."""
    pieces, end = [], 0
    for start, stop in sorted(masked):
        if stop <= end:
            continue
        if start > end or not end:
            pieces += [text[end:start], _MASK]
        end = stop
    return "".join((*pieces, text[end:])) if pieces else text
