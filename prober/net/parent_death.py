"""Ends a child process with its parent, however the parent ends."""

import ctypes
import os
import signal

_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of prctl(2)


def end_with_parent(parent: int) -> None:
    """Let the kernel kill this process when its parent ends (Linux). parent: its process id."""
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(_PARENT_DEATH_SIGNAL, int(signal.SIGKILL))
    if os.getppid() != parent:  # it ended before
        os._exit(1)
