"""The two laws of the layout: imports go down only, and what thinks does no I/O."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

RANKS = {
    "measure": 0,
    "workload": 0,
    "analysis": 0,
    "exposition": 0,
    "limits": 0,
    "engines": 1,
    "slo": 0,
    "series": 1,
    "config": 1,
    "simulation": 1,
    "results": 1,
    "experiment": 2,
    "metrics": 2,
    "generate": 2,
    "edge": 3,
    "mock": 4,
    "probing": 4,
    "daemon": 5,
    "cli": 6,
    "__main__": 7,
}
SHARED_BY_ITS_RANK = {"measure"}
HIGHEST_PURE_RANK = 2

# Modules that reach a clock, a socket, a file, a process, a thread or a hidden random generator.
IMPURE_MODULES = {
    *("asyncio", "concurrent", "multiprocessing", "queue", "sched", "selectors", "signal", "subprocess", "threading"),
    *(
        "aiohttp",
        "ftplib",
        "http.client",
        "http.server",
        "httptools",
        "socket",
        "socketserver",
        "ssl",
        "urllib.request",
    ),
    *("fileinput", "glob", "io", "mmap", "os", "pathlib", "shutil", "sqlite3", "sys", "tempfile", "uvloop"),
    *("logging", "rich", "typer"),
    *("random", "secrets", "time", "uuid"),
}
PURE_NAMES = {"random": {"Random"}, "pathlib": {"PurePath", "PurePosixPath"}}  # passed in as values, or text only
IMPURE_BUILTINS = {"open", "print", "input", "breakpoint"}
WALL_CLOCK = {"now", "utcnow", "today"}

Import = tuple[str, tuple[str, ...]]  # module, names taken from it (none for a plain import)


def modules() -> list[Path]:
    """Every module of the package that has a rank; prober/__init__.py carries the version and stands below all."""
    return [path for path in sorted((ROOT / "prober").rglob("*.py")) if path != ROOT / "prober/__init__.py"]


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(tree: ast.AST, package: str) -> Iterator[Import]:
    """Every import of a module that lives in `package`, those inside functions too, with relative ones resolved."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, ()) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parent = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            yield (
                ".".join([*parent, *([node.module] if node.module else [])]),
                tuple(alias.name for alias in node.names),
            )


def units(imported: Import) -> Iterator[str]:
    """The packages directly under `prober` that an import reaches (`from prober import a, b` reaches two)."""
    module, names = imported
    match module.split("."):
        case ["prober"]:
            yield from (name for name in names if name != "__version__")
        case ["prober", unit, *_]:
            yield unit


def upward_imports(name: str, source: str, *, is_package: bool = False) -> list[str]:
    """What the module `name` imports against the first law, in words."""
    package = name if is_package else name.rpartition(".")[0]
    own = name.split(".")[1]
    if own not in RANKS:
        return [f"{name}: prober/{own} has no rank; add it to RANKS"]
    found = []
    for imported in imports(ast.parse(source), package):
        for unit in units(imported):
            if unit == own or (unit in SHARED_BY_ITS_RANK and RANKS[unit] == RANKS[own]):
                continue
            if unit not in RANKS:
                found.append(f"{name} imports prober.{unit}, which has no rank; add it to RANKS")
            elif RANKS[unit] >= RANKS[own]:
                found.append(f"{name} (rank {RANKS[own]}) imports prober.{unit} (rank {RANKS[unit]})")
    return found


def impurities(name: str, source: str) -> list[str]:
    """What the module `name` does against the second law, in words; nothing for a module of a high rank."""
    own = name.split(".")[1]
    if RANKS.get(own, 0) > HIGHEST_PURE_RANK:
        return []
    tree = ast.parse(source)
    found = []
    for module, names in imports(tree, name):
        reached = {module, module.split(".")[0], *(f"{module}.{imported}" for imported in names)}
        pure = PURE_NAMES.get(module, set())
        if reached & IMPURE_MODULES and not (names and set(names) <= pure):
            found.append(f"{name} imports {module}: {', '.join(names) or 'all of it'}")
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id=called)) if called in IMPURE_BUILTINS:
                found.append(f"{name}:{node.lineno} calls {called}()")
            case ast.Call(func=ast.Attribute(value=ast.Name(id="datetime" | "date"), attr=called)) if (
                called in WALL_CLOCK
            ):
                found.append(f"{name}:{node.lineno} reads the wall clock")
    return found


@pytest.mark.parametrize("path", modules(), ids=name_of)
def test_imports_go_down_only(path: Path) -> None:
    """A module imports lower ranks and its own package only; measure alone serves its own rank too."""
    assert upward_imports(name_of(path), path.read_text(), is_package=path.name == "__init__.py") == []


@pytest.mark.parametrize("path", modules(), ids=name_of)
def test_what_thinks_does_no_io(path: Path) -> None:
    """Ranks 0 to 2 take clock, random generator and everything they read as arguments."""
    assert impurities(name_of(path), path.read_text()) == []


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("prober.measure.chat", "from prober.features.engines.vendors import vllm"),
        ("prober.workload.shapes", "import prober.statistics.quantiles"),
        ("prober.net.exchange", "from ..mock import server"),
        ("prober.probing.probe", "def late():\n    from prober import daemon"),
        ("prober.config.models", "from prober import measure, edge"),
        ("prober.utils", ""),
        ("prober.cli.run", "from prober.helpers import x"),
    ],
)
def test_an_import_against_the_law_is_found(name: str, source: str) -> None:
    """An import upward, sideways, relative, inside a function, or of a package without a rank is named."""
    assert len(upward_imports(name, source)) == 1


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("prober.workload.shapes", "from prober.measure import timeline"),
        ("prober.measure.chat", "from . import sse\nfrom .sse import Event"),
        ("prober.cli.main", "from prober import __version__, daemon"),
        ("prober.config.models", "import yaml\nfrom prober.measure.outcome import Outcome"),
    ],
)
def test_a_lawful_import_passes(name: str, source: str) -> None:
    """Downward imports, a package's own modules, the version and other people's libraries are free."""
    assert upward_imports(name, source) == []


@pytest.mark.parametrize(
    "source",
    [
        "import time",
        "import random",
        "from random import Random, gauss",
        "from os import path",
        "from urllib import request",
        "import urllib.request",
        "from asyncio.streams import StreamReader",
        "from pathlib import Path",
        "def read(path):\n    return open(path)",
        "from datetime import datetime\nstamp = datetime.now()",
    ],
)
def test_input_and_output_in_a_pure_rank_is_found(source: str) -> None:
    """A clock, a file, a socket or a hidden random generator in ranks 0 to 2 is named, and is free above."""
    assert len(impurities("prober.config.models", source)) == 1
    assert impurities("prober.net.exchange", source) == []


def test_a_generator_passed_in_is_pure() -> None:
    """A random.Random as an argument, dates as values and URL text are no I/O."""
    assert impurities("prober.workload.shapes", "from random import Random\nfrom urllib.parse import urlsplit") == []
