"""First gradients of likelihoods, fits and Asimov data in NumPy: see `first_gradients`."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from firstlight.histfactory.array_slopes import array_slopes
from firstlight.histfactory.array_types import Array, DataSet, Number, Parameters
from firstlight.histfactory.closed_form import evaluate
from firstlight.histfactory.engine import OnHost
from firstlight.histfactory.first_gradients import by_argument, converged, fit_mixing
from firstlight.histfactory.fitting import Fixed, problem_of, result_of
from firstlight.histfactory.hypotheses import hypotheses
from firstlight.histfactory.internal_order import (
    data_of,
    data_vector,
    poi_position,
    to_internal,
    to_public,
)
from firstlight.histfactory.likelihood import Data
from firstlight.histfactory.linear_results import Linear, rule
from firstlight.histfactory.model import Model
from firstlight.histfactory.newton import Minimum, Problem
from firstlight.histfactory.numpy_or_jax import map_leaves
from firstlight.histfactory.profile_slopes import (
    Slope,
    slope_from,
    slope_of_constants,
    slope_of_position,
    slope_of_value,
    through_asimov,
    weighted_sum,
    with_tested_strength,
    zero_slope,
)
from firstlight.histfactory.programs import Patience

NLL = Patience(evaluations=1)
FIT = Patience(evaluations=30, compiling=2)
#: Rules compute the derivatives of all results with respect to all numbers of a model. For more
#: than this, a program computes only the ones asked for.
_MAX_DERIVATIVES = 1 << 22


@rule(NLL)
def nll(model: Model, parameters: Parameters = None, data: DataSet = None) -> Linear | None:
    given = np.atleast_1d(model.vector(parameters))
    if given.ndim > 1 or isinstance(parameters, (list, tuple)):
        return None
    engine, theta, counts = OnHost(model), to_internal(model, given), data_of(model, data)
    with NLL.spent(engine.prepared):
        at, by_model, by_data = array_slopes(engine.prepared, counts, theta, np)
        if not np.isfinite(at.nll):
            return None
        by_names = _by_parameters(model, parameters, to_public(model, at.gradient))
        own = _at_init(model, parameters)
        likelihood = slope_from(by_model, by_data, at.gradient * own)
        slopes = [likelihood, slope_of_constants(engine.prepared, counts)]
        gradients = by_argument(model, data, None, slopes)
    total = at.nll + engine.constants(counts)
    return Linear(total, np.ones(2), gradients | {"parameters": by_names})


def _at_init(model: Model, parameters: Parameters) -> Array:
    """1 where a parameter stands at the model's own value, in internal order."""
    given = np.ones(model.n_parameters, bool)
    if parameters is None or isinstance(parameters, dict):
        given[:] = False
        given[[model.index(name) for name in parameters or ()]] = True
    return to_internal(model, np.where(given, 0.0, 1.0), np.zeros(model.about.sizes.parameters))


def _by_parameters(model: Model, parameters: Parameters, gradient: Array) -> list[Array]:
    """Derivatives of the likelihood and its constants with respect to each leaf of `parameters`."""
    if parameters is None:
        return []
    if isinstance(parameters, dict):  # whose leaves JAX has in the order of their names
        return [np.array([gradient[model.index(name)], 0.0]) for name in sorted(parameters)]
    return [np.stack([gradient, np.zeros_like(gradient)])]


@rule(FIT)
def fit(
    model: Model, data: DataSet = None, fixed: Fixed = None, init: Parameters = None
) -> Linear | None:
    if init is not None or not _are_few(model, model.n_parameters):
        return None
    engine = OnHost(model)
    with FIT.spent(engine.prepared):
        problem = problem_of(engine, data_of(model, data), fixed)
        (found,) = engine.chain([problem])
        if not converged([found]):
            return None
        ready, units = engine.prepared, np.eye(model.about.sizes.parameters)
        slopes = [slope_of_value(ready, problem, found), slope_of_constants(ready, problem.data)]
        slopes += [slope_of_position(ready, problem, found, units[i]) for i in model._order]
        gradients = by_argument(model, data, fixed, slopes)
        curvature = evaluate(ready, problem.data, found.theta, xp=np).curvature
    of_nll = np.array([1.0, 1.0] + [0.0] * model.n_parameters)
    of_values = np.hstack([np.zeros((model.n_parameters, 2)), np.eye(model.n_parameters)])
    result = replace(result_of(engine, found, problem), _hessian=curvature)
    constant = map_leaves(lambda _: 0.0, curvature)
    mixing = replace(fit_mixing(result, of_nll), values=of_values, _hessian=constant)
    return Linear(result, mixing, gradients)


@rule(FIT)
def asimov(
    model: Model,
    mu: Number | None = None,
    data: DataSet = None,
    fixed: Fixed = None,
    parameters: Parameters = None,
) -> Linear | None:
    where = model._order[model._constrained]
    if mu is None or parameters is not None or not _are_few(model, model.n_bins + len(where)):
        return None
    engine = OnHost(model)
    with FIT.spent(engine.prepared):
        (problem,) = hypotheses(engine, data_of(model, data), [mu], fixed, None)
        (found,) = engine.chain([problem])
        if not converged([found]):
            return None
        made, none = engine.asimov(found.theta), zero_slope(engine.prepared)
        units = [none._replace(main=row) for row in np.eye(len(none.main))[: model.n_bins]]
        units += [none._replace(aux=row) for row in np.eye(len(none.aux))[where]]
        slopes = [_of_asimov(engine, problem, found, made, unit) for unit in units]
        gradients = by_argument(model, data, fixed, slopes)
    return Linear(data_vector(model, made), np.eye(len(slopes)), gradients)


def _of_asimov(engine: OnHost, problem: Problem, found: Minimum, made: Data, unit: Slope) -> Slope:
    """The slope of one count of the Asimov data, `made` at the minimum with μ held."""
    direct, by_theta = through_asimov(engine.prepared, found.theta, made, unit)
    moved = slope_of_position(engine.prepared, problem, found, by_theta)
    return with_tested_strength(
        weighted_sum((1.0, direct), (1.0, moved)), poi_position(engine.model)
    )


def _are_few(model: Model, results: int) -> bool:
    """Whether computing all derivatives of this many results is affordable."""
    numbers = sum(np.size(array) for array in vars(model.arrays).values())
    return numbers * results <= _MAX_DERIVATIVES
