"""Claims about forked processes: compiled programs raise at once, and NumPy goes on.

Real processes: a child that hangs is ended by its alarm, and the test says so.
"""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from typing import Any

import pytest

SCRIPT = """
import json, multiprocessing, os, signal, sys
import numpy as np
from firstlight import histfactory as hf, losses
from firstlight.histfactory import programs

programs.PATIENCE = 1e9
model, found = hf.load(json.load(sys.stdin)), {}
signal_yields = {"signal": [6.0, 9.0, 4.0]}

def in_child(function):
    "What a forked process answers: a number, the name of an error, or that it hung."
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        signal.alarm(20)
        try:
            answer = float(np.sum(np.asarray(function(), float)))
        except Exception as error:
            answer = f"{type(error).__name__}: {error}"
        os.write(write, json.dumps(answer).encode())
        os._exit(0)
    os.close(write)
    _, status = os.waitpid(pid, 0)
    with os.fdopen(read) as answer:
        return f"hung: status {status}" if status else json.load(answer)

def gradient_in_numpy():
    return jax.grad(lambda m: hf.discovery(m).z0)(model).template("SR", "signal")

def past_patience():
    programs.PATIENCE = 0.0
    return hf.fit(model).values

numpy = {
    "fit": lambda: hf.fit(model).values,
    "covariance": lambda: hf.fit(model).covariance,
    "correlation": lambda: hf.fit(model).correlation,
    "nll": lambda: hf.nll(model),
    "gradient": lambda: hf.gradient(model),
    "hessian": lambda: hf.hessian(model),
    "rows": lambda: hf.nll(model, np.stack([model.init] * 3)),
    "expected_data": lambda: hf.expected_data(model),
    "discovery": lambda: hf.discovery(model).z0,
    "cls": lambda: hf.cls(model, 1.0).observed,
    "upper_limit": lambda: hf.upper_limit(model).observed,
    "scan": lambda: hf.scan(model, points=3).nll,
    "impacts": lambda: hf.impacts(model).post_up,
    "toys": lambda: hf.toys(model, 3).values,
    "toy_cls": lambda: hf.toy_cls(model, 1.0, 3).clsb,
    "losses.significance": lambda: losses.significance(model, signal_yields),
    "losses.upper_limit": lambda: losses.upper_limit(model, signal_yields),
}
jaxs = {
    "precompile": lambda: hf.precompile(model),
    "grad": gradient_in_numpy,
    "jit": lambda: jax.jit(lambda mu: hf.nll(model, {"mu": mu}))(1.0),
    "vmap": lambda: jax.vmap(lambda mu: hf.nll(model, {"mu": mu}))(np.ones(3)),
    "toys from a JAX key": lambda: hf.toys(model, 3, key).values,
    "soft_histogram": lambda: losses.soft_histogram([0.1, 0.7], [0.0, 0.5, 1.0]),
    "initial_state": lambda: losses.initial_state(model).muhat,
}

here = {name: float(np.sum(np.asarray(call(), float))) for name, call in numpy.items()}
found["before XLA runs"] = in_child(jaxs["soft_histogram"])
import jax
key = jax.random.key(1)
found["in NumPy"] = {name: in_child(call) for name, call in numpy.items()}
found["past patience"] = in_child(past_patience)
found["in JAX"] = {name: in_child(call) for name, call in jaxs.items()}
hf.precompile(model)
found["compiled"] = {name: in_child(call) for name, call in {**numpy, **jaxs}.items()}
found["a fork of a fork"] = in_child(lambda: float("Fork" in str(in_child(numpy["fit"]))))

def in_pool():
    with multiprocessing.get_context("fork").Pool(1) as pool:
        return pool.apply_async(hf.fit, (model,)).get(timeout=20)

try:
    found["in a pool"] = str(in_pool())
except Exception as error:
    found["in a pool"] = f"{type(error).__name__}: {error}"
print(json.dumps([here, found]))
"""


@pytest.fixture(scope="module")
def answers(make: Any) -> tuple[dict[str, float], dict[str, Any]]:
    workspace = make.counting(
        [6.0, 9.0, 4.0],
        [50.0, 40.0, 20.0],
        [62.0, 57.0, 29.0],
        make.normsys("xs", 0.9, 1.1),
        make.modifier("staterror", "stat", [3.0, 3.0, 2.0]),
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(SCRIPT)],
        input=json.dumps(workspace),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    here, found = json.loads(done.stdout)
    return here, found


def test_a_process_forked_before_xla_runs_compiles_as_any_other(answers: Any) -> None:
    assert answers[1]["before XLA runs"] == pytest.approx(2.0)


def test_numpy_computes_in_a_forked_process_what_it_computes_in_its_parent(answers: Any) -> None:
    here, found = answers
    assert found["in NumPy"] == pytest.approx(here, rel=1e-12)


def test_a_forked_process_that_cannot_compile_goes_on_with_numpy(answers: Any) -> None:
    here, found = answers
    assert found["past patience"] == pytest.approx(here["fit"], rel=1e-12)


@pytest.mark.parametrize("when", ["in JAX", "compiled"])
def test_a_compiled_program_in_a_forked_process_raises_at_once(answers: Any, when: str) -> None:
    wrong = {name: a for name, a in answers[1][when].items() if not is_fork_error(a)}
    assert wrong == {}


def test_the_error_reaches_the_caller_of_a_pool(answers: Any) -> None:
    assert is_fork_error(answers[1]["in a pool"])


def test_a_fork_of_a_fork_raises_too(answers: Any) -> None:
    assert answers[1]["a fork of a fork"] == 1.0


def is_fork_error(answer: object) -> bool:
    text = str(answer)
    return text.startswith("ForkError") and "spawn" in text and "before the fork" in text
