"""The Kubernetes manifests of a server, its canary, and a serverless one.

The server makes the folder of its cache on the volume itself: it trusts no folder that others can
write to.
"""

from __future__ import annotations

from typing import Any

from firstlight.telemetry import metrics as m
from firstlight.telemetry.runtime import EXPECTED_VARIABLE

Plain = dict[str, Any]
NAME, PORT, USER = "firstlight", 8000, 10001
IMAGE = "registry.example/firstlight-app"
CACHE = "/cache/firstlight"
_LABELS = {"app": NAME}
_SECURE_POD: Plain = {
    "runAsNonRoot": True,
    "runAsUser": USER,
    "runAsGroup": USER,
    "fsGroup": USER,
    "seccompProfile": {"type": "RuntimeDefault"},
}
_SECURE: Plain = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}
_RESOURCES: Plain = {
    "requests": {"cpu": "1", "memory": "4Gi", "nvidia.com/gpu": "1"},
    "limits": {"memory": "8Gi", "nvidia.com/gpu": "1"},
}
_ENVIRONMENT = [
    {"name": "FIRSTLIGHT_CACHE_DIR", "value": CACHE},
    {"name": EXPECTED_VARIABLE, "value": "cuda"},
    {"name": "HOME", "value": "/tmp"},
]
_MOUNTS = [{"name": "cache", "mountPath": "/cache"}, {"name": "tmp", "mountPath": "/tmp"}]
_VOLUMES: list[Plain] = [
    {"name": "cache", "persistentVolumeClaim": {"claimName": "firstlight-cache"}},
    {"name": "tmp", "emptyDir": {"sizeLimit": "1Gi"}},
]


def _meta(name: str = NAME, **more: object) -> Plain:
    return {"name": name, "labels": dict(_LABELS), **more}


def _probe(path: str, period: int, failures: int) -> Plain:
    get = {"path": f"/v2/health/{path}", "port": "http"}
    return {"httpGet": get, "periodSeconds": period, "failureThreshold": failures}


def _container(arguments: list[str], **more: object) -> Plain:
    return {
        "name": "app",
        "image": IMAGE,
        "args": arguments,
        "env": _ENVIRONMENT,
        "resources": _RESOURCES,
        "securityContext": _SECURE,
        "volumeMounts": _MOUNTS,
        **more,
    }


def _pod(container: Plain, **more: object) -> Plain:
    return {
        "serviceAccountName": NAME,
        "automountServiceAccountToken": False,
        "securityContext": _SECURE_POD,
        "containers": [container],
        "volumes": _VOLUMES,
        **more,
    }


