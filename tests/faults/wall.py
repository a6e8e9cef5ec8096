"""A clock on the wall that somebody sets, and no other clock with it."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

from tests.faults.rig import Impossible


@contextmanager
def own_wall_clock(folder: Path) -> Iterator[Path]:
    """A file with the seconds by which it is set for every process started meanwhile. Raises Impossible without a C compiler."""
    library, offset = folder / "wall_clock.so", folder / "offset"
    if shutil.which("cc") is None:
        raise Impossible("no C compiler (cc): a clock that can be set is built with it")
    source = Path(__file__).with_name("wall_clock.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-O2", "-o", library, source, "-ldl"], check=True)
    offset.write_text("0")
    with patch.dict(os.environ, LD_PRELOAD=str(library), WALL_CLOCK=str(offset)):
        yield offset
