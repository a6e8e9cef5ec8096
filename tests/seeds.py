"""Seeds of the tests: two of a statistical claim in the quick suite, the others in `make test-slow`; and of what has none of its own.

`tests/conftest.py` imports this before the product.
"""

import random

import pytest


def seeds(count: int) -> pytest.MarkDecorator:
    """The test for `count` seeds, given as `seeds`."""
    others = pytest.param(range(2, count), marks=pytest.mark.slow)
    return pytest.mark.parametrize("seeds", [range(2), others], ids=["two seeds", "other seeds"])


class SeededRandom(random.Random):
    """Random numbers that depend, without a seed, on the test and on how many such generators it has made: equal in each run."""

    test = ""
    count = 0

    def __init__(self, x: float | str | bytes | bytearray | None = None) -> None:
        if x is None:
            SeededRandom.count += 1
            x = f"{SeededRandom.test} {SeededRandom.count}"
        super().__init__(x)


random.Random = SeededRandom  # type: ignore[misc]
