"""Dashboards as the JSON that Grafana imports."""

from __future__ import annotations

from typing import Any

from firstlight.ops.dashboards import VARIABLES, Dashboard, Panel

Plain = dict[str, Any]
_COLUMNS, _HEIGHT = 2, 8


def grafana(dashboard: Dashboard) -> Plain:
    """The JSON of a dashboard; on import Grafana asks for the data source."""
    panels = [_panel(i, panel) for i, panel in enumerate(dashboard.panels)]
    if dashboard.text:
        below = _HEIGHT * -(-len(panels) // _COLUMNS)
        panels.append(
            {
                "id": len(panels) + 1,
                "type": "text",
                "title": "What next",
                "gridPos": {"x": 0, "y": below, "w": 24, "h": 4},
                "options": {"mode": "markdown", "content": dashboard.text},
            }
        )
    return {
        "uid": f"firstlight-{dashboard.name}",
        "title": dashboard.title,
        "tags": ["firstlight"],
        "schemaVersion": 38,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "timezone": "browser",
        "templating": {"list": _variables()},
        "panels": panels,
    }


def _variables() -> list[Plain]:
    source = {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Source"}
    boxes = [
        {
            "name": name,
            "type": "textbox",
            "query": value,
            "current": {"text": value, "value": value},
            "options": [{"text": value, "value": value, "selected": True}],
        }
        for name, value in VARIABLES.items()
    ]
    return [source, *boxes]


def _panel(i: int, panel: Panel) -> Plain:
    source = {"type": "prometheus", "uid": "${datasource}"}
    row, column = divmod(i, _COLUMNS)
    width = 24 // _COLUMNS
    return {
        "id": i + 1,
        "type": "timeseries",
        "title": panel.title,
        "description": panel.about,
        "datasource": source,
        "gridPos": {"x": width * column, "y": _HEIGHT * row, "w": width, "h": _HEIGHT},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "options": {
            "legend": {"displayMode": "list", "placement": "bottom"},
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
        "targets": [
            {"refId": chr(65 + n), "datasource": source, "expr": expr, "legendFormat": legend}
            for n, (legend, expr) in enumerate(panel.queries)
        ],
    }
