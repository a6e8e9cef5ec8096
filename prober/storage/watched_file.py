"""Files that others change: tokens, certificates, the configuration."""

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

Stamp = tuple[int, int, int, int]


def stamp(path: str) -> Stamp | None:
    """Changes whenever what `path` leads to is another file or content (a symlink swap too); None if nothing is there."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return (found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size)


@dataclass(slots=True)
class Followed:
    """A file that is looked at now and then. patience: looks without it until it is gone, as an editor may be about to put a
    new one there."""

    path: str
    patience: int = 3
    _stamp: Stamp | None = None
    _misses: int = 0

    def taken(self) -> None:
        """It is about to be read: only what comes after is a change."""
        self._stamp = stamp(self.path)

    def look(self) -> Literal["changed", "gone", ""]:
        """What is new since the last look: gone is told once, and whatever is there after it is a change."""
        now = stamp(self.path)
        if now is not None:
            self._misses = 0
            return "changed" if now != self._stamp else ""
        self._misses += 1
        if self._misses != self.patience:
            return ""
        self._stamp = None
        return "gone"


def runbook(name: str) -> str | None:
    """The page on an alert, as Markdown: in the installed package, or beside it in a checkout. None if there is none."""
    here = Path(__file__).parents[1]
    for folder in (here / "runbooks", here.parent / "deploy" / "runbooks"):
        try:
            return (folder / f"{name}.md").read_text(encoding="utf-8")
        except OSError:
            continue
    return None


def asset(name: str) -> bytes:
    """A file that the page loads, from the package's `static/`. Raises OSError."""
    return (Path(__file__).parents[1] / "static" / name).read_bytes()


@dataclass(slots=True)
class Secret:
    """A token in a file, read again when the file changes. While the file is gone the last token stays in use."""

    path: str
    problem: str = ""
    _stamp: Stamp | None = None
    _value: str | None = field(default=None, repr=False)

    def read(self) -> str | None:
        """The token, None if there never was one; `problem` then says why."""
        now = stamp(self.path)
        if now is None or now != self._stamp or self.problem:
            try:
                value = Path(self.path).read_text(encoding="ascii").strip()
                if not value or any(c.isspace() for c in value):
                    raise ValueError("is empty or has blanks in it; put one token on one line")
                self._value, self._stamp, self.problem = value, now, ""
            except OSError as problem:
                kept = "the last one is used" if self._value else "nothing can be sent without it"
                why = problem.strerror or problem
                self.problem = (
                    f"auth.bearer_token_file {self.path}: {why}; put the token there or mend its path: {kept}"
                )
            except ValueError as problem:
                self.problem = f"auth.bearer_token_file {self.path}: {problem}"
        return self._value
