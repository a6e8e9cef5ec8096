"""Whole renders of the charts, kept in tests/deploy/renders so that a change of a template shows what it changes.

`make generated` writes them again, by Helm 3; test_renders.py compares. Dashboards are named in place of their text.
"""

import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.deploy.rendering import CHART, HELM_3, RELEASE, ROOT, rendered_text
from tests.deploy.shipped import CHARTS

FOLDER = Path(__file__).with_name("renders")
KUBERNETES = "--kube-version=1.34"
NAMES = {
    "defaults": "chart",
    "everything": "chart, everything on",
    "sharded": "chart, sharded",
    "elsewhere": "chart, observed elsewhere",
    "autopilot": "chart, autopilot",
}
"""File, and which of CHARTS is in it."""


def engine_chart(folder: Path) -> Path:
    """The example of an engine's chart, with the library unpacked into it."""
    copy = folder / "engine"
    shutil.copytree(ROOT / "deploy/sidecar-chart-example", copy)
    shutil.copytree(ROOT / "deploy/sidecar-chart", copy / "charts/llm-slo-prober-sidecar")
    return copy


def chart_text(values: dict[str, Any]) -> str:
    """The chart's manifests as Helm writes them, without the text of dashboards."""
    text = rendered_text(HELM_3, RELEASE, values, KUBERNETES)
    for path in sorted((CHART / "dashboards").glob("*.json")):
        indented = "".join(f"    {line}\n" for line in path.read_text().splitlines())
        text = text.replace(indented, f"    (dashboards/{path.name})\n")
    return text


def renders() -> dict[str, str]:
    """Each render by the name of its file."""
    texts = {f"{name}.yaml": chart_text(CHARTS[values]) for name, values in NAMES.items()}
    with tempfile.TemporaryDirectory() as folder:
        texts["sidecar.yaml"] = rendered_text(HELM_3, "llama", {}, KUBERNETES, folder=engine_chart(Path(folder)))
    return texts


def main() -> None:
    """Write them."""
    if not HELM_3.exists():
        sys.exit(
            f"{FOLDER.relative_to(ROOT)}: not written, as there is no {HELM_3}; `make tools` fetches it where npm is"
        )
    FOLDER.mkdir(exist_ok=True)
    for name, text in renders().items():
        (FOLDER / name).write_text(text)


if __name__ == "__main__":
    main()
