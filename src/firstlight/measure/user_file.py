"""Finds the benchmarks in a user's file in a separate process; the parent does not import it."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from firstlight.errors import FirstlightError
from firstlight.measure.case_selection import SelectionError, make_case, suggestion
from firstlight.measure.process import Outcome, run_worker
from firstlight.records import Case, JsonObject
from firstlight.workloads.catalog import Backend, CatalogError, Size, Workload

_OPTIONS = ("workload", "backend", "sizes", "reference", "tolerance", "environment")
_DEFAULT_TOLERANCE = 1e-4
_IMPORT_SECONDS = 300.0


class UserFileError(FirstlightError):
    """The file cannot be imported, or its benchmarks are not valid."""


class UnimportableError(UserFileError):
    """The file cannot be imported; `outcome` is that of the process that tried."""

    def __init__(self, message: str, outcome: Outcome) -> None:
        super().__init__(message)
        self.outcome = outcome


def cases_in(
    path: Path,
    backends: Mapping[str, Backend],
    wanted: Sequence[str] | None,
    caches: Sequence[str] | None,
    spawn: Callable[..., Outcome] = run_worker,
) -> list[Case]:
    """The cases of every function in `path` that is marked with `@firstlight.bench`."""
    if not path.is_file():
        raise SelectionError(f"{path}: no such file.")
    found = _discover(path, spawn)
    if not found["benchmarks"]:
        raise UserFileError(
            f"{path}: no function is marked with @firstlight.bench, so there is nothing to measure."
        )
    if applied := [c for c in caches or () if c in ("frozen", "tiered")]:
        raise UserFileError(
            f"{path}: the policy {applied[0]} replaces jax.jit in the built-in workloads only. In "
            "your own file, call firstlight.warmstart yourself, and measure with --cache none."
        )
    cases: dict[str, Case] = {}
    for options in found["benchmarks"]:
        workload, backend = _workload(path, options, found["frameworks"], backends)
        if wanted is not None and backend.name not in wanted:
            continue
        policies = caches if caches and backend.cache else ("none",)
        for cache, size in itertools.product(policies, workload.sizes):
            case = make_case(workload, size, backend, cache)
            if case.id in cases:
                raise UserFileError(
                    f"{path}: {options['function']} is a second {case.id}. Give one of them "
                    "another workload=, backend= or size."
                )
            cases[case.id] = case
    if not cases:
        raise SelectionError(f"{path}: no benchmark uses the backend {', '.join(wanted or ())}.")
    return list(cases.values())


def _discover(path: Path, spawn: Callable[..., Outcome]) -> JsonObject:
    outcome = spawn({"kind": "discover", "file": str(path.absolute())}, os.environ, _IMPORT_SECONDS)
    if outcome.timed_out:
        raise UnimportableError(
            f"{path}: importing it took longer than {_IMPORT_SECONDS:.0f} s. Move the work into "
            "the decorated functions.",
            outcome,
        )
    if outcome.report is None or "exception" in outcome.report:
        failed = f"cannot be imported (exit code {outcome.exit_code})"
        raise UnimportableError(f"{path}: {failed}:\n{outcome.output_tail}", outcome)
    if "error" in outcome.report:
        raise UserFileError(str(outcome.report["error"]))
    return outcome.report


def _workload(
    path: Path,
    options: JsonObject,
    frameworks: Sequence[str],
    backends: Mapping[str, Backend],
) -> tuple[Workload, Backend]:
    function = options["function"]
    try:
        _require_usable(options)
        name = options.get("backend") or _as_written(frameworks)
        if not isinstance(name, str) or name not in backends:
            raise UserFileError(f"unknown backend {name!r}.{suggestion(str(name), backends)}")
        sizes = options.get("sizes") or {"default": {}}
        workload = Workload(
            name=str(options.get("workload") or function),
            title=f"{path.name}: {function}",
            programs={backends[name].framework: function},
            reference=f"{path.name}: reference of {function}" if options["reference"] else None,
            sizes={str(size): Size(values) for size, values in sizes.items()},
            tolerance=float(options.get("tolerance", _DEFAULT_TOLERANCE)),
            environment=options.get("environment") or {},
            seed=None,
            file=str(path.absolute()),
        )
    except (CatalogError, UserFileError) as error:
        raise UserFileError(f"{path}: {function}: {error}") from None
    return workload, backends[name]


def _require_usable(options: JsonObject) -> None:
    """Reject invalid options of `bench`."""
    for option in options:
        if option not in (*_OPTIONS, "function"):
            raise UserFileError(
                f"unknown option {option!r} of bench.{suggestion(option, _OPTIONS)}"
            )
    if not _is_table(sizes := options.get("sizes") or {}, dict):
        raise UserFileError(f"sizes must be {{name: {{argument: value}}}}, not {sizes!r}.")
    tolerance = options.get("tolerance", _DEFAULT_TOLERANCE)
    if not isinstance(tolerance, (int, float)) or tolerance < 0:
        raise UserFileError(f"tolerance must be a number, at least 0, not {tolerance!r}.")
    if not _is_table(environment := options.get("environment") or {}, str):
        raise UserFileError(f"environment must be {{name: text}}, not {environment!r}.")


def _is_table(value: object, kind: type) -> bool:
    return isinstance(value, dict) and all(isinstance(item, kind) for item in value.values())


def _as_written(frameworks: Sequence[str]) -> str:
    """The backend that measures code as written, by the framework that the file imports."""
    return next((name for name in ("jax", "torch", "numpy") if name in frameworks), "python")
