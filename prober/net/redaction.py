"""Redaction of secrets in server responses, which may echo a request and end up in logs and on pages."""

import base64
from collections.abc import Iterator
from urllib.parse import quote, unquote, unquote_plus, urlsplit

MIN_SECRET_CHARS = 8  # a shorter word could be any other word
MAX_ROTATING_FORMS = 64  # a response may contain the previous token
_MASK = "…"


class Redactor:
    """Replaces registered secrets in text: plain, base64 and URL-encoded, also if truncated."""

    def __init__(self) -> None:
        self._permanent: dict[str, None] = {}
        self._rotating: dict[str, None] = {}

    def add_rotating(self, secret: str) -> None:
        """Register a rotating secret; the oldest are dropped. Each word counts by itself, as `Bearer` is not a secret."""
        self._rotating.update(dict.fromkeys(form for form in _forms(secret) if form not in self._rotating))
        while len(self._rotating) > MAX_ROTATING_FORMS:
            del self._rotating[next(iter(self._rotating))]

    def add(self, secret: str) -> None:
        """Register a configured secret permanently."""
        self._permanent.update(dict.fromkeys(_forms(secret)))

    def add_url(self, url: str) -> None:
        """Register the secrets of a URL: its password, also in Basic form, and the values of its query."""
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
        """`text` without the secrets. A truncated secret is masked as far as it matches."""
        secrets = self._permanent | self._rotating
        for secret in sorted(secrets, key=len, reverse=True):
            text = text.replace(secret, _MASK)
        for secret in secrets:
            prefix = secret[:MIN_SECRET_CHARS]
            at = text.find(prefix)
            while at >= 0:
                end = at + MIN_SECRET_CHARS
                while end < len(text) and end - at < len(secret) and text[end] == secret[end - at]:
                    end += 1
                text = text[:at] + _MASK + text[end:]
                at = text.find(prefix, at + 1)
        return text


def basic(user: str, password: str) -> str:
    """Credentials of HTTP Basic authentication."""
    return base64.b64encode(f"{user}:{password}".encode()).decode()


def _forms(secret: str) -> Iterator[str]:
    for word in secret.split():
        if len(word) >= MIN_SECRET_CHARS:
            yield from (word, base64.b64encode(word.encode()).decode().rstrip("="), quote(word, safe=""))
