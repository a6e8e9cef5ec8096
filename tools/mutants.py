"""Halves and doubles numeric constants, one at a time, and names those whose change fails no test.

    python -m tools.mutants [--sample N] [--seed N] [--most N] [NAME...]

A NAME is a room of `ROOMS`, a module of one or a constant, such as `drift`, `drift.state` or `drift.state.DOUBT_ERRORS`. The exit code
is 1 if more than `--most` changes fail no test. Tests run on a copy of the tree; those of the module come first.
"""

import argparse
import ast
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
ROOMS = ("drift", "diagnosis", "capacity")
COPIED = ("prober", "tests", "bench", "docs", "deploy", "dashboards", "pyproject.toml", "README.md", "CHANGELOG.md")


class Mutant(NamedTuple):
    """A constant and the factor of its change. path: of the module, below the root"""

    room: str
    path: Path
    name: str
    factor: float

    def __str__(self) -> str:
        return f"{self.room}.{self.path.stem}.{self.name} × {self.factor:g}"

    def source(self) -> str:
        """The changed source."""
        tree = ast.parse((ROOT / self.path).read_text())
        assign, value = next((node, value) for node, name, value in constants(tree) if name == self.name)
        if isinstance(value, ast.BinOp | ast.UnaryOp) or ast.unparse(value).startswith("math."):
            factor = ast.Constant(self.factor)
            scaled: ast.expr = ast.BinOp(value, ast.Mult(), factor)
            if assign.value is value:
                assign.value = scaled
            elif isinstance(assign.value, ast.Tuple):
                assign.value.elts[assign.value.elts.index(value)] = scaled
            return ast.unparse(ast.fix_missing_locations(tree))
        for part in ast.walk(value):
            if isinstance(part, ast.Constant) and is_number(part.value):
                assert isinstance(part.value, int | float)
                changed = part.value * self.factor
                part.value = max(1, round(changed)) if isinstance(part.value, int) else changed
        return ast.unparse(tree)


def is_number(value: object) -> bool:
    """Whether a literal is a number."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def constants(tree: ast.Module) -> Iterator[tuple[ast.Assign, str, ast.expr]]:
    """(assignment, name, value) of the numeric constants of a module; those assigned together are one each."""
    for node in tree.body:
        if not isinstance(node, ast.Assign) or not ast.unparse(node.targets[0]).strip("()").replace(", ", "").isupper():
            continue
        target, value = node.targets[0], node.value
        together = isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple)
        names = target.elts if together and isinstance(target, ast.Tuple) else [target]
        values = value.elts if together and isinstance(value, ast.Tuple) else [value]
        for name, part in zip(names, values, strict=True):
            if any(isinstance(leaf, ast.Constant) and is_number(leaf.value) for leaf in ast.walk(part)):
                yield node, ast.unparse(name), part


def mutants(chosen: Sequence[str]) -> list[Mutant]:
    """All changes of the constants that are chosen."""
    found = [
        Mutant(room, path.relative_to(ROOT), name, factor)
        for room in ROOMS
        for path in sorted((ROOT / "prober/features" / room).glob("*.py"))
        for _, name, _ in constants(ast.parse(path.read_text()))
        for factor in (0.5, 2.0)
    ]
    return [mutant for mutant in found if not chosen or str(mutant).startswith(tuple(chosen))]


def survives(mutant: Mutant, folder: Path) -> bool:
    """Whether all tests of the room pass with the change. folder: a copy of the tree"""
    tests = folder / "tests/features" / mutant.room
    own = sorted(tests.glob("test_*.py"), key=lambda path: path.stem.removeprefix("test_") != mutant.path.stem)
    (folder / mutant.path).write_text(mutant.source())
    command = [sys.executable, "-P", "-m", "pytest", "-qx", "-p", "no:cacheprovider", "-m", "not slow", *map(str, own)]
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, check=False)
    shutil.copy(ROOT / mutant.path, folder / mutant.path)
    return done.returncode == 0


def main() -> None:
    """Change, test and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--sample", type=int, help="so many changes at random")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--most", type=int, default=0)
    options = parser.parse_args()
    chosen = mutants(options.names)
    if options.sample:
        chosen = Random(options.seed).sample(chosen, min(options.sample, len(chosen)))
    survived = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for part in COPIED:
            copy = shutil.copytree if (ROOT / part).is_dir() else shutil.copy
            copy(ROOT / part, folder / part)
        for mutant in chosen:
            is_unseen = survives(mutant, folder)
            survived += is_unseen
            sys.stdout.write(f"{mutant}: {'no test fails' if is_unseen else 'seen'}\n")
            sys.stdout.flush()
    sys.stdout.write(f"{survived} of {len(chosen)} changes fail no test\n")
    sys.exit(survived > options.most)


if __name__ == "__main__":
    main()
