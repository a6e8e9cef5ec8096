"""Copies from the system it runs in what Python and the environment /opt/prober need, into a folder that is a root file system.

No shell, no package manager, no pip gets there. What comes from Debian packages is named in var/lib/dpkg/status, as scanners read
it, with its licence. Times are SOURCE_DATE_EPOCH's (seconds); byte code is compiled, since nothing can be written later.
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
# Certificates, time zones, names of users and hosts, and what says which distribution this is.
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
    """The same file by a path without symbolic links on the way; the file itself may be one."""
    return path.parent.resolve() / path.name


def chain(path: Path) -> Iterator[Path]:
    """The file and every symbolic link on the way to it."""
    at = plain(path)
    yield at
    while at.is_symlink():
        at = plain(at.parent / at.readlink())
        yield at


def libraries(objects: Iterable[Path]) -> set[Path]:
    """What the loader loads with these programs and extension modules, itself too. Raises FileNotFoundError for what is missing."""
    said = subprocess.run(["ldd", *objects], capture_output=True, text=True, check=True).stdout
    if missing := re.findall(r"(\S+) => not found", said):
        raise FileNotFoundError(f"{', '.join(sorted(set(missing)))}: needed by Python or its packages, not in the base")
    return {Path(found) for found in re.findall(r"(/\S+) \(0x", said)}


def sources() -> set[Path]:
    """Every file and link to be kept, without symbolic links on the way."""
    program = Path(sys.executable).resolve()
    names = [path for path in program.parent.glob("python*") if path.resolve() == program]
    modules = [*Path(sysconfig.get_path("platstdlib")).glob("lib-dynload/*.so"), *ENVIRONMENT.rglob("*.so*")]
    data = [SYSTEM / name for name in DATA if os.path.lexists(SYSTEM / name)]
    wanted = [*names, *libraries([program, *modules]), *data]
    return {each for path in wanted for each in chain(path) if each.exists()}


def keep(source: Path, root: Path) -> None:
    """Copy a file, a link as a link, or a folder, to the same place below `root`."""
    to = root / source.relative_to("/")
    to.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir() and not source.is_symlink():
        shutil.copytree(source, to, symlinks=True, ignore=LEFT_OUT, dirs_exist_ok=True)
    else:
        shutil.copy2(source, to, follow_symlinks=False)


def packages(kept: set[Path]) -> set[str]:
    """Debian packages that any of these files and folders are from."""
    return {
        listed.stem.partition(":")[0]
        for listed in (SYSTEM / DPKG / "info").glob("*.list")
        if any(plain(Path(line)) in kept for line in listed.read_text().splitlines() if line != "/.")
    }


def name_packages(names: set[str], root: Path) -> None:
    """What dpkg says of them, and their licences."""
    (root / DPKG).mkdir(parents=True)
    told = (SYSTEM / DPKG / "status").read_text().split("\n\n")
    ours = [paragraph for paragraph in told if paragraph.partition("\n")[0].removeprefix("Package: ") in names]
    (root / DPKG / "status").write_text("\n\n".join([*ours, ""]))
    for name in sorted(names):
        licence = DOCUMENTS / name / "copyright"
        if (SYSTEM / licence).exists():
            (root / licence).parent.mkdir(parents=True)
            shutil.copy((SYSTEM / licence).resolve(), root / licence)


def assemble(root: Path, epoch: int) -> None:
    """All of it."""
    library = Path(sysconfig.get_path("stdlib"))
    found = sources()
    for link in (path for path in SYSTEM.iterdir() if path.is_symlink()):  # /lib is usr/lib
        keep(link, root)
    for source in sorted({*found, library}):
        keep(source, root)
    if (SYSTEM / DPKG / "status").exists():
        name_packages(packages({*found, library}), root)
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
