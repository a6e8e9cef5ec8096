"""glibc allocator settings that return large blocks to the system when freed, so that the daemon's memory does not grow."""

import ctypes
import sys

_MMAP_THRESHOLD, _ARENA_MAX = -3, -8  # of mallopt(3)
MMAP_THRESHOLD_BYTES = 256 << 10
MAX_ARENAS = 2


def configure_malloc() -> bool:
    """Map each block of `MMAP_THRESHOLD_BYTES` or more separately and limit arenas; return False without glibc.

    By default glibc raises the threshold to the largest freed block, up to 32 MB: large blocks then lie in the heap among small
    ones and leave holes.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    return (
        mallopt is not None
        and bool(mallopt(_MMAP_THRESHOLD, MMAP_THRESHOLD_BYTES))
        and bool(mallopt(_ARENA_MAX, MAX_ARENAS))
    )
