"""Claims about plain calls: NumPy answers before JAX is imported, and compiled programs agree."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from typing import Any, NamedTuple

import numpy as np
import pytest

from firstlight import histfactory as hf
from firstlight.histfactory import programs, synthetic

_PLAIN_CALLS = """
import json, sys
from firstlight import histfactory as hf
from firstlight.histfactory import programs

programs.PATIENCE = 1e9  # also on a busy machine
model = hf.load(json.loads(sys.argv[1]))
found = hf.fit(model)
results = {
    "nll": found.nll, "sigma": found.uncertainties["mu"], "z0": hf.discovery(model).z0,
    "cls": hf.cls(model, 1.0).observed, "limit": hf.upper_limit(model).observed,
    "scan": hf.scan(model, points=3).nll.tolist(), "toys": hf.toys(model, 2).nll.tolist(),
    "impacts": hf.impacts(model).post_up.tolist(), "slope": hf.gradient(model).tolist(),
    "expected": hf.expected_data(model).tolist(), "curvature": hf.hessian(model)[0, 0],
}
loaded = [name for name in ("jax", "jaxlib", "scipy") if name in sys.modules]

from importlib.util import find_spec

assert find_spec("jax")  # asked for, as many packages do, and not imported
import jax  # only now

slopes = jax.grad(lambda m: hf.discovery(m).q0)(model)
signal = slopes.template("SR", "signal")
kind = str(signal.dtype)
print(json.dumps([loaded, results, kind, [float(x) for x in signal]]))
"""


def counting(make: Any) -> dict[str, Any]:
    systematics = [
        make.normsys("n", 0.93, 1.08),
        make.modifier("shapesys", "g", [4.0, 5.0]),
        make.histosys("h", [48.0, 51.0], [53.0, 55.0]),
    ]
    workspace: dict[str, Any] = make.counting([9.0, 4.0], [50.0, 52.0], [62, 55], *systematics)
    return workspace


def test_plain_calls_do_not_import_jax_and_their_model_is_a_pytree_once_jax_is_imported(
    make: Any,
) -> None:
    workspace = counting(make)
    done = subprocess.run(
        [sys.executable, "-c", _PLAIN_CALLS, json.dumps(workspace)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    loaded, results, kind, signal = json.loads(done.stdout)
    assert loaded == []
    # The same here, where JAX is imported and everything is compiled.
    model = hf.load(workspace)
    hf.precompile(model)
    found = hf.fit(model)
    compiled = {
        "nll": found.nll,
        "sigma": found.uncertainties["mu"],
        "z0": hf.discovery(model).z0,
        "cls": hf.cls(model, 1.0).observed,
        "limit": hf.upper_limit(model).observed,
        "scan": hf.scan(model, points=3).nll,
        "toys": hf.toys(model, 2).nll,
        "impacts": hf.impacts(model).post_up,
        "slope": hf.gradient(model),
        "expected": hf.expected_data(model),
        "curvature": hf.hessian(model)[0, 0],
    }
    for name, value in compiled.items():
        np.testing.assert_allclose(results[name], value, rtol=1e-9, err_msg=name)
    # Made before JAX was imported, differentiated with all its digits in a 32-bit program.
    assert kind == "float64"
    step = 1e-5
    moved = [
        hf.discovery(model.with_nominal({("SR", "signal"): [9.0 + s, 4.0]})).q0
        for s in (step, -step)
    ]
    assert signal[0] == pytest.approx((moved[0] - moved[1]) / (2 * step), rel=1e-7)


@pytest.mark.parametrize("codes", [("code4", "code4p"), ("code1", "code0"), ("code4", "code2")])
def test_numpy_and_compiled_programs_end_at_the_same_minimum(
    codes: tuple[str, str], computing: Any
) -> None:
    model = hf.load(synthetic.preset("complex-8p"), interpolation=codes)
    rng = np.random.default_rng(5)
    for data in [None, *rng.poisson(model.observed, (3, model.n_bins)).astype(float)]:
        computing.by_numpy()
        first = hf.discovery(model, data)
        computing.by_programs()
        compiled = hf.discovery(model, data)
        assert first.q0 == pytest.approx(compiled.q0, rel=1e-9, abs=1e-11)
        pairs = ((first.free, compiled.free), (first.conditional, compiled.conditional))
        for ours, theirs in pairs:
            assert (ours.status, ours.branches) == (theirs.status, theirs.branches)
            np.testing.assert_array_equal(ours.at_bound, theirs.at_bound)
            np.testing.assert_allclose(ours.values, theirs.values, rtol=1e-8, atol=1e-9)


def test_a_program_is_compiled_once_numpy_has_worked_for_long_enough(
    make: Any, compilations: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = hf.load(make.counting([9.0], [50.0], [62], make.normsys("only-here", 0.9, 1.1)))
    alone = hf.toys(model, 12, parameters={"mu": 1.0})
    monkeypatch.setattr(programs, "_EVALUATION", 0.1)  # a fit takes about a second
    monkeypatch.setattr(programs, "PATIENCE", 5.0)
    seen = []
    compilations.reset()
    hf.toys(model, 3, progress=lambda done, of: seen.append(compilations.count))
    assert seen == [0, 0, 0]
    rest = hf.toys(model, 12, parameters={"mu": 1.0})  # too many for NumPy
    assert compilations.count >= 1
    for field in dataclasses.fields(rest):
        if field.name not in ("names", "edm"):
            ours, expected = getattr(rest, field.name), getattr(alone, field.name)
            np.testing.assert_allclose(ours, expected, rtol=1e-9, atol=1e-9)


def test_a_first_fit_imports_only_what_it_uses(make: Any) -> None:
    program = """
