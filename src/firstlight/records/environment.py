"""The environment variables that a case's label stands for: part of its protocol."""

from __future__ import annotations

from pathlib import Path

from firstlight.records.plan import Case

#: Set for every worker, and shown with every number.
FLAGS = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}


def case_flags(case: Case, directory: Path) -> dict[str, str]:
    """The variables that the harness sets for a case."""
    return {
        **FLAGS,
        **cache_variables(case.cache, case.cache_kind, directory),
        **case.environment,
    }


def cache_variables(policy: str, kind: str | None, directory: Path) -> dict[str, str]:
    """The variables that put a framework's persistent cache into the declared state."""
    on = policy != "none"
    variables = {"CUDA_CACHE_PATH": str(directory / "cuda")} if on else {"CUDA_CACHE_DISABLE": "1"}
    if kind == "jax":
        variables["JAX_ENABLE_COMPILATION_CACHE"] = "true" if on else "false"
        if on:
            # JAX's defaults store nothing that compiles in less than a second.
            variables |= {
                "JAX_COMPILATION_CACHE_DIR": str(directory),
                "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
                "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
            }
    elif kind == "torch":
        # Inductor writes its generated sources here in any case: off means a fresh directory too.
        variables["TORCHINDUCTOR_CACHE_DIR"] = str(directory)
        if on:
            variables |= {"TORCHINDUCTOR_FX_GRAPH_CACHE": "1", "TORCHINDUCTOR_AUTOGRAD_CACHE": "1"}
        else:
            variables["TORCHINDUCTOR_FORCE_DISABLE_CACHES"] = "1"
    return variables
