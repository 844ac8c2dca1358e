"""Frozen functions as models: a real server that never imports JAX, and errors."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from otlp_collector import Collector, collecting
from serving_process import Running

from firstlight import serve, warmstart
from firstlight.serve.compiled_models import LoadError
from firstlight.serve.frozen_models import load_frozen
from firstlight.serve.targets import models_in
from firstlight.warmstart.frozen import artifact as content
from firstlight.warmstart.frozen import freezing
from firstlight.warmstart.frozen.sealing import opened, sealed_function

pytestmark = pytest.mark.slow

WEIGHTS = np.random.default_rng(5).normal(size=(16, 4)).astype(np.float32)
ROW = jax.ShapeDtypeStruct((1, 16), np.float32)


def scores(x: Any) -> Any:
    return {"scores": jnp.tanh(x @ WEIGHTS)}


def weighted(weights: Any, x: Any) -> Any:
    return jnp.tanh(x @ weights["w"]), x.sum(axis=1)


def expected(x: Any) -> Any:
    return np.tanh(x.astype(np.float64) @ WEIGHTS.astype(np.float64))


def without_proof(frozen: Any, proofs: Any) -> Any:
    """Replaces the proof of a file in a fresh process; these tests run the files."""
    return frozen


@pytest.fixture
def freeze(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    monkeypatch.setattr(freezing, "prove", without_proof)

    def made(*arguments: Any, **options: Any) -> Path:
        return warmstart.freeze(*arguments, path=tmp_path / "f.frozen", **options)

    return made


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with collecting() as made:
        yield made


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, collector: Collector) -> Iterator[Running]:
    """A server in a folder where `import jax` fails."""
    folder = tmp_path_factory.mktemp("frozen")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(freezing, "prove", without_proof)
        warmstart.freeze(scores, ROW, path=folder / "scores.frozen", buckets=(1, 8, 32))
    (folder / "jax.py").write_text("raise ImportError('a frozen function needs no JAX')")
    running = Running(folder, "scores.frozen", "--grpc-port", "0", "--otlp", collector.url)
    running.grpc_address = running.until("grpc://").split("grpc://")[1].strip()
    running.report = running.until("executables")
    running.until("ready after")
    yield running
    running.stop()


@pytest.mark.parametrize("rows", [1, 5, 32])
def test_tritons_client_gets_the_right_numbers_without_jax(server: Running, rows: int) -> None:
    from tritonclient.http import InferenceServerClient, InferInput

    client = InferenceServerClient(server.address)
    x = np.random.default_rng(rows).normal(size=(rows, 16)).astype(np.float32)
    sent = InferInput("x", list(x.shape), "FP32")
    sent.set_data_from_numpy(x)
    result = client.infer("scores", [sent]).as_numpy("scores")
    client.close()
    np.testing.assert_allclose(result, expected(x), rtol=1e-5, atol=1e-6)


def test_tritons_client_gets_the_same_over_grpc(server: Running) -> None:
    from tritonclient.grpc import InferenceServerClient, InferInput, InferRequestedOutput

    x = np.random.default_rng(3).normal(size=(9, 16)).astype(np.float32)
    sent = InferInput("x", list(x.shape), "FP32")
    sent.set_data_from_numpy(x)
    with InferenceServerClient(server.grpc_address) as client:
        assert client.is_server_ready() and client.is_model_ready("scores")
        wanted = [InferRequestedOutput("scores")]
        result = client.infer("scores", [sent], outputs=wanted, client_timeout=20)
    np.testing.assert_allclose(result.as_numpy("scores"), expected(x), rtol=1e-5, atol=1e-6)


def test_the_trace_of_a_caller_continues_in_the_server(
    server: Running, collector: Collector
) -> None:
    trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    headers = {"traceparent": f"00-{trace}-00f067aa0ba902b7-01"}
    assert server.ask("POST", "/models/scores", {"x": [[0.0] * 16]}, headers)[0] == 200
    names = []
    while len(names) < 3:
        [span] = collector.take(1)
        names += [span.name] if span.trace_id.hex() == trace else []
    assert names == ["infer scores", "queue", "execute"]


def test_buckets_and_inputs_are_those_of_the_file_and_nothing_compiles(server: Running) -> None:
    assert "3 executables (all frozen" in server.report
    about = server.ask("GET", "/v2/models/scores")[1]
    assert about["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 16]}]
    assert about["outputs"] == [{"name": "scores", "datatype": "FP32", "shape": [-1, 4]}]
    settings = server.ask("GET", "/v2/models/scores/config")[1]
    assert [bucket["rows"] for bucket in settings["buckets"]] == [1, 8, 32]
    status, body = server.ask("POST", "/models/scores", {"x": [[0.0] * 16] * 33})
    assert status == 400 and body["valid"]["rows"] == [1, 32]
    text = server.ask("GET", "/metrics")[1]
    assert "\nfirstlight_request_path_compiles_total 0.0\n" in text


def test_a_function_frozen_for_another_jaxlib_is_refused_with_exit_code_2(server: Running) -> None:
    folder = server.folder
    frozen = content.from_bytes(opened(folder / "scores.frozen"))
    elsewhere = replace(frozen, place=replace(frozen.place, jaxlib="0.0.1"))
    (folder / "other.frozen").write_bytes(sealed_function(content.to_bytes(elsewhere), False))
    done = subprocess.run(
        [sys.executable, "-m", "firstlight", "serve", "other.frozen", "--port", "0"],
        cwd=folder, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 2
    assert "jaxlib is" in done.stderr and "was 0.0.1" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_second_server_on_the_same_port_says_so_and_exits_with_2(server: Running) -> None:
    port = server.address.rpartition(":")[2]
    done = subprocess.run(
        [sys.executable, "-m", "firstlight", "serve", "scores.frozen", "--port", port],
        cwd=server.folder, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 2 and "Choose another --port" in done.stderr


def test_arguments_without_rows_are_parameters_and_results_are_numbered(
    freeze: Callable[..., Path],
) -> None:
    path = freeze(weighted, {"w": WEIGHTS}, ROW, buckets=(1, 4), batched=(1,))
    loaded = load_frozen(serve.frozen(path, parameters={"weights": {"w": WEIGHTS}}, name="w"))
    assert [tensor.name for tensor in loaded.signature.inputs] == ["x"]
    assert [tensor.name for tensor in loaded.signature.outputs] == ["output.0", "output.1"]
    x = np.random.default_rng(1).normal(size=(4, 16)).astype(np.float32)
    found, sums = loaded.run(loaded.buckets[1], [x])
    np.testing.assert_allclose(found, expected(x), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(sums, x.astype(np.float64).sum(axis=1), rtol=1e-5, atol=1e-5)


def test_a_frozen_function_that_mixes_rows_is_refused(freeze: Callable[..., Path]) -> None:
    path = freeze(lambda x: x - jnp.nanmean(x, axis=0), ROW, buckets=(1, 8))
    for without_jax in (True, False):
        model = serve.frozen(path, name="mixes")
        artifact = replace(model.opened.artifact, without_jax=without_jax)
        opened_so = replace(model, opened=replace(model.opened, artifact=artifact))
        with pytest.raises(LoadError, match=r"model 'mixes': .* would affect each other"):
            load_frozen(opened_so)


def test_without_buckets_a_row_is_a_call(freeze: Callable[..., Path]) -> None:
    [model] = models_in(str(freeze(scores, jax.ShapeDtypeStruct((3, 16), np.float32))))
    assert model.name == "f" and tuple(model.buckets) == (1,)
    assert isinstance(model, serve.frozen_models.FrozenModel)
    loaded = load_frozen(model)
    x = np.random.default_rng(2).normal(size=(1, 3, 16)).astype(np.float32)
    [found] = loaded.run(loaded.buckets[0], [x])
    np.testing.assert_allclose(found, expected(x), rtol=1e-5, atol=1e-6)


def test_errors_of_frozen_models_say_what_to_do(freeze: Callable[..., Path]) -> None:
    path = freeze(weighted, {"w": WEIGHTS}, ROW, buckets=(2,), batched=(1,))
    with pytest.raises(serve.DeclarationError, match=r"parameters=\{'weights'"):
        serve.frozen(path)
    with pytest.raises(serve.DeclarationError, match="differs in structure or shape"):
        serve.frozen(path, parameters={0: {"w": WEIGHTS[:3]}})
    with pytest.raises(serve.DeclarationError, match="no argument 'bias'"):
        serve.frozen(path, parameters={0: {"w": WEIGHTS}, "bias": 1})
    model = serve.frozen(path, parameters={0: {"w": WEIGHTS}})
    with pytest.raises(LoadError, match="--memory-limit"):
        load_frozen(model, max_bytes=100)
    path = freeze(lambda x: x.T @ x, (np.ones((2, 3)),), (np.ones((2, 5)),))
    with pytest.raises(serve.DeclarationError, match="Freeze one call per file"):
        serve.frozen(path)
    path = freeze(lambda x: (x, jnp.ones(3)), ROW, buckets=(2,))
    with pytest.raises(serve.DeclarationError, match=r"'output\.1' has no rows"):
        serve.frozen(path)


def test_a_frozen_function_of_64_bits_is_served_beside_others(freeze: Callable[..., Path]) -> None:
    """Although JAX is imported here and computes in 32 bits."""
    with jax.enable_x64(True):
        path = freeze(jnp.sqrt, np.ones((1, 2)), buckets=(1,))
    loaded = load_frozen(serve.frozen(path))
    [found] = loaded.run(loaded.buckets[0], [np.array([[2.0, 3.0]])])
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, [[2**0.5, 3**0.5]], rtol=1e-15)


def test_a_file_that_is_open_to_others_is_not_served(freeze: Callable[..., Path]) -> None:
    path = freeze(scores, ROW)
    os.chmod(path, 0o666)
    with pytest.raises(warmstart.frozen.errors.NotTrustedError, match="open to others"):
        models_in(str(path))
