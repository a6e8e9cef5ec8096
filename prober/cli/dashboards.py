"""`prober dashboards`: Grafana's dashboards as files, written or checked."""

import json
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class Action(StrEnum):
    """What to do with the files."""

    WRITE = "write"
    CHECK = "check"


def dashboards(
    action: Annotated[Action, typer.Argument(help="Write the files, or check that they are what would be written.")],
    output: Annotated[Path, typer.Option(help="Folder of the files.")] = Path("dashboards"),
) -> None:
    """Grafana's dashboards for what the prober exports, to import or to provision; check exits with 1 and says what is wrong."""
    from prober.generate.dashboards import files

    wanted = files()
    if action is Action.WRITE:
        output.mkdir(parents=True, exist_ok=True)
        for name, text in wanted.items():
            (output / name).write_text(text, encoding="utf-8")
        return
    said = [*_differing(output, wanted), *_wrong(wanted)]
    if said:
        print("\n".join(said), file=sys.stderr)
        sys.exit(1)


def _differing(folder: Path, wanted: dict[str, str]) -> list[str]:
    """Files that are not what would be written, and those that would not be."""
    found = []
    for name, text in wanted.items():
        path = folder / name
        if not path.exists():
            found.append(f"{path} is missing; `prober dashboards write --output {folder}` writes it")
        elif path.read_text(encoding="utf-8") != text:
            found.append(
                f"{path} is not what is generated; `prober dashboards write --output {folder}` writes it again"
            )
    others = sorted(path for path in folder.glob("*.json") if path.name not in wanted)
    return found + [f"{path} is none of the generated dashboards" for path in others]


def _wrong(wanted: dict[str, str]) -> list[str]:
    """What the generated dashboards themselves have wrong."""
    from prober.generate.dashboards.lint import known, problems

    series_known = known()
    return [f"{name}: {said}" for name, text in wanted.items() for said in problems(json.loads(text), series_known)]
