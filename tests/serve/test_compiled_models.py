"""From declarations to executables, with JAX itself."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from firstlight import serve
from firstlight.serve.compile_watch import CompileWatch
from firstlight.serve.compiled_models import Loaded, LoadError, load
from firstlight.serve.tensors import InvalidRequestError, arrange

pytestmark = pytest.mark.slow
HERE = Path(__file__).name
ROW = serve.Input("float32", (3,))


def declared(function: Any, inputs: Any = None, **options: Any) -> serve.Model:
    return serve.model(inputs=inputs or {"x": ROW}, **{"buckets": (1, 2), **options})(function)


def test_a_model_is_declared_in_a_few_lines_and_is_still_a_function() -> None:
    @serve.model(inputs={"x": ROW}, parameters={"w": np.eye(3, dtype=np.float32)})
    def score(parameters: Any, x: Any) -> Any:
        """Scores.

        More about them.
        """
        return {"y": x @ parameters["w"]}

    assert (score.name, score.version, score.about) == ("score", "1", "Scores.")
    np.testing.assert_array_equal(score(x=np.ones((2, 3)))["y"], np.ones((2, 3)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "a/b"}, "part of a URL"),
        ({"buckets": (4, 2)}, "increasing"),
        ({"buckets": ()}, "increasing"),
        ({"inputs": {}}, "mapping of names"),
        ({"deadline_seconds": 0}, "positive"),
        ({"canary_share": 2}, "between 0 and 1"),
        ({"axes": {"n": range(1, 300)}}, "more than 256"),
    ],
)
def test_errors_of_declarations_name_the_reason(options: Any, message: str) -> None:
    with pytest.raises(serve.DeclarationError, match=message):
        serve.model(**{"inputs": {"x": ROW}, **options})(lambda x: x)


def test_everything_is_compiled_once_per_bucket_and_running_compiles_nothing(
    watch: CompileWatch,
) -> None:
    traced = []

    def sines(x: Any) -> Any:
        traced.append(x.shape)
        return {"y": jnp.sin(x).sum()}

    loaded = load(declared(sines, buckets=(1, 2, 4)), watch)
    assert traced == [(3,)]  # one row, once for all buckets
    assert [bucket.rows for bucket in loaded.buckets] == [1, 2, 4]
    assert all(bucket.seconds > 0 for bucket in loaded.buckets)
    x = np.random.default_rng(1).normal(size=(4, 3)).astype(np.float32)
    for bucket in loaded.buckets:
        (y,) = loaded.run(bucket, [x[: bucket.rows]])
        np.testing.assert_allclose(y, np.sin(x[: bucket.rows]).sum(axis=1), rtol=2e-6)
    with pytest.raises(TypeError, match="compiled"):
        loaded.run(loaded.buckets[0], [x])  # another shape is an error, not a compile
    assert watch.request_path.value == 0


def test_a_compile_outside_preparation_is_counted_by_jaxs_own_event(watch: CompileWatch) -> None:
    jax.jit(lambda x: x * 3.5 - 1)(np.ones(17)).block_until_ready()
    assert watch.request_path.value == 1


def test_a_second_process_loads_from_the_cache(write: Any) -> None:
    path = write(
        "twice.py",
        """
        import jax
        import numpy as np
        from firstlight import serve, warmstart
        from firstlight.serve.compile_watch import CompileWatch
        from firstlight.serve.compiled_models import load
        from firstlight.telemetry.values import Values

        warmstart.enable("cache")
        model = serve.model(inputs={"x": serve.Input("float32", (3,))}, buckets=(1, 2))(
            lambda x: x * 2 + 1
        )
        loaded = load(model, CompileWatch(Values()))
        print([bucket.from_cache for bucket in loaded.buckets])


        @serve.model(inputs={"a": serve.Input("float32", (2, 2))}, buckets=(1, 2), program="7")
        def root(a):
            print("traced")
            return {"root": jax.numpy.linalg.cholesky(a)}  # by LAPACK


        named = load(root, CompileWatch(Values()))
        print(named.run(named.buckets[0], [np.array([[[4, 0], [0, 9]]], "float32")])[0].tolist())
        """,
    )
    import subprocess
    import sys

    command = [sys.executable, "twice.py"]
    first, second = (
        subprocess.run(command, capture_output=True, text=True, check=True, cwd=path.parent)
        for _ in range(2)
    )
    root = "[[[2.0, 0.0], [0.0, 3.0]]]\n"
    assert first.stdout.startswith("[False, False]\ntraced\n") and first.stdout.endswith(root)
    assert second.stdout == "[True, True]\n" + root  # the named program is not even traced


class Shelf:
    """A store in memory."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.look, self.put = self.values.get, self.values.__setitem__


