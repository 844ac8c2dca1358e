"""The table of alerts that depend on no error budget.

Ranges are written in seconds ([600s]); `rules` may shorten them. `fires` and `silent` are the
series of promtool tests: under the first the alert fires, the second are of a healthy process.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from firstlight.ops.objectives import TEST_PROCESS, Scope
from firstlight.telemetry import metrics as m

Series = tuple[tuple[str, str], ...]


class Severity(Enum):
    PAGE = "page"  # somebody is woken
    TICKET = "ticket"  # somebody looks at it on a working day


@dataclass(frozen=True)
class Alert:
    """Fires while `condition` holds for `for_seconds`."""

    name: str
    severity: Severity
    scope: Scope
    condition: str
    for_seconds: int
    summary: str
    runbook: str
    fires: Series
    silent: Series
    silent_in_deploys: bool = True


_DEVICE = f'{TEST_PROCESS},device="gpu:0"'


def _at(name: str, labels: str, values: str) -> tuple[str, str]:
    return f"{name}{{{labels}}}", values


def _cases(metric: m.Metric, labels: str, fires: str, silent: str) -> tuple[Series, Series]:
    """The series of an alert's two tests, for an alert on one metric."""
    return (_at(metric.name, labels, fires),), (_at(metric.name, labels, silent),)


def _memory_used_over(share: float) -> str:
    used, limit = m.DEVICE_MEMORY_USED.name, m.DEVICE_MEMORY_LIMIT.name
    return f"max by (job, instance) ({used} / ({limit} > 0)) > {share}"


def _memory(used: float) -> Series:
    return (
        _at(m.DEVICE_MEMORY_USED.name, _DEVICE, f"{used * 1e10:.0f}+0x"),
        _at(m.DEVICE_MEMORY_LIMIT.name, _DEVICE, f"{1e10:.0f}+0x"),
    )


def _more_than(count: float, metric: m.Metric, scope: Scope, seconds: int, labels: str = "") -> str:
    chosen = metric.name + (f"{{{labels}}}" if labels else "")
    risen = f"sum by ({scope.by}) (increase({chosen}[{seconds}s])) > {count}"
    if count:
        return risen
    # increase() does not see a counter whose first sample is already 1.
    new = f"sum by ({scope.by}) ({chosen} unless {chosen} offset {seconds}s) > 0"
    return f"{risen} or {new}"


def _misses(instances: str) -> Series:
    return tuple(
        _at(m.COMPILE_CACHE_REQUESTS.name, f'job="jax",instance="{name}",result="miss"', "0+10x")
        for name in instances
    )


def _runtimes(*jaxlibs: str) -> Series:
    return tuple(
        _at(
            m.RUNTIME_INFO.name,
            f'job="jax",instance="{name}",jax="0.10.2",jaxlib="{jaxlib}",platform="gpu",device="H200"',
            "1+0x",
        )
        for name, jaxlib in zip("ab", jaxlibs, strict=False)
    )


