"""A million toys of the 184-parameter model on an accelerator: time, its parts, and memory.

    PYTHONPATH=src python benchmarks/scale_gpu.py [--toys N] [--json FILE]

Needs only jax, numpy, scipy and the package's source. The workspace is synthetic, with the
dimensions of a published analysis. Compilation is reported separately. The last run keeps only the
fitted parameter of interest, and reports the memory of device and host at ten points.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from firstlight import histfactory as hf
from firstlight.histfactory import synthetic, toy_fits
from firstlight.histfactory.closed_form import assemble, evaluate
from firstlight.histfactory.device_fits import Occupancy, fits_on_devices, occupancy_of
from firstlight.histfactory.engine import Eager
from firstlight.histfactory.fitting import problem_of
from firstlight.histfactory.internal_order import data_vector, to_public
from firstlight.histfactory.lanes import Work
from firstlight.histfactory.linear_systems import cholesky, newton_step

MODEL = "thu-184p"
#: Seconds for a million toys.
BAR, GOAL = 90.0, 60.0
MILLION = 1_000_000


def timed(call: Callable[[], Any], n: int = 5) -> float:
    """The median of synchronised calls after one that compiles, in seconds."""
    jax.block_until_ready(call())
    taken = []
    for _ in range(n):
        begin = time.perf_counter()
        jax.block_until_ready(call())
        taken.append(time.perf_counter() - begin)
    return float(np.median(taken))


def profile(model: hf.Model, n: int, occupancy: Occupancy | None = None) -> dict[str, Any]:
    """Where the time of `n` toys goes, part by part."""
    engine, device = Eager(model), (jax.local_devices()[0],)
    source = toy_fits.plan_toys(model, n, 1).source
    clock = time.perf_counter
    times = [clock()]
    drawn = source.draw(0, n)
    times.append(clock())
    base = problem_of(engine, drawn, {}).starting_at(source.theta, near=0.0)
    problems = toy_fits._repeated(base, drawn)
    works: list[Work] = []

    def fit() -> Any:
        quiet = (lambda *_: None, works.append)
        return fits_on_devices(engine.prepared, problems, device, *quiet, occupancy)

    begin = clock()
    fit()
    compiled = clock() - begin
    works.clear()
    times.append(clock())
    found = fit()
    times.append(clock())
    engine.constants(drawn)
    times.append(clock())
    to_public(model, found.theta)
    data_vector(model, drawn)
    times.append(clock())
    with jax.enable_x64(True):
        begin = clock()
        jax.device_get(jax.block_until_ready(jax.device_put(found)))
        transfer = clock() - begin  # there and back
    steps, lane_steps = (int(sum(w[i].sum() for w in works)) for i in range(2))
    draw, _, fits, constants, order = np.diff(times)
    return {
        "toys": n,
        "draw_s": draw,
        "first_fit_s": compiled,
        "fit_s": fits,
        "transfer_s": transfer,
        "constants_s": constants,
        "order_s": order,
        "steps_per_toy": steps / n,
        "idle_share": 1 - steps / lane_steps,
        "us_per_lane_step": 1e6 * fits / lane_steps,
        "searches_again": float(np.mean(found.iterations > 9)),
    }


def parts_of_a_step(model: hf.Model, lanes: int) -> dict[str, float]:
    """Microseconds per lane of the parts of a Newton step."""
    engine = Eager(model)
    prepared = engine.prepared.on_device
    source = toy_fits.plan_toys(model, lanes, 2).source
    theta, drawn = source.theta, source.draw(0, lanes)
    with jax.enable_x64(True):
        thetas = jnp.asarray(np.repeat(theta[None], lanes, 0))
        data = jax.device_put(drawn)
        free = jnp.asarray(problem_of(engine, drawn, {}).fixed == 0, jnp.float64)
        value = jax.jit(jax.vmap(partial(evaluate, prepared, curvature=False)))
        whole = jax.jit(jax.vmap(partial(evaluate, prepared)))
        at = whole(data, thetas)
        blocks_of = jax.jit(jax.vmap(assemble))
        blocks = blocks_of(at.curvature)
        step = jax.jit(jax.vmap(lambda h, g: newton_step(h, g, free, 0.0)))
        n = blocks.dense.shape[-1]
        matrix = jnp.eye(n + 1) * (n + 1) + jnp.ones((lanes, n + 1, n + 1)) * 0.5
        factor = jax.jit(jax.vmap(lambda m: cholesky(m, jnp)))
        lower = factor(matrix)
        right = jnp.ones((lanes, n + 1))
        back = jax.jit(jax.vmap(_back))
        calls: dict[str, Callable[[], Any]] = {
            "value and gradient": lambda: value(data, thetas),
            "with Hessian": lambda: whole(data, thetas),
            "assemble": lambda: blocks_of(at.curvature),
            "newton_step": lambda: step(blocks, at.gradient),
            "cholesky": lambda: factor(matrix),
            "triangular_solve": lambda: back(lower, right),
        }
        return {name: 1e6 * timed(call) / lanes for name, call in calls.items()}


def _back(factor: Any, half: Any) -> Any:
    return jax.lax.linalg.triangular_solve(
        factor, half[:, None], left_side=True, lower=True, transpose_a=True
    )[:, 0]


def _fresh_toys(model: hf.Model, n: int, keys: Iterator[int]) -> Any:
    return hf.toys(model, n, next(keys)).nll


def memory() -> dict[str, float]:
    """GiB in use, and their maxima so far."""
    stats = jax.local_devices()[0].memory_stats() or {}
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return {
        "device": stats.get("bytes_in_use", 0) / 2**30,
        "device peak": stats.get("peak_bytes_in_use", 0) / 2**30,
        "host": pages * resource.getpagesize() / 2**30,
    }


def a_million(model: hf.Model, n: int) -> dict[str, Any]:
    """Seconds of `n` toys in ten parts, and the memory after each."""
    job = toy_fits.plan_toys(model, n, 7)
    points = []
    muhat: list[Any] = []
    failed = 0
    begin = time.perf_counter()
    for part in range(10):
        found = job.fit(part * n // 10, (part + 1) * n // 10)
        muhat.append(found.values[:, model.poi_index].copy())  # or all values stay
        failed += found.not_converged
        points.append({"seconds": time.perf_counter() - begin, **memory()})
        print("  " + ", ".join(f"{k} {v:.3f}" for k, v in points[-1].items()), flush=True)
    values = np.concatenate(muhat)
    return {
        "seconds": points[-1]["seconds"],
        "points": points,
        "not_converged": failed,
        "muhat": [float(values.mean()), float(values.std())],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0] if __doc__ else None)
    parser.add_argument("--toys", type=int, default=MILLION, help="toys of the last run")
    parser.add_argument(
        "--parts",
        type=int,
        nargs="*",
        default=[],
        help="lanes to measure in parts",
    )
    parser.add_argument("--lanes", type=int, nargs="*", default=[], help="other lanes to try")
    parser.add_argument("--json", help="write the figures to this file")
    options = parser.parse_args()
    device = jax.devices()[0]
    model = hf.load(synthetic.preset(MODEL))
    occupancy = occupancy_of(Eager(model).prepared, device)
    figures: dict[str, Any] = {"device": device.device_kind, "jax": jax.__version__}
    print(f"{device.device_kind}, jax {jax.__version__}, {occupancy}", flush=True)
    hf.precompile(model)
    for n in (1_000, 10_000, 100_000):
        if n > options.toys:
            break
        begin = time.perf_counter()
        hf.toys(model, n, 99)
        first = time.perf_counter() - begin
        taken = timed(partial(_fresh_toys, model, n, iter(range(9))), 3 if n < 100_000 else 1)
        figures[f"{n} toys"] = taken
        print(
            f"{n} toys: {taken:.3f} s (first call {first:.1f} s); "
            f"a million at this rate: {taken * MILLION / n:.0f} s",
            flush=True,
        )
    largest = min(options.toys // 5, occupancy.chunk)
    others = [(largest, Occupancy(occupancy.chunk, lanes)) for lanes in options.lanes]
    for n, tried in [(1_000, occupancy), (largest, occupancy), *others]:
        figures[f"{tried}, {n} toys"] = split = profile(model, n, tried)
        print(f"{tried}: " + ", ".join(f"{k} {v:.4g}" for k, v in split.items()), flush=True)
    for lanes in options.parts:
        figures[f"step on {lanes} lanes"] = split = parts_of_a_step(model, lanes)
        print(f"{lanes} lanes, µs per lane: ", end="")
        print(", ".join(f"{k} {v:.3f}" for k, v in split.items()), flush=True)
    figures["run"] = run = a_million(model, options.toys)
    per_million = run["seconds"] * MILLION / options.toys
    verdict = "ok" if per_million <= BAR else "MISS"
    print(
        f"{verdict}: {options.toys} toys in {run['seconds']:.1f} s, {run['not_converged']} not "
        f"converged (bar: ≤ {BAR:g} s per million, goal {GOAL:g} s)"
    )
    if options.json:
        Path(options.json).write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
