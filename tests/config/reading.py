"""Configurations of tests, read without files, and what is said of those that are wrong."""

import re
from collections.abc import Callable, Mapping

import pytest

from prober.config.configuration import Configuration
from prober.config.load import load
from prober.config.problems import ConfigError
from prober.measure.engines import DIALECTS


def loaded(text: str, read: Callable[[str], str] = str, environment: Mapping[str, str] | None = None) -> Configuration:
    """The configuration `c`. read: contents of the files that it names; a file contains its path unless it is given"""
    return load(text, source="c", engines=DIALECTS, environment=environment or {}, read=read)


def mistakes(text: str, read: Callable[[str], str] = str) -> list[str]:
    """What is said of a configuration that is refused, without the lines of the file."""
    with pytest.raises(ConfigError) as error:
        loaded(text, read)
    return [re.sub(r"^c:\d+: ", "", line) for line in str(error.value).splitlines()]
