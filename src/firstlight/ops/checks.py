"""The checks of `firstlight doctor`: each returns what it found and what to do about it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import urllib.error
import urllib.request
from dataclasses import dataclass
from enum import Enum
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from firstlight.ops.prometheus_api import Prometheus

#: The oldest driver for each major version of CUDA, from NVIDIA's compatibility table.
_MIN_DRIVER = {"12": 525, "13": 580}
_MIN_FREE_RATIO = 0.1
_MIN_DISK_BYTES = 2**30
_MAX_NAMED = 5  # processes, models or functions listed per alert


class Status(Enum):
    OK = "ok"
    NOTE = "note"  # no failure, but worth knowing
    FAILED = "FAILED"
    NOT_CHECKED = "not checked"


@dataclass(frozen=True)
class Finding:
    status: Status
    found: str
    remedy: str = ""


@dataclass(frozen=True)
class Targets:
    """The files and addresses to check."""

    constraints: Path | None = None
    manifest: Path | None = None
    cache: str | None = None
    checkpoints: Path | None = None
    metrics_url: str | None = None
    prometheus_url: str | None = None
    alertmanager_url: str | None = None


def _ok(found: str) -> Finding:
    return Finding(Status.OK, found)


def _not_given(what: str, option: str) -> Finding:
    return Finding(Status.NOT_CHECKED, f"no {what} was given", f"Give {option}.")


def pinned_versions(targets: Targets) -> Finding:
    """Every installed package has the version that the constraints file pins."""
    if targets.constraints is None:
        return _not_given("constraints file", "--constraints FILE (pip freeze > FILE)")
    pins = re.findall(r"^([\w.-]+)==([\w.+!-]+)", targets.constraints.read_text(), re.M)
    wrong = {}
    for name, wanted in pins:
        try:
            installed = version(name)
        except PackageNotFoundError:
            continue  # a constraint does not require the package
        local = "" if "+" in wanted else installed.partition("+")[2]  # 2.13.0+cpu is a 2.13.0
        if installed.removesuffix(f"+{local}") != wanted:
            wrong[name] = f"{name} is {installed}, pinned to {wanted}"
    if wrong:
        remedy = f"pip install -c {targets.constraints} {' '.join(wrong)}"
        return Finding(Status.FAILED, "; ".join(wrong.values()), remedy)
    return _ok(f"{len(pins)} pins hold")


def device(_: Targets) -> Finding:
    """JAX runs where it should, on a driver that is new enough."""
    import jax

    from firstlight.telemetry.runtime import EXPECTED_VARIABLE, expected_platform

    versions = f"jax {jax.__version__}, jaxlib {version('jaxlib')}"
    driver = _driver()
    if driver is not None and (old := _too_old(driver)):
        return Finding(Status.FAILED, old, "Install a newer driver, or JAX for an older CUDA.")
    first, expected = jax.devices()[0], expected_platform()
    found = f"{versions}, {len(jax.devices())} × {first.device_kind} ({first.platform})"
    if expected not in (None, first.platform):
        seen, remedy = f"driver {driver} answers", "Unset JAX_PLATFORMS; install JAX for CUDA."
        if driver is None:
            seen = "no NVIDIA driver answers"
            remedy = "nvidia-smi must list a device: request nvidia.com/gpu, check the node."
        return Finding(
            Status.FAILED,
            f"JAX runs on {first.platform}, expected {expected}; {seen}; {versions}",
            f"{remedy} If {first.platform} is intended: {EXPECTED_VARIABLE}={first.platform}",
        )
    return _ok(found if driver is None else f"{found}, driver {driver}")


def _driver() -> str | None:
    command = ("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.split("\n")[0].strip() or None if done.returncode == 0 else None


def _too_old(driver: str) -> str | None:
    for cuda, oldest in _MIN_DRIVER.items():
        try:
            plugin = version(f"jax-cuda{cuda}-plugin")
        except PackageNotFoundError:
            continue
        if int(driver.split(".")[0]) < oldest:
            return f"driver {driver} is older than {oldest}, which jax-cuda{cuda} {plugin} needs"
    return None


def cache_hits(targets: Targets) -> Finding:
    """The cache has every program of the manifest, compiled for this machine."""
    if targets.manifest is None:
        return _not_given("manifest", "--warm MANIFEST (firstlight warm record PROGRAM)")
    from firstlight.warmstart import checking, manifest

    states = checking.check(manifest.read(targets.manifest), targets.cache)
    there = len(states[checking.State.THERE])
    needed = sum(len(p) for s, p in states.items() if s is not checking.State.NEVER_STORED)
    if there < needed:
        where = f" --cache {targets.cache}" if targets.cache else ""
        remedy = f"firstlight warm build {targets.manifest}{where}"
        return Finding(Status.FAILED, f"{there} of {needed} programs are in the cache", remedy)
    return _ok(f"all {needed} programs are in the cache")


def cache_permissions(targets: Targets) -> Finding:
    """Only this user can write to the cache's folder, and its disk has free space."""
    from firstlight.warmstart import folder
    from firstlight.warmstart.caches import default_cache

    where = targets.cache or default_cache()
    if "://" in where:
        where = folder.in_front()
    if not os.path.isdir(where):
        remedy = "Mount or create it; otherwise the first process that compiles creates it."
        return Finding(Status.NOT_CHECKED, f"there is no folder {where} yet", remedy)
    folder.opened(where)  # raises if others could write to it
    return _writable(Path(where), "FIRSTLIGHT_CACHE_DIR")


