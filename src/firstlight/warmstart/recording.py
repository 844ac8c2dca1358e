"""Records what a program compiles, for a manifest: one file per key, in a folder.

This runs in the program's processes; FIRSTLIGHT_WARM_RECORD names the folder.
"""

from __future__ import annotations

import io
import json
import os
import re
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from firstlight.warmstart.folder import kind_name
from firstlight.warmstart.key_requests import KeyRequest, described, printed
from firstlight.warmstart.manifest import Manifest, Program, object_name
from firstlight.warmstart.warning import warn

VARIABLE = "FIRSTLIGHT_WARM_RECORD"
_FLAGS = ("XLA_FLAGS", "LIBTPU_INIT_ARGS")
_CALLBACK = re.compile(r'custom_call @\w*callback|call_target_name = "\w*callback')


class Recorder:
    """Called with every key that JAX makes; never raises."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._known: set[str] = set()
        self._has_failed = False

    def __call__(self, request: KeyRequest) -> None:
        if request.key in self._known or self._has_failed:
            return
        self._known.add(request.key)
        try:
            self._write(request)
        except Exception as error:
            self._has_failed = True
            warn(f"nothing more is recorded: {error!r}.")

    def _write(self, request: KeyRequest) -> None:
        bytecode, options = _bytecode(request.module), request.options.SerializeAsString()
        about = described(request)
        record = Program(
            key=request.key,
            kind=kind_name(about["jax"], about["jaxlib"]),
            program=object_name(bytecode),
            options=object_name(options),
            devices=[int(device.id) for device in request.devices.flat],
            platform=request.backend.platform,
            has_callbacks=_CALLBACK.search(printed(request.module)) is not None,
            variables={name: os.environ[name] for name in _FLAGS if name in os.environ},
            arguments=[argument for argument in sys.argv if argument.startswith("--xla")],
            about=about,
        )
        for content in (bytecode, options):
            _write_whole(self._path / object_name(content), content)
        name = f"{object_name(request.key.encode())}.json"
        _write_whole(self._path / name, json.dumps(asdict(record)).encode())


def collected(path: Path, command: list[str]) -> Manifest:
    """The manifest of everything that the processes of a program have recorded."""
    programs = [Program(**json.loads(file.read_bytes())) for file in path.glob("*.json")]
    programs.sort(key=lambda one: (one.about.get("compiled", 0), one.key))
    names = {name for one in programs for name in (one.program, one.options)}
    return Manifest(command, programs, {name: (path / name).read_bytes() for name in names})


def _bytecode(module: Any) -> bytes:
    """The program without source locations, in the form that JAX hashes."""
    from jax._src.lib.mlir import passmanager

    with module.context:
        clone = module.operation.clone()
        passmanager.PassManager.parse("builtin.module(strip-debuginfo)").run(clone.operation)
    output = io.BytesIO()
    clone.operation.write_bytecode(file=output)
    return output.getvalue()


def _write_whole(path: Path, content: bytes) -> None:
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    unfinished.write_bytes(content)
    os.replace(unfinished, path)
