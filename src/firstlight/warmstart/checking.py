"""Which programs of a manifest a cache has, for this machine and its versions."""

from __future__ import annotations

import os
from enum import Enum
from pathlib import Path

from firstlight.warmstart import folder, manifest
from firstlight.warmstart.building import versions_differ
from firstlight.warmstart.caches import CacheError, OwnCache, cache_at, default_cache
from firstlight.warmstart.entries import name_of
from firstlight.warmstart.inventory import Listed
from firstlight.warmstart.manifest import Manifest, Program, kind_here
from firstlight.warmstart.signing import Signatures

_OF_DEVICE = {"accelerator_config", "backend version"}


class State(Enum):
    """The state of a manifest's program in a cache."""

    THERE = "there"
    MISSING = "missing"
    OTHER_MACHINE = "missing here (recorded on another kind of machine)"
    OTHER_VERSIONS = "stale (recorded with another JAX or Python)"
    NEVER_STORED = "never stored (calls back into Python)"


def check(found: Manifest, where: str | None) -> dict[State, list[Program]]:
    """All programs by state; an entry that no process would load counts as missing."""
    here, path = kind_here(), where or default_cache()
    is_folder = "://" not in path
    cache = cache_at(path) if not is_folder or os.path.isdir(path) else None
    listed = {} if cache is None else _by_program(cache.entries(), here)
    states: dict[State, list[Program]] = {state: [] for state in State}
    for program in found.programs:
        entry = listed.get(_program(program.about)) or listed.get(program.key)
        if program.has_callbacks and entry is None:
            state = State.NEVER_STORED
        elif versions_differ(program, here):
            state = State.OTHER_VERSIONS
        elif entry is None or cache is None or cache.trouble(entry) is not None:
            state = State.MISSING if program.kind == here else State.OTHER_MACHINE
        else:
            state = State.THERE
        states[state].append(program)
    return states


def _by_program(listed: list[Listed], here: str) -> dict[object, Listed]:
    """Entries by key, and by the parts of the key except the device, which is this machine's."""
    found: dict[object, Listed] = {}
    for one in listed:
        if one.kind == here:
            found[one.key] = one
            found[_program(one.about)] = one
    return found


def _program(about: dict[str, object]) -> object:
    parts = about.get("parts")
    if not isinstance(parts, dict) or "computation" not in parts:
        return object()  # equal to nothing
    return frozenset((name, str(part)) for name, part in parts.items() if name not in _OF_DEVICE)


def contents(cache: Path | None, only: Path | None) -> list[bytes]:
    """The entries of a folder for this kind of machine, signed; only: those of this manifest."""
    here = kind_here()
    path = str(cache or folder.in_front())
    store, signatures = OwnCache(path), Signatures.of_user()
    wanted = None if only is None else {name_of(p.key) for p in manifest.read(only).programs}
    chosen: list[Listed] = [
        one
        for one in store.entries()
        if one.kind == here and (wanted is None or one.path.removeprefix(f"{here}/") in wanted)
    ]
    found = [store.content(one) for one in chosen if store.trouble(one) is None]
    entries = [signatures.sign(entry) for entry in found if entry is not None]
    if not entries:
        raise CacheError(f"{path}: no compiled programs for {here}.")
    return entries
