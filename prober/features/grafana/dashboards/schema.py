"""A compact JSON schema of a dashboard, written from the types of @grafana/schema 10.4 and 13.2 for the parts that are used here:
what is not named is refused, so that a slip of the pen is found, and what differs between those releases is left out."""

from typing import Any

Schema = dict[str, Any]


def closed(properties: Schema, optional: tuple[str, ...] = ()) -> Schema:
    """An object with these keys and no others."""
    required = [name for name in properties if name not in optional]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def listed(items: Schema) -> Schema:
    """An array of them."""
    return {"type": "array", "items": items}


TEXT: Schema = {"type": "string"}
SAID: Schema = {"type": "string", "minLength": 1}
FLAG: Schema = {"type": "boolean"}
NUMBER: Schema = {"type": "number"}
PLACE: Schema = {"type": "integer", "minimum": 0}
ANY: Schema = {"type": "object"}
SOURCE = closed({"type": {"const": "prometheus"}, "uid": SAID})
GRID = closed(
    {
        "x": {"type": "integer", "minimum": 0, "maximum": 23},
        "y": PLACE,
        "w": {"type": "integer", "minimum": 1, "maximum": 24},
        "h": {"type": "integer", "minimum": 1},
    }
)
TARGET = closed(
    {
        "refId": {"type": "string", "pattern": "^[A-Z]$"},
        "datasource": SOURCE,
        "editorMode": {"const": "code"},
        "expr": SAID,
        "legendFormat": SAID,
        "format": {"enum": ["time_series", "table", "heatmap"]},
        "instant": FLAG,
        "range": FLAG,
    }
)
THRESHOLDS = closed(
    {
        "mode": {"enum": ["absolute", "percentage"]},
        "steps": {
            "type": "array",
            "minItems": 1,
            "prefixItems": [closed({"value": {"type": "null"}, "color": SAID})],
            "items": closed({"value": NUMBER, "color": SAID}),
        },
    }
)
MAPPING = closed({"type": {"enum": ["value", "special"]}, "options": ANY})
DEFAULTS = closed(
    {
        "unit": SAID,
        "noValue": SAID,
        "color": closed({"mode": {"enum": ["palette-classic", "thresholds", "fixed"]}}),
        "thresholds": THRESHOLDS,
        "mappings": listed(MAPPING),
        "custom": ANY,
        "min": NUMBER,
        "max": NUMBER,
        "decimals": PLACE,
    },
    ("noValue", "min", "max", "decimals"),
)
OVERRIDE = closed(
    {
        "matcher": closed({"id": {"enum": ["byName", "byRegexp", "byFrameRefID"]}, "options": SAID}),
        "properties": listed(closed({"id": SAID, "value": {}})),
    }
)
KINDS = ("timeseries", "stat", "table", "heatmap", "state-timeline", "trend")
PANEL = closed(
    {
        "id": {"type": "integer", "minimum": 1},
        "type": {"enum": list(KINDS)},
        "title": SAID,
        "description": SAID,
        "datasource": SOURCE,
        "pluginVersion": SAID,
        "gridPos": GRID,
        "targets": {**listed(TARGET), "minItems": 1},
        "fieldConfig": closed({"defaults": DEFAULTS, "overrides": listed(OVERRIDE)}),
        "options": ANY,
        "transformations": listed(closed({"id": {"enum": ["merge", "organize", "groupBy", "sortBy"]}, "options": ANY})),
        "interval": SAID,
        "repeat": SAID,
        "repeatDirection": {"enum": ["h", "v"]},
        "maxPerRow": PLACE,
    },
    ("interval", "repeat", "repeatDirection", "maxPerRow"),
)
ROW = closed(
    {
        "id": {"type": "integer", "minimum": 1},
        "type": {"const": "row"},
        "title": SAID,
        "collapsed": {"const": False},
        "gridPos": GRID,
        "panels": {"type": "array", "maxItems": 0},
    }
)
VARIABLE = closed(
    {
        "name": SAID,
        "label": SAID,
        "description": SAID,
        "type": {"enum": ["datasource", "query", "custom"]},
        "datasource": SOURCE,
        "query": {"type": ["string", "object"]},
        "definition": SAID,
        "regex": TEXT,
        "refresh": {"enum": [0, 1, 2]},
        "sort": {"type": "integer", "minimum": 0, "maximum": 8},
        "hide": {"enum": [0, 1, 2]},
        "multi": FLAG,
        "includeAll": FLAG,
        "allValue": SAID,
        "options": listed(closed({"text": SAID, "value": SAID, "selected": FLAG})),
        "current": ANY,
    },
    ("description", "datasource", "definition", "regex", "refresh", "sort", "allValue"),
)
LINK = closed(
    {
        "title": SAID,
        "type": {"enum": ["link", "dashboards"]},
        "url": TEXT,
        "icon": SAID,
        "tooltip": TEXT,
        "tags": listed(SAID),
        "asDropdown": FLAG,
        "targetBlank": FLAG,
        "includeVars": FLAG,
        "keepTime": FLAG,
    }
)
OWN_ANNOTATION = closed(
    {
        "name": SAID,
        "datasource": closed({"type": {"const": "grafana"}, "uid": {"const": "-- Grafana --"}}),
        "enable": FLAG,
        "hide": FLAG,
        "iconColor": SAID,
        "target": closed({"type": {"const": "tags"}, "tags": listed(SAID), "matchAny": FLAG, "limit": PLACE}),
    }
)
ANNOTATION = closed(
    {
        "name": SAID,
        "datasource": SOURCE,
        "enable": FLAG,
        "hide": FLAG,
        "iconColor": SAID,
        "expr": SAID,
        "step": SAID,
        "target": closed({"refId": SAID, "expr": SAID, "interval": SAID, "instant": FLAG, "range": FLAG}),
        "titleFormat": SAID,
        "textFormat": SAID,
        "tagKeys": SAID,
    }
)
DASHBOARD: Schema = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    **closed(
        {
            "uid": {"type": "string", "pattern": "^[a-zA-Z0-9_-]{1,40}$"},
            "title": SAID,
            "description": SAID,
            "tags": {**listed(SAID), "minItems": 1},
            "schemaVersion": {"const": 39},
            "version": {"const": 1},
            "editable": FLAG,
            "graphTooltip": {"enum": [0, 1, 2]},
            "refresh": SAID,
            "time": closed({"from": SAID, "to": SAID}),
            "timepicker": ANY,
            "timezone": TEXT,
            "liveNow": FLAG,
            "fiscalYearStartMonth": PLACE,
            "links": listed(LINK),
            "annotations": closed(
                {"list": listed({"if": {"required": ["expr"]}, "then": ANNOTATION, "else": OWN_ANNOTATION})}
            ),
            "templating": closed({"list": listed(VARIABLE)}),
            "panels": listed({"if": {"properties": {"type": {"const": "row"}}}, "then": ROW, "else": PANEL}),
        }
    ),
}
