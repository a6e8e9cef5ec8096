"""Real file systems of their own that fill up, refuse to be written, or turn read-only under whoever has files open."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.faults.rig import Impossible

SMALL = ("mount", "-t", "tmpfs", "-o", "size=1m", "none")


@contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """Of 1 MiB, in memory. Raises Impossible."""
    with _mounted(folder / "disk", *SMALL) as disk:
        yield disk


def fill(disk: Path) -> None:
    """To the last byte."""
    with (disk / "filler").open("wb", buffering=0) as file, suppress(OSError):
        while file.write(b"x" * 4096):
            pass
    assert shutil.disk_usage(disk).free == 0


def empty(disk: Path) -> None:
    """Of what filled it."""
    (disk / "filler").unlink()


@contextmanager
def real_disk(folder: Path) -> Iterator[Path]:
    """Of 16 MiB, ext4 in a file. What is in the folder's file outlives the mount: mount it again with this. Raises Impossible."""
    image = folder / "ext4"
    if not image.exists():
        with image.open("wb") as file:
            file.truncate(16 << 20)
        _done("mkfs.ext4", "-q", image)
    with _mounted(folder / "disk", "mount", "-o", "loop", image) as disk:
        yield disk


def repair(folder: Path) -> None:
    """Repair the unmounted file system, as after a disk error.

    A copy of it: a process that another test started in a mount namespace of its own may still hold the aborted one.
    """
    shutil.copyfile(folder / "ext4", folder / "copy")
    (folder / "copy").replace(folder / "ext4")
    checked = subprocess.run(["e2fsck", "-p", folder / "ext4"], check=False, capture_output=True, text=True)
    assert checked.returncode in (0, 1), checked.stdout + checked.stderr  # 1: mended


def turn_read_only(disk: Path) -> None:
    """Make the file system read-only at once, also for open files, as ext4 does after a disk error, until it is mounted again."""
    _done("mount", "-o", "remount,abort", disk)


def refuse(disk: Path) -> None:
    """Every write, also to files that are open, until `allow`."""
    _done("chattr", "+i", *(path for path in disk.iterdir() if path.is_file()), disk)


def allow(disk: Path) -> None:
    """Writes again."""
    _done("chattr", "-i", disk)
    _done("chattr", "-i", *(path for path in disk.iterdir() if path.is_file()))


@contextmanager
def _mounted(at: Path, *words: object) -> Iterator[Path]:
    if os.geteuid() != 0:
        raise Impossible("a file system can only be mounted as root")
    at.mkdir(exist_ok=True)
    _done(*words, at)
    try:
        yield at
    finally:
        subprocess.run(["umount", at], check=True)


def _done(*words: object) -> None:
    try:
        done = subprocess.run([str(word) for word in words], check=False, capture_output=True, text=True)
    except FileNotFoundError as problem:
        raise Impossible(f"no {problem.filename} here") from None
    if done.returncode:
        raise Impossible(f"{words[0]}: {done.stderr.strip()}")
