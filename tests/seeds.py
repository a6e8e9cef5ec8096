"""Seeds of a statistical claim: two in the quick suite, the others in `make test-slow`."""

import pytest


def seeds(count: int) -> pytest.MarkDecorator:
    """The test for `count` seeds, given as `seeds`."""
    others = pytest.param(range(2, count), marks=pytest.mark.slow)
    return pytest.mark.parametrize("seeds", [range(2), others], ids=["two seeds", "other seeds"])
