"""The ranking of nuisance parameters under NextStat's names: `nextstat.interpret` becomes this.

`firstlight.histfactory.impacts` returns more, and `firstlight.histfactory.plots.ranking` draws it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from firstlight.histfactory.model import Model

__all__ = ["plot_rank_impact", "rank_impact", "rank_impact_df"]

_ORDERS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "total": lambda row: row["total_impact"],
    "up": lambda row: abs(row["delta_mu_up"]),
    "down": lambda row: abs(row["delta_mu_down"]),
    "pull": lambda row: abs(row["pull"]),
    "name": lambda row: row["name"],
}


def __dir__() -> list[str]:
    return __all__


def rank_impact(
    model: Model,
    *,
    gpu: bool = False,
    sort_by: str = "total",
    top_n: int | None = None,
    ascending: bool = False,
) -> list[dict[str, Any]]:
    """Constrained parameters by their impact on the parameter of interest, largest first.

    Each is a dictionary of its `name`; `delta_mu_up` and `delta_mu_down`, the change of the fitted
    POI when the parameter is fixed one width of its constraint above or below its best fit;
    `total_impact`, the sum of their magnitudes; `pull`; `constraint`, its uncertainty after the fit
    over that before; and `rank`, which begins at 1.

    gpu: True requires JAX to have a GPU; otherwise fits run where JAX computes.
    sort_by: "total", "up", "down", "pull" (magnitudes) or "name".
    top_n: how many to return; default: all.
    """
    from firstlight.histfactory.argument_checks import ModelError
    from firstlight.histfactory.model import Model
    from firstlight.histfactory.scans import impacts

    if not isinstance(model, Model):
        raise ModelError(
            f"model is {type(model).__module__}.{type(model).__name__}; give a model from "
            "firstlight.histfactory.load or firstlight.torch.from_pyhf."
        )
    if sort_by not in _ORDERS:
        raise ModelError(f"sort_by is {sort_by!r}, not one of {', '.join(map(repr, _ORDERS))}.")
    if top_n is not None and top_n < 0:
        raise ModelError(f"top_n is {top_n}; give a number of parameters, or None for all.")
    found = impacts(model, devices=_gpus() if gpu else None)
    columns = (found.names, found.pre_up, found.pre_down, found.pulls, found.constraints)
    rows = [
        {
            "name": name,
            "delta_mu_up": float(up),
            "delta_mu_down": float(down),
            "total_impact": float(abs(up) + abs(down)),
            "pull": float(pull),
            "constraint": float(constraint),
        }
        for name, up, down, pull, constraint in zip(*columns, strict=True)
        if pull == pull  # not NaN: it has a constraint
    ]
    rows.sort(key=_ORDERS[sort_by], reverse=not ascending)
    return [{**row, "rank": i} for i, row in enumerate(rows[:top_n], 1)]


def rank_impact_df(model: Model, **kwargs: Any) -> Any:
    """`rank_impact` as a pandas DataFrame."""
    try:
        import pandas
    except ImportError:
        raise ModuleNotFoundError(
            "rank_impact_df needs pandas: pip install pandas. rank_impact returns a list.",
            name="pandas",
        ) from None
    return pandas.DataFrame(rank_impact(model, **kwargs))


def plot_rank_impact(
    model: Model,
    *,
    top_n: int = 20,
    gpu: bool = False,
    figsize: tuple[float, float] = (8, 6),
    title: str = "Systematic Impact on Signal Strength (μ)",
    ax: Axes | None = None,
    **kwargs: Any,
) -> Figure:
    """Bars of `rank_impact`, the first row at the top; the figure is not saved.

    ax: axes to draw into instead of a new figure of `figsize` inches. kwargs: see `rank_impact`.
    """
    from firstlight.histfactory.figure_style import BLUE, VERMILLION, plain

    rows = rank_impact(model, top_n=top_n, gpu=gpu, **kwargs)
    if ax is None:
        from matplotlib.figure import Figure

        ax = Figure(figsize=figsize, layout="constrained").add_subplot()
    places = range(len(rows))
    for side, colour in (("up", BLUE), ("down", VERMILLION)):
        shifts = [row[f"delta_mu_{side}"] for row in rows]
        ax.barh(places, shifts, color=colour, alpha=0.85, label=f"parameter {side} by 1σ")
    ax.set_yticks(places, [plain(row["name"]) for row in rows])
    ax.invert_yaxis()
    ax.axvline(0.0, color="black", linewidth=0.8)
    ax.set_xlabel(f"change of {plain(str(model.poi))}")
    ax.set_title(title)
    ax.legend()
    return cast("Figure", ax.figure)


def _gpus() -> Any:
    """JAX's GPUs."""
    from firstlight.histfactory.argument_checks import ModelError
    from firstlight.histfactory.lazy_jax import jax

    try:
        return jax.devices("gpu")
    except RuntimeError:
        raise ModelError(
            "gpu=True, but JAX finds no GPU. Install JAX for CUDA (pip install 'jax[cuda13]'), or "
            "leave gpu out."
        ) from None
