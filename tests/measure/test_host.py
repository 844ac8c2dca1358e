from __future__ import annotations

import subprocess
from pathlib import Path

import numpy
import pytest

from firstlight.measure import host as host_module
from firstlight.measure.host import describe_host, noise_warnings, recorded_environment


def test_variables_that_affect_a_measurement_are_recorded_but_secrets_are_not() -> None:
    recorded = recorded_environment(
        {
            "XLA_FLAGS": "--a",
            "OMP_NUM_THREADS": "1",
            "CUDA_VISIBLE_DEVICES": "0",
            "HOME": "/home/me",
            "NVIDIA_API_KEY": "nvapi-1",
            "JAX_SECRET_TOKEN": "x",
            "TORCH_HUB_PASSWORD": "x",
        }
    )
    assert recorded == {"XLA_FLAGS": "--a", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "0"}


def test_recorded_versions_are_those_imported() -> None:
    assert describe_host()["packages"]["numpy"] == numpy.__version__


def test_noise_of_the_machine_is_reported_as_warnings() -> None:
    host = describe_host()
    calm = {
        **host,
        "cpu": {**host["cpu"], "usable_cores": 8, "frequency_governor": "performance"},
        "container": {"cpu_quota": None, "memory_limit_bytes": None},
        "cpu_busy_ratio": 0.02,
        "memory_available_bytes": 1 << 34,
    }
    calm["cpu"]["virtual"] = False
    assert list(noise_warnings(calm)) == []
    busy = {**calm, "cpu_busy_ratio": 0.6, "container": {"cpu_quota": 1.5}}
    busy["cpu"] = {**calm["cpu"], "frequency_governor": "powersave", "virtual": True}
    text = " ".join(noise_warnings(busy))
    for word in ("60% of the CPU", "powersave", "virtual machine", "1.5 CPUs"):
        assert word in text


def test_an_untracked_module_marks_the_harness_as_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "src" / "firstlight" / "measure"
    package.mkdir(parents=True)
    (package / "host.py").write_text("")
    (tmp_path / ".gitignore").write_text("*.log\n")
    who = ("-c", "user.name=x", "-c", "user.email=x@example.org")
    for command in (("init", "-q"), ("add", "."), (*who, "commit", "-q", "-m", "first")):
        subprocess.run(["git", "-C", str(tmp_path), *command], check=True)
    monkeypatch.setattr(host_module, "__file__", str(package / "host.py"))

    def changed() -> bool:
        commit = host_module.harness()["commit"]
        return bool(commit["changed"])

    assert not changed()
    (tmp_path / "notes.py").write_text("")  # not in the package
    (package / "run.log").write_text("")
    assert not changed()
    (package / "faster.py").write_text("")
    assert changed()
