"""The files that `firstlight ops build` writes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

from firstlight import whole_files
from firstlight.ops import dashboards, deployment, manifests, rule_tests, rules, runbooks
from firstlight.ops.grafana import grafana
from firstlight.ops.rules import Settings

_MADE = "Made by `firstlight ops build`; change its options, not this file."
_UNQUOTED = re.compile(r"[A-Za-z_/][A-Za-z0-9_./-]*")
_YAML_WORDS = {"true", "false", "null", "yes", "no", "on", "off", "y", "n"}


def documents(settings: Settings) -> Iterator[tuple[str, str]]:
    """(path, text) of every file."""
    yield "prometheus/rules.yml", yaml_text(rules.groups(settings), _MADE)
    about = f"{_MADE}\nRun: promtool test rules rules_test.yml"
    yield "prometheus/rules_test.yml", yaml_text(rule_tests.cases(settings, "rules.yml"), about)
    about = f"{_MADE}\nFor one machine; in a cluster, use its service discovery."
    yield "prometheus/prometheus.yml", yaml_text(rules.prometheus(settings), about)
    about = f"{_MADE}\nFill in your own receivers."
    yield "alertmanager/alertmanager.yml", yaml_text(rules.ALERTMANAGER, about)
    for dashboard in dashboards.DASHBOARDS:
        yield f"grafana/{dashboard.name}.json", json.dumps(grafana(dashboard), indent=1) + "\n"
    for name, manifest in manifests.documents().items():
        yield f"kubernetes/{name}", yaml_text(manifest)
    yield "Containerfile", deployment.CONTAINERFILE
    yield "deploy-workflow.yml", yaml_text(deployment.WORKFLOW, _MADE)
    for name, text in runbooks.texts().items():
        yield f"runbooks/{name}.md", text


def build(folder: Path, settings: Settings) -> list[Path]:
    """Write all documents below `folder`, replacing those of an earlier build."""
    written = []
    for name, text in documents(settings):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        whole_files.write_text(path, text)
        written.append(path)
    return written


def yaml_text(value: object, comment: str = "") -> str:
    """A YAML document of dicts, lists and plain values; text that needs quotes is JSON."""
    head = "".join(f"# {line}\n" for line in comment.splitlines())
    return head + "\n".join(_lines(value)) + "\n"


def _lines(value: object) -> list[str]:
    if isinstance(value, dict) and value:
        return [line for key, inner in value.items() for line in _entry(f"{_scalar(key)}:", inner)]
    if isinstance(value, (list, tuple)) and value:
        return [line for inner in value for line in _item(_lines(inner))]
    return [_scalar(value)]


def _entry(key: str, value: object) -> list[str]:
    lines = _lines(value)
    if isinstance(value, (dict, list, tuple)) and value:
        return [key, *(f"  {line}" for line in lines)]
    return [f"{key} {lines[0]}"]


def _item(lines: list[str]) -> list[str]:
    return [f"- {lines[0]}", *(f"  {line}" for line in lines[1:])]


def _scalar(value: object) -> str:
    if isinstance(value, str) and _UNQUOTED.fullmatch(value) and value.lower() not in _YAML_WORDS:
        return value
    return json.dumps(value, ensure_ascii=False)
