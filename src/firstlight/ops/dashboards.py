"""The three dashboards, as tables of panels.

The rate of a counter of seconds is the mean number in progress (Little's law): so requests in
flight and compiles in progress are shown.
"""

from __future__ import annotations

from dataclasses import dataclass

from firstlight.ops.objectives import OBJECTIVES, Objective, Scope
from firstlight.ops.prometheus_api import FIRING
from firstlight.telemetry import metrics as m

Queries = tuple[tuple[str, str], ...]  # legend in Grafana's form, expression
#: Variables of the dashboards that people set, with their initial values.
VARIABLES = {"price_per_hour": "1.00"}


@dataclass(frozen=True)
class Panel:
    """One or more queries over time; `unit` is Grafana's name for it."""

    title: str
    unit: str
    queries: Queries
    about: str = ""


@dataclass(frozen=True)
class Dashboard:
    name: str
    title: str
    panels: tuple[Panel, ...]
    text: str = ""


def _rate(metric: m.Metric, by: str, labels: str = "", suffix: str = "") -> str:
    chosen = f"{{{labels}}}" if labels else ""
    return f"sum by ({by}) (rate({metric.name}{suffix}{chosen}[5m]))"


def _share(metric: m.Metric, by: str, labels: str, suffix: str = "") -> str:
    whole = _rate(metric, by, "", suffix)
    return f"({_rate(metric, by, labels, suffix)} or 0 * {whole}) / {whole}"


def _quantiles(metric: m.Metric, by: str, labels: str = "") -> Queries:
    return tuple(
        (
            f"{{{{{by}}}}} p{share}",
            f"histogram_quantile(0.{share}, {_rate(metric, f'{by}, le', labels, '_bucket')})",
        )
        for share in ("50", "95", "99")
    )


def _burn(objective: Objective) -> tuple[str, str]:
    """(legend, burn rate) of an error budget; over processes, the highest."""
    share = objective.recorded("ratio_1h")
    if objective.scope is Scope.MODEL:
        return f"{objective.name} {{{{model}}}}", f"{share} / {objective.budget:g}"
    return f"{objective.name} {{{{job}}}}", f"max by (job) ({share}) / {objective.budget:g}"


def _in_an_hour(counter: m.Metric, by: str) -> str:
    return f"sum by ({by}) (increase({counter.name}[1h]))"


def _of(metric: m.Metric, legend: str, by: str) -> tuple[str, str]:
    return legend, f"max by ({by}) ({metric.name})"


_IN_FLIGHT = _rate(m.REQUEST_DURATION, "model", suffix="_sum")
_COMPILING = _rate(m.COMPILE_DURATION, "instance", 'stage="compile"', "_sum")
_COST = f"1000 * $price_per_hour * sum({m.READY.name}) / (3600 * sum(rate({m.ROWS.name}[5m])) > 0)"
_COLD = _share(m.REQUEST_DURATION, "model", 'phase="cold"', "_count")
_BATCH = " / ".join(_rate(m.BATCH_ROWS, "model", "", suffix) for suffix in ("_sum", "_count"))
_PADDED = _rate(m.PADDING_ROWS, "model")
_PADDING = f"{_PADDED} / ({_PADDED} + {_rate(m.ROWS, 'model')})"
_HITS = _share(m.COMPILE_CACHE_REQUESTS, "instance", 'result="hit"')

