"""Checks that each side of a comparison of revisions ran the code of its own checkout."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from firstlight.errors import FirstlightError
from firstlight.gate.sides import Side

Modules = Mapping[str, Mapping[str, str]]  # by case: {top-level module: file}
_INSTALLED = {"site-packages", "dist-packages"}
_NOT_CODE = {"tests", "test", "docs", "examples", "benchmarks"}


class WrongCodeError(FirstlightError):
    """A side ran code that is not its own."""


def require_own_code(
    sides: tuple[Side, Side], modules: Mapping[str, Modules]
) -> dict[str, set[str]]:
    """Refuse a comparison of revisions in which a side ran code that is not its own.

    The usual cause is that both sides use one environment with the project installed in it, ahead
    of the checkouts on the import path. Returns, by side, the modules from its checkout.
    """
    own: dict[str, set[str]] = {side.name: set() for side in sides}
    for side, other in (sides, sides[::-1]):
        if side.file_root is None:
            return {}
        packages = package_names(side.file_root)
        for case, loaded in modules[side.name].items():
            for name, file in loaded.items():
                if _inside(file, side.file_root):
                    own[side.name].add(name)
                elif name in packages or _is_foreign(name, file, side, other):
                    raise WrongCodeError(
                        f"{case}: {side.name} imported {name!r} from {file}, not from its own "
                        "checkout, so the comparison would be meaningless. Give each side its own "
                        "environment: --setup 'python -m venv .venv && "
                        ".venv/bin/pip install …' --python .venv/bin/python"
                    )
    if not any(own.values()) and any(modules.values()):
        raise WrongCodeError(
            "no case imported anything from the checkouts: both sides ran the same code. Give a "
            "benchmark file of the repository as the target, or install each side into its own "
            "environment with --setup and --python."
        )
    return own


def _is_foreign(name: str, file: str, side: Side, other: Side) -> bool:
    """Whether a module is from the other checkout or the user's working tree, not installed."""
    if name == "firstlight" or _INSTALLED.intersection(Path(file).parts):
        return False
    return _inside(file, other.file_root) or _inside(file, side.repository)


def _inside(file: str, folder: Path | None) -> bool:
    return folder is not None and Path(file).is_relative_to(folder)


def package_names(root: Path) -> set[str]:
    """Top-level packages of a checkout: folders with `__init__.py` whose parent has none.

    Searched to a depth of four, without environments and hidden folders.
    """
    found = set()
    for depth in range(1, 5):
        for file in root.glob("*/" * depth + "__init__.py"):
            parts = file.relative_to(root).parts[:-1]
            hidden = any(p.startswith(".") or p in ("site-packages", "venv") for p in parts)
            if not hidden and not (file.parent.parent / "__init__.py").exists():
                found.add(file.parent.name)
    return found - _NOT_CODE - {"firstlight"}
