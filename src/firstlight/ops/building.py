"""Everything that `firstlight ops build` writes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from firstlight import whole_files
from firstlight.ops import dashboards, deployment, manifests, rule_tests, rules, runbooks
from firstlight.ops.grafana import grafana
from firstlight.ops.rules import Settings
from firstlight.ops.yaml_text import yaml_text

_MADE = "Made by `firstlight ops build`; change its options, not this file."


def documents(settings: Settings) -> Iterator[tuple[str, str]]:
    """Names of files and their texts."""
    yield "prometheus/rules.yml", yaml_text(rules.groups(settings), _MADE)
    about = f"{_MADE}\nRun: promtool test rules rules_test.yml"
    yield "prometheus/rules_test.yml", yaml_text(rule_tests.cases(settings, "rules.yml"), about)
    about = f"{_MADE}\nFor one machine; in a cluster, use its own discovery of targets."
    yield "prometheus/prometheus.yml", yaml_text(rules.prometheus(settings), about)
    routes = rules.alertmanager("http://127.0.0.1:9095")
    about = f"{_MADE}\nThe receivers are yours to fill in."
    yield "alertmanager/alertmanager.yml", yaml_text(routes, about)
    for dashboard in dashboards.DASHBOARDS:
        yield (
            f"grafana/{dashboard.name}.json",
            json.dumps(grafana(dashboard), indent=1) + "\n",
        )
    for name, manifest in manifests.documents().items():
        yield f"kubernetes/{name}", yaml_text(manifest)
    yield "Containerfile", deployment.CONTAINERFILE
    yield "deploy-workflow.yml", yaml_text(deployment.WORKFLOW, _MADE)
    for name, text in runbooks.texts().items():
        yield f"runbooks/{name}.md", text


def build(folder: Path, settings: Settings) -> list[Path]:
    """Write all documents below a folder, in place of those of an earlier build."""
    written = []
    for name, text in documents(settings):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        whole_files.write_text(path, text)
        written.append(path)
    return written