EXECUTIVE = Dashboard(
    "executive",
    "Firstlight: service",
    (
        Panel(
            "Requests without an error",
            "percentunit",
            (("{{model}}", f"1 - {OBJECTIVES[0].recorded('ratio_1h')}"),),
            f"Objective: {OBJECTIVES[0].percent:g} %.",
        ),
        Panel(
            "Budget spent (1 is as fast as allowed)",
            "short",
            tuple(map(_burn, OBJECTIVES)),
            "Above 14.4 for an hour, it pages.",
        ),
        Panel("Warm latency", "s", _quantiles(m.REQUEST_DURATION, "model", 'phase="warm"')),
        Panel("Requests per second", "reqps", (("{{model}}", _rate(m.REQUESTS, "model")),)),
        Panel(
            "Cost of a thousand rows",
            "currencyUSD",
            (("all models", _COST),),
            "At price_per_hour per ready process.",
        ),
        Panel(
            "Accelerator use",
            "percentunit",
            (
                ("{{model}}: computing", _rate(m.EXECUTE_DURATION, "model", suffix="_sum")),
                ("{{device}}: a kernel runs", f"avg by (device) ({m.GPU_UTILIZATION.name})"),
            ),
        ),
        Panel("Cold requests", "percentunit", (("{{model}}", _COLD),)),
        Panel("Time to ready", "s", (_of(m.STARTUP_DURATION, "{{instance}}", "instance"),)),
    ),
)
ON_CALL = Dashboard(
    "on-call",
    "Firstlight: on call",
    (
        Panel(
            "Alerts",
            "short",
            (
                ("{{alertname}} {{severity}}", f"sum by (alertname, severity) ({FIRING})"),
                ("all", f"sum({FIRING}) or vector(0)"),
            ),
        ),
        Panel("Answers by code", "reqps", (("{{code}}", _rate(m.REQUESTS, "code")),)),
        Panel("Refused, by reason", "reqps", (("{{reason}}", _rate(m.REJECTED, "reason")),)),
        Panel(
            "Queue",
            "short",
            (
                ("{{model}}: rows waiting", f"sum by (model) ({m.QUEUE_LENGTH.name})"),
                ("{{model}}: requests in flight", _IN_FLIGHT),
            ),
        ),
        Panel("Wait in the queue", "s", _quantiles(m.QUEUE_DURATION, "model")),
        Panel(
            "Memory",
            "bytes",
            (
                _of(m.DEVICE_MEMORY_USED, "{{instance}} {{device}}", "instance, device"),
                _of(m.DEVICE_MEMORY_LIMIT, "{{instance}} {{device}} limit", "instance, device"),
                _of(m.PROCESS_MEMORY, "{{instance}} host", "instance"),
            ),
        ),
        Panel(
            "Out of memory, and NaN",
            "short",
            (
                ("{{model}}: out of memory in an hour", _in_an_hour(m.OUT_OF_MEMORY, "model")),
                ("{{model}}: rows with NaN in an hour", _in_an_hour(m.NAN_ROWS, "model")),
            ),
        ),
        Panel(
            "Compiles in progress",
            "short",
            (("{{instance}}", _COMPILING),),
            "Mean number in progress; 0 outside deploys.",
        ),
        Panel(
            "Compiles while requests wait",
            "short",
            (("{{instance}}", _in_an_hour(m.REQUEST_PATH_COMPILES, "instance")),),
        ),
        Panel(
            "Deploys and readiness",
            "short",
            (
                _of(m.DEPLOY_IN_PROGRESS, "{{instance}} {{model}}: deploy", "instance, model"),
                _of(m.READY, "{{instance}}: ready", "instance"),
            ),
        ),
    ),
)
DEBUG = Dashboard(
    "debug",
    "Firstlight: debug",
    (
        Panel(
            "Compile seconds by function",
            "s",
            (("{{function}}", _in_an_hour(m.COMPILE_SECONDS, "function")),),
        ),
        Panel(
            "Recompiles by function",
            "short",
            (("{{function}}", _in_an_hour(m.RECOMPILES, "function")),),
            "For the reasons: firstlight trace PROGRAM",
        ),
        Panel(
            "From the compilation cache",
            "percentunit",
            (
                ("{{function}}", _share(m.COMPILES, "function", 'source="cache"')),
                ("{{instance}}: all", _HITS),
            ),
        ),
        Panel(
            "Where the time of requests goes",
            "percentunit",
            (
                (
                    "{{model}}: computing",
                    f"{_rate(m.EXECUTE_DURATION, 'model', suffix='_sum')} / {_IN_FLIGHT}",
                ),
                (
                    "{{model}}: waiting",
                    f"{_rate(m.QUEUE_DURATION, 'model', suffix='_sum')} / {_IN_FLIGHT}",
                ),
            ),
        ),
        Panel(
            "Batches",
            "short",
            (("{{model}}: rows in a batch", _BATCH), ("{{model}}: share of padding", _PADDING)),
        ),
        Panel("Steps", "s", _quantiles(m.STEP_DURATION, "function")),
        Panel(
            "Garbage collection",
            "percentunit",
            (("{{instance}}", _rate(m.GC_SECONDS, "instance")),),
            "Share of the time.",
        ),
        Panel("Live arrays", "bytes", (_of(m.LIVE_ARRAY_BYTES, "{{instance}}", "instance"),)),
        Panel(
            "Growth of memory per hour",
            "bytes",
            (
                (
                    "{{instance}} {{memory}}",
                    f"3600 * max by (instance, memory) ({m.MEMORY_GROWTH.name})",
                ),
            ),
            "0 unless memory grows steadily.",
        ),
        Panel(
            "Checks of results",
            "cps",
            (
                ("outputs {{result}}", _rate(m.COMPARED_OUTPUTS, "result")),
                ("results {{result}}", _rate(m.CHECKED_RESULTS, "result")),
                ("gradients {{result}}", _rate(m.GRADIENT_CHECKS, "result")),
                ("not checked: {{reason}}", _rate(m.GRADIENTS_NOT_CHECKED, "reason")),
            ),
        ),
        Panel(
            "Processor time", "percentunit", (("{{instance}}", _rate(m.PROCESS_CPU, "instance")),)
        ),
    ),
    "Why does it recompile? `firstlight trace PROGRAM`, then open DIR/report.html.  \n"
    "Why was it not in the cache? `firstlight cache explain FUNCTION`.  \n"
    "What is the device doing? `POST /debug/profile?seconds=5`; open the trace at ui.perfetto.dev.",
)
DASHBOARDS = (EXECUTIVE, ON_CALL, DEBUG)


def resolved(expression: str) -> str:
    """The expression with the initial values of the dashboard's variables."""
    for name, value in VARIABLES.items():
        expression = expression.replace(f"${name}", value)
    return expression
