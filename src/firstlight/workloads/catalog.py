"""What can be measured, as data: backends, workloads with their sizes, and the suites.

Nothing here is imported by the measured process, and nothing here imports a framework: a program is
named by `"module:function"` and loaded in the worker only. Other packages add theirs through the
entry-point groups `firstlight.backends` and `firstlight.workloads` (a `Backend` or `Workload`, or
a list of them).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from firstlight.records import FirstlightError


class CatalogError(FirstlightError):
    """A backend or workload that is registered cannot be used."""


@dataclass(frozen=True)
class Backend:
    """A way to run a program: the framework, and what is applied to the function under test."""

    name: str
    title: str
    framework: str  # selects the program of a workload: its key in `Workload.programs`
    adapter: str  # "module:class", an `firstlight.measure.adapters.Adapter`
    requires: tuple[str, ...]  # modules that must be installed
    compiled: bool  # does its first call pay for something that later calls use?
    cache: str | None = None  # which persistent cache it has: "jax", "torch" or none
    extra: str | None = None  # `pip install 'firstlight[extra]'`


@dataclass(frozen=True)
class Size:
    """Parameters of one size of a workload."""

    parameters: Mapping[str, Any]
    tolerance: float | None = None  # of this size, where it is not the workload's
    frameworks: tuple[str, ...] | None = None  # where not every framework has it
    note: str | None = None


@dataclass(frozen=True)
class Workload:
    """A program shape with its sizes, one program for each framework, and its reference."""

    name: str
    title: str
    programs: Mapping[str, str]  # framework: "module:function"
    reference: str | None
    sizes: Mapping[str, Size]
    tolerance: float  # max|x - ref| / max|ref| allowed in float32
    environment: Mapping[str, str] = field(default_factory=dict)
    seed: int = 0
    file: str | None = None  # a user's own benchmark file
    backends: tuple[str, ...] | None = None  # where not every backend makes sense


BACKENDS = (
    Backend("numpy", "NumPy", "numpy", "firstlight.measure.adapters:Adapter", ("numpy",), False),
    Backend(
        "jax-eager",
        "JAX, op by op",
        "jax",
        "firstlight.measure.adapters.jax:Jax",
        ("jax",),
        False,
        cache="jax",
        extra="jax",
    ),
    Backend(
        "jax-jit",
        "JAX, jax.jit",
        "jax",
        "firstlight.measure.adapters.jax:JaxJit",
        ("jax",),
        True,
        cache="jax",
        extra="jax",
    ),
    Backend(
        "torch-eager",
        "PyTorch, eager",
        "torch",
        "firstlight.measure.adapters.torch:Torch",
        ("torch",),
        False,
        extra="torch",
    ),
    Backend(
        "torch-compile",
        "PyTorch, torch.compile",
        "torch",
        "firstlight.measure.adapters.torch:TorchCompile",
        ("torch",),
        True,
        cache="torch",
        extra="torch",
    ),
    # For a user's own file, whose functions are compiled (or not) as they were written.
    Backend(
        "jax",
        "JAX, as written",
        "jax as written",
        "firstlight.measure.adapters.jax:Jax",
        ("jax",),
        True,
        cache="jax",
        extra="jax",
    ),
    Backend(
        "torch",
        "PyTorch, as written",
        "torch as written",
        "firstlight.measure.adapters.torch:TorchCompile",
        ("torch",),
        True,
        cache="torch",
        extra="torch",
    ),
    Backend(
        "python",
        "Python, as written",
        "python",
        "firstlight.measure.adapters:Adapter",
        ("numpy",),
        False,
    ),
)


def _workload(
    name: str,
    title: str,
    sizes: Mapping[str, Size],
    tolerance: float,
    frameworks: tuple[str, ...] = ("numpy", "jax", "torch"),
    module: str | None = None,
    **options: Any,
) -> Workload:
    path = f"firstlight.workloads.programs.{module or name}"
    return Workload(
        name=name,
        title=title,
        programs={framework: f"{path}:build_{framework}" for framework in frameworks},
        reference=f"{path}:reference",
        sizes=sizes,
        tolerance=tolerance,
        **options,
    )


WORKLOADS = (
    _workload(
        "matmul",
        "Matrix product (the baseline)",
        {"small": Size({"n": 128}), "large": Size({"n": 1024})},
        tolerance=1e-4,
    ),
    _workload(
        "batched_inference",
        "Small requests in a batch (vmap)",
        {
            "small": Size({"requests": 32, "width": 64}),
            "large": Size({"requests": 1024, "width": 256}),
        },
        tolerance=1e-4,
    ),
    _workload(
        "mlp_train",
        "20 training steps of a small network",
        {
            "small": Size({"width": 32, "batch": 64, "steps": 20}),
            "large": Size({"width": 256, "batch": 512, "steps": 20}),
        },
        tolerance=1e-3,
    ),
)

#: (workload, size, backends) of the quick suite: one question each, in three minutes on two cores.
QUICK = (
    ("matmul", "small", ("numpy", "jax-jit", "torch-eager")),
    ("mlp_train", "small", ("numpy", "jax-eager", "jax-jit", "torch-eager")),
)
SUITES = ("quick", "standard", "full")


def registered() -> tuple[dict[str, Backend], dict[str, Workload]]:
    """Backends and workloads by name: the built-in ones and those of other packages."""
    from importlib.metadata import entry_points

    backends = {b.name: b for b in BACKENDS}
    workloads = {w.name: w for w in WORKLOADS}
    for group, kind, known in (
        ("firstlight.backends", Backend, backends),
        ("firstlight.workloads", Workload, workloads),
    ):
        for point in entry_points(group=group):
            for item in _loaded(point, kind):
                if item.name in known:
                    raise CatalogError(
                        f"entry point {point.name!r} ({group}) registers {item.name!r}, which "
                        "exists already. Rename it in the package that registers it."
                    )
                known[item.name] = item
    return backends, workloads


def _loaded(point: Any, kind: type) -> Iterable[Any]:
    try:
        value = point.load()
    except Exception as error:
        raise CatalogError(
            f"entry point {point.name!r} ({point.group}, {point.value}) cannot be loaded: "
            f"{type(error).__name__}: {error}. Fix or uninstall the package that registers it."
        ) from error
    items = list(value) if isinstance(value, (list, tuple)) else [value]
    for item in items:
        if not isinstance(item, kind):
            raise CatalogError(
                f"entry point {point.name!r} ({point.group}) gives {type(item).__name__}, "
                f"expected {kind.__name__}."
            )
    return items
