"""Environment variables `${NAME}` in values, so that a configuration needs no secrets; plain secrets cause a warning."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from urllib.parse import quote, urlsplit

from prober.config.problems import Problems

SECRET_HEADERS = frozenset(("authorization", "proxy-authorization", "cookie", "x-api-key", "api-key", "x-auth-token"))
_NAME = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_WRITE = "stands in the configuration itself; write ${NAME}, and set NAME in the environment"


@dataclass(frozen=True, slots=True)
class Variables:
    """Expands values. problems: unset variables; warnings: plain secrets, as `path: message`."""

    environment: Mapping[str, str]
    problems: Problems
    warnings: list[str] = field(default_factory=list)

    def header(self, name: str, text: str, path: str) -> str:
        """Expand the value of a header."""
        if name.lower() in SECRET_HEADERS and not _NAME.search(text):
            self.warnings.append(f"{path}: a secret {_WRITE}")
        return self._filled(text, path, str)

    def url(self, text: str, path: str) -> str:
        """Expand a URL; values of variables are percent-encoded."""
        if _has_password(text):
            self.warnings.append(f"{path}: a password {_WRITE}")
        return self._filled(text, path, str if _NAME.fullmatch(text) else lambda value: quote(value, safe=""))

    def _filled(self, text: str, path: str, written: Callable[[str], str]) -> str:
        """Expand `text`; unset variables are empty."""
        for name in dict.fromkeys(_NAME.findall(text)):
            if not self._value(name):
                self.problems.add(path, f"the environment has no {name}, or an empty one; set it")
        return _NAME.sub(lambda match: written(self._value(match[1])), text)

    def _value(self, name: str) -> str:
        return self.environment.get(name, "").strip()  # the file of a Secret often ends with a newline


def _has_password(text: str) -> bool:
    try:
        password = urlsplit(text).password
    except ValueError:  # reported elsewhere
        return False
    return bool(password) and not _NAME.search(password or "")
