"""Copies the files that Python and the environment /opt/prober need from this system into a folder, a root file system.

It has no shell, no package manager and no pip. Debian packages of the copied files are listed in var/lib/dpkg/status, which scanners
read, with their licences. All times are SOURCE_DATE_EPOCH (seconds); byte code is compiled, as nothing can be written later.
"""

import compileall
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path
from py_compile import PycInvalidationMode

SYSTEM = Path("/")
ENVIRONMENT = Path("/opt/prober")
DOCUMENTS = Path("usr/share/doc")
DPKG = Path("var/lib/dpkg")
# Certificates, time zones, names of users and hosts, and the name of the distribution.
DATA = (
    *("etc/passwd", "etc/group", "etc/nsswitch.conf", "etc/host.conf", "etc/gai.conf", "etc/ld.so.cache"),
    *("etc/os-release", "usr/lib/os-release", "etc/debian_version", "etc/localtime", "usr/share/zoneinfo"),
    *("etc/ssl", "usr/lib/ssl", "usr/share/ca-certificates"),
)
NEVER = ("site-packages", "dist-packages", "ensurepip", "idlelib", "lib2to3", "test", "tkinter", "turtledemo", "venv")
LEFT_OUT = shutil.ignore_patterns(
    *NEVER, "__pycache__", "config-*", "private", "misc", "sitecustomize.py", "EXTERNALLY-MANAGED"
)


def plain(path: Path) -> Path:
    """The path without symbolic links in its folders; the file itself may be a link."""
    return path.parent.resolve() / path.name


def chain(path: Path) -> Iterator[Path]:
    """The file and every symbolic link that leads to it."""
    at = plain(path)
    yield at
    while at.is_symlink():
        at = plain(at.parent / at.readlink())
        yield at


def libraries(objects: Iterable[Path]) -> set[Path]:
    """Shared libraries of these programs and extension modules, including the loader. Raises FileNotFoundError."""
    output = subprocess.run(["ldd", *objects], capture_output=True, text=True, check=True).stdout
    if missing := re.findall(r"(\S+) => not found", output):
        raise FileNotFoundError(f"{', '.join(sorted(set(missing)))}: needed by Python or its packages, not in the base")
    return {Path(path) for path in re.findall(r"(/\S+) \(0x", output)}


def sources() -> set[Path]:
    """Files and links to copy, by paths without symbolic links in their folders."""
    program = Path(sys.executable).resolve()
    names = [path for path in program.parent.glob("python*") if path.resolve() == program]
    modules = [*Path(sysconfig.get_path("platstdlib")).glob("lib-dynload/*.so"), *ENVIRONMENT.rglob("*.so*")]
    data = [SYSTEM / name for name in DATA if os.path.lexists(SYSTEM / name)]
    needed = [*names, *libraries([program, *modules]), *data]
    return {link for path in needed for link in chain(path) if link.exists()}


def copy(source: Path, root: Path) -> None:
    """Copy a file, a link as a link, or a folder, to the same place below `root`."""
    to = root / source.relative_to("/")
    to.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir() and not source.is_symlink():
        shutil.copytree(source, to, symlinks=True, ignore=LEFT_OUT, dirs_exist_ok=True)
    else:
        shutil.copy2(source, to, follow_symlinks=False)


def packages(files: set[Path]) -> set[str]:
    """Debian packages of these files and folders."""
    return {
        listed.stem.partition(":")[0]
        for listed in (SYSTEM / DPKG / "info").glob("*.list")
        if any(plain(Path(line)) in files for line in listed.read_text().splitlines() if line != "/.")
    }


def name_packages(names: set[str], root: Path) -> None:
    """Copy the status paragraphs and licences of the packages."""
    (root / DPKG).mkdir(parents=True)
    paragraphs = (SYSTEM / DPKG / "status").read_text().split("\n\n")
    ours = [paragraph for paragraph in paragraphs if paragraph.partition("\n")[0].removeprefix("Package: ") in names]
    (root / DPKG / "status").write_text("\n\n".join([*ours, ""]))
    for name in sorted(names):
        licence = DOCUMENTS / name / "copyright"
        if (SYSTEM / licence).exists():
            (root / licence).parent.mkdir(parents=True)
            shutil.copy((SYSTEM / licence).resolve(), root / licence)


def assemble(root: Path, epoch: int) -> None:
    """Build the root file system. epoch: Unix seconds of all times."""
    library = Path(sysconfig.get_path("stdlib"))
    files = sources()
    for link in (path for path in SYSTEM.iterdir() if path.is_symlink()):  # /lib is usr/lib
        copy(link, root)
    for source in sorted({*files, library}):
        copy(source, root)
    if (SYSTEM / DPKG / "status").exists():
        name_packages(packages({*files, library}), root)
    for name, mode in (
        ("tmp", 0o1777),
        ("var/tmp", 0o1777),
        ("run", 0o755),
        ("proc", 0o755),
        ("sys", 0o755),
        ("dev", 0o755),
    ):
        (root / name).mkdir(parents=True, exist_ok=True)
        (root / name).chmod(mode)
    inside = str(root) + str(library)
    compileall.compile_dir(inside, stripdir=str(root), quiet=1, invalidation_mode=PycInvalidationMode.UNCHECKED_HASH)
    for path in (root, *root.rglob("*")):
        os.utime(path, (epoch, epoch), follow_symlinks=False)


if __name__ == "__main__":
    assemble(Path(sys.argv[1]), int(os.environ.get("SOURCE_DATE_EPOCH", "0")))
