"""Warm manifests: what a program compiled, so that it can be compiled again without the program.

A manifest is a zip file with `manifest.json` and, in `objects/`, every lowered program (StableHLO
from JAX) and every set of compile options, named by their SHA-256. Trust it like source code:
compile only what you would run.
"""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from firstlight.errors import FirstlightError
from firstlight.warmstart import folder
from firstlight.whole_files import write_bytes

_SCHEMA, _VERSION = "firstlight.warm-manifest", 1
_INDEX = "manifest.json"
_MAX_INDEX_BYTES, _MAX_OBJECT_BYTES = 1 << 28, 1 << 31


class ManifestError(FirstlightError):
    """A manifest that cannot be read, or not used here."""


@dataclass(frozen=True)
class Program:
    """One compile, by its key.

    program, options: names of objects. devices: ids. has_callbacks: it calls back into Python, and
    JAX may not store it. variables, arguments: XLA's flags, which are part of the key.
    """

    key: str
    kind: str
    program: str
    options: str
    devices: list[int]
    platform: str
    has_callbacks: bool
    variables: dict[str, str]
    arguments: list[str]
    about: dict[str, Any]

    @property
    def function(self) -> str:
        return str(self.about.get("function", "?"))


@dataclass(frozen=True)
class Manifest:
    """command: the program and its arguments, without the interpreter."""

    command: list[str]
    programs: list[Program]
    objects: Mapping[str, bytes] = field(repr=False)


def object_name(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def kind_here() -> str:
    """The name of this kind of machine, without importing JAX."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return folder.kind_name(version("jax"), version("jaxlib"))
    except PackageNotFoundError:
        raise ManifestError("JAX is not installed: pip install 'firstlight[jax]'") from None


def write(path: Path, manifest: Manifest) -> None:
    """Write a manifest, replacing the file atomically."""
    index = {
        "schema": _SCHEMA,
        "schema_version": _VERSION,
        "command": manifest.command,
        "programs": [asdict(program) for program in manifest.programs],
    }
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(_INDEX, json.dumps(index, indent=1))
        for name, content in sorted(manifest.objects.items()):
            archive.writestr(f"objects/{name}", content)
    write_bytes(path, whole.getvalue())


def read(path: Path) -> Manifest:
    """Read a manifest and check the digests of its objects."""
    try:
        with zipfile.ZipFile(path) as archive:
            plain = json.loads(_member(archive, _INDEX, _MAX_INDEX_BYTES))
            if plain.get("schema") != _SCHEMA or plain.get("schema_version") != _VERSION:
                raise ManifestError(f"{path}: not a manifest of this version of Firstlight.")
            programs = [Program(**one) for one in plain["programs"]]
            names = {name for one in programs for name in (one.program, one.options)}
            objects = {n: _member(archive, f"objects/{n}", _MAX_OBJECT_BYTES) for n in names}
    except OSError as error:
        raise ManifestError(f"{path}: cannot be read: {error.strerror or error}.") from None
    except (zipfile.BadZipFile, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ManifestError(f"{path}: not a manifest: {error}.") from None
    for name, content in objects.items():
        if object_name(content) != name:
            raise ManifestError(f"{path}: damaged: objects/{name[:12]}… has other content.")
    return Manifest(list(plain["command"]), programs, objects)


def _member(archive: zipfile.ZipFile, name: str, max_bytes: int) -> bytes:
    with archive.open(name) as file:
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise ManifestError(f"{archive.filename}: {name} is larger than {max_bytes} bytes.")
    return content
