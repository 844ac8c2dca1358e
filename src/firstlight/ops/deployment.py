"""The container of a server, and the workflow that brings a commit to a canary."""

from __future__ import annotations

from firstlight.ops.manifests import IMAGE, PORT, USER, Plain

CONTAINERFILE = f"""\
# docker build -f Containerfile .            with app.py, app.warm and constraints.txt beside it
# docker build --target warm -f Containerfile .   with compiled/ too: firstlight warm build --cache
FROM python:3.11-slim AS app
ARG JAX="jax[cuda13]"
COPY constraints.txt /app/
RUN pip install --no-cache-dir -c /app/constraints.txt "$JAX" "firstlight[serve]" \\
    && useradd --uid {USER} --no-create-home app
COPY --chown=root:root app.py app.warm /app/
USER {USER}
WORKDIR /app
EXPOSE {PORT}
ENTRYPOINT ["firstlight"]
CMD ["serve", "/app/app.py", "--host", "0.0.0.0"]

FROM app AS warm
COPY --chown=root:root compiled /app/compiled
ENV FIRSTLIGHT_CACHE_DIR=/app/compiled
"""

_ONLY_MAIN = "github.ref == 'refs/heads/main'"
_DEPLOY_CANARY = f"""\
kubectl apply -k ops/kubernetes/base
kubectl wait --for=condition=complete job/firstlight-warm-up --timeout=30m
cd ops/kubernetes/canary && kustomize edit set image {IMAGE}=*:${{{{ github.sha }}}}
kubectl apply -k .
kubectl rollout status deployment/firstlight-canary --timeout=30m
"""
WORKFLOW: Plain = {
    "name": "deploy",
    "on": {"push": {"branches": ["main"]}, "pull_request": {}},
    "permissions": {"contents": "read"},
    "jobs": {
        "warm": {
            "runs-on": [
                "self-hosted",
                "gpu",
            ],  # programs run on the kind of device that compiled them
            "steps": [
                {"uses": "actions/checkout@v4", "with": {"fetch-depth": 0}},
                {"run": "pip install -c constraints.txt 'firstlight[serve]'"},
                {"run": "firstlight doctor"},
                {"run": "firstlight warm build app.warm --cache compiled --jobs 8"},
                {"run": "firstlight warm check app.warm --cache compiled"},
                {
                    "run": "firstlight doctor --pre-production --constraints constraints.txt "
                    "--warm app.warm --cache compiled"
                },
                {
                    "uses": "actions/upload-artifact@v4",
                    "with": {"name": "compiled", "path": "compiled"},
                },
            ],
        },
        "gate": {
            "runs-on": ["self-hosted", "gpu"],
            "needs": "warm",
            "steps": [
                {"uses": "actions/checkout@v4", "with": {"fetch-depth": 0}},
                {"run": "pip install -c constraints.txt 'firstlight[serve]'"},
                {"run": "firstlight gate --base origin/main benchmarks.py"},
            ],
        },
        "canary": {
            "runs-on": "ubuntu-latest",
            "needs": ["warm", "gate"],
            "if": _ONLY_MAIN,
            "environment": "production",
            "steps": [
                {"uses": "actions/checkout@v4"},
                {"run": "firstlight ops build --out ops"},
                {"run": _DEPLOY_CANARY},
                {
                    "run": "firstlight doctor --production --constraints constraints.txt "
                    "--warm app.warm --prometheus $PROMETHEUS --metrics $CANARY/metrics"
                },
            ],
        },
    },
}
