"""Memory that was large and is free goes back to the system."""

import platform
import subprocess
import sys

import pytest

PROGRAM = """
import os, pathlib
from prober.net.libc import configure_malloc
assert configure_malloc()
def resident():
    return int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
bytearray(16 << 20)  # from here on glibc alone would keep blocks of up to as much in its heap
before, held = resident(), []
for size in range(20):
    large = bytearray(b"x") * ((1 << 20) + size * 5_000)
    held.append(bytes(3_000))  # what is small and stays lies behind it
    del large
print(resident() - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="what is set is glibc's")
def test_large_blocks_leave_no_holes() -> None:
    """Lines of a megabyte that come and go, with small blocks between them, leave next to nothing behind."""
    ran = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert int(ran.stdout) < 1 << 20