def checkpoint_permissions(targets: Targets) -> Finding:
    if targets.checkpoints is None:
        return _not_given("folder of checkpoints", "--checkpoints DIR")
    mode = targets.checkpoints.stat().st_mode
    if mode & 0o002:
        found = f"anyone can write to {targets.checkpoints}"
        return Finding(Status.FAILED, found, f"chmod o-w {targets.checkpoints}")
    return _writable(targets.checkpoints, "--checkpoints")


def _writable(path: Path, option: str) -> Finding:
    free = shutil.disk_usage(path).free
    if not os.access(path, os.W_OK | os.X_OK):
        found = f"this user (uid {os.geteuid()}) cannot write to {path}"
        return Finding(Status.FAILED, found, f"Change its owner, or name another: {option}.")
    if free < _MIN_DISK_BYTES:
        found = f"{path}: {free / 2**20:.0f} MiB of disk left"
        return Finding(Status.FAILED, found, "firstlight cache prune, or a larger volume")
    return _ok(f"{path} is writable, {free / 2**30:.0f} GiB free")


def gradient(_: Targets) -> Finding:
    """JAX computes a known derivative correctly: tanh' = 1 - tanh²."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    x = np.linspace(-2, 2, 64, dtype=np.float32)
    found = np.asarray(jax.jit(jax.grad(lambda x: jnp.tanh(x).sum()))(x))
    error = float(np.abs(found - (1 - np.tanh(x.astype(np.float64)) ** 2)).max())
    if not error < 1e-5:
        remedy = "See the runbook runtime-mismatch: compiler, driver and jaxlib do not match."
        return Finding(Status.FAILED, f"a known gradient is wrong by {error:.2g}", remedy)
    return _ok(f"a known gradient is correct to {error:.1g}")


def determinism(_: Targets) -> Finding:
    """A program gives the same bits every time, even for sums whose order may vary."""
    import jax
    import numpy as np

    draws = np.random.default_rng(0)
    values = draws.normal(size=20_000).astype(np.float32)
    places = draws.integers(0, 10, 20_000)

    histogram = jax.jit(jax.numpy.zeros(10, "float32").at[places].add)
    first = np.asarray(histogram(values))
    same = all(np.array_equal(first, np.asarray(histogram(values))) for _ in range(5))
    if not same:
        remedy = "XLA_FLAGS=--xla_gpu_deterministic_ops=true, see the runbook non-determinism"
        return Finding(Status.NOTE, "a scatter-add of floats differs from call to call", remedy)
    return _ok("a scatter-add of floats gives the same bits every time")


def memory(_: Targets) -> Finding:
    """A tenth of the memory of the machine and of every device is free."""
    import jax
    import psutil

    machine = psutil.virtual_memory()
    free = {"the machine": machine.available / machine.total}
    for accelerator in jax.local_devices():
        stats = accelerator.memory_stats() or {}
        if stats.get("bytes_limit"):
            used = stats.get("bytes_in_use", 0) / stats["bytes_limit"]
            free[f"{accelerator.platform}:{accelerator.id}"] = 1 - used
    shown = ", ".join(f"{name}: {100 * share:.0f} % free" for name, share in free.items())
    if min(free.values()) < _MIN_FREE_RATIO:
        return Finding(Status.FAILED, shown, "See the runbook out-of-memory.")
    return _ok(shown)


def metrics_reachable(targets: Targets) -> Finding:
    """The process exports metrics of the catalogue."""
    if targets.metrics_url is None:
        return _not_given("metrics address", "--metrics http://HOST:PORT/metrics")
    from firstlight.telemetry.metrics import RUNTIME_INFO

    text = _get(targets.metrics_url)
    if f"{RUNTIME_INFO.name}{{" not in text:
        found = f"{targets.metrics_url} answers, but without {RUNTIME_INFO.name}"
        return Finding(Status.FAILED, found, "Does Firstlight run there? See docs/operate.md.")
    return _ok(f"{targets.metrics_url} answers")


def prometheus_reachable(targets: Targets) -> Finding:
    """Prometheus scrapes a Firstlight process and has our alert rules."""
    if targets.prometheus_url is None:
        return _not_given("Prometheus", "--prometheus URL")
    from firstlight.telemetry.metrics import RUNTIME_INFO

    seen = len(Prometheus(targets.prometheus_url).query(RUNTIME_INFO.name))
    if not seen:
        remedy = "Add the process to scrape_configs; see docs/operate.md."
        return Finding(Status.FAILED, "Prometheus scrapes no process of Firstlight", remedy)
    rules = Prometheus(targets.prometheus_url).rule_names()
    if not any(name.startswith("Firstlight") for name in rules):
        remedy = "firstlight ops build --out ops, then rule_files: [ops/prometheus/rules.yml]"
        return Finding(Status.FAILED, "Prometheus has none of our alert rules", remedy)
    return _ok(f"Prometheus scrapes {seen} process(es) and has our rules")


def alertmanager_reachable(targets: Targets) -> Finding:
    if targets.alertmanager_url is None:
        return _not_given("Alertmanager", "--alertmanager URL")
    _get(f"{targets.alertmanager_url.rstrip('/')}/-/ready")
    return _ok("Alertmanager is ready")


def alerts(targets: Targets) -> Finding:
    """No alert of ours fires; those that do are named with their runbooks."""
    if targets.prometheus_url is None:
        return _not_given("Prometheus", "--prometheus URL")
    firing = [
        labels
        for labels in Prometheus(targets.prometheus_url).firing()
        if labels["alertname"].startswith("Firstlight")
    ]
    if not firing:
        return _ok("none fires")
    books = sorted({labels.get("runbook", "playbook") for labels in firing})
    return Finding(
        Status.FAILED,
        "; ".join(_by_alert(firing)),
        "Runbook: " + ", ".join(f"docs/runbooks/{book}.md" for book in books),
    )


def _by_alert(firing: list[dict[str, str]]) -> list[str]:
    """Each alert with the models, functions and processes that it is about."""
    subjects: dict[str, list[str]] = {}
    for labels in firing:
        about = [labels[k] for k in ("model", "function", "instance") if labels.get(k)]
        subjects.setdefault(labels["alertname"], []).append(" on ".join(about))
    named = []
    for alert, own in sorted(subjects.items()):
        shown = ", ".join(filter(None, sorted(own)[:_MAX_NAMED]))
        more = f" and {len(own) - _MAX_NAMED} more" if len(own) > _MAX_NAMED else ""
        named.append(f"{alert} ({shown}{more})" if shown else alert)
    return named


def _get(url: str) -> str:
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            text: str = answer.read(2**24).decode("utf-8", "replace")
            return text
    except (urllib.error.URLError, ValueError) as error:
        raise OSError(f"{url} does not answer: {error}") from None
