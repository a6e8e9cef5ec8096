"""Secrets kept out of what is said: a server may well send back what it was sent, and its words go into logs and onto pages."""

import base64
from urllib.parse import quote

SHORTEST = 8  # characters; what is shorter cannot be told from any other word
KEPT = 64  # pieces; tokens rotate, and an answer may name the one before
_COVER = "…"


class Veil:
    """Hides what it was told to, as it is, in base64 and as it stands in a URL; also where it is cut off."""

    def __init__(self) -> None:
        self._hidden: dict[str, None] = {}

    def hide(self, secret: str) -> None:
        """From now on; each word of it by itself, as `Bearer` is no secret."""
        for word in secret.split():
            if len(word) >= SHORTEST and word not in self._hidden:
                forms = (word, base64.b64encode(word.encode()).decode().rstrip("="), quote(word, safe=""))
                self._hidden.update(dict.fromkeys(forms))
        while len(self._hidden) > KEPT:
            del self._hidden[next(iter(self._hidden))]

    def over(self, text: str) -> str:
        """`text` without them. What begins as one of them does is hidden as far as it goes on like it."""
        for secret in sorted(self._hidden, key=len, reverse=True):
            text = text.replace(secret, _COVER)
        for secret in self._hidden:
            start = secret[:SHORTEST]
            at = text.find(start)
            while at >= 0:
                end = at + SHORTEST
                while end < len(text) and end - at < len(secret) and text[end] == secret[end - at]:
                    end += 1
                text = text[:at] + _COVER + text[end:]
                at = text.find(start, at + 1)
        return text
