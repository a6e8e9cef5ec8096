"""glibc's allocator: what is large goes back to the system as soon as it is free, so that a daemon's memory stays what it uses."""

import ctypes
import sys

_MMAP_THRESHOLD, _ARENA_MAX = -3, -8  # of mallopt(3)
LARGE_BYTES = 256 << 10
ARENAS = 2


def return_what_is_large() -> bool:
    """Give each block of `LARGE_BYTES` or more its own mapping, and threads no heaps of their own; False where there is no glibc.

    Left alone, glibc raises its threshold to the largest block that was ever freed, up to 32 MB: a line of a megabyte, or a
    page, then lies in the heap among small blocks and leaves a hole that the next one does not fit.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    return mallopt is not None and bool(mallopt(_MMAP_THRESHOLD, LARGE_BYTES)) and bool(mallopt(_ARENA_MAX, ARENAS))