_MODEL = 'model="demo"'
_FULL = 'reason=~"queue_full|deadline"'
_ON = "{{ $labels.instance }}"
_FUNCTION = "{{ $labels.function }}"
_STEP = f'{TEST_PROCESS},function="step"'
ALERTS = (
    Alert(
        "FirstlightStartSlow",
        Severity.TICKET,
        Scope.PROCESS,
        f"max by (job, instance) ({m.STARTUP_DURATION.name}) > 60",
        60,
        f"{_ON} took more than a minute to be ready.",
        "cold-compile",
        *_cases(m.STARTUP_DURATION, TEST_PROCESS, "90+0x", "2+0x"),
    ),
    Alert(
        "FirstlightRequestPathCompiles",
        Severity.PAGE,
        Scope.PROCESS,
        _more_than(0, m.REQUEST_PATH_COMPILES, Scope.PROCESS, 600),
        0,
        f"{_ON} compiles while requests wait.",
        "repeated-recompilation",
        *_cases(m.REQUEST_PATH_COMPILES, TEST_PROCESS, "0+1x", "0+0x"),
    ),
    Alert(
        "FirstlightThunderingCompilation",
        Severity.PAGE,
        Scope.FLEET,
        "count by (job) (sum by (job, instance) (increase("
        f'{m.COMPILE_CACHE_REQUESTS.name}{{result="miss"}}[600s])) > 0) > 3',
        120,
        "More than three processes of {{ $labels.job }} compile at once; one could for all.",
        "thundering-compilation",
        fires=_misses("abcd"),
        silent=_misses("a"),
        silent_in_deploys=False,  # a deploy is when it happens
    ),
    Alert(
        "FirstlightDeviceOutOfMemory",
        Severity.PAGE,
        Scope.MODEL,
        _more_than(0, m.OUT_OF_MEMORY, Scope.MODEL, 600),
        0,
        "The device ran out of memory for {{ $labels.model }}.",
        "out-of-memory",
        *_cases(m.OUT_OF_MEMORY, _MODEL, "0+1x", "0+0x"),
        silent_in_deploys=False,
    ),
    Alert(
        "FirstlightBatchStuck",
        Severity.PAGE,
        Scope.MODEL,
        f"max by (model) ({m.BATCH_OVERDUE.name}) > 30",
        30,
        "A batch of {{ $labels.model }} does not end; its requests are answered 504.",
        "stuck-batch",
        *_cases(m.BATCH_OVERDUE, _MODEL, "60+30x", "0+0x"),
        silent_in_deploys=False,
    ),
    Alert(
        "FirstlightCanaryTakenBack",
        Severity.TICKET,
        Scope.MODEL,
        _more_than(0, m.CANARIES_TAKEN_BACK, Scope.MODEL, 600),
        0,
        "A canary of {{ $labels.model }} was taken back; the current version answers.",
        "canary-taken-back",
        *_cases(m.CANARIES_TAKEN_BACK, _MODEL, "0+1x", "0+0x"),
        silent_in_deploys=False,
    ),
    Alert(
        "FirstlightMemoryHeadroomGone",
        Severity.PAGE,
        Scope.PROCESS,
        _memory_used_over(0.97),
        120,
        f"{_ON} has less than 3 % of its device's memory left.",
        "out-of-memory",
        fires=_memory(0.98),
        silent=_memory(0.5),
    ),
    Alert(
        "FirstlightMemoryHeadroomLow",
        Severity.TICKET,
        Scope.PROCESS,
        _memory_used_over(0.9),
        600,
        f"{_ON} has less than 10 % of its device's memory left.",
        "out-of-memory",
        fires=_memory(0.95),
        silent=_memory(0.5),
    ),
    Alert(
        "FirstlightOverloaded",
        Severity.TICKET,
        Scope.MODEL,
        f"sum by (model) (rate({m.REJECTED.name}{{{_FULL}}}[300s])) > 0.05 * "
        f"sum by (model) (rate({m.REQUESTS.name}[300s]))",
        300,
        "More than 5 % of the requests for {{ $labels.model }} are refused: too few replicas.",
        "overload",
        fires=(
            _at(m.REJECTED.name, f'{_MODEL},reason="queue_full"', "0+10x"),
            _at(m.REQUESTS.name, f'{_MODEL},code="200"', "0+100x"),
        ),
        silent=(
            _at(m.REJECTED.name, f'{_MODEL},reason="queue_full"', "0+1x"),
            _at(m.REQUESTS.name, f'{_MODEL},code="200"', "0+100x"),
        ),
    ),
    Alert(
        "FirstlightRuntimesDiffer",
        Severity.TICKET,
        Scope.FLEET,
        "count by (job) (count by (job, jax, jaxlib, platform, device) "
        f"({m.RUNTIME_INFO.name})) > 1",
        600,
        "Processes of {{ $labels.job }} run different versions or devices.",
        "runtime-mismatch",
        fires=_runtimes("0.10.2", "0.10.1"),
        silent=_runtimes("0.10.2", "0.10.2"),
    ),
    Alert(
        "FirstlightDeviceFallback",
        Severity.PAGE,
        Scope.PROCESS,
        f"max by (job, instance) ({m.DEVICE_FALLBACK.name}) > 0",
        60,
        f"{_ON} should use an accelerator but does not.",
        "runtime-mismatch",
        *_cases(m.DEVICE_FALLBACK, TEST_PROCESS, "1+0x", "0+0x"),
        silent_in_deploys=False,
    ),
    Alert(
        "FirstlightDown",
        Severity.PAGE,
        Scope.PROCESS,
        "min by (job, instance) (up) == 0 and on (job, instance) "
        f"count by (job, instance) (count_over_time({m.RUNTIME_INFO.name}[86400s]))",
        120,
        f"{_ON} no longer answers Prometheus.",
        "availability",
        fires=(_at("up", TEST_PROCESS, "0+0x"), *_runtimes("0.10.2")),
        silent=(_at("up", TEST_PROCESS, "1+0x"),),
    ),
    Alert(
        "FirstlightRestarting",
        Severity.PAGE,
        Scope.PROCESS,
        f"max by (job, instance) (changes({m.PROCESS_START.name}[1800s])) > 3 and on (job, "
        f"instance) count by (job, instance) (count_over_time({m.RUNTIME_INFO.name}[1800s]))",
        0,
        f"{_ON} restarted more than three times in half an hour.",
        "availability",
        fires=(_at(m.PROCESS_START.name, TEST_PROCESS, "0+1x"), *_runtimes("0.10.2")),
        silent=(_at(m.PROCESS_START.name, TEST_PROCESS, "5+0x"),),
        silent_in_deploys=False,  # every start looks like a deploy
    ),
    Alert(
        "FirstlightRecompiling",
        Severity.TICKET,
        Scope.FUNCTION,
        _more_than(5, m.RECOMPILES, Scope.FUNCTION, 600),
        0,
        f"{_FUNCTION} keeps being recompiled on {_ON}.",
        "repeated-recompilation",
        *_cases(m.RECOMPILES, _STEP, "0+1x", "3+0x"),
    ),
    Alert(
        "FirstlightLeak",
        Severity.TICKET,
        Scope.FUNCTION,
        # Over 15 minutes, so that a garbage collection or a failed scrape does not resolve it.
        f"max by ({Scope.FUNCTION.by}) (max_over_time({m.LEAK_SUSPECTED.name}[900s])) > 0",
        60,
        f"The memory of {_ON} grows steadily; arrays made by {_FUNCTION} stay alive.",
        "memory-leak",
        *_cases(m.LEAK_SUSPECTED, f'{_STEP},memory="arrays"', "1+0x", "0+0x"),
        silent_in_deploys=False,
    ),
    Alert(
        "FirstlightNonDeterministic",
        Severity.TICKET,
        Scope.FUNCTION,
        _more_than(0, m.COMPARED_OUTPUTS, Scope.FUNCTION, 3600, 'result="different"'),
        0,
        f"{_FUNCTION} on {_ON} gave different outputs for equal inputs.",
        "non-determinism",
        fires=(_at(m.COMPARED_OUTPUTS.name, f'{_STEP},result="different"', "1+0x"),),
        silent=(_at(m.COMPARED_OUTPUTS.name, f'{_STEP},result="same"', "0+1x"),),
        silent_in_deploys=False,
    ),
    Alert(
        "FirstlightNotANumber",
        Severity.TICKET,
        Scope.FUNCTION,
        _more_than(0, m.CHECKED_RESULTS, Scope.FUNCTION, 600, 'result="nan"'),
        0,
        f"Results of {_FUNCTION} on {_ON} contain NaN.",
        "nan-results",
        fires=(_at(m.CHECKED_RESULTS.name, f'{_STEP},result="nan"', "0+1x"),),
        silent=(_at(m.CHECKED_RESULTS.name, f'{_STEP},result="finite"', "0+1x"),),
        silent_in_deploys=False,
    ),
    Alert(
        "FirstlightGradientWrong",
        Severity.TICKET,
        Scope.PROCESS,
        _more_than(0, m.GRADIENT_CHECKS, Scope.PROCESS, 3600, 'result="wrong"'),
        0,
        f"A gradient on {_ON} disagrees with finite differences.",
        "wrong-gradient",
        fires=(_at(m.GRADIENT_CHECKS.name, f'{TEST_PROCESS},result="wrong"', "0+1x"),),
        silent=(_at(m.GRADIENT_CHECKS.name, f'{TEST_PROCESS},result="ok"', "0+1x"),),
        silent_in_deploys=False,
    ),
)