_SERVER = _container(
    ["serve", "/app/app.py", "--host", "0.0.0.0", "--port", str(PORT), "--drain-delay", "5"],
    ports=[{"name": "http", "containerPort": PORT}],
    # Ready once everything is compiled or loaded; restarted if that takes over half an hour.
    startupProbe=_probe("ready", 5, 360),
    livenessProbe=_probe("live", 10, 3),
    readinessProbe=_probe("ready", 2, 2),
)
DEPLOYMENT: Plain = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": _meta(),
    "spec": {
        "replicas": 2,
        "selector": {"matchLabels": {**_LABELS, "track": "stable"}},
        "strategy": {"rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
        "template": {
            "metadata": {
                "labels": {**_LABELS, "track": "stable"},
                "annotations": {
                    "prometheus.io/scrape": "true",
                    "prometheus.io/port": str(PORT),
                },
            },
            # Longer than twice --drain-delay and --drain-seconds (30): nothing is cut off.
            "spec": _pod(_SERVER, terminationGracePeriodSeconds=45),
        },
    },
}
SERVICE: Plain = {
    "apiVersion": "v1",
    "kind": "Service",
    "metadata": _meta(),
    "spec": {
        "selector": dict(_LABELS),  # stable and canary share requests in proportion to replicas
        "ports": [{"name": "http", "port": 80, "targetPort": "http"}],
    },
}
ACCOUNT: Plain = {
    "apiVersion": "v1",
    "kind": "ServiceAccount",
    "metadata": _meta(),
    "automountServiceAccountToken": False,
}
VOLUME: Plain = {
    "apiVersion": "v1",
    "kind": "PersistentVolumeClaim",
    "metadata": _meta("firstlight-cache"),
    "spec": {
        "accessModes": ["ReadWriteMany"],
        "resources": {"requests": {"storage": "10Gi"}},
    },
}
WARM_UP: Plain = {
    "apiVersion": "batch/v1",
    "kind": "Job",
    "metadata": _meta("firstlight-warm-up"),
    "spec": {
        "backoffLimit": 2,
        "ttlSecondsAfterFinished": 3600,
        "template": {
            "metadata": {"labels": {"app": "firstlight-warm-up"}},
            "spec": _pod(
                _container(["warm", "build", "/app/app.warm", "--cache", CACHE]),
                restartPolicy="Never",
            ),
        },
    },
}
AUTOSCALER: Plain = {
    "apiVersion": "autoscaling/v2",
    "kind": "HorizontalPodAutoscaler",
    "metadata": _meta(),
    "spec": {
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": NAME},
        "minReplicas": 2,
        "maxReplicas": 8,
        "metrics": [
            {
                "type": "Pods",
                "pods": {
                    "metric": {"name": m.QUEUE_LENGTH.name},
                    "target": {"type": "AverageValue", "averageValue": "16"},
                },
            }
        ],
        "behavior": {"scaleDown": {"stabilizationWindowSeconds": 600}},
    },
}
NETWORK: Plain = {
    "apiVersion": "networking.k8s.io/v1",
    "kind": "NetworkPolicy",
    "metadata": _meta(),
    "spec": {
        "podSelector": {"matchLabels": dict(_LABELS)},
        "policyTypes": ["Ingress", "Egress"],
        "ingress": [
            {
                "from": [
                    {"podSelector": {"matchLabels": {"firstlight-client": "true"}}},
                    {
                        "namespaceSelector": {
                            "matchLabels": {"kubernetes.io/metadata.name": "monitoring"}
                        }
                    },
                ],
                "ports": [{"port": "http", "protocol": "TCP"}],
            }
        ],
        "egress": [],  # a server calls nobody
    },
}
DISRUPTIONS: Plain = {
    "apiVersion": "policy/v1",
    "kind": "PodDisruptionBudget",
    "metadata": _meta(),
    "spec": {"minAvailable": 1, "selector": {"matchLabels": dict(_LABELS)}},
}
BASE = {
    "deployment.yaml": DEPLOYMENT,
    "service.yaml": SERVICE,
    "service-account.yaml": ACCOUNT,
    "cache-volume.yaml": VOLUME,
    "warm-up-job.yaml": WARM_UP,
    "autoscaler.yaml": AUTOSCALER,
    "network-policy.yaml": NETWORK,
    "disruption-budget.yaml": DISRUPTIONS,
}


def canary() -> Plain:
    """One more pod behind the same service, with another image."""
    template = DEPLOYMENT["spec"]["template"]
    labels = {**_LABELS, "track": "canary"}
    return {
        **DEPLOYMENT,
        "metadata": _meta("firstlight-canary"),
        "spec": {
            **DEPLOYMENT["spec"],
            "replicas": 1,
            "selector": {"matchLabels": labels},
            "template": {**template, "metadata": {**template["metadata"], "labels": labels}},
        },
    }


#: Knative, pre-warmed: one instance always runs, and the image contains compiled programs.
SERVERLESS: Plain = {
    "apiVersion": "serving.knative.dev/v1",
    "kind": "Service",
    "metadata": _meta(),
    "spec": {
        "template": {
            "metadata": {
                "annotations": {
                    "autoscaling.knative.dev/min-scale": "1",
                    "autoscaling.knative.dev/max-scale": "8",
                    "autoscaling.knative.dev/metric": "concurrency",
                    "autoscaling.knative.dev/target": "32",
                }
            },
            "spec": {
                "containers": [
                    {
                        "image": f"{IMAGE}:warm",
                        "args": _SERVER["args"],
                        "ports": [{"containerPort": PORT}],
                        "env": [
                            {"name": "FIRSTLIGHT_CACHE_DIR", "value": "/app/compiled"},
                            _ENVIRONMENT[1],
                        ],
                        "resources": _RESOURCES,
                        "securityContext": {**_SECURE, "runAsNonRoot": True},
                        "readinessProbe": {"httpGet": {"path": "/v2/health/ready"}},
                    }
                ]
            },
        }
    },
}


def _kustomization(resources: list[str], **more: object) -> Plain:
    head = {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization"}
    return {**head, "resources": resources, **more}


def documents() -> dict[str, Plain]:
    """{path below kubernetes/: manifest}."""
    images = [{"name": IMAGE, "newTag": "1"}]
    return {
        "base/kustomization.yaml": _kustomization(list(BASE), images=images),
        **{f"base/{name}": manifest for name, manifest in BASE.items()},
        "canary/kustomization.yaml": _kustomization(["deployment.yaml"], images=images),
        "canary/deployment.yaml": canary(),
        "serverless/kustomization.yaml": _kustomization(["service.yaml"]),
        "serverless/service.yaml": SERVERLESS,
    }
