"""Workspace patches: lists of operations, files of them, and entries of a pyhf patchset.

A patch is one of

    [{"op": "add", …}, …]              operations of RFC 6902, with paths into the workspace
    "patch.json"                       a file with such a list
    ("patchset.json", "sig_300_100")   the patch of that name in a patchset (a file or a mapping)
    ("patchset.json", (300, 100))      the same patch, by its values

A patchset states which workspace it was made for. It is rejected for any other.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from firstlight.histfactory import json_patch
from firstlight.histfactory.workspace_file import (
    ContentError,
    Json,
    JsonObject,
    WorkspaceError,
    described,
    listed,
    read_json,
    require_list,
)

File: TypeAlias = str | os.PathLike[str]
PatchKey: TypeAlias = str | Sequence[float | str]
Patch: TypeAlias = Sequence[Mapping[str, Json]] | File | tuple[File | Mapping[str, Json], PatchKey]

#: The algorithms allowed by pyhf's patchset schema.
_DIGESTS = ("md5", "sha256")


def apply_patches(workspace: JsonObject, patches: Sequence[Patch], source: str) -> Json:
    """The workspace after all patches, in order; `workspace` itself is not changed.

    Digests are compared with `workspace` itself, so patches of one patchset can be combined.
    """
    patched: Json = workspace
    for index, patch in enumerate(patches):
        name, operations = _operations(patch, index, workspace, source)
        try:
            patched = json_patch.apply(patched, operations)
        except ContentError as fault:
            raise fault.error(name) from None
    return patched


def patches_of(
    patchset: Json, names: Sequence[str] | None = None, source: str = "patchset"
) -> dict[str, list[float | str]]:
    """The values of all (or the named) patches of a patchset, by name, in the patchset's order."""
    try:
        if not isinstance(patchset, Mapping):
            raise ContentError(f"a patchset must be an object, not {described(patchset)}.")
        entries = _entries(patchset)
        for name in names or ():
            _choose(entries, name)
        found = {_label(e): e["metadata"]["values"] for e in entries}
        if len(found) < len(entries):
            raise ContentError("two patches have the same name. Names must be unique.")
        if not found:
            raise ContentError("has no patches.")
    except ContentError as fault:
        raise fault.error(source) from None
    return {n: v for n, v in found.items() if names is None or n in names}


def digest(workspace: Mapping[str, Json], algorithm: str) -> str:
    """The digest of a workspace as pyhf defines it (`pyhf.utils.digest`)."""
    import hashlib  # loads OpenSSL, which only a patchset needs

    try:
        text = json.dumps(workspace, sort_keys=True, ensure_ascii=False)
        return hashlib.new(algorithm, text.encode("utf-8"), usedforsecurity=False).hexdigest()
    except (TypeError, ValueError, RecursionError) as error:
        raise ContentError(
            f"the {algorithm} digest of the workspace cannot be computed: {error}"
        ) from None


def _operations(patch: Json, index: int, workspace: JsonObject, source: str) -> tuple[str, object]:
    """The name of a patch for messages, and its operations."""
    if isinstance(patch, tuple):
        return _from_patchset(patch, index, workspace, source)
    name = f"patch {index}"
    if isinstance(patch, str | os.PathLike):
        name = str(os.fspath(patch))
        patch = read_json(name)
    if isinstance(patch, Mapping):
        raise _unchosen(patch).error(name)
    return name, patch


def _unchosen(patch: Mapping[str, Json]) -> ContentError:
    """The error for an object in place of an array of operations."""
    try:
        hint = f" It has {listed(map(_label, _entries(patch)))}." if "patches" in patch else ""
    except ContentError as fault:
        return fault
    return ContentError(
        "is an object, not an array of operations. If it is a patchset, choose one of its patches "
        f"with the pair (patchset, name).{hint}"
    )


def _from_patchset(
    pair: tuple[Json, ...], index: int, workspace: JsonObject, source: str
) -> tuple[str, object]:
    if len(pair) != 2 or not isinstance(pair[0], str | os.PathLike | Mapping):
        raise WorkspaceError(f"patch {index}: must be a pair (patchset, name).")
    patchset, key = pair
    name = f"patchset {index}"
    if not isinstance(patchset, Mapping):
        name = str(os.fspath(patchset))
        patchset = read_json(name)
    try:
        if not isinstance(patchset, Mapping):
            raise ContentError(f"a patchset must be an object, not {described(patchset)}.")
        entry = _choose(_entries(patchset), key)
        _verify(patchset, workspace, source)
    except ContentError as fault:
        raise fault.error(name) from None
    return f"{name}: patch {_label(entry)!r}", entry.get("patch")


def _entries(patchset: Mapping[str, Json]) -> list[JsonObject]:
    """The entries of a patchset, each checked to have a name and values."""
    entries = patchset.get("patches")
    if not isinstance(entries, list):
        raise ContentError(
            f"patches must be an array, not {described(entries)}. Is this a patchset?"
        )
    for index, entry in enumerate(entries):
        metadata = entry.get("metadata") if isinstance(entry, dict) else None
        if not isinstance(metadata, dict) or not isinstance(metadata.get("name"), str):
            raise ContentError("has no metadata with a name.", f"patch {index}")
        if not isinstance(metadata.get("values"), list):
            raise ContentError(
                "has no metadata with an array of values.", f"patch {metadata['name']!r}"
            )
    return entries


def _label(entry: JsonObject) -> str:
    return str(entry["metadata"]["name"])


def _choose(entries: list[JsonObject], key: object) -> JsonObject:
    if isinstance(key, str):
        chosen = [entry for entry in entries if _label(entry) == key]
    else:
        values = require_list(key, "the values of a patch")
        chosen = [entry for entry in entries if entry["metadata"]["values"] == values]
    if len(chosen) > 1:
        raise ContentError(
            f"{len(chosen)} patches are called {key!r}. Names and values must be unique."
        )
    if not chosen:
        raise ContentError(
            f"has no patch {key!r}. It has {listed(map(_label, entries)) or 'none'}."
        )
    return chosen[0]


def _verify(patchset: Mapping[str, Json], workspace: JsonObject, source: str) -> None:
    metadata = patchset.get("metadata")
    digests = metadata.get("digests") if isinstance(metadata, dict) else None
    if not isinstance(digests, dict) or not digests:
        raise ContentError("metadata has no digests, so the workspace it was made for is unknown.")
    for algorithm, expected in digests.items():
        if algorithm not in _DIGESTS:
            raise ContentError(f"has a digest {algorithm!r}. Known: {listed(_DIGESTS)}.")
        found = digest(workspace, algorithm)
        if not isinstance(expected, str) or found != expected.lower():
            raise ContentError(
                f"was made for another workspace: its {algorithm} is {described(expected)}, but "
                f"that of {source} is {found!r}. Use the workspace published with the patchset."
            )
