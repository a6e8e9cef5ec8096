"""Calls of the C library that Python does not offer."""

import ctypes
import os
import signal
import sys

_MMAP_THRESHOLD, _ARENA_MAX = -3, -8  # of mallopt(3)
MMAP_THRESHOLD_BYTES = 256 << 10
MAX_ARENAS = 2
_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of prctl(2)


def configure_malloc() -> bool:
    """Map blocks of `MMAP_THRESHOLD_BYTES` or more separately, and limit the number of arenas. Returns False without glibc.

    Such blocks return to the system when they are freed, so the daemon's memory does not grow. By default glibc raises the threshold to
    the largest freed block, up to 32 MB: large blocks then lie in the heap among small ones and leave holes.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    return (
        mallopt is not None
        and bool(mallopt(_MMAP_THRESHOLD, MMAP_THRESHOLD_BYTES))
        and bool(mallopt(_ARENA_MAX, MAX_ARENAS))
    )


def end_with_parent(parent: int) -> None:
    """Let the kernel kill this process when its parent process ends (Linux). parent: process id of the parent"""
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(_PARENT_DEATH_SIGNAL, int(signal.SIGKILL))
    if os.getppid() != parent:  # it ended before
        os._exit(1)
