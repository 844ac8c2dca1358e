"""A measurement from binned data: likelihood, gradient, fit, significance, pseudo-experiments.

The fits use synthetic pyhf workspaces with the dimensions of two that others use to compare
programs ("complex": 8 parameters; "tHu": 184 parameters in 11 channels), drawn from the seed, so
that anyone can reproduce the figures without the data. This module has the inputs and the
references; the programs are in `histfactory_jax`, `histfactory_pyhf` and `histfactory_nextstat`,
one module per library, imported at its top, which is the phase `import`. Drawing the workspace is
part of every program's `setup`.

All of them compute -ln L with its constants in float64, with interpolation codes 4 and 4p; every
fit starts at the workspace's initial values and uses its library's default settings. A fit is
judged by the likelihood it reaches, because libraries differ in how far they go.
"""

from __future__ import annotations

TYPE_CHECKING = False  # not from typing: imports are timed, so nothing may be imported here
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from firstlight.workloads.programs import Array
    from firstlight.workloads.programs.histfactory_reference import Likelihood


def workspace(seed: int, preset: str) -> dict[str, Array]:
    """The content of a pyhf workspace file."""
    from firstlight.histfactory.synthetic import preset as draw

    return draw(preset, seed)


def point(seed: int, names: Iterable[str]) -> dict[str, float]:
    """Parameters off their initial values, on both sides of |α| = 1, the same in any order."""
    import numpy as np

    ordered = sorted(names)
    draws = np.random.default_rng(seed).uniform(-1.0, 1.0, len(ordered))
    return {
        name: 1.5 * float(draw) if name.startswith("alpha") else 1.0 + 0.1 * float(draw)
        for name, draw in zip(ordered, draws, strict=True)
    }


def vector(seed: int, names: Sequence[str]) -> Array:
    """The same point, in the order of a library's parameters."""
    import numpy as np

    values = point(seed, names)
    return np.array([values[name] for name in names])


def toy_counts(seed: int, content: dict[str, Array], toys: int) -> dict[str, Array]:
    """Poisson counts around the nominal expectation by channel, (toys, bins) each.

    The auxiliary data stay nominal: NextStat cannot fit others.
    """
    import numpy as np

    generator = np.random.default_rng(seed)
    return {
        channel["name"]: generator.poisson(
            np.sum([sample["data"] for sample in channel["samples"]], axis=0),
            size=(toys, len(channel["samples"][0]["data"])),
        ).astype(np.float64)
        for channel in content["channels"]
    }


def side_by_side(counts: dict[str, Array], channels: Iterable[str]) -> Array:
    """(toys, bins of all channels) in the order that a library requires."""
    import numpy as np

    return np.concatenate([counts[name] for name in channels], axis=1)


def reference_nll(seed: int, preset: str) -> tuple[Array, ...]:
    """-ln L, by the plain NumPy of `histfactory_reference`, like all references below."""
    likelihood, theta = _likelihood_at(seed, preset)
    return (likelihood.nll(theta, likelihood.observed),)


def reference_nll_grad(seed: int, preset: str) -> tuple[Array, ...]:
    """-ln L and its gradient in pyhf's order of parameters."""
    likelihood, theta = _likelihood_at(seed, preset)
    observed = likelihood.observed
    return likelihood.nll(theta, observed), likelihood.gradient(theta, observed)


def reference_fit(seed: int, preset: str) -> tuple[Array, ...]:
    """-ln L at its minimum."""
    likelihood = _likelihood(workspace(seed, preset))
    return (likelihood.minimum(likelihood.observed),)


def reference_q0(seed: int, preset: str) -> tuple[Array, ...]:
    """q0 = 2 (-ln L without signal + ln L at the minimum), arXiv:1007.1727 Eq. 12, for μ̂ > 0."""
    likelihood = _likelihood(workspace(seed, preset))
    free = likelihood.minimum(likelihood.observed)
    without_signal = likelihood.minimum(likelihood.observed, held={"mu": 0.0})
    return (2.0 * (without_signal - free),)


def reference_toys(seed: int, preset: str, toys: int) -> tuple[Array, ...]:
    """-ln L at the minimum of every toy."""
    import numpy as np

    content = workspace(seed, preset)
    likelihood = _likelihood(content)
    rows = side_by_side(toy_counts(seed, content, toys), likelihood.channels)
    return (np.array([likelihood.minimum(row) for row in rows]),)


def _likelihood(content: dict[str, Array]) -> Likelihood:
    from firstlight.histfactory.spec import parse
    from firstlight.workloads.programs.histfactory_reference import Likelihood

    # Only the order comes from our own reader; pyhf and NextStat must use the same one.
    return Likelihood(content, parse(content).parameter_names)


def _likelihood_at(seed: int, preset: str) -> tuple[Likelihood, Array]:
    likelihood = _likelihood(workspace(seed, preset))
    return likelihood, vector(seed, likelihood.names)
