"""The three laws of the layout: imports go down only, what thinks does no I/O, features do not import each other."""

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parent.parent

# Folders and modules directly under prober/, lowest line first. A module imports its own folder and lines below it.
LAYERS = (
    {"measure", "statistics", "exposition"},
    {"workload"},
    {"simulation", "results"},
    {"config"},
    {"storage"},
    {"net"},
    {"probing"},
    {"features", "mock"},
    {"web"},
    {"daemon"},
    {"cli"},
    {"__main__"},
)
RANKS = {name: rank for rank, layer in enumerate(LAYERS) for name in layer}

# Folders in which every module is pure, and pure modules of other folders.
PURE_FOLDERS = {"measure", "statistics", "exposition", "workload", "simulation", "results", "config"}
PURE_MODULES = {
    "probing": "dashboard replicas series stop_conditions",
    "features.slo": "compliance dashboard firing rules series",
    "features.answers": "change series",
    "features.drift": "baseline blocks dashboard detector efficiency efficiency_series evidence fitting serialization",
    "features.engines": "continuity dashboard page_reading series",
    "features.gpu": "dashboard exporters series",
    "features.diagnosis": "advice clues diagnosis mechanisms trouble window",
    "features.budget": "series",
    "features.health": "health series",
    "features.discovery": "series",
    "features.capacity": "actions capacity_model dashboard demand estimate fit_objective "
    "fitting forecast knee observations replay request_log series sweep sweep_record",
    "features.replicas": "lease_machine series",
    "features.grafana": "series",
    "features.experiments": "audit compare gate instance_sizing matrix report result_reader vllm_file",
    "web": "api_types page targets token_bucket",
    "daemon": "dashboards registry rules series",
}

# Modules that reach a clock, a socket, a file, a process, a thread or a hidden random generator.
IMPURE_MODULES = {
    "aiohttp", "asyncio", "concurrent", "fileinput", "ftplib", "glob", "http.client", "http.server", "httptools",
    "io", "logging", "mmap", "multiprocessing", "os", "pathlib", "queue", "random", "rich", "sched", "secrets",
    "selectors", "shutil", "signal", "socket", "socketserver", "sqlite3", "ssl", "subprocess", "sys", "tempfile",
    "threading", "time", "typer", "urllib.request", "uuid",
}  # fmt: skip
PURE_NAMES = {"random": {"Random"}, "pathlib": {"PurePath", "PurePosixPath"}}  # passed in as values, or text only
IMPURE_BUILTINS = {"open", "print", "input", "breakpoint"}
WALL_CLOCK = {"now", "utcnow", "today"}


def modules() -> dict[str, Path]:
    """Every module of the package by its dotted name; prober/__init__.py carries the version and stands below all."""
    return {
        name_of(path): path
        for path in sorted((ROOT / "prober").rglob("*.py"))
        if path.parent.parent != ROOT or path.name != "__init__.py"
    }


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = modules()
NAMES = frozenset(MODULES)


