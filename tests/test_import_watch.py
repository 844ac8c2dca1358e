"""Something to do after an import, however often it is asked for."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from firstlight.import_watch import when_imported


def test_every_action_for_a_module_is_done_once_and_no_watch_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "watched_module.py").write_text("value = 7\n")
    monkeypatch.syspath_prepend(tmp_path)
    before = list(sys.meta_path)
    done: list[tuple[str, int]] = []
    for name in ("first", "second", "third"):
        when_imported(
            "watched_module",
            lambda name=name: done.append((name, sys.modules["watched_module"].value)),
        )
    import watched_module  # noqa: F401  # type: ignore[import-not-found]

    assert sorted(done) == [("first", 7), ("second", 7), ("third", 7)]
    assert sys.meta_path == before
    sys.modules.pop("watched_module")
