"""Differentiable HistFactory: likelihood fits of binned data, from pyhf workspaces, in JAX.

    from firstlight import histfactory as hf

    model = hf.load("workspace.json")
    hf.fit(model).parameters
    hf.discovery(model).z0

Nothing is imported until it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from firstlight.lazy_names import lazy_names

if TYPE_CHECKING:
    from firstlight.histfactory.argument_checks import ModelError
    from firstlight.histfactory.evaluation import (
        expected_data,
        gradient,
        hessian,
        nll,
        nll_and_gradient,
    )
    from firstlight.histfactory.exclusion import CLs, CLsStatus, bins_without_background, cls
    from firstlight.histfactory.fitting import FitResult, fit, precompile
    from firstlight.histfactory.inference import Discovery, asimov, discovery, qmu, qmu_tilde
    from firstlight.histfactory.limits import UpperLimit, upper_limit
    from firstlight.histfactory.loading import WorkspaceWarning, load
    from firstlight.histfactory.model import Model
    from firstlight.histfactory.newton import Status
    from firstlight.histfactory.scans import Impacts, Scan, impacts, scan
    from firstlight.histfactory.toy_fits import ToyCLs, Toys, toy_cls, toys
    from firstlight.histfactory.workspace_file import WorkspaceError

_HOME = {
    "argument_checks": ("ModelError",),
    "evaluation": ("expected_data", "gradient", "hessian", "nll", "nll_and_gradient"),
    "fitting": ("FitResult", "fit", "precompile"),
    "exclusion": ("CLs", "CLsStatus", "bins_without_background", "cls"),
    "inference": ("Discovery", "asimov", "discovery", "qmu", "qmu_tilde"),
    "limits": ("UpperLimit", "upper_limit"),
    "loading": ("WorkspaceWarning", "load"),
    "model": ("Model",),
    "newton": ("Status",),
    "scans": ("Impacts", "Scan", "impacts", "scan"),
    "toy_fits": ("ToyCLs", "Toys", "toy_cls", "toys"),
    "workspace_file": ("WorkspaceError",),
}

__all__ = [
    "CLs",
    "CLsStatus",
    "Discovery",
    "FitResult",
    "Impacts",
    "Model",
    "ModelError",
    "Scan",
    "Status",
    "ToyCLs",
    "Toys",
    "UpperLimit",
    "WorkspaceError",
    "WorkspaceWarning",
    "asimov",
    "bins_without_background",
    "cls",
    "discovery",
    "expected_data",
    "fit",
    "gradient",
    "hessian",
    "impacts",
    "load",
    "nll",
    "nll_and_gradient",
    "precompile",
    "qmu",
    "qmu_tilde",
    "scan",
    "toy_cls",
    "toys",
    "upper_limit",
]

__getattr__, __dir__ = lazy_names(__name__, _HOME)
