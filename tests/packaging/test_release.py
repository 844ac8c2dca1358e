"""The files that name a version agree."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from firstlight import __version__

ROOT = Path(__file__).parents[2]


def test_the_newest_section_of_the_changelog_is_for_this_version() -> None:
    newest = re.search(r"^## (\S+) \((.+)\)$", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert newest is not None and newest[1] == __version__
    assert re.fullmatch(r"unreleased|\d{4}-\d{2}-\d{2}", newest[2])


def test_the_citation_is_for_this_version_and_complete() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == __version__ and citation["license"] == "Apache-2.0"
    # What the format requires; https://citation-file-format.github.io
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()


def test_the_test_files_of_the_version_matrix_exist() -> None:
    script = (ROOT / "tools" / "test-with-versions.sh").read_text()
    named = re.findall(r"\btests/[\w/.]+", script)
    assert len(named) > 10
    assert [name for name in named if not (ROOT / name).exists()] == []
