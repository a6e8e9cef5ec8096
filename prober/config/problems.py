"""Collection of configuration errors."""

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from urllib.parse import urlsplit


@dataclass(slots=True)
class Problems:
    """Collects errors as lines of `source: path: message`."""

    source: str
    lines: list[str] = field(default_factory=list)

    def add(self, path: str, message: str) -> None:
        """Add an error; control characters are escaped."""
        line = f"{self.source}: {path}: {message}" if path else f"{self.source}: {message}"
        self.lines.append("".join(sign if sign.isprintable() else repr(sign)[1:-1] for sign in line))


def shown(url: str) -> str:
    """A URL for messages, without user, password and query, even if it is malformed."""
    return re.sub(r"\?.+", "?…", re.sub(r"(//|^).*@", r"\1…@", url, flags=re.DOTALL), flags=re.DOTALL)


def is_http(url: str) -> bool:
    """Whether it is an http or https URL with a host and a valid port."""
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def no_such(what: str, name: str, known: Iterable[str]) -> str:
    """Error for an unknown name, with a suggestion."""
    return f'no {what} "{name}"; {meant(name, known)}'


def unknown_key(key: object, known: Iterable[str]) -> str:
    """Error for an unknown key, with a suggestion."""
    said = str(key)[:60]
    return f'unknown key "{said}"; {meant(said, known)}'


def meant(name: str, known: Iterable[str]) -> str:
    """The closest known name, if any, and all known names."""
    listed = sorted(known)
    near = difflib.get_close_matches(name, listed, n=1)
    hint = f'did you mean "{near[0]}"? ' if near else ""
    return f"{hint}known: {', '.join(listed) or 'none'}"
