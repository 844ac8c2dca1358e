"""The names under which JAX reports what it does (`jax.monitoring`).

They are not part of JAX's public interface: a test compares them with the installed JAX,
and a reader that misses one says what is unknown. The stages report a scalar at their start and
a duration at their end, both with `fun_name`, in the thread that does the work. Cache events come
between start and end of the compile that they are of.
"""

#: Stages by their event.
STAGES = {
    "/jax/core/compile/jaxpr_trace_duration": "trace",
    "/jax/core/compile/jaxpr_to_mlir_module_duration": "lower",
    # Includes the persistent cache: fires on a hit as well.
    "/jax/core/compile/backend_compile_duration": "compile",
}

#: What is asked of the persistent cache. A miss has no event of its own: `cache_misses` only says
#: that an entry was written.
CACHE = {
    "/jax/compilation_cache/compile_requests_use_cache": "requested",
    "/jax/compilation_cache/cache_hits": "hit",
    "/jax/compilation_cache/cache_misses": "written",
    "/jax/compilation_cache/task_disabled_cache": "disabled",
}
#: A duration that comes with a hit: what the compile took when the entry was written, less the time
#: to read it.
SAVED = "/jax/compilation_cache/compile_time_saved_sec"


def bare_name(name: str) -> str:
    """`jit(f)` of an event without what JAX puts around the name."""
    return name.partition("(")[2].removesuffix(")") if name.endswith(")") and "(" in name else name
