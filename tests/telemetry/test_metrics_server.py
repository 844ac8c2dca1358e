"""Export over HTTP and to a push-gateway: ports in use, unreachable gateways, tokens."""

from __future__ import annotations

import gzip
import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from scraping import everything, receiver, samples

from firstlight import telemetry
from firstlight.telemetry import metrics
from firstlight.telemetry.metrics import Kind, Metric
from firstlight.telemetry.process_values import memory_bytes
from firstlight.telemetry.prometheus import Exporter
from firstlight.telemetry.values import Values
from firstlight.telemetry.watch.process import ProcessWatch

TOKEN = "0123456789abcdef0123"


def test_prometheus_reads_exported_values_as_they_were_counted() -> None:
    values = Values()
    name = 'a "name"\\with\nall'
    values.counter(metrics.STEPS, name, "ok").add(3)
    durations = values.histogram(metrics.STEP_DURATION, name, "warm")
    durations.observe(0.005)
    durations.observe(0.3, times=2)
    values.gauge(metrics.GRADIENT_ERROR, lambda: float("inf"))
    found = samples(Exporter(values).text().decode())

    def one(metric: str, **labels: str) -> float:
        return found[(metric, frozenset(labels.items()))]

    assert one("firstlight_steps_total", function=name, result="ok") == 3
    duration, about = "firstlight_step_duration_seconds", {"function": name, "phase": "warm"}
    assert one(f"{duration}_bucket", **about, le="0.005") == 1
    assert one(f"{duration}_bucket", **about, le="1.0") == 3
    assert one(f"{duration}_count", **about) == 3
    assert one(f"{duration}_sum", **about) == pytest.approx(0.605)
    assert one("firstlight_gradient_max_relative_error_ratio") == float("inf")
    resident = memory_bytes()
    assert resident is not None
    assert one("process_resident_memory_bytes") == pytest.approx(resident[0], rel=0.2)


def test_a_fork_with_the_same_counts_as_its_parent_exports_its_own_durations() -> None:
    values = Values()
    exporter = Exporter(values)
    durations = values.histogram(metrics.STEP_DURATION, "train", "warm")
    durations.observe(0.001)
    exporter.text()
    values.zero()
    durations.observe(9.0)
    found = samples(exporter.text().decode())
    about = frozenset({"function": "train", "phase": "warm"}.items())
    assert found[("firstlight_step_duration_seconds_sum", about)] == 9.0


def test_a_metric_missing_from_the_catalogue_is_left_out_with_one_warning(
    capfd: pytest.CaptureFixture[str],
) -> None:
    values = Values()
    values.counter(Metric("firstlight_unheard_of_total", Kind.COUNTER, "?")).add()
    exporter = Exporter(values)
    assert b"unheard" not in exporter.text() + exporter.text()
    assert capfd.readouterr().err.count("firstlight_unheard_of_total") == 1


def test_a_port_in_use_causes_one_warning_and_metrics_are_still_counted(
    watch: ProcessWatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert watch.server is not None
    port = watch.server.port
    capfd.readouterr()
    second = ProcessWatch(_settings(f"127.0.0.1:{port}"))
    second.start()
    try:
        assert second.server is None
        assert b"firstlight_steps_total" in second.text()
    finally:
        second.close()
    said = capfd.readouterr().err.splitlines()
    assert len(said) == 1 and f"127.0.0.1:{port}" in said[0] and "in use" in said[0]


def test_each_process_takes_the_next_free_port_of_a_range(watch: ProcessWatch) -> None:
    assert watch.server is not None
    port = watch.server.port
    second = ProcessWatch(_settings(f"127.0.0.1:{port}-{min(port + 20, 65535)}"))
    second.start()
    try:
        assert second.server is not None and second.server.port > port
    finally:
        second.close()


@pytest.mark.parametrize("text", ["nonsense", "host:", "host:99999", "h:8-7", "h:-1", "h:1e3"])
def test_an_invalid_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="HOST:PORT"):
        telemetry.start(text)


def test_a_push_gateway_gets_all_metrics_at_exit(capfd: pytest.CaptureFixture[str]) -> None:
    with receiver() as (url, received):
        telemetry.start(push=url, interval_seconds=3600)
        jax.jit(lambda x: x + 3)(np.float32(1)).block_until_ready()
        telemetry.stop()
    (sent,) = received
    assert sent.method == "PUT" and "/metrics/job/" in sent.path and "/instance/" in sent.path
    count = samples(sent.body.decode())[
        ("firstlight_steps_total", frozenset({("function", "<lambda>"), ("result", "ok")}))
    ]
    assert count == 1


def test_a_fork_has_a_separate_group_at_the_push_gateway(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with receiver() as (url, received):
        watch = telemetry.start(push=url, interval_seconds=3600)
        watch._push()
        monkeypatch.setattr("os.getpid", lambda: 7)
        telemetry.stop()
    parent, child = (sent.path for sent in received)
    assert parent != child and child.endswith("%3A7")


def test_an_unreachable_push_gateway_causes_one_warning(capfd: pytest.CaptureFixture[str]) -> None:
    with receiver() as (url, _):
        pass  # closed again: nothing listens there
    watch = telemetry.start(push=url, interval_seconds=3600)
    watch._push()
    telemetry.stop()
    said = capfd.readouterr().err.splitlines()
    assert len(said) == 1 and "push-gateway" in said[0]


def test_a_profile_needs_the_token_and_is_what_perfetto_opens(tmp_path: Path) -> None:
    token_file = tmp_path / "token"
    token_file.write_text(TOKEN)
    token_file.chmod(0o600)
    watch = telemetry.start(
        "127.0.0.1:0", token_file=token_file, profile_folder=tmp_path, interval_seconds=3600
    )
    try:
        profiled = jax.jit(_named("profiled"))
        profiled(np.float32(1)).block_until_ready()
        assert _post(watch, "/debug/profile?seconds=0.1", "wrong")[0] == 401
        assert _post(watch, "/debug/profile?seconds=nan", TOKEN)[0] == 400
        code, body = _post(watch, "/debug/profile?seconds=0.1", TOKEN)
        assert code == 200
    finally:
        telemetry.stop()
    answer = json.loads(body)
    (trace,) = Path(answer["folder"]).rglob("perfetto_trace.json.gz")
    assert json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    assert list(Path(answer["folder"]).rglob("*.xplane.pb"))
    (hlo,) = [path for path in map(Path, answer["hlo"]) if "profiled" in path.name]
    assert "HloModule jit_profiled" in hlo.read_text()


def test_without_a_token_there_are_no_profiles_over_http(watch: ProcessWatch) -> None:
    assert _post(watch, "/debug/profile?seconds=0.1", TOKEN)[0] == 403


def test_garbage_collections_are_counted(watch: ProcessWatch) -> None:
    import gc

    key = ("firstlight_gc_collections_total", frozenset({("generation", "2")}))
    before = everything(watch)[key]
    gc.collect()
    assert everything(watch)[key] == before + 1


def _settings(address: str) -> Any:
    from firstlight.telemetry.watch.addresses import Address
    from firstlight.telemetry.watch.process import Settings

    return Settings(address=Address.parse(address), interval_seconds=3600)


def _named(name: str) -> Any:
    def function(x: Any) -> Any:
        return x * 13

    function.__name__ = function.__qualname__ = name
    return function


def _post(watch: ProcessWatch, path: str, token: str) -> tuple[int, str]:
    assert watch.server is not None
    request = urllib.request.Request(
        f"http://127.0.0.1:{watch.server.port}{path}",
        method="POST",
        headers={"Authorization": f"Bearer {token}"},
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()
