"""Runs a function's program (a jaxpr) with NumPy, equation by equation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from firstlight.warmstart.tiers import indexing_rules, linear_algebra_rules, numpy_rules
from firstlight.warmstart.tiers.numpy_rules import Array, Compute, NoRuleError, Params

if TYPE_CHECKING:
    from jax.core import ShapedArray
    from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Var

_RULES = numpy_rules.RULES | indexing_rules.RULES | linear_algebra_rules.RULES
#: Primitives that only contain another program, and the parameter that holds it.
_HOLDERS = {
    **{"jit": "jaxpr", "pjit": "jaxpr", "closed_call": "call_jaxpr", "core_call": "call_jaxpr"},
    **{"remat2": "jaxpr", "checkpoint": "jaxpr", "custom_jvp_call": "call_jaxpr"},
    **{"custom_vjp_call": "call_jaxpr", "custom_vjp_call_jaxpr": "fun_jaxpr"},
}


class AbandonedError(Exception):
    """The compiled program is ready."""


class Interpreter:
    """Runs programs until `is_over` returns true."""

    def __init__(self, is_over: Callable[[], bool]) -> None:
        self._is_over = is_over
        self._prepared: dict[int, _Prepared] = {}

    def run(self, closed: ClosedJaxpr, inputs: Sequence[object]) -> list[Array]:
        """The results of a closed program.

        Raises:
            AbandonedError: `is_over` became true.
        """
        with np.errstate(all="ignore"):
            return self.prepare(closed)(*map(to_numpy, inputs))

    def prepare(self, closed: ClosedJaxpr) -> Callable[..., list[Array]]:
        """A function that runs a closed program; each program is prepared once."""
        known = self._prepared.get(id(closed))
        if known is None:
            known = self._prepared[id(closed)] = _Prepared(closed, self)
        return known

    def step(self, equation: JaxprEqn) -> Compute:
        """A function that computes the result of an equation, or the list of its results."""
        name, params = equation.primitive.name, equation.params
        if name in _HOLDERS:
            return self.prepare(_closed(params[_HOLDERS[name]]))
        if name in _CONTROL:
            return _CONTROL[name](self, params, equation)
        if (rule := _RULES.get(name)) is not None:
            try:
                return rule(params, _avals(equation.invars), _avals(equation.outvars))
            except NoRuleError:
                pass
        return _by_jax(equation)

    def stop_if_over(self) -> None:
        if self._is_over():
            raise AbandonedError


class _Prepared:
    """A program whose variables are indices into a list."""

    def __init__(self, closed: ClosedJaxpr, interpreter: Interpreter) -> None:
        program = closed.jaxpr
        self._kept = closed  # keeps the id valid, by which it is found
        self._interpreter = interpreter
        places: dict[Var, int] = {}
        self._blank: list[Any] = []

        def place(variable: Var, value: Array | None = None) -> int:
            if hasattr(variable, "val"):  # a literal
                self._blank.append(np.asarray(variable.val, variable.aval.dtype))
                return len(self._blank) - 1
            if variable not in places:
                places[variable] = len(self._blank)
                self._blank.append(value)
            return places[variable]

        self._inputs = [place(variable) for variable in program.invars]
        for variable, value in zip(program.constvars, closed.consts, strict=True):
            place(variable, to_numpy(value))
        self._steps = []
        for equation in program.eqns:
            reads = [place(variable) for variable in equation.invars]
            writes = [place(variable) for variable in equation.outvars]
            many = equation.primitive.multiple_results
            self._steps.append((interpreter.step(equation), reads, writes, many))
        self._outputs = [place(variable) for variable in program.outvars]

    def __call__(self, *inputs: Array) -> list[Array]:
        values = self._blank.copy()
        for at, value in zip(self._inputs, inputs, strict=True):
            values[at] = value
        self._interpreter.stop_if_over()
        for compute, reads, writes, many in self._steps:
            found = compute(*[values[at] for at in reads])
            if many:
                for at, value in zip(writes, found, strict=True):
                    values[at] = value
            else:
                values[writes[0]] = found
        return [values[at] for at in self._outputs]


def _avals(variables: Sequence[Var]) -> list[ShapedArray]:
    return [variable.aval for variable in variables]


def to_numpy(value: Any) -> Any:
    """A NumPy array; values without a NumPy type (random keys) are unchanged."""
    if isinstance(value, (np.ndarray, np.generic)):
        return value
    import jax

    if hasattr(value, "dtype") and jax.dtypes.issubdtype(value.dtype, jax.dtypes.extended):
        return value
    return np.asarray(value)


def _closed(program: ClosedJaxpr | Jaxpr) -> ClosedJaxpr:
    """A program with its constants; some equations contain a program that has none."""
    if hasattr(program, "consts"):
        return program
    from jax.extend.core import ClosedJaxpr

    return ClosedJaxpr(program, ())


def _by_jax(equation: JaxprEqn) -> Compute:
    """The operation as JAX runs it outside `jit`, compiled by itself."""
    primitive = equation.primitive
    bound = primitive.get_bind_params(equation.params)
    # Before JAX 0.10, a pair of functions and parameters.
    functions, params = bound if isinstance(bound, tuple) else ((), bound)

    def compute(*values: Array) -> Array | list[Array]:
        found = primitive.bind(*functions, *values, **params)
        return [*map(to_numpy, found)] if primitive.multiple_results else to_numpy(found)

    return compute


def _scan(interpreter: Interpreter, params: Params, equation: JaxprEqn) -> Compute:
    closed, length = _closed(params["jaxpr"]), params["length"]
    body = interpreter.prepare(closed)
    # Counted by rank, because versions of JAX have different parameters: outside the body, arrays
    # that it takes or returns line by line have one more axis.
    carried = _same_rank(equation.outvars, closed.jaxpr.outvars)
    consts = _same_rank(equation.invars, closed.jaxpr.invars) - carried
    order = range(length - 1, -1, -1) if params["reverse"] else range(length)
    kinds = [(v.aval.shape, v.aval.dtype) for v in equation.outvars[carried:]]

    def scan(*values: Array) -> list[Array]:
        fixed, carry = values[:consts], list(values[consts : consts + carried])
        lines = values[consts + carried :]
        stacked = [np.empty(shape, kind) for shape, kind in kinds]
        for i in order:
            found = body(*fixed, *carry, *[line[i] for line in lines])
            carry = found[:carried]
            for whole, part in zip(stacked, found[carried:], strict=True):
                whole[i] = part
        return [*carry, *stacked]

    return scan


def _same_rank(outer: Sequence[Var], inner: Sequence[Var]) -> int:
    pairs = zip(_avals(outer), _avals(inner), strict=True)
    return sum(len(a.shape) == len(b.shape) for a, b in pairs)


def _while(interpreter: Interpreter, params: Params, equation: JaxprEqn) -> Compute:
    goes_on, body = (interpreter.prepare(_closed(params[n])) for n in ("cond_jaxpr", "body_jaxpr"))
    conditions, bodies = params["cond_nconsts"], params["cond_nconsts"] + params["body_nconsts"]

    def loop(*values: Array) -> list[Array]:
        state = list(values[bodies:])
        while np.any(which := np.asarray(goes_on(*values[:conditions], *state)[0])):
            new = body(*values[conditions:bodies], *state)
            if which.ndim:  # under vmap, some loops go on while others have ended
                pairs = zip(new, state, strict=True)
                new = [np.where(_with_rank_of(n, which), n, old) for n, old in pairs]
            state = new
        return state

    return loop


def _with_rank_of(value: Array, which: Array) -> Array:
    """`which` with trailing axes of length one, up to the rank of a value."""
    return which.reshape(which.shape + (1,) * (np.ndim(value) - which.ndim))


def _cond(interpreter: Interpreter, params: Params, equation: JaxprEqn) -> Compute:
    branches = [interpreter.prepare(_closed(branch)) for branch in params["branches"]]
    last = len(branches) - 1

    def choose(which: Array, *values: Array) -> list[Array]:
        return branches[min(max(int(which), 0), last)](*values)

    return choose


def _platform(interpreter: Interpreter, params: Params, equation: JaxprEqn) -> Compute:
    import jax

    here, platforms = jax.default_backend(), params["platforms"]
    found = (i for i, names in enumerate(platforms) if names is None or here in names)
    index = np.int32(next(found, 0))
    return lambda: index


def _linear_solve(interpreter: Interpreter, params: Params, equation: JaxprEqn) -> Compute:
    solve, lengths = interpreter.prepare(_closed(params["jaxprs"].solve)), params["const_lengths"]
    begin = lengths.matvec + lengths.vecmat
    end, every = begin + lengths.solve, sum(lengths)

    def compute(*values: Array) -> list[Array]:
        return solve(*values[begin:end], *values[every:])

    return compute


_CONTROL: dict[str, Callable[[Interpreter, Params, JaxprEqn], Compute]] = {
    "scan": _scan,
    "while": _while,
    "cond": _cond,
    "platform_index": _platform,
    "custom_linear_solve": _linear_solve,
}
