"""What tests of faults share."""

from collections.abc import Iterator
from contextlib import contextmanager

from tests.conftest import absent
from tests.faults.rig import Impossible


@contextmanager
def absent_if_impossible() -> Iterator[None]:
    """Skip the test, or fail it under CI=true, if this machine cannot produce the fault."""
    try:
        yield
    except Impossible as reason:
        absent(str(reason))
