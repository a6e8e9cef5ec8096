"""Environment variables `${NAME}` in values, so that a configuration needs no secrets; plain secrets cause a warning."""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import quote, urlsplit

from prober.config.problems import path_of

SECRET_HEADERS = frozenset(("authorization", "proxy-authorization", "cookie", "x-api-key", "api-key", "x-auth-token"))
_NAME = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_REMEDY = "stands in the configuration itself; write ${NAME}, and set NAME in the environment"


def expand_url(url: str, environment: Mapping[str, str] | None) -> str:
    """A URL with its variables expanded; values of those inside it are percent-encoded. Raises ValueError."""
    return expand(url, environment, str if _NAME.fullmatch(url) else lambda value: quote(value, safe=""))


def expand(text: str, environment: Mapping[str, str] | None, write: Callable[[str], str] = str) -> str:
    """Text with its variables expanded; unchanged without an environment. Raises ValueError for variables that are not set."""
    if environment is None:
        return text
    # The file of a Secret often ends with a newline.
    values = {name: environment.get(name, "").strip() for name in _NAME.findall(text)}
    if unset := [name for name, value in values.items() if not value]:
        raise ValueError(f"the environment has no {' and no '.join(unset)}, or an empty one; set it")
    return _NAME.sub(lambda match: write(values[match[1]]), text)


def texts(written: Any, *keys: Any) -> Iterator[tuple[tuple[Any, ...], str]]:
    """Texts in a configuration as it is written, with the keys to each."""
    if isinstance(written, str):
        yield keys, written
    items = written.items() if isinstance(written, dict) else enumerate(written) if isinstance(written, list) else ()
    for key, value in items:
        yield from texts(value, *keys, key)


def plain_secrets(written: Any) -> Iterator[tuple[str, str]]:
    """Warnings about secrets in a configuration as it is written: path and message."""
    for keys, text in texts(written):
        if keys[-2:-1] == ("headers",) and keys[-1].lower() in SECRET_HEADERS and not _NAME.search(text):
            yield path_of(keys), f"a secret {_REMEDY}"
        elif keys[-1] in ("url", "proxy_url") and _has_password(text):
            yield path_of(keys), f"a password {_REMEDY}"


def _has_password(text: str) -> bool:
    try:
        password = urlsplit(text).password
    except ValueError:  # reported elsewhere
        return False
    return bool(password) and not _NAME.search(password or "")
