"""The names under which JAX reports what it does (`jax.monitoring`).

They are not part of JAX's public interface: a test compares them with the installed JAX, and
readers report what is unknown if one is missing. Each stage reports a scalar at its start and a
duration at its end, both with `fun_name`, in the thread that does the work. Cache events come
between the start and end of their compile.
"""

#: Stages by their event.
STAGES = {
    "/jax/core/compile/jaxpr_trace_duration": "trace",
    "/jax/core/compile/jaxpr_to_mlir_module_duration": "lower",
    # Includes the persistent cache: fires on a hit as well.
    "/jax/core/compile/backend_compile_duration": "compile",
}

#: Events of the persistent cache. There is none for a miss: `cache_misses` only means that an
#: entry was written.
CACHE = {
    "/jax/compilation_cache/compile_requests_use_cache": "requested",
    "/jax/compilation_cache/cache_hits": "hit",
    "/jax/compilation_cache/cache_misses": "written",
    "/jax/compilation_cache/task_disabled_cache": "disabled",
}
#: A duration reported with a hit: the time of the original compile minus that of reading the entry.
SAVED = "/jax/compilation_cache/compile_time_saved_sec"


def bare_name(name: str) -> str:
    """The `f` of an event's name `jit(f)`."""
    return name.partition("(")[2].removesuffix(")") if name.endswith(")") and "(" in name else name
