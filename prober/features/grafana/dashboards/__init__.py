"""Grafana's dashboards from the declared series: the same text for the same code, so that a file can be compared."""

import json

from prober.features.grafana.dashboards import capacity, drift, engine, overview, slo, target

BOARDS = (overview, target, slo, capacity, engine, drift)


def files() -> dict[str, str]:
    """Each dashboard's text by its file's name."""
    boards = [module.board() for module in BOARDS]
    return {f"{each.name}.json": json.dumps(each.as_json(), indent=1, ensure_ascii=False) + "\n" for each in boards}
