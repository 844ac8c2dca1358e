"""`firstlight serve --on ray` as a process: one local Ray for all claims."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "serve"))
from serving_process import Running

from firstlight.cluster import connection
from firstlight.cluster.serving import Scale, options
from firstlight.cluster.serving_front import merged
from firstlight.cluster.serving_replica import Replicated
from firstlight.cluster.serving_scale import replicas_for_queues
from firstlight.serve.running import Settings

pytestmark = pytest.mark.slow

APP = """
import jax, jax.numpy as jnp, numpy as np
from firstlight import serve

WEIGHTS = np.random.default_rng(5).normal(size=(16, 4)).astype(np.float32)

@serve.model(inputs={"x": serve.Input("float32", (16,))}, parameters=WEIGHTS, buckets=(1, 8))
def scores(weights, x):
    return {"scores": jnp.tanh(x @ weights)}

@serve.model(inputs={"steps": serve.Input("int32", ())}, buckets=(1,))
def count(steps):
    return {"steps": jax.lax.fori_loop(0, steps, lambda i, s: s + 1, 0)}
"""


def right(scores: Any, x: Any) -> bool:
    """Within what float32 can do: sums that cancel keep the rounding errors of their terms."""
    x = x.astype(np.float64)
    weights = np.random.default_rng(5).normal(size=(16, 4)).astype(np.float32).astype(np.float64)
    rounding = 2.0**-24
    bound = 16 * rounding * (abs(x) @ abs(weights)) + 4 * rounding
    return bool((abs(scores - np.tanh(x @ weights)) <= bound).all())


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("ray")
    (folder / "app.py").write_text(APP)
    more = ("--on", "ray", "--replicas", "2:2", "--replica-cpus", "0.1", "--cache", "cache")
    running = Running(folder, "app.py", *more)
    running.replicas = [running.until("executables compiled") for _ in range(2)]
    yield running
    running.stop()


def test_tritons_client_is_answered_by_replicas(server: Running) -> None:
    from tritonclient.http import InferenceServerClient, InferInput

    x = np.random.default_rng(3).normal(size=(5, 16)).astype(np.float32)
    sent = InferInput("x", list(x.shape), "FP32")
    sent.set_data_from_numpy(x)
    client = InferenceServerClient(server.address)
    assert client.is_server_ready() and client.get_model_config("scores")["max_batch_size"] == 8
    result = client.infer("scores", [sent]).as_numpy("scores")
    client.close()
    assert right(result, x)
    status, body = server.ask("POST", "/models/scores", {"x": [[0.0] * 17]})
    assert status == 400 and body["valid"]["inputs"] == {"x": ["rows", 16]}


def test_one_address_has_the_metrics_of_every_replica(server: Running) -> None:
    names = {line.split("replica ")[1].split()[0] for line in server.replicas}
    assert len(names) == 2
    text = server.ask("GET", "/metrics")[1]
    for name in names:
        assert f'\nfirstlight_request_path_compiles_total{{replica="{name}"}} 0.0\n' in text


def test_a_killed_replica_costs_no_request_and_its_successor_compiles_nothing(
    server: Running,
) -> None:
    """Two clients keep asking, and repeat nothing; a replica is killed meanwhile."""
    process = int(server.replicas[0].split("process ")[1].split(":")[0])
    killed, done, wrong = threading.Event(), threading.Event(), list[Any]()
    answered = [0] * 2

    def client(number: int) -> None:
        draw = np.random.default_rng(number)
        while not done.is_set():
            x = draw.normal(size=(2, 16)).astype(np.float32)
            status, body = server.ask("POST", "/models/scores", {"x": x.tolist()})
            if status != 200 or not right(body["scores"], x):
                wrong.append((status, body))
            answered[number] += 1
            if answered[number] == 20 and not killed.is_set():
                killed.set()
                os.kill(process, signal.SIGKILL)

    clients = [threading.Thread(target=client, args=(i,)) for i in range(2)]
    for thread in clients:
        thread.start()
    successor = server.until("executables compiled")
    done.set()
    for thread in clients:
        thread.join()
    assert not wrong and killed.is_set()
    assert "0 executables compiled, 3 from the cache" in successor


def test_sigterm_answers_what_has_arrived_and_exits_with_0(server: Running) -> None:
    """The last one: it ends the server."""
    steps, found = 100_000_000, []
    thread = threading.Thread(
        target=lambda: found.append(server.ask("POST", "/models/count", {"steps": [steps]}))
    )
    thread.start()
    while 'firstlight_queue_duration_seconds_count{model="count",' not in "".join(
        line for line in server.ask("GET", "/metrics")[1].splitlines() if line.endswith(" 1.0")
    ):
        pass  # until it is being computed
    os.killpg(server.process.pid, signal.SIGTERM)  # as a terminal or systemd would
    assert server.stop() == 0
    thread.join()
    assert found == [(200, {"steps": [steps]})]


def test_metrics_of_replicas_are_merged_as_prometheus_reads_them() -> None:
    from prometheus_client.parser import text_string_to_metric_families

    text = '# HELP a An a.\n# TYPE a counter\na_total{m="x y"} 1.0\n# TYPE b gauge\nb 2.0\n'
    families = list(text_string_to_metric_families(merged({"one": text, "two": text})))
    samples = {(s.name, *sorted(s.labels.items())): s.value for f in families for s in f.samples}
    assert samples == {
        ("a_total", ("m", "x y"), ("replica", "one")): 1,
        ("a_total", ("m", "x y"), ("replica", "two")): 1,
        ("b", ("replica", "one")): 2,
        ("b", ("replica", "two")): 2,
    }


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Ray's own, of pydantic
def test_ray_serve_accepts_the_deployment_also_on_machines_elsewhere(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It takes no folder of this machine: that travels with the job."""
    import ray
    from ray.serve.schema import DeploymentSchema

    monkeypatch.setenv("XLA_FLAGS", "--xla_flag")
    what = Replicated(("app.py",), None, Settings(), is_local=False)
    wanted = options(what, Scale())["ray_actor_options"]
    found = DeploymentSchema(name="models", ray_actor_options=wanted).ray_actor_options
    assert found.runtime_env["env_vars"]["XLA_FLAGS"] == "--xla_flag"
    given: dict[str, Any] = {}
    monkeypatch.setattr(ray, "init", lambda **options: given.update(options))
    connection._start(ray, "ray://head:10001", str(tmp_path))
    assert given["runtime_env"] == {"working_dir": str(tmp_path)}


@pytest.mark.parametrize(
    ("waiting", "busy", "replicas"),
    [
        ([0.0], [0.0], 1),
        ([0.0], [0.8], 1),
        ([0.0], [1.0], 2),  # one is busy all the time
        ([0.0, 0.0], [0.5, 0.5], 2),  # its work divided: no reason to change anything
        ([9.0], [1.0], 4),  # ten batches: as many as are allowed
    ],
)
def test_replicas_follow_the_queues(waiting: Any, busy: Any, replicas: int) -> None:
    context = SimpleNamespace(
        aggregated_metrics={
            "waiting_batches": dict(enumerate(waiting)),
            "busy_share": dict(enumerate(busy)),
        },
        capacity_adjusted_min_replicas=1,
        capacity_adjusted_max_replicas=4,
    )
    assert replicas_for_queues(context)[0] == replicas