import json, sys
import numpy
before = set(sys.modules)
from firstlight import histfactory as hf
hf.fit(hf.load(json.loads(sys.argv[1])))
print(json.dumps(sorted(set(sys.modules) - before)))
"""
    command = [sys.executable, "-c", program, json.dumps(counting(make))]
    loaded = set(json.loads(subprocess.run(command, capture_output=True, check=True).stdout))
    assert "firstlight.histfactory.fitting" in loaded
    unused = {f"firstlight.histfactory.{name}" for name in ("lanes", "patches", "templates")}
    unused |= {"hashlib", "_hashlib", "importlib.util", "numpy.typing", "threadpoolctl"}
    assert not loaded & (unused | {"threading", "concurrent.futures", "jax", "scipy"})


class _Pair(NamedTuple):
    count: Any
    matrix: Any
    nothing: None = None


def test_a_compiled_function_returns_what_it_returns_in_numpy(make: Any) -> None:
    """Numbers, counts and truth values travel in one vector each way."""

    def function(prepared: Any, pair: _Pair, vector: Any, xp: Any) -> Any:
        found = _Pair(xp.asarray(2**30 + 1, xp.int32) + len(vector), pair.matrix @ vector)
        return found, (vector > 1, vector.sum() > 1), pair.count * vector[0]

    prepared = hf.load(counting(make))._prepared
    program = programs.Program(function, evaluations=1)
    for n in (3, 5):
        matrix = np.arange(2.0 * n).reshape(2, n) / 7
        arguments = (_Pair(np.float64(1 / 3), matrix), np.linspace(0.1, 2, n))
        expected = program.on_host(prepared, *arguments)
        for _ in range(2):
            found = program.compiled(prepared, *arguments)
            assert isinstance(found[0], _Pair)
            pairs = zip(programs.leaves_of(found), programs.leaves_of(expected), strict=True)
            for ours, theirs in pairs:
                assert np.asarray(ours).dtype == np.asarray(theirs).dtype
                np.testing.assert_allclose(ours, theirs, rtol=1e-15)


def test_a_missing_jax_is_an_error_only_when_it_is_needed(make: Any) -> None:
    program = """
import json, sys
sys.modules["jax"] = None  # as if it were not installed
from firstlight import histfactory as hf
model = hf.load(json.loads(sys.argv[1]))
print(hf.fit(model).nll)
hf.precompile(model)
"""
    done = subprocess.run(
        [sys.executable, "-c", program, json.dumps(counting(make))],
        capture_output=True,
        text=True,
        check=False,
    )
    assert float(done.stdout) == pytest.approx(hf.fit(hf.load(counting(make))).nll, rel=1e-12)
    assert "ModuleNotFoundError: compiled programs and derivatives need JAX" in done.stderr
    assert "pip install 'firstlight[jax]'" in done.stderr
