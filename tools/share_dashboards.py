"""python -m tools.share_dashboards FOLDER: writes the dashboards in the form in which grafana.com and Grafana's import page share them.

Grafana then asks for the data source (`__inputs`) and checks what the dashboard needs (`__requires`). The variable `datasource`, by
which a reader changes it later, begins with the answer.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from prober.daemon.dashboards import files
from prober.exposition.dashboards.panels import GRAFANA_VERSION

INPUT = "DS_PROMETHEUS"
PANEL_NAMES = {
    "bargauge": "Bar gauge",
    "heatmap": "Heatmap",
    "stat": "Stat",
    "state-timeline": "State timeline",
    "table": "Table",
    "timeseries": "Time series",
    "trend": "Trend",
}


def shared(dashboard: dict[str, Any]) -> dict[str, Any]:
    """Return the dashboard in that form. Raises ValueError without the variable `datasource`, KeyError at an unknown type of panel."""
    variables = [
        variable | {"current": {"selected": True, "text": f"${{{INPUT}}}", "value": f"${{{INPUT}}}"}}
        if variable["name"] == "datasource"
        else variable
        for variable in dashboard["templating"]["list"]
    ]
    if variables == dashboard["templating"]["list"]:
        raise ValueError(f"{dashboard['title']}: no variable `datasource`")
    source = {"name": INPUT, "label": "Prometheus", "description": "", "type": "datasource", "pluginId": "prometheus"}
    required = [("grafana", "grafana", "Grafana", GRAFANA_VERSION), ("datasource", "prometheus", "Prometheus", "1.0.0")]
    required += [("panel", kind, PANEL_NAMES[kind], "") for kind in sorted(set(_panel_types(dashboard["panels"])))]
    return {
        "__inputs": [source | {"pluginName": "Prometheus"}],
        "__elements": {},
        "__requires": [dict(zip(("type", "id", "name", "version"), row, strict=True)) for row in required],
        "id": None,
        **dashboard,
        "templating": {"list": variables},
    }


def _panel_types(panels: list[dict[str, Any]]) -> Iterator[str]:
    for panel in panels:
        yield from _panel_types(panel.get("panels", []))
        if panel["type"] != "row":
            yield panel["type"]


def main(folder: Path) -> None:
    """Write one file per dashboard."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files().items():
        if name.endswith(".json"):
            (folder / name).write_text(json.dumps(shared(json.loads(text)), indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
