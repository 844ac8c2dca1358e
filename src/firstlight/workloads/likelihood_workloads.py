"""The catalogue of likelihoods of binned measurements, and of losses derived from them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from firstlight.workloads.kinds import Size, Workload

_PROGRAMS = "firstlight.workloads.programs"
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

LIKELIHOODS = (
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
