"""Which function is compiled, and whether it is the same one, in real programs."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import tempfile
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import pytest

from firstlight.trace.findings import load
from firstlight.trace.read.model import Function, Trace
from firstlight.trace.record import arguments, calls, definitions
from firstlight.trace.record.structures import leaf_paths
from firstlight.trace.record.value_text import text_of, tree_text
from firstlight.trace.wording import why_again

pytestmark = pytest.mark.slow

DRIVER = """
import firstlight.trace.startup, runpy, sys
for path in sys.argv[1:]:
    runpy.run_path(path, run_name="__main__")
"""
HEAD = """
import functools, threading
import jax, jax.numpy as jnp, numpy as np
x = np.ones(3, np.float32)
"""
#: Programs that compile nothing twice, though they may appear to.
CLEAN = {
    "two_of_a_factory": """
def power(n):
    @jax.jit
    def of(x): return jnp.sum(x ** n)
    return of
square, cube = power(2), power(3)
for _ in range(2):
    jax.grad(lambda x: square(x) + cube(x))(x)
""",
    "value_and_gradient": """
def logp(x): return -0.5 * jnp.sum(x ** 2)
value, gradient = jax.jit(logp), jax.jit(jax.grad(logp))
for _ in range(3):
    float(value(x)), float(gradient(x)[0])
""",
    "four_transformations": """
def logp(x): return -0.5 * jnp.sum(x ** 2)
for f in (logp, jax.grad(logp), jax.hessian(logp), jax.jacobian(jax.grad(logp))):
    jax.jit(f)(x)
for f in (jax.vmap(logp), jax.vmap(logp, in_axes=1)):
    jax.jit(f)(np.ones((3, 3), np.float32))
""",
    "two_arguments": """
def loss(a, b): return jnp.sum(a * b ** 2)
for f in [jax.jit(jax.grad(loss, argnums=n)) for n in (0, 1)]:
    f(x, x)
""",
    "two_subclasses": """
class Base:
    def __init__(self): self.step = jax.jit(self._step)
    def _step(self, x): return self.loss(x) * 2
    def fit(self): return self.step(x)
class Square(Base):
    def loss(self, x): return jnp.sum(x ** 2)
class Cosine(Base):
    def loss(self, x): return jnp.sum(jnp.cos(x))
for model in (Square(), Cosine()):
    model.fit()
""",
    "two_models": """
class Model:
    dtype = None  # as layers of networks have
    def __init__(self, power):
        self.power, self.apply = power, jax.jit(self._apply)
    def _apply(self, x): return x ** self.power
    def run(self): return self.apply(x)
for model in (Model(2), Model(3)):
    model.run()
""",
    "two_losses": """
def make_step(loss):
    def step(x): return x - jax.grad(loss)(x)
    return jax.jit(step)
def square(x): return jnp.sum(x ** 2)
def cosine(x): return jnp.sum(jnp.cos(x))
for step in (make_step(square), make_step(cosine)):
    step(x)
""",
    "a_decorator": """
def logged(f):
    def wrapper(*args): return f(*args)
    return jax.jit(wrapper)
@logged
def one(x): return x + 1
@logged
def two(x): return x * 2
@logged
def three(x): return x - 3
@logged
def four(x): return x / 4
for f in (one, two, three, four):
    f(x)
""",
    "partials_of_two_lines": """
def power(n, x): return x ** n
square, cube = jax.jit(functools.partial(power, 2)), jax.jit(functools.partial(power, 3))
square(x)
cube(x)
""",
    "two_lambdas_of_one_line": """
f, g = jax.jit(lambda x: x + 1), jax.jit(lambda x: x + 2)
for h in (f, g):
    h(x)
""",
    "under_vmap_and_alone": """
@jax.jit
def scaled(x): return x * 2
scaled(np.float32(1))
jax.vmap(scaled)(x)
""",
}
#: The same function created repeatedly: it must count as one.
SICK = {
    "lambda_twice": """
for mass in (1.0, 2.0):
    jax.jit(lambda x: x * mass)(x)
""",
    "partial_of_gradient": """
def loss(scale, x): return jnp.sum(scale * x ** 2)
for scale in (1.0, 2.0, 3.0):
    jax.jit(functools.partial(jax.grad(loss, argnums=1), scale))(x)
""",
    "a_partial_of_scan": """
def body(carry, y): return carry + y, carry
for _ in range(3):
    jax.jit(functools.partial(jax.lax.scan, body))(0.0, x)