def test_a_named_program_is_traced_again_if_anything_differs(
    watch: CompileWatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    from firstlight.serve import kept_programs

    shelf, traced = Shelf(), []
    monkeypatch.setattr(kept_programs, "current_store", lambda: shelf)

    def scaled(parameters: Any, x: Any) -> Any:
        traced.append(x.shape)
        return {"y": x * parameters}

    def again(**options: Any) -> Loaded:
        traced.clear()
        given = {"parameters": np.float32(2), "program": "a", "buckets": (1,), **options}
        return load(declared(scaled, **given), watch)

    x = np.ones((1, 3), np.float32)
    for factor in (2, 3):  # parameters are not part of the program
        loaded = again(parameters=np.float32(factor))
        assert bool(traced) == (factor == 2)
        assert loaded.run(loaded.buckets[0], [x])[0].tolist() == [[factor] * 3]
        assert [tensor.name for tensor in loaded.signature.outputs] == ["y"]
    for other in (
        {"program": "b"},
        {"buckets": (1, 4)},
        {"parameters": np.ones(3, np.float32)},
        {"x64": True},
        {"inputs": {"x": serve.Input("float32", (5,))}, "parameters": np.float32(1)},
    ):
        again(**other)
        assert traced, other
    for damaged in (b"", next(iter(shelf.values.values()))[:-40] + bytes(40)):
        for key in shelf.values:
            shelf.values[key] = damaged
        with warnings.catch_warnings(record=True):
            warnings.simplefilter("always")
            loaded = again()
        assert traced and loaded.run(loaded.buckets[0], [x])[0].tolist() == [[2] * 3]


def test_a_named_program_with_jax_arrays_as_constants_is_served_without_being_stored(
    watch: CompileWatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    from firstlight.serve import kept_programs

    shelf, constant = Shelf(), jnp.arange(3.0)
    monkeypatch.setattr(kept_programs, "current_store", lambda: shelf)
    loaded = load(declared(lambda x: x + constant, program="a"), watch)
    assert loaded.run(loaded.buckets[0], [np.zeros((1, 3), np.float32)])[0].tolist() == [[0, 1, 2]]


def test_trees_of_inputs_and_outputs_get_names(watch: CompileWatch) -> None:
    def tree(a: Any, rest: Any) -> Any:
        return {"sum": a + rest["b"], "both": (a, [rest["b"]])}

    scalar = serve.Input("float32", ())
    loaded = load(declared(tree, {"a": scalar, "rest": {"b": scalar}}), watch)
    assert [t.name for t in loaded.signature.inputs] == ["a", "rest.b"]
    assert [t.name for t in loaded.signature.outputs] == ["both.0", "both.1.0", "sum"]
    bare = load(declared(lambda x: x), watch)
    assert [t.name for t in bare.signature.outputs] == ["output"]


def test_float64_inputs_are_computed_in_64_bits_in_a_32_bit_program(watch: CompileWatch) -> None:
    loaded = load(declared(lambda x: {"y": jnp.exp(x)}, {"x": serve.Input("float64", ())}), watch)
    x = np.array([0.1])
    (y,) = loaded.run(loaded.buckets[0], [x])
    assert y.dtype == np.float64 and y[0] == pytest.approx(np.exp(0.1), rel=1e-15)
    assert not jax.config.jax_enable_x64


@pytest.mark.parametrize(
    ("function", "options", "message"),
    [
        (lambda x: x - x.mean(axis=0), {"batched": True}, "would affect each other"),
        (lambda x: x.sum(), {"batched": True}, "leading axis must be the rows"),
        (lambda x: x.sum(axis=1), {}, "gets one row, without a batch axis"),
        (lambda x: x @ np.ones((4, 4)), {}, "cannot be compiled"),
        (lambda x: 1 / 0, {}, rf"ZeroDivisionError \({HERE}, line \d+\): division by zero"),
        (lambda x: x if x.sum() > 0 else -x, {}, rf"BoolConversionError \({HERE}, line"),
        (lambda p, x: x, {"parameters": {"name": "text"}}, "not an array of numbers"),
        (lambda x: x, {"inputs": {"x": 3}}, "not a serve.Input"),
        (lambda x: x * 1j, {}, "complex64, which the protocol has no type for"),
        (lambda x: x, {"inputs": {"x": serve.Input("float32", ("n",))}}, "variable axes"),
    ],
    ids=[
        "mixes",
        "reduces",
        "no batch axis",
        "shape",
        "raises",
        "branches",
        "parameters",
        "input",
        "complex",
        "axes",
    ],
)
def test_errors_of_models_name_the_reason(
    watch: CompileWatch, function: Any, options: Any, message: str
) -> None:
    with pytest.raises(LoadError, match=message):
        load(declared(function, **options), watch)


def test_memory_is_checked_before_anything_is_put_on_the_device(watch: CompileWatch) -> None:
    weights = np.ones((3, 1024), np.float32)
    model = declared(lambda w, x: x @ w, parameters=weights)
    assert load(model, watch, max_bytes=2**20).memory_bytes >= weights.nbytes
    with pytest.raises(LoadError, match="--memory-limit"):
        load(model, watch, max_bytes=weights.nbytes)


@pytest.fixture(scope="module")
def variable() -> Loaded:
    """Cumulative sums and totals of rows of any length up to 8."""
    from firstlight.telemetry.values import Values

    watch = CompileWatch(Values())
    inputs = {"x": serve.Input("float32", ("length",))}
    model = declared(
        lambda x: {"sums": jnp.cumsum(x), "total": x.sum()},
        inputs,
        axes={"length": (4, 8)},
    )
    loaded = load(model, watch)
    watch.close()
    return loaded


@pytest.mark.parametrize(("length", "padded"), [(1, 4), (4, 4), (5, 8), (8, 8)])
def test_variable_axes_are_padded_to_the_next_size_and_cut_again(
    variable: Loaded, length: int, padded: int
) -> None:
    x = np.arange(1, length + 1, dtype=np.float32)[None]
    rows = arrange(variable, [x])
    assert rows.sizes == (padded,) and rows.extents == {"length": length}
    bucket = variable.lanes[rows.sizes][0]
    sums, total = variable.run(bucket, rows.arrays)
    assert [t.shape for t in variable.signature.outputs] == [("length",), ()]
    np.testing.assert_array_equal(sums[:, :length], np.cumsum(x, axis=1))
    assert total.tolist() == [length * (length + 1) / 2]


@pytest.mark.parametrize("shape", [(1, 9), (3, 4), (1,), (1, 2, 2)])
def test_shapes_outside_the_buckets_are_refused_with_the_valid_ones(
    variable: Loaded, shape: tuple[int, ...]
) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        arrange(variable, [np.ones(shape, np.float32)])
    assert caught.value.status == 400
    assert caught.value.valid == {
        "inputs": {"x": ["rows", "length"]}, "rows": [1, 2], "axes": {"length": [1, 8]},
    }  # fmt: skip
