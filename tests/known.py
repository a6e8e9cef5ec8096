"""A value that must be there."""

from typing import TypeVar

T = TypeVar("T")


def known(value: T | None) -> T:
    """The value; fails the test if it is None."""
    assert value is not None
    return value
