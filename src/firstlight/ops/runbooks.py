"""The runbooks: in the installed package, or in docs/ of a source tree."""

from __future__ import annotations

from pathlib import Path


def folder() -> Path:
    packaged = Path(__file__).parent / "runbook_texts"
    return packaged if packaged.is_dir() else Path(__file__).parents[3] / "docs" / "runbooks"


def texts() -> dict[str, str]:
    """{name without .md: text}."""
    return {path.stem: path.read_text("utf-8") for path in sorted(folder().glob("*.md"))}
