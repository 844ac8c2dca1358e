"""Dashboards query metrics that exist; `make ops-test` shows that they return data."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from firstlight.cli import main
from firstlight.ops.building import documents, yaml_text
from firstlight.ops.dashboard_page import page, shown
from firstlight.ops.dashboards import DASHBOARDS, ON_CALL, VARIABLES, resolved
from firstlight.ops.prometheus_api import Prometheus, TimeSeries
from firstlight.ops.rules import Settings, groups
from firstlight.telemetry.metrics import CATALOGUE, Kind

QUERIES = [query for board in DASHBOARDS for panel in board.panels for _, query in panel.queries]


def test_every_expression_parses(promtool: str, tmp_path: Path) -> None:
    """promtool checks rules only, so every expression becomes a rule."""
    rules = [{"record": f"query:{i}", "expr": resolved(q)} for i, q in enumerate(QUERIES)]
    file = tmp_path / "queries.yml"
    file.write_text(yaml_text({"groups": [{"name": "queries", "rules": rules}]}))
    subprocess.run([promtool, "check", "rules", file], check=True)


def test_every_metric_is_in_the_catalogue_or_recorded_by_the_rules() -> None:
    histogram = ("_bucket", "_count", "_sum")
    known = {
        metric.name + suffix
        for metric in CATALOGUE
        for suffix in (histogram if metric.kind is Kind.HISTOGRAM else ("",))
    }
    known |= {
        r["record"] for g in groups(Settings())["groups"] for r in g["rules"] if "record" in r
    }
    for query in QUERIES:
        named = set(re.findall(r"[a-z:]*(?:firstlight|process)_[a-z_:0-9]+", query))
        assert named <= known, named - known


def test_grafana_panels_do_not_overlap_and_use_only_defined_variables() -> None:
    for name, text in documents(Settings()):
        if not name.startswith("grafana/"):
            continue
        board = json.loads(text)
        places = [tuple(panel["gridPos"].values()) for panel in board["panels"]]
        cells = [(x + i, y + j) for x, y, w, h in places for i in range(w) for j in range(h)]
        assert len(cells) == len(set(cells))
        assert len({panel["id"] for panel in board["panels"]}) == len(places)
        used = set(re.findall(r"\$\{?(\w+)", text))
        assert used <= {variable["name"] for variable in board["templating"]["list"]}
        assert set(VARIABLES) <= {variable["name"] for variable in board["templating"]["list"]}


def test_a_page_shows_the_last_value_of_every_series(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(_: object, query: str, start: float, end: float, __: float) -> list[TimeSeries]:
        return [TimeSeries({"model": "<demo>", "code": "200"}, ((start, 1.0), (end, 0.25)))]

    monkeypatch.setattr(Prometheus, "range", answer)
    made = page(ON_CALL, Prometheus("http://nowhere"), 5)
    assert "200: 0.25" in made
    assert "&lt;demo&gt;: rows waiting: 0.25" in made


def test_series_that_were_always_zero_are_only_counted_when_there_are_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def answer(_: object, query: str, start: float, end: float, __: float) -> list[TimeSeries]:
        return [
            TimeSeries({"instance": f"node{n}", "model": ""}, ((start, float(n == 7)), (end, 0.0)))
            for n in range(9)
        ]

    monkeypatch.setattr(Prometheus, "range", answer)
    made = page(ON_CALL, Prometheus("http://nowhere"), 5)
    deploys = made.partition("Deploys and readiness")[2].partition("</section>")[0]
    assert deploys.index("node7: deploy: 0") < deploys.index("node0: deploy: 0")
    # Of twice nine series two were not zero, and two more are named.
    assert "<li>14 more: always 0</li>" in deploys


@pytest.mark.parametrize(
    ("value", "unit", "expected"),
    [
        (0.0025, "s", "2.5 ms"),
        (3 * 2.0**20, "bytes", "3 MiB"),
        (0.5, "percentunit", "50 %"),
        (2.5, "reqps", "2.5/s"),
    ],
)
def test_values_are_shown_in_their_units(value: float, unit: str, expected: str) -> None:
    assert shown(value, unit) == expected


def test_an_absent_prometheus_is_reported_with_its_address(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    arguments = ["--prometheus", "http://127.0.0.1:9", "--out", str(tmp_path / "page.html")]
    assert main(["ops", "show", "on-call", *arguments]) == 2
    assert "no Prometheus answers at http://127.0.0.1:9" in capsys.readouterr().err
