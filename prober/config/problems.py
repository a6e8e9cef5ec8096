"""What is wrong with a configuration, all of it at once."""

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from urllib.parse import urlsplit


@dataclass(slots=True)
class Problems:
    """Collects mistakes as lines of `source: path: message`."""

    source: str
    lines: list[str] = field(default_factory=list)

    def add(self, path: str, message: str) -> None:
        """One more mistake; signs in it that would end its line, or move the cursor, are written as escapes."""
        line = f"{self.source}: {path}: {message}" if path else f"{self.source}: {message}"
        self.lines.append("".join(sign if sign.isprintable() else repr(sign)[1:-1] for sign in line))


def shown(url: str) -> str:
    """A URL for a message: without the user, the password and the query in it, however wrong it is."""
    return re.sub(r"\?.+", "?…", re.sub(r"(//|^).*@", r"\1…@", url, flags=re.DOTALL), flags=re.DOTALL)


def is_http(url: str) -> bool:
    """It is an http or https URL with a host, and its port is one."""
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def no_such(what: str, name: str, known: Iterable[str]) -> str:
    """There is nothing of that name; what may be meant."""
    return f'no {what} "{name}"; {meant(name, known)}'


def unknown_key(key: object, known: Iterable[str]) -> str:
    """There is no such key; what may be meant."""
    said = str(key)[:60]
    return f'unknown key "{said}"; {meant(said, known)}'


def meant(name: str, known: Iterable[str]) -> str:
    """The known name that is nearest, if one is near, and all of them."""
    listed = sorted(known)
    near = difflib.get_close_matches(name, listed, n=1)
    hint = f'did you mean "{near[0]}"? ' if near else ""
    return f"{hint}known: {', '.join(listed) or 'none'}"
