"""Compiles recorded programs into the cache: a line of JSON in, a line of JSON out.

    python -m firstlight.warmstart.build_worker CACHE [XLA's flags]

JAX's own function compiles, so that the key is the one that the program will look for.
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

    firstlight.warmstart.enable(sys.argv[1] or None)
    import jax

    seen: list[str] = []
    jax.monitoring.register_event_listener(lambda event, **_: seen.append(event))
    answers = sys.stdout
    sys.stdout = sys.stderr  # nothing else may speak to the parent
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
    _send_all()


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


def _send_all() -> None:
    """Here, unlike in a program, what was compiled is of no use until it was sent."""
    from jax._src import compilation_cache

    flush = getattr(compilation_cache._cache, "flush", None)
    if flush is not None:
        flush(_UPLOAD_SECONDS)


if __name__ == "__main__":
    main()
