"""Manifests fit the schemas of Kubernetes and grant least privilege."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from firstlight.cli import build_parser, main
from firstlight.ops import deployment, manifests
from firstlight.telemetry.metrics import CATALOGUE

#: The oldest supported version, and the newest with schemas.
KUBERNETES = ("1.31", "1.37")
OWN_SCHEMAS = {
    name: text
    for name, text in manifests.documents().items()
    if not text["apiVersion"].startswith(("kustomize", "serving.knative"))
}


@pytest.mark.parametrize("name", OWN_SCHEMAS)
def test_kubernetes_accepts_the_manifest(name: str) -> None:
    for version in KUBERNETES:
        kubernetes_validate.validate(OWN_SCHEMAS[name], version, strict=True)


def containers() -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    for manifest in OWN_SCHEMAS.values():
        if manifest["kind"] in ("Deployment", "Job"):
            pod = manifest["spec"]["template"]["spec"]
            yield from ((pod, container) for container in pod["containers"])


def test_containers_are_unprivileged_and_have_a_gpu() -> None:
    found = list(containers())
    assert len(found) == 3  # server, canary, warm-up
    for pod, container in found:
        assert pod["securityContext"]["runAsNonRoot"]
        assert pod["automountServiceAccountToken"] is False
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert container["resources"]["limits"]["nvidia.com/gpu"] == "1"


def test_a_pod_has_time_to_drain_and_needs_no_hook() -> None:
    for pod, container in containers():
        if container["args"][0] != "serve":
            continue
        options = build_parser().parse_args(container["args"])
        assert "lifecycle" not in container
        probe = container["readinessProbe"]
        assert options.drain_delay >= probe["periodSeconds"] * probe["failureThreshold"]
        needed = 2 * options.drain_delay + options.drain_seconds
        assert pod["terminationGracePeriodSeconds"] > needed


def test_the_autoscaler_uses_a_metric_of_the_catalogue() -> None:
    metric = manifests.AUTOSCALER["spec"]["metrics"][0]["pods"]["metric"]["name"]
    assert metric in {known.name for known in CATALOGUE}


def test_the_service_selects_the_canary_and_the_deployment_does_not() -> None:
    stable, canary = (
        manifest["spec"]["template"]["metadata"]["labels"]
        for manifest in (manifests.DEPLOYMENT, manifests.canary())
    )
    service = manifests.SERVICE["spec"]["selector"]
    assert service.items() <= stable.items() and service.items() <= canary.items()
    selected = manifests.DEPLOYMENT["spec"]["selector"]["matchLabels"]
    assert selected == stable != canary


def test_kustomizations_list_exactly_the_files_beside_them(tmp_path: Path) -> None:
    assert main(["ops", "build", "--out", str(tmp_path)]) == 0
    found = list((tmp_path / "kubernetes").rglob("kustomization.yaml"))
    assert len(found) == 3
    for file in found:
        named = yaml.safe_load(file.read_text())["resources"]
        assert sorted(named) == sorted(
            p.name for p in file.parent.iterdir() if p.name != "kustomization.yaml"
        )
    assert "USER 10001" in (tmp_path / "Containerfile").read_text()


def commands() -> list[list[str]]:
    found = [container["args"] for _, container in containers()]
    for job in deployment.WORKFLOW["jobs"].values():
        lines = [line for step in job["steps"] for line in step.get("run", "").splitlines()]
        found += [shlex.split(line)[1:] for line in lines if line.startswith("firstlight ")]
    return found


@pytest.mark.parametrize("words", commands(), ids=" ".join)
def test_containers_and_workflow_call_commands_that_exist(words: list[str]) -> None:
    _, unknown = build_parser(words[0]).parse_known_args(words)
    assert not unknown