""",
    "a_model_each_time": """
class Model:
    def __init__(self, power):
        self.power, self.apply = power, jax.jit(self._apply)
    def _apply(self, x): return x ** self.power
for power in (2, 3, 4):
    Model(power).apply(x)
""",
}
OTHERS = {
    "gradient_of_two_shapes": """
@jax.jit
def norm(x): return jnp.sum(jnp.sin(x) ** 2)
jax.grad(lambda a, b: norm(a) + norm(b), (0, 1))(x, np.ones(5, np.float32))
""",
    "lowered_by_hand": """
@functools.partial(jax.jit, static_argnums=1)
def f(x, n):
    for _ in range(n):
        x = jnp.sin(x) @ x.T
    return x
y = np.ones((4, 4), np.float32)
small, big = f.lower(y, 1), f.lower(y, 30)
big.compile()
small.compile()
small.compile({"xla_cpu_enable_fast_math": True})
first, second = f.trace(y, 2), f.trace(y, 20)
second = second.lower()
first.lower().compile()
second.compile()
""",
    "threads": """
def made(i):
    names = {}
    exec(f"def fun{i}(x): return jnp.sin(x) * {i} + x @ x.T", {"jnp": jnp}, names)
    return jax.jit(names[f"fun{i}"])
jitted = [made(i) for i in range(12)]
def work(i):
    jitted[i](np.ones((3 + i, 3 + i), np.float32)).block_until_ready()
threads = [threading.Thread(target=work, args=(i,)) for i in range(12)]
[t.start() for t in threads]
[t.join() for t in threads]
""",
    "same_name": """
@jax.jit
def same(x): return x * 2
@jax.checkpoint
def checkpointed(x): return jnp.sin(same(x))
def other():
    @jax.jit
    def same(a, b): return a + b
    return same(np.ones(5, np.float32), np.ones(5, np.float32)).block_until_ready()
other()
jax.grad(lambda x: checkpointed(x).sum())(x)
""",
    "pmap": """
step = jax.pmap(lambda x: jnp.tanh(x).sum())
for n in (3, 4, 5):
    step(np.ones((1, n), np.float32))
scaled = jax.pmap(lambda x, n: x * n, static_broadcasted_argnums=1)
for n in (2, 3):
    scaled(np.ones((1, 3), np.float32), n)
""",
    "callable": """
class Layer:
    def __init__(self): self.func = jnp.tanh
    def __call__(self, x): return self.func(x) * 2
layer = jax.jit(Layer())
for n in (3, 4, 5):
    layer(np.ones(n, np.float32))
