"""What can be measured, as data: backends, workloads with their sizes, and the suites.

The measured process imports nothing from here, and nothing here imports a framework: a program is
named as `"module:function"` and loaded only in the worker. Other packages add theirs through the
entry-point groups `firstlight.backends` and `firstlight.workloads` (a `Backend` or `Workload`, or
a list of them).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from firstlight.errors import FirstlightError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

Parameters = Mapping[str, Any]
T = TypeVar("T", "Backend", "Workload")
MAX_NAME = 200


class CatalogError(FirstlightError):
    """A registered backend or workload cannot be used."""


def check_name(what: str, name: object) -> None:
    """Reject a name that is not one line of plain text: CI systems obey some lines of a log."""
    if not isinstance(name, str) or not name or not name.isprintable() or len(name) > MAX_NAME:
        raise CatalogError(
            f"{what} {str(name)[:MAX_NAME]!r} is not a valid name. Use 1 to {MAX_NAME} printable "
            "characters, without line breaks or control characters."
        )


@dataclass(frozen=True)
class Backend:
    """A way to run a program: the framework, and what is applied to the function under test."""

    name: str
    title: str
    framework: str  # the key of its program in `Workload.programs`
    adapter: str  # "module:class", a `firstlight.measure.adapters.Adapter`
    requires: tuple[str, ...]  # modules that must be installed
    compiled: bool  # whether the first call does work that later calls reuse
    cache: str | None = None  # its persistent cache: "jax", "torch" or None
    extra: str | None = None  # `pip install 'firstlight[extra]'`

    def __post_init__(self) -> None:
        check_name("the backend", self.name)


@dataclass(frozen=True)
class Size:
    """Parameters of one size of a workload."""

    parameters: Parameters
    tolerance: float | None = None  # for this size, if not the workload's
    frameworks: tuple[str, ...] | None = None  # if not all frameworks have it
    note: str | None = None


@dataclass(frozen=True)
class Workload:
    """A kind of program with its sizes, one program per framework, and its reference."""

    name: str
    title: str
    programs: Mapping[str, str]  # framework: "module:function"
    reference: str | None
    sizes: Mapping[str, Size]
    tolerance: float  # max|x - ref| / max|ref| allowed in float32
    environment: Mapping[str, str] = field(default_factory=dict)
    seed: int | None = 0  # None: the program uses none, or its own
    file: str | None = None  # a user's own benchmark file
    backends: tuple[str, ...] | None = None  # if not every backend makes sense
    standard: tuple[str, ...] | None = None  # its sizes in the standard suite; default: the first

    def __post_init__(self) -> None:
        check_name("the workload", self.name)
        for size in self.sizes:
            check_name(f"{self.name}: the size", size)


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
    # For a user's own file, whose functions are compiled (or not) as written.
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


_COMPLEX, _THU = "complex-8p", "thu-184p"
#: The module and function that compute a task of the HistFactory workload, per framework.
_HISTFACTORY = {
    "jax": "histfactory_jax:build_{}",
    "nextstat": "histfactory_nextstat:build_{}",
    "pyhf-jax": "histfactory_pyhf:build_{}_jax",
    "pyhf-numpy": "histfactory_pyhf:build_{}_numpy",
}
_HISTFACTORY_ENVIRONMENT = {
    "JAX_ENABLE_X64": "true",
    "JAX_DEFAULT_MATMUL_PRECISION": "highest",
    # OpenBLAS splits Cholesky factors of 0.1 ms over all cores and spins until each has run: ten
    # times slower as soon as one core is busy.
    "OPENBLAS_NUM_THREADS": "1",
}


def _histfactory(
    task: str,
    title: str,
    tolerance: float,
    complex_8p: Size | None = None,
    thu_184p: Size | None = None,
    frameworks: Iterable[str] = tuple(_HISTFACTORY),
) -> Workload:
    programs = {f: f"{_PROGRAMS}.{_HISTFACTORY[f].format(task)}" for f in frameworks}
    sizes = {_COMPLEX: complex_8p or _preset(_COMPLEX), _THU: thu_184p or _preset(_THU)}
    reference = f"{_PROGRAMS}.histfactory:reference_{task}"
    about = (programs, reference, sizes, tolerance, _HISTFACTORY_ENVIRONMENT)
    # Not op by op: minimisation is a loop of thousands of operations.
    backends = ("jax-jit", "pyhf-jax", "pyhf-numpy", "nextstat")
    return Workload(f"histfactory_{task}", title, *about, backends=backends, standard=tuple(sizes))


def _preset(
    preset: str, without: tuple[str, ...] = (), note: str | None = None, **parameters: int
) -> Size:
    """A synthetic workspace, and the frameworks that do not run it."""
    asked = tuple(f for f in _HISTFACTORY if f not in without)
    return Size({"preset": preset, **parameters}, frameworks=asked, note=note)


def _significance(
    name: str, title: str, tolerance: float, sizes: Mapping[str, Size] | None = None
) -> Workload:
    sizes = sizes or {preset: Size({"preset": preset}) for preset in (_COMPLEX, _THU)}
    modules = {"jax": "significance_jax", "torch-jax": "significance_torch"}
    programs = {f: f"{_PROGRAMS}.{module}:build_{name}" for f, module in modules.items()}
    reference = f"{_PROGRAMS}.significance:reference_{name}"
    about = (programs, reference, sizes, tolerance, _HISTFACTORY_ENVIRONMENT)
    backends = ("jax-jit", "torch-jax")
    return Workload(name, title, *about, backends=backends, standard=tuple(sizes))


_TRAINING_PARTS = {
    "forward": "the forward alone",
    "backward": "the backward alone",
    "step": "forward, backward and Adam",
}
_PYHF_NUMPY_LEFT_OUT = (
    "pyhf on NumPy is left out: it has no derivatives, and one fit takes half a minute"
)
_PYHF_LEFT_OUT = (
    "pyhf is left out: one call takes from ten seconds (JAX) to minutes (NumPy); "
    "histfactory_fit includes it at this size"
)

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
    # Sums of at most a thousand terms in float64; the point and the constants are the same.
    _histfactory("nll", "HistFactory likelihood of a binned measurement", 1e-10),
    _histfactory(
        "nll_grad",
        "HistFactory likelihood and gradient",
        1e-10,
        frameworks=("jax", "nextstat", "pyhf-jax"),  # pyhf on NumPy has no gradient
    ),
    _histfactory(
        "fit",
        "HistFactory maximum-likelihood fit",
        # For -ln L at the minimum. With default settings, minimisers stop up to 1e-5 above a
        # minimum of about 190: the error next to the time shows how far each one went.
        1e-7,
        thu_184p=_preset(_THU, ("pyhf-numpy",), _PYHF_NUMPY_LEFT_OUT),
    ),
    _histfactory(
        "q0",
        "HistFactory discovery significance (two fits)",
        # Twice the difference of two such minima, relative to a q0 of 0.3 (complex) or 7 (tHu);
        # the largest error seen is 7e-7.
        1e-5,
        thu_184p=_preset(_THU, ("pyhf-numpy", "pyhf-jax"), _PYHF_LEFT_OUT),
    ),
    _histfactory(
        "toys",
        "HistFactory fits of pseudo-experiments",
        # As for a fit, but the worst of twenty minimisations of a smaller -ln L.
        1e-6,
        _preset(_COMPLEX, toys=20),
        _preset(_THU, ("pyhf-numpy", "pyhf-jax"), _PYHF_LEFT_OUT, toys=4),
    ),
    # The recorded error of these is the larger of the errors of value and gradient.
    _significance(
        "nll_signal_grad", "HistFactory likelihood, gradient with respect to signal yields", 1e-10
    ),
    _significance("profiled_q0", "Profiled q0, gradient with respect to signal yields", 1e-9),
    _significance(
        "significance_train_20",
        "20 training steps on the expected significance",
        # Rounding, amplified by twenty steps of Adam, which divides by roots of small gradients.
        1e-7,
        {
            f"{preset}-{part}": Size({"preset": preset, "part": part}, note=note)
            for preset in (_COMPLEX, _THU)
            for part, note in _TRAINING_PARTS.items()
        },
    ),
)

#: The quick suite answers one question per workload, in three minutes on two cores.
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
