"""Compiles recorded programs into the cache: one line of JSON in, one line out, per program.

    python -m firstlight.warmstart.build_worker CACHE [XLA's flags]

It compiles with JAX's own function, so keys are those that the program will look for.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

_UPLOAD_SECONDS = 600.0


def main() -> None:
    import firstlight.warmstart

    firstlight.warmstart.enable(sys.argv[1])
    import jax

    from firstlight.warmstart.jax_cache import current_store

    seen: list[str] = []
    jax.monitoring.register_event_listener(lambda event, **_: seen.append(event))
    answers = sys.stdout
    sys.stdout = sys.stderr  # stdout is for answers to the parent only
    for line in sys.stdin:
        seen.clear()
        begin = time.perf_counter()
        try:
            _compile(json.loads(line))
            answer: dict[str, Any] = {
                "hit": "/jax/compilation_cache/cache_hits" in seen,
                "stored": "/jax/compilation_cache/cache_misses" in seen,
            }
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {str(error)[:300]}"}
        answer["seconds"] = time.perf_counter() - begin
        print(json.dumps(answer), file=answers, flush=True)
    # Unlike a program, a build is of no use until everything has been sent to a shared cache.
    if (store := current_store()) is not None:
        store.flush(_UPLOAD_SECONDS)


def _compile(task: dict[str, Any]) -> None:
    import jax
    import numpy
    from jax._src import compiler
    from jax._src.interpreters import mlir
    from jax._src.lib import xla_client
    from jax._src.lib.mlir import ir

    by_id = {device.id: device for device in jax.devices(task["platform"])}
    devices = [by_id[number] for number in task["devices"]]
    options = xla_client.CompileOptions.ParseFromString(Path(task["options"]).read_bytes())
    with mlir.make_ir_context():
        module = ir.Module.parse(Path(task["program"]).read_bytes())
        compiler.compile_or_get_cached(
            devices[0].client,
            module,
            numpy.array(devices),
            options,
            [],
            xla_client.DeviceList(tuple(devices)),
        )


if __name__ == "__main__":
    main()
