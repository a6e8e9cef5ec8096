"""Secrets kept out of what is said: a server may well send back what it was sent, and its words go into logs and onto pages."""

import base64
from collections.abc import Iterator
from urllib.parse import quote, unquote, unquote_plus, urlsplit

SHORTEST = 8  # characters; what is shorter cannot be told from any other word
KEPT = 64  # pieces of what rotates, as an answer may name the token before
_COVER = "…"


class Veil:
    """Hides what it was told to, as it is, in base64 and as it stands in a URL; also where it is cut off."""

    def __init__(self) -> None:
        self._for_good: dict[str, None] = {}
        self._rotating: dict[str, None] = {}

    def hide(self, secret: str) -> None:
        """One that rotates, from now on until many others have come after it; each word by itself, as `Bearer` is no secret."""
        self._rotating.update(dict.fromkeys(form for form in _forms(secret) if form not in self._rotating))
        while len(self._rotating) > KEPT:
            del self._rotating[next(iter(self._rotating))]

    def keep(self, secret: str) -> None:
        """One that is configured: hidden for good."""
        self._for_good.update(dict.fromkeys(_forms(secret)))

    def keep_of(self, url: str) -> None:
        """What is secret in a URL: the password, also as it is sent, and whatever its query asks."""
        parts = urlsplit(url)
        if parts.password:
            self.keep(parts.password)
            self.keep(unquote(parts.password))
            self.keep(basic(unquote(parts.username or ""), unquote(parts.password)))
        for each in parts.query.split("&"):
            name, _, value = each.partition("=")
            self.keep(value or name)
            self.keep(unquote_plus(value or name))

    def over(self, text: str) -> str:
        """`text` without them. What begins as one of them does is hidden as far as it goes on like it."""
        hidden = self._for_good | self._rotating
        for secret in sorted(hidden, key=len, reverse=True):
            text = text.replace(secret, _COVER)
        for secret in hidden:
            start = secret[:SHORTEST]
            at = text.find(start)
            while at >= 0:
                end = at + SHORTEST
                while end < len(text) and end - at < len(secret) and text[end] == secret[end - at]:
                    end += 1
                text = text[:at] + _COVER + text[end:]
                at = text.find(start, at + 1)
        return text


def basic(user: str, password: str) -> str:
    """The credentials of HTTP's Basic."""
    return base64.b64encode(f"{user}:{password}".encode()).decode()


def _forms(secret: str) -> Iterator[str]:
    for word in secret.split():
        if len(word) >= SHORTEST:
            yield from (word, base64.b64encode(word.encode()).decode().rstrip("="), quote(word, safe=""))
