"""The catalogue of backends, workloads with their sizes, and suites.

The measured process imports nothing from here, and nothing here imports a framework: a program is
named as `"module:function"` and loaded only in the worker. Other packages add entries through the
entry-point groups `firstlight.backends` and `firstlight.workloads` (a `Backend` or `Workload`, or
a list of them).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, TypeVar

from firstlight.workloads.kinds import Backend, CatalogError, Parameters, Size, Workload
from firstlight.workloads.likelihood_workloads import LIKELIHOODS

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

__all__ = [
    "BACKENDS",
    "QUICK",
    "SUITES",
    "WORKLOADS",
    "Backend",
    "CatalogError",
    "Size",
    "Workload",
    "registered",
]

T = TypeVar("T", Backend, Workload)

_ADAPTERS = "firstlight.measure.adapters"
_PLAIN, _JAX, _JIT = f"{_ADAPTERS}:NumPy", f"{_ADAPTERS}.jax:Jax", f"{_ADAPTERS}.jax:JaxJit"
_TORCH, _OVER_JAX = f"{_ADAPTERS}.torch:Torch", f"{_ADAPTERS}.torch_jax:TorchOverJax"
_PROGRAMS = "firstlight.workloads.programs"
# name, title, framework, adapter, requires, compiled, cache, extra
BACKENDS = (
    Backend("numpy", "NumPy", "numpy", _PLAIN, ("numpy",), False),
    Backend("jax-eager", "JAX, op by op", "jax", _JAX, ("jax",), False, "jax", "jax"),
    Backend("jax-jit", "JAX, jax.jit", "jax", _JIT, ("jax",), True, "jax", "jax"),
    Backend(
        "torch-eager", "PyTorch, eager", "torch", f"{_TORCH}Eager", ("torch",), False, None, "torch"
    ),
    Backend(
        *("torch-compile", "PyTorch, torch.compile", "torch", f"{_TORCH}Compile", ("torch",)),
        *(True, "torch", "torch"),
    ),
    # For a user's own file: the harness applies no transform.
    Backend("jax", "JAX, as written", "jax as written", _JAX, ("jax",), True, "jax", "jax"),
    Backend(
        *("torch", "PyTorch, as written", "torch as written", _TORCH, ("torch",)),
        *(True, "torch", "torch"),
    ),
    Backend("python", "Python, as written", "python", f"{_ADAPTERS}:Adapter", ("numpy",), False),
    # firstlight.torch: networks in PyTorch, the likelihood compiled by JAX.
    Backend(
        *("torch-jax", "PyTorch, the likelihood in JAX", "torch-jax", _OVER_JAX, ("torch", "jax")),
        *(True, "jax", "all"),
    ),
    # Peers of firstlight.histfactory: other programs that fit the same workspaces.
    Backend("pyhf-numpy", "pyhf on NumPy", "pyhf-numpy", _PLAIN, ("pyhf",), False, None, "peers"),
    Backend("pyhf-jax", "pyhf on JAX", "pyhf-jax", _JIT, ("pyhf", "jax"), True, "jax", "peers"),
    Backend("nextstat", "NextStat", "nextstat", _PLAIN, ("nextstat",), False, None, "peers"),
)


def _workload(
    name: str,
    title: str,
    sizes: Mapping[str, Size],
    tolerance: float = 1e-5,
    frameworks: tuple[str, ...] = ("numpy", "jax", "torch"),
    module: str | None = None,
    environment: Mapping[str, str] | None = None,
    backends: tuple[str, ...] | None = None,
    standard: tuple[str, ...] | None = None,
) -> Workload:
    path = f"{_PROGRAMS}.{module or name}"
    programs = {framework: f"{path}:build_{framework}" for framework in frameworks}
    # On a GPU, JAX multiplies float32 matrices in TF32 by default; torch does not.
    environment = {"JAX_DEFAULT_MATMUL_PRECISION": "highest", **(environment or {})}
    about = (programs, f"{path}:reference", sizes, tolerance, environment)
    return Workload(name, title, *about, backends=backends, standard=standard)


def _sizes(small: Parameters, large: Parameters, note: str | None = None) -> dict[str, Size]:
    return {"small": Size(small, note=note), "large": Size(large, note=note)}


def _precisions(**sizes: Parameters) -> dict[str, Size]:
    """Every size in both precisions; the error shows the price of the faster one."""
    found = {}
    for size, parameters in sizes.items():
        exact, fast = ({"precision": p, **parameters} for p in ("float32", "bfloat16"))
        found[f"{size}-float32"] = Size(exact, note="computed in float32")
        found[f"{size}-bfloat16"] = Size(fast, 3e-2, ("jax", "torch"), "computed in bfloat16")
    return found


def _sweep(padded: bool) -> dict[str, Size]:
    small: Parameters = {"points": 8, "features": 8, "padded": padded}
    large = {"points": 24, "features": 32, "padded": padded}
    return _sizes(small, large, "padded to one shape" if padded else "a new shape for every point")


WORKLOADS = (
    _workload("matmul", "Matrix product (the baseline)", _sizes({"n": 128}, {"n": 1024})),
    _workload(
        "batched_inference",
        "Small requests answered in a batch (vmap)",
        _sizes({"requests": 32, "width": 64}, {"requests": 1024, "width": 256}),
    ),
    _workload(
        "mlp_train",
        "20 training steps of a small network",
        _sizes({"width": 32, "batch": 64, "steps": 20}, {"width": 256, "batch": 512, "steps": 20}),
    ),
    _workload(
        "transformer_block",
        "Transformer block, forward and backward",
        _sizes(
            {"batch": 2, "tokens": 32, "width": 64, "heads": 4},
            {"batch": 8, "tokens": 128, "width": 256, "heads": 8},
        ),
    ),
    _workload(
        "ode_gradient",
        "Gradient through an ODE simulation",
        _sizes({"trajectories": 64, "steps": 40}, {"trajectories": 1024, "steps": 200}),
    ),
    _workload(
        "pinn",
        "Physics-informed network (second derivatives)",
        _sizes({"points": 64, "hidden": 32}, {"points": 2048, "hidden": 128}),
    ),
    _workload(
        "hypergradient",
        "Hypergradient through an inner optimisation",
        _sizes(
            {"rows": 128, "features": 16, "inner_steps": 50},
            {"rows": 1024, "features": 64, "inner_steps": 200},
        ),
    ),
    _workload(
        "option_greeks",
        "Monte Carlo Greeks of an Asian option",
        _sizes({"paths": 4096, "dates": 12}, {"paths": 65536, "dates": 52}),
        # A path that ends within rounding of the strike may fall on either side of it, and one
        # path of 4096 changes delta by 4e-4.
        tolerance=5e-4,
    ),
    _workload(
        "data_parallel_step",
        "Data-parallel gradient step over four devices",
        _sizes({"batch": 256, "width": 64}, {"batch": 4096, "width": 512}),
        frameworks=("numpy", "jax"),
        backends=("numpy", "jax-jit"),
        environment={"XLA_FLAGS": "--xla_force_host_platform_device_count=4"},
    ),
    _workload(
        "sharded_model_step",
        "Gradient step of a model partitioned over four devices",
        _sizes(
            {"batch": 64, "width": 32, "hidden": 256},
            {"batch": 512, "width": 256, "hidden": 4096},
        ),
        frameworks=("numpy", "jax"),
        backends=("numpy", "jax-jit"),
        environment={"XLA_FLAGS": "--xla_force_host_platform_device_count=4"},
    ),
    _workload(
        "mixed_precision",
        "Loss and gradient in bfloat16 against float32",
        _precisions(small={"width": 64, "batch": 128}, large={"width": 256, "batch": 1024}),
        standard=("small-float32", "small-bfloat16"),
    ),
    _workload("sweep", "Hyperparameter sweep whose shapes change", _sweep(padded=False)),
    _workload(
        "sweep_padded", "The same sweep, padded to one shape", _sweep(padded=True), module="sweep"
    ),
    *LIKELIHOODS,
)

#: The quick suite answers one question per workload; it takes three minutes on two cores.
QUICK = (
    # Where does the time to first result go, in three frameworks?
    "matmul[small]/numpy/none",
    "matmul[small]/jax-jit/none",
    "matmul[small]/torch-eager/none",
    # Does compiling pay for a short training, and what does the persistent cache save?
    "mlp_train[small]/numpy/none",
    "mlp_train[small]/jax-jit/none",
    "mlp_train[small]/jax-jit/warm",
    # What does jit gain over op by op?
    "option_greeks[small]/numpy/none",
    "option_greeks[small]/jax-eager/none",
    "option_greeks[small]/jax-jit/none",
    # What do changing shapes cost?
    "sweep[small]/numpy/none",
    "sweep[small]/jax-jit/none",
    "sweep_padded[small]/numpy/none",
    "sweep_padded[small]/jax-jit/none",
)
SUITES = ("quick", "standard", "full")


def registered() -> tuple[dict[str, Backend], dict[str, Workload]]:
    """Backends and workloads by name: the built-in ones and those of other packages."""
    return _extended(BACKENDS, Backend, "backends"), _extended(WORKLOADS, Workload, "workloads")


def _extended(own: Iterable[T], kind: type[T], plural: str) -> dict[str, T]:
    from importlib.metadata import entry_points

    known = {item.name: item for item in own}
    for point in entry_points(group=f"firstlight.{plural}"):
        for item in _loaded(point, kind):
            if item.name in known:
                raise CatalogError(
                    f"entry point {point.name!r} ({point.group}) registers {item.name!r}, which "
                    "already exists. Rename it in the package that registers it."
                )
            known[item.name] = item
    return known


def _loaded(point: EntryPoint, kind: type[T]) -> list[T]:
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
                f"entry point {point.name!r} ({point.group}) provides a {type(item).__name__}, "
                f"expected a {kind.__name__}."
            )
    return items
