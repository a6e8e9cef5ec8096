"""What is wrong with a configuration, all of it at once."""

from dataclasses import dataclass, field


@dataclass(slots=True)
class Problems:
    """Collects mistakes as lines of `source: path: message`."""

    source: str
    lines: list[str] = field(default_factory=list)

    def add(self, path: str, message: str) -> None:
        """One more mistake."""
        self.lines.append(f"{self.source}: {path}: {message}" if path else f"{self.source}: {message}")
