"""The form of the dashboards in which grafana.com shares them."""

import json
from typing import Any

import pytest

from prober.daemon.dashboards import files
from tools.share_dashboards import PANEL_NAMES, shared

DASHBOARDS = {name: json.loads(text) for name, text in files().items() if name.endswith(".json")}


def without_share(text: str) -> dict[str, Any]:
    """The dashboard as an import leaves it, with the data source `answer`."""
    dashboard: dict[str, Any] = json.loads(text.replace("${DS_PROMETHEUS}", "answer"))
    return {key: value for key, value in dashboard.items() if key != "id" and not key.startswith("__")}


@pytest.mark.parametrize("name", DASHBOARDS)
def test_an_import_asks_for_the_data_source_and_changes_nothing_else(name: str) -> None:
    """The answer is the variable's first value, and all queries go by the variable."""
    document = shared(DASHBOARDS[name])
    assert [(source["name"], source["pluginId"]) for source in document["__inputs"]] == [
        ("DS_PROMETHEUS", "prometheus")
    ]
    imported = without_share(json.dumps(document))
    variable = next(variable for variable in imported["templating"]["list"] if variable["name"] == "datasource")
    assert variable["current"]["value"] == "answer"
    variable["current"] = {}
    assert imported == DASHBOARDS[name]


def test_it_names_all_that_a_dashboard_needs() -> None:
    """Every type of panel that is used, also in collapsed rows, and no other."""
    needed = {
        name: {row["id"] for row in shared(d)["__requires"] if row["type"] == "panel"} for name, d in DASHBOARDS.items()
    }
    for name, text in files().items():
        if name in needed:
            used = {kind for kind in PANEL_NAMES if f'"type": "{kind}"' in text}
            assert needed[name] == used
    assert set.union(*needed.values()) == set(PANEL_NAMES)


def test_a_dashboard_without_the_variable_is_refused() -> None:
    """It could not be shared: its data source would be that of its author."""
    with pytest.raises(ValueError, match="Overview: no variable `datasource`"):
        shared({"title": "Overview", "templating": {"list": []}, "panels": []})
