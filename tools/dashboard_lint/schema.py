"""JSON schema of the dashboards, after the types of @grafana/schema 10.4 and 13.2.

It lists only the keys that the generated dashboards use and refuses all others, so that misspelled keys fail. Keys that differ between
these releases are not used.
"""

from typing import Any

Schema = dict[str, Any]


def closed(properties: Schema, optional: tuple[str, ...] = ()) -> Schema:
    """Object with these keys and no others; all required except `optional`."""
    required = [name for name in properties if name not in optional]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def array(items: Schema) -> Schema:
    """Array of `items`."""
    return {"type": "array", "items": items}


TEXT: Schema = {"type": "string"}
NON_EMPTY: Schema = {"type": "string", "minLength": 1}
FLAG: Schema = {"type": "boolean"}
NUMBER: Schema = {"type": "number"}
PLACE: Schema = {"type": "integer", "minimum": 0}
ANY: Schema = {"type": "object"}
SOURCE = closed({"type": {"const": "prometheus"}, "uid": NON_EMPTY})
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
        "expr": NON_EMPTY,
        "legendFormat": NON_EMPTY,
        "format": {"enum": ["time_series", "table", "heatmap"]},
        "instant": FLAG,
        "range": FLAG,
        "exemplar": FLAG,
    },
    ("exemplar",),
)
THRESHOLDS = closed(
    {
        "mode": {"enum": ["absolute", "percentage"]},
        "steps": {
            "type": "array",
            "minItems": 1,
            "prefixItems": [closed({"value": {"type": "null"}, "color": NON_EMPTY})],
            "items": closed({"value": NUMBER, "color": NON_EMPTY}),
        },
    }
)
MAPPING = closed({"type": {"enum": ["value", "special"]}, "options": ANY})
DEFAULTS = closed(
    {
        "unit": NON_EMPTY,
        "noValue": NON_EMPTY,
        "color": closed({"mode": {"enum": ["palette-classic", "thresholds", "fixed"]}}),
        "thresholds": THRESHOLDS,
        "mappings": array(MAPPING),
        "custom": ANY,
        "min": NUMBER,
        "max": NUMBER,
        "decimals": PLACE,
    },
    ("noValue", "min", "max", "decimals"),
)
OVERRIDE = closed(
    {
        "matcher": closed({"id": {"enum": ["byName", "byRegexp", "byFrameRefID"]}, "options": NON_EMPTY}),
        "properties": array(closed({"id": NON_EMPTY, "value": {}})),
    }
)
KINDS = ("timeseries", "stat", "table", "heatmap", "state-timeline", "trend", "bargauge")
PANEL = closed(
    {
        "id": {"type": "integer", "minimum": 1},
        "type": {"enum": list(KINDS)},
        "title": NON_EMPTY,
        "description": NON_EMPTY,
        "datasource": SOURCE,
        "pluginVersion": NON_EMPTY,
        "gridPos": GRID,
        "targets": {**array(TARGET), "minItems": 1},
        "fieldConfig": closed({"defaults": DEFAULTS, "overrides": array(OVERRIDE)}),
        "options": ANY,
        "transformations": array(closed({"id": {"enum": ["merge", "organize", "groupBy", "sortBy"]}, "options": ANY})),
        "interval": NON_EMPTY,
        "repeat": NON_EMPTY,
        "repeatDirection": {"enum": ["h", "v"]},
        "maxPerRow": PLACE,
    },
    ("interval", "repeat", "repeatDirection", "maxPerRow"),
)
ROW = {
    **closed(
        {
            "id": {"type": "integer", "minimum": 1},
            "type": {"const": "row"},
            "title": NON_EMPTY,
            "collapsed": FLAG,
            "gridPos": GRID,
            "panels": array(PANEL),
        }
    ),
    # Grafana drops the panels that an open row holds itself.
    "if": {"properties": {"collapsed": {"const": True}}},
    "then": {"properties": {"panels": {"minItems": 1}}},
    "else": {"properties": {"panels": {"maxItems": 0}}},
}
VARIABLE = closed(
    {
        "name": NON_EMPTY,
        "label": NON_EMPTY,
        "description": NON_EMPTY,
        "type": {"enum": ["datasource", "query", "custom"]},
        "datasource": SOURCE,
        "query": {"type": ["string", "object"]},
        "definition": NON_EMPTY,
        "regex": TEXT,
        "refresh": {"enum": [0, 1, 2]},
        "sort": {"type": "integer", "minimum": 0, "maximum": 8},
        "hide": {"enum": [0, 1, 2]},
        "skipUrlSync": FLAG,
        "multi": FLAG,
        "includeAll": FLAG,
        "allValue": NON_EMPTY,
        "options": array(closed({"text": NON_EMPTY, "value": NON_EMPTY, "selected": FLAG})),
        "current": ANY,
    },
    ("description", "datasource", "definition", "regex", "refresh", "sort", "skipUrlSync", "allValue"),
)
LINK = closed(
    {
        "title": NON_EMPTY,
        "type": {"enum": ["link", "dashboards"]},
        "url": TEXT,
        "icon": NON_EMPTY,
        "tooltip": TEXT,
        "tags": array(NON_EMPTY),
        "asDropdown": FLAG,
        "targetBlank": FLAG,
        "includeVars": FLAG,
        "keepTime": FLAG,
    }
)
OWN_ANNOTATION = closed(
    {
        "name": NON_EMPTY,
        "datasource": closed({"type": {"const": "grafana"}, "uid": {"const": "-- Grafana --"}}),
        "enable": FLAG,
        "hide": FLAG,
        "iconColor": NON_EMPTY,
        "target": closed({"type": {"const": "tags"}, "tags": array(NON_EMPTY), "matchAny": FLAG, "limit": PLACE}),
    }
)
ANNOTATION = closed(
    {
        "name": NON_EMPTY,
        "datasource": SOURCE,
        "enable": FLAG,
        "hide": FLAG,
        "iconColor": NON_EMPTY,
        "expr": NON_EMPTY,
        "step": NON_EMPTY,
        "target": closed(
            {"refId": NON_EMPTY, "expr": NON_EMPTY, "interval": NON_EMPTY, "instant": FLAG, "range": FLAG}
        ),
        "titleFormat": NON_EMPTY,
        "textFormat": NON_EMPTY,
        "tagKeys": NON_EMPTY,
    }
)
DASHBOARD: Schema = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    **closed(
        {
            "uid": {"type": "string", "pattern": "^[a-zA-Z0-9_-]{1,40}$"},
            "title": NON_EMPTY,
            "description": NON_EMPTY,
            "tags": {**array(NON_EMPTY), "minItems": 1},
            "schemaVersion": {"const": 39},
            "version": {"const": 1},
            "editable": FLAG,
            "graphTooltip": {"enum": [0, 1, 2]},
            "refresh": NON_EMPTY,
            "time": closed({"from": NON_EMPTY, "to": NON_EMPTY}),
            "timepicker": ANY,
            "timezone": TEXT,
            "liveNow": FLAG,
            "fiscalYearStartMonth": PLACE,
            "links": array(LINK),
            "annotations": closed(
                {"list": array({"if": {"required": ["expr"]}, "then": ANNOTATION, "else": OWN_ANNOTATION})}
            ),
            "templating": closed({"list": array(VARIABLE)}),
            "panels": array({"if": {"properties": {"type": {"const": "row"}}}, "then": ROW, "else": PANEL}),
        }
    ),
}