""",
}


@functools.cache
def trace_of_all() -> Trace:
    """All programs in one traced process, each as if it were the main one."""
    folder = Path(tempfile.mkdtemp())
    for name, text in {**CLEAN, **SICK, **OTHERS}.items():
        (folder / f"{name}.py").write_text(HEAD + text)
    run([sys.executable, "-c", DRIVER, *sorted(map(str, folder.glob("*.py")))], folder / "logs")
    return load(folder / "logs")


def run(command: list[str], logs: Path | None) -> str:
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("JAX_", "FIRSTLIGHT"))}
    if logs is not None:
        environment["FIRSTLIGHT_TRACE"] = str(logs)
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def functions_of(program: str) -> list[Function]:
    """Functions of the program itself, in the order of their first compiles."""
    of_file = [
        function
        for function in trace_of_all().functions
        if any(
            c.user_site and c.user_site.file.endswith(f"/{program}.py") for c in function.compiles
        )
        and not function.library
    ]
    return sorted(of_file, key=lambda f: f.compiles[0].begin_seconds)


def findings_of(program: str) -> list[str]:
    told = trace_of_all().findings
    return [f.kind for f in told if f"/{program}.py" in (f.location or "")]


@pytest.mark.parametrize("program", sorted(CLEAN))
def test_functions_with_different_code_are_different(program: str) -> None:
    functions = functions_of(program)
    assert sum(f.recompiles for f in functions) == 0
    assert sum(c.compiled for f in functions for c in f.compiles) >= 2
    assert "new-function-recompiles" not in findings_of(program)


@pytest.mark.parametrize(("program", "objects"), [*zip(sorted(SICK), (3, 3, 2, 3), strict=True)])
def test_a_function_created_repeatedly_is_one(program: str, objects: int) -> None:
    (function,) = functions_of(program)
    reasons = [c.recompile_reason for c in function.compiles]
    assert reasons == [None] + ["new function object"] * (objects - 1)
    (found,) = [
        f
        for f in trace_of_all().findings
        if f.kind == "new-function-recompiles" and f"/{program}.py" in (f.location or "")
    ]
    assert f"{objects} different ones were called at {program}.py:" in found.remedy


def test_programs_compiled_by_hand_belong_to_their_own_calls() -> None:
    (function,) = functions_of("lowered_by_hand")
    told = [(c.signature.static["n"], c.equations) for c in function.compiles if c.signature]
    assert len(told) == 5
    # The oracle: the number of operations for n iterations (transpose, product, sine).
    assert [(int(n), e) for n, e in told if e] == [(1, 3), (30, 90), (2, 6), (20, 60)]
    again = [c for c in function.compiles if "compiler" in (why_again(c) or "")]
    assert [c.recompile_reason for c in again] == ["context"]
    assert "xla_cpu_enable_fast_math" in str(why_again(again[0]))
    assert all(c.compiled for c in function.compiles)


def test_stages_of_a_thread_belong_to_its_own_calls() -> None:
    functions = {f.name: f for f in functions_of("threads")}
    assert sorted(functions) == sorted(f"fun{i}" for i in range(12))
    for i in range(12):
        (one,) = functions[f"fun{i}"].compiles
        assert one.signature is not None
        assert one.signature.arguments[0].shape == (3 + i, 3 + i)
        assert None not in one.stage_seconds.values()


def test_functions_of_the_same_name_are_not_confused() -> None:
    functions = {f.name: f for f in functions_of("same_name")}
    assert len(functions["other.<locals>.same"].compiles) == 1
    assert functions["same"].place is not None
    assert functions["same"].place.line == 2 + len(HEAD.splitlines())
    assert {c.signature.arguments[0].shape for c in functions["same"].compiles if c.signature} == {
        (3,)
    }
    assert "unexplained-recompiles" not in findings_of("same_name")


def test_backward_passes_belong_to_their_calls() -> None:
    (norm,) = functions_of("gradient_of_two_shapes")
    assert [
        (c.signature.context["transformation"], c.signature.arguments[0].shape, c.recompile_reason)
        for c in norm.compiles
        if c.signature
    ] == [
        ("grad", (3,), None),
        ("grad", (5,), "shape"),
        ("the backward pass of grad", (5,), None),
        ("the backward pass of grad", (3,), "shape"),
    ]


@pytest.mark.parametrize(("program", "name"), [("pmap", "<lambda>"), ("callable", "Layer")])
def test_the_function_inside_pmap_or_a_callable_is_the_users(program: str, name: str) -> None:
    function = functions_of(program)[0]
    assert function.name == name
    assert [c.recompile_reason for c in function.compiles] == [None, "shape", "shape"]
    assert function.place is not None
    assert function.place.file.endswith(f"/{program}.py")
    assert "shape-recompiles" in findings_of(program)


def test_static_arguments_of_pmap_are_compared() -> None:
    _, scaled = functions_of("pmap")
    assert [c.recompile_reason for c in scaled.compiles] == [None, "static value"]
    assert str(why_again(scaled.compiles[1])).endswith(": 2 → 3")


def test_the_function_inside_filter_jit_is_the_users() -> None:
    def loss(x: float) -> float:
        return x

    names: dict[str, Any] = {}
    source = "def make():\n def fun_wrapped(donate, nodonate, static): pass\n return fun_wrapped"
    exec(compile(source, "/packages/equinox/_jit.py", "exec"), names)
    leaf = jax.tree_util.tree_structure(0)
    given = ({}, {}, (((loss,), leaf), ((), leaf), ((), leaf)))
    call = {"fun": names["make"](), "args": given, "kwargs": {}, "info": None}
    assert definitions.function_of_user(call) is loss


def test_frames_that_hold_what_jax_made_of_a_call_have_these_names() -> None:
    from jax._src import pjit, stages
    from jax._src.interpreters import pxla

    sources = {Path(m.__file__).name: Path(m.__file__).read_text() for m in (pjit, stages, pxla)}
    for (file, function), variables in {
        calls._TRACING: ["jaxpr"],
        calls._TRACED_BY_HAND: ["self"],
        calls.LOWERING: ["lowering_result", "closed_jaxpr", "in_avals"],
        calls.COMPILING: ["computation", "compiler_options_kvs"],
        calls._RUN_BY_JAX: [],
        (calls.JIT, "_infer_params"): ["arg_signature", "dynargs"],
        (calls.JIT, "_run_python_pjit"): ["p", "args_flat"],
    }.items():
        assert f"def {function}(" in sources[file]
        assert all(variable in sources[file] for variable in variables)
    assert arguments._READERS.keys() == {"_infer_params", "_run_python_pjit"}


# --- what runs in the program ---------------------------------------------------------------------

LOUD = """
import jax, numpy as np
told = []
class Static:
    def __eq__(self, other): return type(other) is Static
    def __hash__(self): return 1
    def __repr__(self):
        told.append("repr")
        return "Static"
