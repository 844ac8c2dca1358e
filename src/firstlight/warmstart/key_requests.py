"""Records what JAX's key was made of with every compiled program, to explain later misses.

JAX hashes a list of named parts. Their hash functions are kept when a key is made, and called again
only if the program is compiled: a hit costs nothing.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

_DIGITS = 16
_CONSTANT = re.compile(r"dense(_resource)?<[^>]*>")
#: Constants with more elements are left out of a printed program.
_PRINTED_ELEMENTS = 16
_MAX_TEXT = 2000


@dataclass
class KeyRequest:
    """A key, and what JAX makes it of."""

    module: Any
    devices: Any
    options: Any
    backend: Any
    key: str = ""
    parts: list[tuple[str, Callable[[object], object]]] = field(default_factory=list)


class KeyRequests:
    """The current request of each thread, from its key until the end of its compile.

    on_key: called with every request; it must not raise.
    """

    def __init__(self, on_key: Callable[[KeyRequest], None] = lambda request: None) -> None:
        from jax._src import cache_key, compilation_cache

        self._on_key = on_key
        self._of_thread = threading.local()
        self._get_cache_key = compilation_cache.get_cache_key
        compilation_cache.get_cache_key = self._asked
        # Some versions of JAX lack it; then misses are explained in less detail.
        self._log_part = getattr(cache_key, "_log_cache_key_hash", None)
        if self._log_part is not None:
            cache_key._log_cache_key_hash = self._part

    def about(self, key: str) -> bytes:
        """A description (JSON) of the program, if its key is the last that this thread made."""
        request: KeyRequest | None = getattr(self._of_thread, "request", None)
        if request is None or request.key != key:
            return b"{}"
        try:
            return json.dumps(described(request), sort_keys=True).encode()
        except Exception:  # in another version of JAX: store the program without it
            return b"{}"

    def forget(self) -> None:
        self._of_thread.request = None

    def _asked(
        self,
        module: object,
        devices: object,
        compile_options: object,
        backend: object,
        *more: object,
        **named: object,
    ) -> str:
        request = KeyRequest(module, devices, compile_options, backend)
        self._of_thread.request = request
        key: str = self._get_cache_key(module, devices, compile_options, backend, *more, **named)
        request.key = key
        self._on_key(request)
        return key

    def _part(self, hash_obj: object, name: str, hash_part: Any) -> None:
        request: KeyRequest | None = getattr(self._of_thread, "request", None)
        if request is not None:
            request.parts.append((name, hash_part))
        if self._log_part is not None:
            self._log_part(hash_obj, name, hash_part)


def described(request: KeyRequest) -> dict[str, Any]:
    """Digests of the parts of a key, and readable descriptions of some of them."""
    from jax._src.lib import version_str
    from jax.version import __version__

    options = request.options
    build = options.executable_build_options
    text = _CONSTANT.sub("dense<>", printed(request.module))
    return {
        "function": request.key.rpartition("-")[0],
        "shapes": _shapes(request.module),
        "parts": {name: _digest(hash_part) for name, hash_part in request.parts},
        "without_constants": hashlib.sha256(text.encode()).hexdigest()[:_DIGITS],
        "xla_flags": " ".join(_flags())[:_MAX_TEXT],
        "options": {
            "num_replicas": options.num_replicas,
            "num_partitions": options.num_partitions,
            "optimization_level": str(getattr(build, "optimization_level", "")),
            "overrides": sorted(f"{n}={v}" for n, v in options.env_option_overrides),
        },
        "backend": f"{request.backend.platform} {request.backend.platform_version}"[:_MAX_TEXT],
        "devices": sorted({str(device.device_kind) for device in request.devices.flat}),
        "device_count": int(request.devices.size),
        "jax": __version__,
        "jaxlib": version_str,
        "python": ".".join(map(str, sys.version_info[:3])),
        "host": os.uname().nodename,
        "compiled": round(time.time(), 3),
    }


def printed(module: Any) -> str:
    """The program as text, without large constants."""
    text: str = module.operation.get_asm(large_elements_limit=_PRINTED_ELEMENTS)
    return text


def _digest(hash_part: Callable[[object], object]) -> str:
    whole = hashlib.sha256()
    hash_part(whole)
    return whole.hexdigest()[:_DIGITS]


def _shapes(module: Any) -> str:
    """The types of the program's main function, such as `(f32[3,4], i32[]) -> f32[3]`."""
    for operation in module.body.operations:
        names = operation.attributes
        if "sym_name" in names and names["sym_name"].value == "main":
            return _short_types(str(operation.attributes["function_type"]))[:_MAX_TEXT]
    return ""


def _short_types(text: str) -> str:
    """Write `tensor<3x4xf32>` as JAX does: `f32[3,4]`."""

    def short(found: re.Match[str]) -> str:
        *shape, element = found[1].split("x")
        return f"{element}[{','.join(shape)}]"

    return re.sub(r"tensor<([0-9?x]*[a-z][a-zA-Z0-9<>]*)>", short, text)


def _flags() -> list[str]:
    """XLA's flags, from where JAX takes them."""
    variables = [os.environ.get(name, "") for name in ("XLA_FLAGS", "LIBTPU_INIT_ARGS")]
    arguments = [argument for argument in sys.argv if argument.startswith("--xla")]
    return sorted([*" ".join(variables).split(), *arguments])