def imports(tree: ast.AST, package: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """(module, names taken from it) of every import in a module of `package`, those inside functions too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, ()) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parent = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            yield (
                ".".join([*parent, *([node.module] if node.module else [])]),
                tuple(alias.name for alias in node.names),
            )


def imported_modules(source: str, package: str) -> Iterator[str]:
    """Dotted names below `prober` that a module imports: `from prober.net import clock` imports `prober.net.clock`."""
    for module, names in imports(ast.parse(source), package):
        if module == "prober":
            yield from (f"prober.{name}" for name in names if name != "__version__")
        elif module.startswith("prober."):
            parts = {f"{module}.{name}" for name in names if f"{module}.{name}" in NAMES}
            yield from parts or {module}


def folder_of(name: str) -> str:
    """`features.drift` of `prober.features.drift.monitor`, `net` of `prober.net.clock`."""
    parts = name.split(".")[1:]
    return ".".join(parts[:2]) if parts[0] == "features" else parts[0]


def breaches(name: str, source: str, *, is_package: bool = False) -> dict[tuple[str, str], str]:
    """Imports of the module `name` that break the first or the third law: what breaks it, by (importer, imported)."""
    package = name if is_package else name.rpartition(".")[0]
    own = folder_of(name)
    rank = RANKS.get(own.partition(".")[0])
    if rank is None:
        return {(name, ""): f"{name}: prober/{own} is in no line of LAYERS; add it"}
    broken = {}
    for imported in imported_modules(source, package):
        folder = folder_of(imported)
        if folder == own:
            continue
        other = RANKS.get(folder.partition(".")[0])
        if other is None:
            broken[name, imported] = f"{name} imports {imported}, whose folder is in no line of LAYERS"
        elif own.startswith("features.") and folder.startswith("features."):
            broken[name, imported] = f"{name} imports {imported}: features do not import each other"
        elif other >= rank:
            broken[name, imported] = f"{name} imports {imported}, which does not stand below it"
    return broken


def is_pure(name: str) -> bool:
    """Whether the second law binds the module."""
    folder = folder_of(name)
    if folder in PURE_FOLDERS:
        return True
    rest = name.removeprefix(f"prober.{folder}").strip(".").partition(".")[0]
    return rest in PURE_MODULES.get(folder, "").split()


def impurities(name: str, source: str) -> list[str]:
    """Violations of the second law by the pure module `name`."""
    if not is_pure(name):
        return []
    tree = ast.parse(source)
    impure = []
    for module, names in imports(tree, name):
        reached = {module, module.split(".")[0], *(f"{module}.{imported}" for imported in names)}
        pure = PURE_NAMES.get(module, set())
        if reached & IMPURE_MODULES and not (names and set(names) <= pure):
            impure.append(f"{name} imports {module}: {', '.join(names) or 'all of it'}")
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id=called)) if called in IMPURE_BUILTINS:
                impure.append(f"{name}:{node.lineno} calls {called}()")
            case ast.Call(func=ast.Attribute(value=ast.Name(id="datetime" | "date"), attr=called)) if (
                called in WALL_CLOCK
            ):
                impure.append(f"{name}:{node.lineno} reads the wall clock")
    return impure


def test_imports_go_down_and_features_stand_apart() -> None:
    """First and third law: a module imports its own folder and lower lines, and no feature imports another."""
    broken = [
        breach
        for name, path in MODULES.items()
        for breach in breaches(name, path.read_text(), is_package=path.name == "__init__.py").values()
    ]
    assert broken == []


def runtime_imports(name: str, path: Path) -> set[str]:
    """Modules that a module imports when it is loaded or later, those for annotations alone left out."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = [ast.Pass()]
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    return {imported for imported in imported_modules(ast.unparse(tree), package) if imported in NAMES}


def test_no_module_imports_what_imports_it() -> None:
    """Also within a folder, and also inside functions: a reader finds an order in which to read."""
    circles = []
    graph = {name: runtime_imports(name, path) for name, path in MODULES.items()}
    while True:
        try:
            TopologicalSorter(graph).prepare()
        except CycleError as found:
            circle = found.args[1]
            circles.append(" imports ".join(reversed(circle)))
            graph[circle[1]] = graph[circle[1]] - {circle[0]}
        else:
            break
    assert circles == []


def test_pure_modules_do_no_io() -> None:
    """Second law: pure modules take clock, random generator and everything that they read as arguments."""
    assert [line for name, path in MODULES.items() for line in impurities(name, path.read_text())] == []


def test_every_pure_module_exists() -> None:
    """PURE_MODULES names modules and packages that are there, so that a renamed one cannot escape the law."""
    listed = {f"prober.{folder}.{module}" for folder, names in PURE_MODULES.items() for module in names.split()}
    assert sorted(listed - NAMES) == []
    assert sorted({f"prober.{folder}" for folder in PURE_FOLDERS} - NAMES) == []


def test_an_import_against_a_law_is_found() -> None:
    """An import upward, sideways, between features, relative, inside a function, or of an unlisted folder is named.

    Lower lines, a module's own folder, the version and other people's libraries are free.
    """
    for name, source in (
        ("prober.measure.chat", "from prober.features.engines import continuity"),
        ("prober.measure.chat", "import prober.workload.shapes"),
        ("prober.net.exchange", "from ..mock import server"),
        ("prober.probing.probe", "def late():\n    from prober import daemon"),
        ("prober.features.drift.monitor", "from prober.features.slo import firing"),
        ("prober.features.drift.monitor", "from ..slo.firing import firing_checks"),
        ("prober.config.target", "from prober import measure, net"),
        ("prober.utils", ""),
        ("prober.cli.run", "from prober.helpers import x"),
    ):
        assert len(breaches(name, source)) == 1, (name, source)
    for name, source in (
        ("prober.workload.shapes", "from prober.measure import timeline"),
        ("prober.measure.chat", "from . import sse\nfrom .sse import Event"),
        ("prober.cli.main", "from prober import __version__, daemon"),
        ("prober.features.drift.monitor", "from prober.features.drift.detector import step"),
        ("prober.config.target", "import yaml\nfrom prober.measure.outcome import Outcome"),
    ):
        assert breaches(name, source) == {}, (name, source)


def test_input_and_output_in_a_pure_module_is_found() -> None:
    """A clock, a file, a socket or a hidden random generator is named in a pure module, and free elsewhere.

    A random.Random as an argument, dates as values and URL text are no I/O.
    """
    for source in (
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
    ):
        for pure in ("prober.config.target", "prober.features.drift.detector", "prober.daemon.dashboards.overview"):
            assert len(impurities(pure, source)) == 1, (pure, source)
        for other in ("prober.net.exchange", "prober.features.drift.monitor"):
            assert impurities(other, source) == [], (other, source)
    assert impurities("prober.workload.shapes", "from random import Random\nfrom urllib.parse import urlsplit") == []


def test_no_test_imports_a_benchmark() -> None:
    """Benchmarks use the rigs of the tests, never the other way round."""
    importers = [
        path
        for path in (ROOT / "tests").rglob("*.py")
        if any(module.split(".")[0] == "bench" for module, _ in imports(ast.parse(path.read_text()), "tests"))
    ]
    assert importers == []