class Loud:
    def __init__(self, a, b): self.a, self.b = a, b
    def tree_flatten(self):
        told.append("flatten")
        return (self.a, self.b), Static()
    @classmethod
    def tree_unflatten(cls, aux, children): return cls(*children)
jax.tree_util.register_pytree_node_class(Loud)
class Called:
    def __getattr__(self, name):
        told.append(name)
        raise AttributeError(name)
    def __call__(self, x, y, static): return x.a + x.b * y
f = jax.jit(Called(), static_argnums=2)
x = np.ones(3, np.float32)
f(Loud(x, x), {"k": [x]}["k"][0], Static())
print(sorted(told))
"""


def test_tracing_runs_no_additional_code_of_the_program(tmp_path: Path) -> None:
    path = tmp_path / "loud.py"
    path.write_text(LOUD)
    plain = run([sys.executable, "-c", DRIVER, str(path)], None)
    traced = run([sys.executable, "-c", DRIVER, str(path)], tmp_path / "logs")
    assert traced == plain
    (function,) = [f for f in load(tmp_path / "logs").functions if not f.library]
    (one,) = function.compiles
    assert one.signature is not None
    assert [a.path for a in one.signature.arguments][2:] == ["y"]
    assert list(one.signature.static) == ["static", "x.<static 0>"]


class Equal:
    """Compared by its values; its repr must not run."""

    def __init__(self, *values: Any) -> None:
        self.values = values

    def __eq__(self, other: object) -> bool:
        raise AssertionError("this is code of the program")

    __hash__ = None  # type: ignore[assignment]
    __repr__ = __eq__  # type: ignore[assignment]


@dataclass(frozen=True)
class Config:
    n: int
    activation: Any
    inner: Any = None


def test_values_are_shown_without_running_their_code() -> None:
    assert text_of(Config(3, "relu", Config(4, None))) == (
        "Config(n=3, activation='relu', inner=Config(n=4, activation=None, inner=None))"
    )
    assert text_of(Equal(1, 2)) == text_of(Equal(1, 2)) != text_of(Equal(1, 3))
    assert text_of(object()) != text_of(object())
    assert text_of({"a": (1,), "b": [jax.numpy.ones(3)]}) == "{'a': (1,), 'b': [float32[3]]}"
    long = [text_of(("x" * 300, n)) for n in range(2)]
    assert long[0] != long[1]
    assert all(len(text) < 220 for text in long)


def test_structures_are_written_as_jax_does_and_paths_are_those_of_jax() -> None:
    value = {"b": (1, [2]), "a": None, "c": {"d": 3, "e": OrderedDict(z=4)}}
    tree = jax.tree_util.tree_structure(value)
    assert tree_text([("x", tree)]) == str(jax.tree_util.tree_structure({"x": value}))
    paths, _ = jax.tree_util.tree_flatten_with_path(value)
    assert list(leaf_paths(tree)) == [jax.tree_util.keystr(path) for path, _ in paths]


# --- several processes ----------------------------------------------------------------------------

SPAWNED = """
import multiprocessing
import jax, numpy as np
@jax.jit
def shared(x): return x * 2 + 1
def work(n): return float(shared(np.ones(3, np.float32))[0]) + n
if __name__ == "__main__":
    work(0)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        pool.map(work, [1])
        pool.close()
        pool.join()
"""


def test_a_function_of_the_main_module_is_the_same_in_a_spawned_process(
    tmp_path: Path,
) -> None:
    path = tmp_path / "spawned.py"
    path.write_text(SPAWNED)
    command = [sys.executable, "-m", "firstlight", "trace", "--quiet", str(path)]
    run([*command[:5], "--out", str(tmp_path / "logs"), *command[5:]], None)
    (function,) = [f for f in load(tmp_path / "logs").functions if not f.library]
    assert (function.name, function.module) == ("shared", "__main__")
    assert len({c.process for c in function.compiles if c.compiled}) == 2
