"""How large each room of `prober/` is, and how long a command's story: the tables of docs/shape.md, written by docs/generate.py.

A room is a folder. Counted are the lines of its modules, its functions, and its numeric constants: names in capitals that a module or
class sets to an expression with a number in it.

A story is the functions and files that a command enters, beside a simulated engine in virtual time, so that they are the same on each
machine. The engine's own functions do not count, nor do bodies of modules and classes.
"""

import ast
import asyncio
import inspect
import sys
import tempfile
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from prober.mock.service import Settings
from prober.simulation.parameters import Parameters
from tests.commands import prober
from tests.golden import same_each_time
from tests.virtual import FIRST_FREE_PORT, VirtualLoop, running
from tests.virtual_commands import beside, mock
from tests.virtual_daemon import Daemon

ROOT = Path(__file__).parents[1] / "prober"
ENGINE = Settings(seed=1, simulation=Parameters(max_sequences=8, max_batched_tokens=512, prefix_block_tokens=16))
URL = f"http://127.0.0.1:{FIRST_FREE_PORT}"
STORIES = {
    "once": f"once {URL}",
    "gate": f"gate {URL} --slo ttft<500ms:90%",
    "sweep": f"sweep {URL} --max-time 120s --max-rate 20/s",
}
RUN_S = 60.0
RUN = f"defaults: {{rate: 0.5/s}}\nslos: {{ttft: {{signal: ttft, threshold: 1s, objective: 95%}}}}\ntargets: [{{url: '{URL}'}}]\n"
COLUMNS = ("lines", "functions", "constants")


def rooms() -> dict[str, Counter[str]]:
    """The counts of each room, by the room's name."""
    found: dict[str, Counter[str]] = defaultdict(Counter)
    for path in sorted(ROOT.rglob("*.py")):
        text = path.read_text()
        counts = found[path.parent.relative_to(ROOT).as_posix()]
        counts["lines"] += text.count("\n")
        for node in ast.walk(ast.parse(text)):
            counts["functions"] += isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            if isinstance(node, ast.Module | ast.ClassDef):
                counts["constants"] += sum(map(_numeric_constants, node.body))
    return found


def _numeric_constants(statement: ast.stmt) -> int:
    if isinstance(statement, ast.Assign):
        target, value = statement.targets[0], statement.value
    elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
        target, value = statement.target, statement.value
    else:
        return 0
    names = [name.id for name in ast.walk(target) if isinstance(name, ast.Name)]
    has_number = any(isinstance(part, ast.Constant) and type(part.value) in (int, float) for part in ast.walk(value))
    return sum(name.isupper() for name in names) if has_number else 0


@contextmanager
def _entered() -> Iterator[set[tuple[str, str]]]:
    """The functions of the prober that are entered meanwhile, with their files."""
    entered: set[tuple[str, str]] = set()
    ours, engines = f"{ROOT}/", (f"{ROOT}/mock/", f"{ROOT}/simulation/")

    def note(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        function = code.co_filename, code.co_qualname
        if (
            event != "call"
            or function in entered
            or not code.co_filename.startswith(ours)
            or code.co_name.startswith(("<", "__annotate__"))
            or not code.co_flags & inspect.CO_OPTIMIZED  # the body of a class
        ):
            return
        caller: FrameType | None = frame
        while caller is not None:
            if caller.f_code.co_filename.startswith(engines):
                return
            caller = caller.f_back
        entered.add(function)

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        yield entered
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def stories() -> dict[str, tuple[int, int]]:
    """(functions, files) that each command enters, by its name."""
    found: dict[str, tuple[int, int]] = {}

    def tell(name: str, play: Callable[[Path], object]) -> None:
        with tempfile.TemporaryDirectory() as folder, same_each_time(), _entered() as entered:
            play(Path(folder))
        found[name] = len(entered), len({file for file, _ in entered})

    def command(words: str) -> Callable[[Path], object]:
        def play(folder: Path) -> None:
            with beside(mock(ENGINE)):
                done = prober(*words.split(), cwd=folder)
            if done.returncode:
                raise RuntimeError(f"{words}: exit code {done.returncode}: {done.stderr}")

        return play

    for name, words in STORIES.items():
        tell(name, command(words))

    def run(folder: Path) -> None:
        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            runner.run(_run(folder))

    tell("run", run)
    return found


async def _run(folder: Path) -> None:
    async with running(ENGINE):
        daemon = Daemon(folder, RUN)
        async with daemon.running():
            await daemon.until(RUN_S)
            await daemon.scrape()


def rooms_table() -> str:
    """The table of rooms, the largest first, and their sum."""
    found = rooms()
    rows = sorted(found.items(), key=lambda row: -row[1]["lines"])
    rows.append(("**all**", sum(found.values(), Counter())))
    lines = [f"| room | {' | '.join(COLUMNS)} |", "|---" * (len(COLUMNS) + 1) + "|"]
    lines += [f"| {name} | {' | '.join(f'{counts[column]:,}' for column in COLUMNS)} |" for name, counts in rows]
    return "\n".join(lines) + "\n"


def stories_table() -> str:
    """The table of stories."""
    lines = ["| command | functions | files |", "|---|---|---|"]
    lines += [f"| `{name}` | {functions:,} | {files} |" for name, (functions, files) in stories().items()]
    return "\n".join(lines) + "\n"
